"""Confidence sequences: intervals that hold at all times at once, so that one may look and stop at will."""

import math
from dataclasses import dataclass, field

import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch._core.checks import check_real
from bpsearch.inference.unseen import PSEUDO_EPISODES

# λ_k = LARGEST · 2^−k with the prior weights 1/((k + 1)(k + 2)), which sum to 1. The smallest serves a sum of squares
# of about 1e16.
LARGEST, COUNT = 0.75, 28


def lower_bounds(values: NumpyArray, delta: float, looks: NumpyArray) -> NumpyArray:
    """Lower bounds of the mean of `values` after as many values as `looks` says; with chance ≥ 1 − δ all hold at once.

    The values ξ_i ≥ 0 have, given those before them, the same mean μ ≤ 1; they need not be bounded, nor independent,
    nor equally distributed. With m_{i−1} in [0, 1] the mean of the earlier values, S_n = Σ ξ_i,
    V_n = Σ (ξ_i − m_{i−1})² and ψ(λ) = −log(1 − λ) − λ,

        L_n = max_k (S_n − (ψ(λ_k) V_n + log((k + 1)(k + 2)/δ)) / λ_k) / n.

    For each λ in (0, 1), exp(λ(S_n − nμ) − ψ(λ) V_n) is a supermartingale that starts at 1, because
    exp(λx − ψ(λ)x²) ≤ 1 + λx for x ≥ −1 (the empirical Bernstein argument). By Ville's inequality it ever exceeds
    (k + 1)(k + 2)/δ with a chance of at most δ/((k + 1)(k + 2)), and these sum to δ. The bounds are those of the
    best look so far.

    Args:
        values: (..., n), ξ.
        delta: δ in (0, 1).
        looks: (B,), increasing, in 1, ..., n.

    Returns:
        (..., B).
    """
    numbers = np.arange(1, values.shape[-1] + 1)
    sums = np.cumsum(values, axis=-1)
    means = np.clip((0.5 + sums - values) / numbers, 0.0, 1.0)
    squares = np.cumsum((values - means) ** 2, axis=-1)
    at = np.asarray(looks) - 1
    return np.maximum.accumulate(_best_bound(sums[..., at], squares[..., at], delta) / numbers[at], axis=-1)


def _best_bound(sums: NumpyArray, squares: NumpyArray, delta: float) -> NumpyArray:
    """N L_n of `lower_bounds`: the best of all λ_k."""
    k = np.arange(COUNT, dtype=np.float64)
    rates = LARGEST * 0.5**k
    penalties = -np.log1p(-rates) - rates
    costs = np.log((k + 1.0) * (k + 2.0) / delta)
    return np.asarray((sums[..., None] - (penalties * squares[..., None] + costs) / rates).max(axis=-1))


def anytime_bounds(
    log_weights: NumpyArray,
    returns: NumpyArray,
    return_range: tuple[float, float],
    looks: NumpyArray,
    level: float = 0.95,
) -> tuple[NumpyArray, NumpyArray]:
    """Bounds of ρ = E[w g] after each look; with chance ≥ `level` they hold at all looks at once.

    Episodes come from behaviors that were fixed before them, so E[w g] = ρ and E[w] = 1 for each. The lower bound is
    that of the mean of w (g − g_min)/(g_max − g_min), the upper bound that of w (g_max − g)/(g_max − g_min) seen from
    above, each with δ/2. Weights of any size are allowed; large ones make the bounds wide, not wrong. Where the two
    contradict each other, which has a chance of at most δ, nothing is claimed but the range.

    Args:
        log_weights: (..., n), log w = log ρ_{0:L}.
        returns: (..., n), g in the range.
        return_range: (g_min, g_max).
        looks: (B,), after how many episodes.
        level: 1 − δ.
    """
    low, high = return_range
    side = (1.0 - check_real("level", level, above=0.0, high=1.0 - 1e-12)) / 2.0
    shares = np.clip((returns - low) / (high - low), 0.0, 1.0)
    weights = np.exp(log_weights)
    lower = np.maximum(lower_bounds(weights * shares, side, looks), 0.0)
    upper = np.minimum(1.0 - lower_bounds(weights * (1.0 - shares), side, looks), 1.0)
    contradict = lower > upper
    lower, upper = np.where(contradict, 0.0, lower), np.where(contradict, 1.0, upper)
    return low + lower * (high - low), low + upper * (high - low)


def upper_bound_of_event(
    log_weights: NumpyArray, happened: NumpyArray, looks: NumpyArray, level: float = 0.95
) -> NumpyArray:
    """(..., B), one-sided upper bounds of the probability of an event, which hold at all looks at once."""
    check_real("level", level, above=0.0, high=1.0 - 1e-12)
    missed = np.exp(log_weights) * (1.0 - happened)
    return np.clip(1.0 - lower_bounds(missed, 1.0 - level, looks), 0.0, 1.0)


def out_of_range(returns: NumpyArray, return_range: tuple[float, float]) -> bool:
    """Whether a return lies beyond the range by more than rounding."""
    low, high = return_range
    rounding = 1e-9 * (high - low)
    return bool(np.min(returns) < low - rounding or np.max(returns) > high + rounding)


@dataclass(frozen=True, eq=False)
class CertifiedSequence:
    """`anytime_bounds` at one level, batch by batch: the cost of a look does not grow with what came before.

    Attributes:
        return_range: (g_min, g_max).
        level: 1 − δ.
        episodes: n.
        sums: (2,), S_n for the lower bound and for the upper.
        squares: (2,), V_n.
        best: (2,), the best bounds so far.
    """

    return_range: tuple[float, float]
    level: float = 0.95
    episodes: int = 0
    sums: NumpyArray = field(default_factory=lambda: np.zeros(2))
    squares: NumpyArray = field(default_factory=lambda: np.zeros(2))
    best: NumpyArray = field(default_factory=lambda: np.full(2, -np.inf))

    def __post_init__(self) -> None:
        check_real("level", self.level, above=0.0, high=1.0 - 1e-12)

    def add(self, log_weights: NumpyArray, returns: NumpyArray) -> "CertifiedSequence":
        """The sequence after a look at another batch."""
        low, high = self.return_range
        shares = np.clip((returns - low) / (high - low), 0.0, 1.0)
        values = np.exp(log_weights) * np.stack([shares, 1.0 - shares])
        side = (1.0 - self.level) / 2.0
        bounds, sums, squares = _extend(values, side, self.episodes, self.sums, self.squares)
        best = np.maximum(self.best, bounds)
        return CertifiedSequence(self.return_range, self.level, self.episodes + values.shape[1], sums, squares, best)

    @property
    def interval(self) -> tuple[float, float]:
        """The bounds of the expected return."""
        low, high = self.return_range
        lower, upper = max(self.best[0], 0.0), min(1.0 - self.best[1], 1.0)
        if lower > upper:
            lower, upper = 0.0, 1.0
        return float(low + lower * (high - low)), float(low + upper * (high - low))


def _extend(
    values: NumpyArray, delta: float, before: int, sums: NumpyArray, squares: NumpyArray
) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
    """The bounds after (..., n) further values, and the sums S and V with them."""
    totals = sums[..., None] + np.cumsum(values, axis=-1)
    numbers = np.arange(before + 1, before + values.shape[-1] + 1)
    means = np.clip((0.5 + totals - values) / numbers, 0.0, 1.0)
    squares = squares + np.sum((values - means) ** 2, axis=-1)
    sums = totals[..., -1]
    return _best_bound(sums, squares, delta) / numbers[-1], sums, squares


@dataclass(frozen=True)
class AsymptoticSequence:
    """A confidence sequence by a time-uniform central limit theorem: no range needed, and every saving counts.

    For values X_i whose expectation, given all before them, is ρ, with t = Σ ω, mean m = Σ ω X / t and V = Σ ω² σ²,
    σ² the variance within a batch,

        m ± sqrt(2 V (n r² + 1) / (n r²) · log(sqrt(n r² + 1) / δ)) / t

    holds for all n at once with a probability that tends to 1 − δ (Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas:
    "Time-uniform central limit theory and asymptotic confidence sequences"). It is tightest about n = `tightest`,
    which must be fixed before the study: r² = (−2 log δ + log(1 − 2 log δ)) / tightest.

    Where the values are returns of reduced variance, V has room for events that were not seen (`unseen`).

    Attributes:
        tightest: the number of episodes at which the intervals are to be narrow.
        episodes: n.
        weight: t.
        total: Σ ω X.
        reduced: Σ ω² σ² of the values.
        plain: the same of the returns; infinite if they are weighted.
        returns: the sum, the smallest and the largest of the returns.
    """

    tightest: int
    episodes: int = 0
    weight: float = 0.0
    total: float = 0.0
    reduced: float = 0.0
    plain: float = 0.0
    returns: tuple[float, float, float] = (0.0, math.inf, -math.inf)

    def add(self, values: NumpyArray, weight: float = 1.0, returns: NumpyArray | None = None) -> "AsymptoticSequence":
        """The sequence after another batch.

        Args:
            values: of the batch.
            weight: what each of its episodes counts.
            returns: as they came, if the evaluation policy itself collected them; None if the values are weighted.
        """
        count = len(values)
        plain, seen = math.inf, self.returns
        if returns is not None:
            before = seen[0] / self.episodes if self.episodes else float(returns[0])
            plain = self.plain + weight**2 * count * _spread(returns, before)
            seen = (
                seen[0] + float(returns.sum()),
                min(seen[1], float(returns.min())),
                max(seen[2], float(returns.max())),
            )
        return AsymptoticSequence(
            self.tightest,
            self.episodes + count,
            self.weight + weight * count,
            self.total + weight * float(np.sum(values)),
            self.reduced + weight**2 * count * _spread(values, self.mean if self.episodes else float(values[0])),
            plain,
            seen,
        )

    @property
    def mean(self) -> float:
        """M."""
        return self.total / self.weight

    @property
    def variance(self) -> float:
        """V."""
        if not math.isfinite(self.plain):
            return self.reduced
        return max(self.reduced, min(self.reduced + PSEUDO_EPISODES * self.distance**2, self.plain))

    @property
    def distance(self) -> float:
        """D, how far a return was seen to lie from their mean."""
        total, low, high = self.returns
        mean = total / self.episodes
        return max(high - mean, mean - low)

    def half_width(self, level: float = 0.95) -> float:
        """Half the width of the interval of this level; infinite while nothing has varied."""
        if self.variance == 0.0:
            return math.inf
        delta = 1.0 - check_real("level", level, above=0.0, high=1.0 - 1e-12)
        rate = (-2.0 * np.log(delta) + np.log(1.0 - 2.0 * np.log(delta))) / self.tightest
        mixed = self.episodes * rate + 1.0
        factor = 2.0 * mixed / (self.episodes * rate) * np.log(np.sqrt(mixed) / delta)
        return float(np.sqrt(self.variance * factor)) / self.weight

    def interval(self, level: float = 0.95) -> tuple[float, float] | None:
        """The interval of this level; None while nothing has varied."""
        half = self.half_width(level)
        return None if math.isinf(half) else (self.mean - half, self.mean + half)


def _spread(values: NumpyArray, before: float) -> float:
    """The variance within a batch; of a single value, its squared distance from the mean before it."""
    return float(np.var(values, ddof=1)) if len(values) > 1 else (float(values[0]) - before) ** 2
