"""The difference of two policies, round by round: its sequence of intervals, what may be decided, its error.

In a round both policies run as many episodes. If they share their seeds, episode i of the one has the start and the
random numbers of episode i of the other, and what the two have in common cancels in X_i − Y_i. Whether they share them
is fixed before the round. So the differences of a round have, given all rounds before it, the expectation ρ_1 − ρ_2,
and their own variance is that of their mean, with shared seeds and without.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from jaxtyping import Float64

from bpsearch._core.arrays import NumpyArray
from bpsearch.errors import InvalidArgumentError
from bpsearch.inference.confidence_sequence import AsymptoticSequence
from bpsearch.inference.intervals import MeanError, martingale_error
from bpsearch.inference.unseen import PSEUDO_EPISODES, farthest, make_room, widen

CLEARLY = 2.0  # standard errors by which sharing seeds must have done harm before it ends


class Decision(StrEnum):
    """What may be said of the first policy beside the second."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
    UNDECIDED = "undecided"

    @property
    def opposite(self) -> "Decision":
        """The same where a smaller value is the better one."""
        return {Decision.BETTER: Decision.WORSE, Decision.WORSE: Decision.BETTER}.get(self, self)


def decide(interval: tuple[float, float] | None, margin: float | None = None) -> Decision:
    """What an interval of the difference says, where a larger value is the better one.

    Equivalent is a difference that lies within ± `margin` as a whole: also one that is known not to be 0.
    """
    if interval is None:
        return Decision.UNDECIDED
    low, high = interval
    if margin is not None and -margin <= low and high <= margin:
        return Decision.EQUIVALENT
    if low > 0.0:
        return Decision.BETTER
    return Decision.WORSE if high < 0.0 else Decision.UNDECIDED


@dataclass(frozen=True, eq=False)
class Turn:
    """What the batch of one policy in one round says.

    Attributes:
        values: (N,), given the batches before it; no later batch changes them.
        returns: (N,), as they came.
        plain: whether the policy itself collected them, so that no return is weighted.
        weight: what an episode counts; fixed before the comparison.
        log_weights: (N,), log ρ_{0:L}; None if no return is weighted.
        missing: how far an event may lie that none of the episodes so far has shown.
    """

    values: Float64[NumpyArray, " episodes"]
    returns: Float64[NumpyArray, " episodes"]
    plain: bool = True
    weight: float = 1.0
    log_weights: Float64[NumpyArray, " episodes"] | None = None
    missing: float = 0.0


@dataclass(frozen=True)
class Pairing:
    """What rounds with shared seeds say about sharing them: the covariance of the values within rounds, and its noise.

    Attributes:
        covariance: Σ (X − X̄)(Y − Ȳ).
        noise: the sum of the squared terms.
        pairs: how many.
    """

    covariance: float = 0.0
    noise: float = 0.0
    pairs: int = 0

    def add(self, one: NumpyArray, other: NumpyArray, means: tuple[float, float]) -> "Pairing":
        """With another round; `means` serve a round of a single pair."""
        first, second = (one.mean(), other.mean()) if len(one) > 1 else means
        terms = (one - first) * (other - second)
        return self + Pairing(float(terms.sum()), float(np.sum(terms**2)), len(terms))

    def __add__(self, other: "Pairing") -> "Pairing":
        """What both say."""
        return Pairing(self.covariance + other.covariance, self.noise + other.noise, self.pairs + other.pairs)

    @property
    def harms(self) -> bool:
        """Whether values with shared seeds clearly go against each other, so that their difference varies more."""
        return self.covariance < -CLEARLY * math.sqrt(self.noise)


@dataclass(frozen=True, eq=False)
class DifferenceSequence:
    """The confidence sequence of ρ_1 − ρ_2, by the time-uniform central limit theorem of `AsymptoticSequence`.

    It is made of the differences X − Y of the values. Pairing and control variates may have removed most of what two
    independent evaluations would vary, and what is left says nothing about events that were not seen. So there is room
    for one that moves the difference as far as an event may lie from the mean of the returns (`unseen`):

        V = max(V_{X−Y}, min(V_{X−Y} + k D², V_g + V_h)),    D = max(D_g, D_h),

    V_g and V_h the variances of the returns of both: Monte Carlo's, each policy for itself.

    Attributes:
        difference: of X − Y.
        one: of the first policy's values in these rounds.
        other: of the second's.
        pairing: what the rounds with shared seeds say about sharing them.
    """

    difference: AsymptoticSequence
    one: AsymptoticSequence
    other: AsymptoticSequence
    pairing: Pairing = Pairing()

    @classmethod
    def begin(cls, tightest: int) -> "DifferenceSequence":
        """Before the first round; `tightest` is the number of pairs at which the intervals are to be narrow."""
        nothing = AsymptoticSequence(tightest)
        return cls(nothing, nothing, nothing)

    def add(self, one: Turn, other: Turn, *, shared: bool) -> "DifferenceSequence":
        """The sequence after another round."""
        if len(one.values) != len(other.values):
            raise InvalidArgumentError(
                f"both policies of a round must have as many episodes, got {len(one.values)} and {len(other.values)}"
            )
        weight = min(one.weight, other.weight)
        pairing = self.pairing
        if shared and (self.pairs or len(one.values) > 1):
            means = (self.one.mean, self.other.mean) if self.pairs else (0.0, 0.0)
            pairing = pairing.add(one.values, other.values, means)
        return DifferenceSequence(
            self.difference.add(one.values - other.values, weight, missing=math.hypot(one.missing, other.missing)),
            self.one.add(one.values, weight, one.returns if one.plain else None, one.missing),
            self.other.add(other.values, weight, other.returns if other.plain else None, other.missing),
            pairing,
        )

    @property
    def pairs(self) -> int:
        """How many pairs of episodes count."""
        return self.difference.episodes

    @property
    def mean(self) -> float:
        """The difference of the means."""
        return self.difference.mean

    @property
    def variance(self) -> float:
        """V."""
        own, plain = self.difference.variance, self.one.plain + self.other.plain
        if not (self.pairs and math.isfinite(plain)):
            return own
        distance = max(self.one.distance, self.other.distance)
        return max(own, min(own + PSEUDO_EPISODES * distance**2, plain))

    @property
    def unpaired_variance(self) -> float:
        """What V_{X−Y} would be without shared seeds: V_X + V_Y."""
        return self.one.reduced + self.other.reduced

    @property
    def plain_variance(self) -> float:
        """V_g + V_h; infinite if returns are weighted."""
        return self.one.plain + self.other.plain

    def middle(self, level: float = 0.95) -> float:
        """Of the interval of any level: the mean."""
        return self.mean

    def half_width(self, level: float = 0.95) -> float:
        """Half the width of the interval of this level; infinite while there are few pairs, or nothing has varied."""
        return replace(self.difference, reduced=self.variance, missing=0.0).half_width(level)

    def interval(self, level: float = 0.95) -> tuple[float, float] | None:
        """The interval of this level; None while there are few pairs, or nothing has varied."""
        half = self.half_width(level)
        return None if math.isinf(half) else (self.mean - half, self.mean + half)

    def decide(self, level: float, margin: float | None) -> Decision:
        """What the interval of this level says."""
        return decide(self.interval(level), margin)


@dataclass(frozen=True, eq=False)
class Side:
    """One policy's part in a difference for a number of rounds that was fixed in advance.

    Attributes:
        values: of each round, valued with what all rounds teach.
        returns: of each round.
        plain: whether the policy itself collected them.
        room: what the policy's own evaluation adds to the variance of its mean for what it has not seen.
    """

    values: Sequence[NumpyArray]
    returns: Sequence[NumpyArray]
    plain: bool = True
    room: float = 0.0


def paired_error(one: Side, other: Side, weights: Sequence[float]) -> tuple[MeanError | None, MeanError | None]:
    """The error of the mean difference, with room for what was not seen and without; None if it cannot be known.

    The room is what both evaluations for themselves make, and at least that of `DifferenceSequence`.
    """
    tight = martingale_error([x - y for x, y in zip(one.values, other.values, strict=True)], weights)
    if not (one.plain and other.plain):
        return widen(tight, one.room + other.room), tight
    plain = add_errors(martingale_error(one.returns, weights), martingale_error(other.returns, weights))
    pairs = sum(map(len, one.returns))
    distance = max(farthest(np.concatenate(side.returns)) for side in (one, other))
    least = pairs * math.sqrt((one.room + other.room) / PSEUDO_EPISODES)
    return make_room(tight, plain, max(distance, least), pairs), tight


def add_errors(one: MeanError | None, other: MeanError | None) -> MeanError | None:
    """The error of the difference of two independent means (Welch and Satterthwaite)."""
    known = [error for error in (one, other) if error is not None]
    if not known:
        return None
    variance = sum(error.variance for error in known)
    return MeanError(variance, variance**2 / sum(e.variance**2 / e.degrees_of_freedom for e in known))
