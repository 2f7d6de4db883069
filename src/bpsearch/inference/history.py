"""The course of a study, batch by batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch.inference.unseen import PSEUDO_EPISODES, event_distance


@dataclass(frozen=True, eq=False)
class History:
    """The study batch by batch.

    Attributes:
        episodes: how many there were after each batch.
        values: the estimate after each batch.
        std_errors: its standard error; NaN where unknown.
        batch_variances: the variance of the values within each batch.
        divergences: the estimated divergence KL(behavior ‖ policy) of each batch's whole episodes.
    """

    episodes: NumpyArray
    values: NumpyArray
    std_errors: NumpyArray
    batch_variances: NumpyArray
    divergences: NumpyArray

    @classmethod
    def of(
        cls,
        values: Sequence[NumpyArray],
        log_weights: Sequence[NumpyArray],
        weights: Sequence[float],
        returns: Sequence[NumpyArray] | None = None,
    ) -> "History":
        """By running sums over the batches.

        Args:
            values: of each batch.
            log_weights: of each batch.
            weights: what an episode of each batch counts; as long as none counts, the last batch stands alone.
            returns: of each batch, if the evaluation policy itself collected them: the standard errors then have room
                for events that were not seen (`unseen`).
        """
        sizes, counts = np.array([len(batch) for batch in values]), np.asarray(weights)
        starts, episodes = np.cumsum(sizes) - sizes, np.cumsum(sizes)
        every, logs = np.concatenate(values), np.concatenate(log_weights)
        variances, sums = _variances(every, starts, sizes), np.add.reduceat(every, starts)
        alone = np.cumsum(counts) == 0.0
        totals = np.where(alone, sizes, np.cumsum(counts * sizes))
        squared = np.where(
            alone, sizes * variances, np.cumsum(np.where(counts > 0.0, counts**2 * sizes * variances, 0.0))
        )
        squared = squared / totals**2
        if returns is not None:
            joined = np.concatenate(returns)
            means = np.cumsum(np.add.reduceat(joined, starts)) / episodes
            lowest = np.minimum.accumulate(np.minimum.reduceat(joined, starts))
            highest = np.maximum.accumulate(np.maximum.reduceat(joined, starts))
            summed = np.cumsum(counts**2 * sizes * _variances(joined, starts, sizes))
            deviations = np.sqrt(summed / np.maximum(np.cumsum(counts**2 * sizes), 1e-300))
            distances = event_distance(np.maximum(highest - means, means - lowest), deviations)
            plain = summed / totals**2
            squared = np.maximum(squared, np.minimum(squared + PSEUDO_EPISODES * (distances / episodes) ** 2, plain))
        with np.errstate(over="ignore"):
            # KL(π_b ‖ π_e) = E_b[w − 1 − log w]: each term is non-negative, so it is quieter than the mean of −log w.
            divergences = np.add.reduceat(np.expm1(logs) - logs, starts) / sizes
        return cls(
            episodes=episodes,
            values=np.where(alone, sums, np.cumsum(counts * sums)) / totals,
            std_errors=np.sqrt(squared),
            batch_variances=variances,
            divergences=divergences,
        )


def _variances(values: NumpyArray, starts: NumpyArray, sizes: NumpyArray) -> NumpyArray:
    """The variance within each batch; NaN for a single value."""
    means = np.add.reduceat(values, starts) / sizes
    squares = np.add.reduceat((values - np.repeat(means, sizes)) ** 2, starts)
    return np.where(sizes > 1, squares / np.maximum(sizes - 1, 1), np.nan)
