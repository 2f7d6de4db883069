"""Confidence sequences: intervals that hold at all times at once, so that one may look and stop at will."""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch._core.checks import check_real
from bpsearch.inference.unseen import NOTHING_ELSEWHERE, PSEUDO_EPISODES, Elsewhere, event_distance

# The bets θ_k of `lower_bounds`, and what share of the capital each has: most are for hundreds to thousands of values.
_EXPONENTS = np.arange(-16, 11)
BETS = 2.0**_EXPONENTS
SHARES = (2.0 + np.abs(_EXPONENTS)) ** -1.5
SHARES /= SHARES.sum()
_STEPS = 5  # of Newton's method; they double the digits
FEWEST = 30  # episodes; an asymptotic sequence claims nothing from fewer, whose spread says too little
# Where a sequence is to be narrow if its results may end it. Up to 3,000 episodes, from 100 on, it is at most 7% wider
# than one made for just as many; at 100,000, 23%. One made for 100,000 would be nine times as wide at 100.
OPEN_ENDED = 300


def choose_tightest(episodes: int, may_end: bool) -> int:
    """Where a sequence of at most so many episodes is to be narrow; `may_end` if its results may end it before."""
    return min(episodes, OPEN_ENDED) if may_end else episodes


def lower_bounds(values: NumpyArray, delta: float, looks: NumpyArray) -> NumpyArray:
    """Lower bounds of the mean of `values` after as many values as `looks` says; with chance ≥ 1 − δ all hold at once.

    The values ξ_i ≥ 0 have, given those before them, the same mean μ ≤ 1; they need not be bounded, nor independent,
    nor equally distributed. Who bets the share c = θm/(1 + θm) of a capital against a mean of at most m has, after n
    values, Π (1 + c (ξ_i/m − 1)) = Π (1 + θξ_i)/(1 + θm). With capital shares p_k on bets θ_k,

        K_n(m) = Σ_k p_k exp(F_n(θ_k) − n log(1 + θ_k m)),    F_n(θ) = Σ_i log(1 + θ ξ_i).

    K_n(μ) is a martingale that starts at 1 and is never negative, so it ever reaches 1/δ with a chance of at most δ
    (Ville). K_n falls with m: L_n is the largest m in [0, 1] with K_n(m) ≥ 1/δ, and 0 if there is none. F_n is all
    that must be known of the past. The bounds are those of the best look so far.

    Args:
        values: (..., n), ξ.
        delta: δ in (0, 1).
        looks: (B,), increasing, in 1, ..., n.

    Returns:
        (..., B).
    """
    looks = np.asarray(looks)
    firsts = np.concatenate([[0], looks[:-1]])
    kept = values[..., : looks[-1]]
    growth = np.stack([np.add.reduceat(np.log1p(bet * kept), firsts, axis=-1).cumsum(axis=-1) for bet in BETS], axis=-1)
    return np.asarray(np.maximum.accumulate(refute(growth, looks, delta), axis=-1))


def refute(growth: NumpyArray, count: NumpyArray | int, delta: float) -> NumpyArray:
    """L_n of (..., K) growths F_n(θ_k) after `count` values: up to where a mean is refuted.

    One bet alone refutes all means up to (exp((F_n(θ) + log(p δ))/n) − 1)/θ. From the best of these Newton's
    method goes on: log K_n is convex and falls, so that every step ends where the mean is refuted still.
    """
    own = np.log(SHARES) + growth + np.log(delta)
    numbers = np.asarray(count, dtype=np.float64)[..., None]
    with np.errstate(over="ignore"):
        mean = np.clip((np.expm1(own / numbers) / BETS).max(axis=-1), 0.0, 1.0)
    for _ in range(_STEPS):
        terms = own - numbers * np.log1p(BETS * mean[..., None])
        most = terms.max(axis=-1, keepdims=True)
        sizes = np.exp(terms - most)
        total = sizes.sum(axis=-1)
        excess = most[..., 0] + np.log(total)
        slope = (sizes * numbers * BETS / (1.0 + BETS * mean[..., None])).sum(axis=-1) / total
        mean = np.clip(mean + np.maximum(excess, 0.0) / slope, 0.0, 1.0)
    return np.asarray(mean)


def anytime_bounds(
    log_weights: NumpyArray,
    returns: NumpyArray,
    return_range: tuple[float, float],
    looks: NumpyArray,
    level: float = 0.95,
    counted: NumpyArray | None = None,
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
        counted: (n,) truth values that were fixed before the episodes, whole batches at a time: the lower bound rests
            on these alone; all of them by default. Episodes that only explored make it smaller for nothing. The upper
            bound rests on all: what says that there is no more to come says so whatever the behavior looked for.
    """
    low, high = return_range
    side = (1.0 - check_real("level", level, above=0.0, high=1.0 - 1e-12)) / 2.0
    shares = np.clip((returns - low) / (high - low), 0.0, 1.0)
    weights = np.exp(log_weights)
    lower = _lower_of_counted(weights * shares, side, looks, counted)
    upper = np.minimum(1.0 - lower_bounds(weights * (1.0 - shares), side, looks), 1.0)
    contradict = lower > upper
    lower, upper = np.where(contradict, 0.0, lower), np.where(contradict, 1.0, upper)
    return low + lower * (high - low), low + upper * (high - low)


def _lower_of_counted(values: NumpyArray, delta: float, looks: NumpyArray, counted: NumpyArray | None) -> NumpyArray:
    if counted is None or counted.all():
        return np.maximum(lower_bounds(values, delta, looks), 0.0)
    lower = np.zeros((*values.shape[:-1], len(looks)))
    so_far = np.cumsum(counted)[np.asarray(looks) - 1]
    some = np.unique(so_far[so_far > 0])
    if len(some):
        bounds = lower_bounds(values[..., counted], delta, some)
        lower[..., so_far > 0] = bounds[..., np.searchsorted(some, so_far[so_far > 0])]
    return np.maximum(lower, 0.0)


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
        episodes: (2,), n for the lower bound, of the batches that count, and for the upper, of all.
        growth: (2, K), F_n(θ_k) for the lower bound and for the upper.
        best: (2,), the best bounds so far.
    """

    return_range: tuple[float, float]
    level: float = 0.95
    episodes: NumpyArray = field(default_factory=lambda: np.zeros(2))
    growth: NumpyArray = field(default_factory=lambda: np.zeros((2, len(BETS))))
    best: NumpyArray = field(default_factory=lambda: np.full(2, -np.inf))

    def __post_init__(self) -> None:
        check_real("level", self.level, above=0.0, high=1.0 - 1e-12)

    def add(self, log_weights: NumpyArray, returns: NumpyArray, *, counts: bool = True) -> "CertifiedSequence":
        """The sequence after a look at another batch, which has no part in the lower bound unless it `counts`."""
        low, high = self.return_range
        shares = np.clip((returns - low) / (high - low), 0.0, 1.0)
        values = np.exp(log_weights) * np.stack([shares, 1.0 - shares])
        side = (1.0 - self.level) / 2.0
        part = np.array([counts, True])
        growth = self.growth + part[:, None] * np.log1p(BETS[:, None] * values[:, None]).sum(axis=-1)
        episodes = self.episodes + part * values.shape[1]
        best = self.best.copy()
        known = episodes > 0
        best[known] = np.maximum(best[known], refute(growth[known], episodes[known], side))
        return CertifiedSequence(self.return_range, self.level, episodes, growth, best)

    @property
    def interval(self) -> tuple[float, float]:
        """The bounds of the expected return."""
        low, high = self.return_range
        lower, upper = max(self.best[0], 0.0), min(1.0 - self.best[1], 1.0)
        if lower > upper:
            lower, upper = 0.0, 1.0
        return float(low + lower * (high - low)), float(low + upper * (high - low))


@dataclass(frozen=True)
class AsymptoticSequence:
    """A confidence sequence by a time-uniform central limit theorem: no range needed, and every saving counts.

    For values X_i whose expectation, given all before them, is ρ, with t = Σ ω, mean m = Σ ω X / t and V = Σ ω² σ²,
    σ² the variance within a batch,

        m ± sqrt(2 V (n r² + 1) / (n r²) · log(sqrt(n r² + 1) / δ)) / t

    holds for all n at once with a probability that tends to 1 − δ (Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas:
    "Time-uniform central limit theory and asymptotic confidence sequences"). It is tightest about n = `tightest`,
    which must be fixed before the study: r² = (−2 log δ + log(1 − 2 log δ)) / tightest. From a handful of episodes V
    is often far too small by chance, so nothing is claimed before there are 30.

    Where the values are returns of reduced variance, V has room for events that were not seen (`unseen`): in the
    batches that the evaluation policy itself collected. If batches of another behavior show that returns vary more
    than in those, V has that as well.

    Attributes:
        tightest: the number of episodes at which the intervals are to be narrow.
        episodes: n.
        weight: t.
        total: Σ ω X.
        reduced: Σ ω² σ² of the values.
        own: episodes that the evaluation policy itself collected.
        own_reduced: Σ ω² σ² of their values.
        own_plain: the same of their returns.
        own_squares: Σ ω².
        returns: the sum, the smallest and the largest of these returns.
        missing: how far an event may lie that a search has not found (`missing`).
        elsewhere: what other behaviors show of the policy's returns.
    """

    tightest: int
    episodes: int = 0
    weight: float = 0.0
    total: float = 0.0
    reduced: float = 0.0
    own: int = 0
    own_reduced: float = 0.0
    own_plain: float = 0.0
    own_squares: float = 0.0
    returns: tuple[float, float, float] = (0.0, math.inf, -math.inf)
    missing: float = 0.0
    elsewhere: Elsewhere = NOTHING_ELSEWHERE

    def add(
        self, values: NumpyArray, weight: float = 1.0, returns: NumpyArray | None = None, missing: float = 0.0
    ) -> "AsymptoticSequence":
        """The sequence after another batch.

        Args:
            values: of the batch.
            weight: what each of its episodes counts; with 0 nothing changes.
            returns: as they came, if the evaluation policy itself collected them; None if the values are weighted.
            missing: how far an event may lie that none of all episodes so far has shown.
        """
        if weight == 0.0:
            return self
        count = len(values)
        spread = weight**2 * count * _spread(values, self.mean if self.episodes else float(values[0]))
        after = replace(
            self,
            episodes=self.episodes + count,
            weight=self.weight + weight * count,
            total=self.total + weight * float(np.sum(values)),
            reduced=self.reduced + spread,
            missing=missing,
        )
        if returns is None:
            return after
        total, low, high = self.returns
        plain = weight**2 * count * _spread(returns, total / self.own if self.own else float(returns[0]))
        return replace(
            after,
            own=self.own + count,
            own_reduced=self.own_reduced + spread,
            own_plain=self.own_plain + plain,
            own_squares=self.own_squares + weight**2 * count,
            returns=(total + float(returns.sum()), min(low, float(returns.min())), max(high, float(returns.max()))),
        )

    def learn(self, returns: NumpyArray, log_weights: NumpyArray) -> "AsymptoticSequence":
        """With what a batch of another behavior shows of the policy's returns."""
        return replace(self, elsewhere=self.elsewhere.add(returns, log_weights))

    @property
    def mean(self) -> float:
        """M; NaN as long as nothing counts."""
        return self.total / self.weight if self.weight else math.nan

    @property
    def variance(self) -> float:
        """V, with room for what was not seen.

        Where the policy itself collected episodes there is never more of it than returns vary.
        """
        if not self.own:
            return self.reduced + PSEUDO_EPISODES * self.missing**2
        room = min(PSEUDO_EPISODES * self.distance**2, self.own_plain - self.own_reduced)
        shown = self.own_squares * self.elsewhere.excess(self.own_plain / self.own_squares)
        return self.reduced + max(room, 0.0) + shown

    @property
    def plain(self) -> float:
        """Σ ω² σ² of the returns; infinite if some are weighted."""
        return self.own_plain if self.own == self.episodes else math.inf

    @property
    def distance(self) -> float:
        """D, how far an event may lie from the mean of the policy's own returns."""
        total, low, high = self.returns
        mean = total / self.own
        return float(event_distance(max(high - mean, mean - low), math.sqrt(self.own_plain / self.own_squares)))

    def half_width(self, level: float = 0.95) -> float:
        """Half the width of the interval of this level; infinite as long as few episodes count, or none varies."""
        delta = 1.0 - check_real("level", level, above=0.0, high=1.0 - 1e-12)
        if self.episodes < FEWEST or self.variance == 0.0:
            return math.inf
        rate = (-2.0 * np.log(delta) + np.log(1.0 - 2.0 * np.log(delta))) / self.tightest
        mixed = self.episodes * rate + 1.0
        factor = 2.0 * mixed / (self.episodes * rate) * np.log(np.sqrt(mixed) / delta)
        return float(np.sqrt(self.variance * factor)) / self.weight

    def interval(self, level: float = 0.95) -> tuple[float, float] | None:
        """The interval of this level; None as long as few episodes count, or none varies."""
        half = self.half_width(level)
        return None if math.isinf(half) else (self.mean - half, self.mean + half)


def _spread(values: NumpyArray, before: float) -> float:
    """The variance within a batch; of a single value, its squared distance from the mean before it."""
    return float(np.var(values, ddof=1)) if len(values) > 1 else (float(values[0]) - before) ** 2
