"""Standard errors and confidence intervals for values that come in adaptive batches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from bpsearch._core.arrays import NumpyArray
from bpsearch._core.checks import check_real
from bpsearch.errors import InvalidArgumentError


@dataclass(frozen=True)
class MeanError:
    """How uncertain the mean over all batches is.

    Attributes:
        variance: of the mean.
        degrees_of_freedom: of the t distribution that the standardised mean approximately follows.
    """

    variance: float
    degrees_of_freedom: float

    @property
    def std_error(self) -> float:
        """The standard error of the mean."""
        return float(np.sqrt(self.variance))

    def half_width(self, level: float) -> float:
        """Half the width of the two-sided interval of this confidence level."""
        check_real("level", level, above=0.0, high=1.0 - 1e-12)
        return float(stats.t.ppf(0.5 + level / 2.0, self.degrees_of_freedom)) * self.std_error


def martingale_error(
    batches: Sequence[NumpyArray], weights: Sequence[float] | None = None, *, heavy_tails: bool = False
) -> MeanError | None:
    """The error of the mean over all values of all batches; None if it cannot be known.

    The behavior of a batch is fixed before the batch, so the deviations X − ρ are martingale differences and
    Var(mean) = Σ_b ω_b² n_b Var_b / (Σ_b ω_b n_b)²: batches may have different variances. Each Var_b is estimated
    within its batch, which is unbiased whatever the earlier batches were; the degrees of freedom are Welch and
    Satterthwaite's. A batch of one episode is put together with a neighbor. Fewer than two values, or values without
    any spread, say nothing.

    Args:
        batches: their values.
        weights: ω_b, what an episode of each batch counts, fixed before it; 1 by default. Batches that count 0 have no
            part in it.
        heavy_tails: whether values may be nearly all alike but for a few, as those of rare events: the degrees of
            freedom then also follow from the kurtosis κ_b within each batch, of which the variance estimate has the
            relative variance (κ_b − 1)/n_b. Three failures among many episodes are worth about six.
    """
    if weights is not None:
        counted = [(values, weight) for values, weight in zip(batches, weights, strict=True) if weight]
        batches, weights = [values for values, _ in counted], [weight for _, weight in counted]
    sizes = np.array([len(values) for values in batches])
    if sizes.sum() < 2:
        return None
    omegas = np.ones(len(sizes)) if weights is None else np.asarray(weights, dtype=np.float64)
    firsts = _groups(sizes.tolist())  # of each group, its first batch
    starts = (np.cumsum(sizes) - sizes)[firsts]
    counts, squares = (np.add.reduceat(sizes * omega, firsts) for omega in (omegas, omegas**2))
    sizes = np.add.reduceat(sizes, firsts)
    joined = np.concatenate(batches)
    deviations = joined - np.repeat(joined[starts], sizes)  # exactly 0 where nothing varies
    deviations = deviations - np.repeat(np.add.reduceat(deviations, starts) / sizes, sizes)
    parts = squares * np.add.reduceat(deviations**2, starts) / (sizes - 1)
    if not parts.any():
        return None
    freedom = parts.sum() ** 2 / np.sum(parts**2 / (sizes - 1))
    if heavy_tails:
        second, fourth = (np.add.reduceat(deviations**power, starts) / sizes for power in (2, 4))
        doubt = np.maximum(fourth - second**2, 0.0) / np.maximum(second**2, 1e-300) / sizes
        freedom = min(freedom, 2.0 * parts.sum() ** 2 / max(np.sum(parts**2 * doubt), 1e-300))
    return MeanError(float(parts.sum() / counts.sum() ** 2), float(freedom))


def _groups(sizes: Sequence[int]) -> list[int]:
    """The first batch of each group: a batch of fewer than two values, or after such a group, is part of it."""
    firsts, group = [0], 0
    for number, size in enumerate(sizes):
        if number and min(group, size) >= 2:
            firsts.append(number)
            group = 0
        group += size
    return firsts


def episodes_for(variance: float, half_width: float, level: float, room: float = 0.0) -> int:
    """The smallest number n of episodes with t_{n−1} · sqrt(variance / n + room / n²) ≤ half_width.

    Args:
        variance: of one value.
        half_width: of the wanted interval.
        level: its level.
        room: what is added for events that n episodes may not show (`unseen`), k D².
    """
    tail = 0.5 + check_real("level", level, above=0.0, high=1.0 - 1e-12) / 2.0
    check_real("half_width", half_width, above=0.0)
    scale = max(math.sqrt(variance), math.sqrt(room)) / half_width
    if scale > 1e100:
        raise InvalidArgumentError(f"half_width must be large enough for a number of episodes, got {half_width:g}")
    least = variance * (float(stats.norm.ppf(tail)) / half_width) ** 2

    def enough(count: int) -> bool:
        # Divided by the square of the half-width: whatever the unit, nothing overflows.
        spread = variance / half_width**2 / count + room / half_width**2 / count**2
        return bool(stats.t.ppf(tail, float(count - 1)) * math.sqrt(spread) <= 1.0)

    low = max(int(least), 1)  # too few, or a single one
    high = low + 1
    while not enough(high):
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def clopper_pearson(events: int, episodes: int, level: float) -> tuple[float, float]:
    """The exact two-sided interval for the probability of an event that happened in `events` of `episodes`."""
    side = (1.0 - check_real("level", level, above=0.0, high=1.0 - 1e-12)) / 2.0
    low = float(stats.beta.ppf(side, events, episodes - events + 1)) if events else 0.0
    return low, binomial_upper_bound(events, episodes, 1.0 - side)


def binomial_upper_bound(events: int, episodes: int, level: float) -> float:
    """The exact one-sided upper bound; without any event it is 1 − δ^(1/n), about log(1/δ)/n."""
    check_real("level", level, above=0.0, high=1.0 - 1e-12)
    return float(stats.beta.ppf(level, events + 1, episodes - events)) if events < episodes else 1.0
