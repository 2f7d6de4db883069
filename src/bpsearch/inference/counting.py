"""What an episode of each batch counts, if a search fixes that together with the behavior.

A search says before a batch what its episodes are to count relative to later ones, ω_k: 0 for a batch that only
explores. ω_k may depend on all earlier batches. A mean with such weights, divided by their sum, is biased: whether a
batch counts much depends on what the batches before it showed, and so does the sum. What is exactly unbiased is to deal
out a whole: batch k of n_k episodes takes the share

    ω_k n_k / (ω_k n_k + n_{k+1} + ... + n_K)

of what the batches before it have left of 1, as if all later episodes were to count 1; the last takes the rest. Every
share is fixed before its batch and they sum to 1. So with X̄_k the mean of a batch, E[X̄_k|batches before] = ρ, and
E[Σ_k a_k X̄_k] = ρ + Σ_k E[a_k E[X̄_k − ρ|batches before]] = ρ, for every number K of batches that is fixed in advance.

For an episode that is c_K = 1, c_k = ω_k · (mean of c over all later episodes): batches that count 0 up to some moment
and 1 from then on have just that, and if the moment never came the last batch stands alone.
"""

from collections.abc import Sequence


def count_episodes(weights: Sequence[float], sizes: Sequence[int]) -> list[float]:
    """What an episode of each batch counts, relative to one of the last batch.

    Args:
        weights: ω_k ≥ 0 of each batch in the order of asking, each fixed before its batch.
        sizes: n_k, how many episodes each has.
    """
    counts, later, total = [1.0], sizes[-1], float(sizes[-1])
    for weight, size in zip(reversed(weights[:-1]), reversed(sizes[:-1]), strict=True):
        # Exactly ω where all later batches count 1.
        count = float(weight) * (total / later)
        counts.append(count)
        later, total = later + size, total + count * size
    return counts[::-1]
