"""Standard errors and confidence intervals for values that come in adaptive batches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from bpsearch.checks import check_real
from bpsearch.errors import InvalidArgumentError
from bpsearch.trajectories import Array


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


def martingale_error(batches: Sequence[Array], weights: Sequence[float] | None = None) -> MeanError | None:
    """The error of the mean over all values of all batches; None if it cannot be known.

    The behavior of a batch is fixed before the batch, so the deviations X − ρ are martingale differences and
    Var(mean) = Σ_b ω_b² n_b Var_b / (Σ_b ω_b n_b)²: batches may have different variances. Each Var_b is estimated
    within its batch, which is unbiased whatever the earlier batches were; the degrees of freedom are Welch and
    Satterthwaite's. A batch of one episode is put together with a neighbor. Fewer than two values, or values without
    any spread, say nothing.

    Args:
        batches: their values.
        weights: ω_b, what an episode of each batch counts, fixed before the study; 1 by default.
    """
    groups: list[Array] = []
    scales: list[Array] = []
    for values, weight in zip(batches, weights or [1.0] * len(batches), strict=True):
        counts = np.full(len(values), weight)
        if groups and min(len(groups[-1]), len(values)) < 2:
            groups[-1], scales[-1] = np.concatenate([groups[-1], values]), np.concatenate([scales[-1], counts])
        else:
            groups, scales = [*groups, np.asarray(values)], [*scales, counts]
    sizes = np.array([len(group) for group in groups])
    if sizes.sum() < 2:
        return None
    squares = np.array([np.sum(scale**2) for scale in scales])
    parts = np.array([square * np.var(group, ddof=1) for square, group in zip(squares, groups, strict=True)])
    if not parts.any():
        return None
    freedom = parts.sum() ** 2 / np.sum(parts**2 / (sizes - 1))
    return MeanError(float(parts.sum() / sum(scale.sum() for scale in scales) ** 2), float(freedom))


def episodes_for(variance: float, half_width: float, level: float) -> int:
    """The smallest number n of independent values of this variance with t_{n−1} · sqrt(variance / n) ≤ half_width."""
    tail = 0.5 + check_real("level", level, above=0.0, high=1.0 - 1e-12) / 2.0
    scale = math.sqrt(variance) / check_real("half_width", half_width, above=0.0)
    if scale > 1e100:
        raise InvalidArgumentError(f"half_width must be large enough for a number of episodes, got {half_width:g}")
    least = (scale * float(stats.norm.ppf(tail))) ** 2

    def enough(count: int) -> bool:
        return bool(scale * stats.t.ppf(tail, float(count - 1)) <= math.sqrt(count))

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
