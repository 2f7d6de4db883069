"""Who is to act on a table: the policy itself, or the closed form. Decided a few times, from what was told before."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from bpsearch._core.arrays import Array, NumpyArray, Scalar
from bpsearch._core.jaxtools import pytree, replace
from bpsearch.control_variates.forecast import Forecast, SeenTable
from bpsearch.policies.base import Policy
from bpsearch.policies.table import SoftmaxTable
from bpsearch.sampling.trajectories import Trajectories

RARE = 0.05  # a policy without an action less probable than this has nothing that another behavior would show far more
LARGEST = 1_000_000  # S · A · S of tables for which the model is solved batch by batch
SHARE = 0.3  # of π in every step of the closed form
GAIN = 0.5  # the largest variance, relative to that of staying, for which one moves
SOLVED = 0.02  # the share of the return's variance below which the environment counts as free of noise
FEW = 10.0  # so many episodes at least must make the variance of the returns for a decision to stay


class Choice(IntEnum):
    """Who acts."""

    UNDECIDED = 0  # the policy itself for now
    STAY = 1  # the policy itself, for good
    MOVE = 2  # the closed form, because it shows more of the environment's noise
    SOLVE = 3  # the closed form, because without such noise its model will soon know everything

    @property
    def moved(self) -> bool:
        """Whether another behavior acts."""
        return self >= Choice.MOVE


@pytree()
@dataclass(frozen=True, eq=False)
class Spread:
    """Of the returns g of the policy's own episodes: n, a center c near them, and Σ (g − c)^k for k = 1, ..., 4."""

    count: Scalar
    center: Scalar
    sums: Array

    @classmethod
    def none(cls) -> "Spread":
        """Before the first episode."""
        return cls(np.int64(0), np.float64(0.0), np.zeros(4))

    def add(self, returns: NumpyArray) -> "Spread":
        """With more episodes."""
        center = np.float64(returns[0]) if self.count == 0 else self.center
        powers = (returns - center) ** np.arange(1, 5)[:, None]
        return Spread(np.int64(self.count + len(returns)), center, np.asarray(self.sums + powers.sum(axis=1)))

    @property
    def variance(self) -> float:
        """Of the returns."""
        first, second, _, _ = self._moments
        return max(float(second - first**2), 0.0)

    @property
    def effective_episodes(self) -> float:
        """(Σ d²)² / Σ d⁴, d = g − ḡ: how many episodes make the variance; 0 without any."""
        m, second, third, fourth = self._moments
        quartic = fourth - 4.0 * m * third + 6.0 * m**2 * second - 3.0 * m**4
        return float(self.count) * self.variance**2 / quartic if quartic > 0.0 else 0.0

    @property
    def _moments(self) -> NumpyArray:
        return np.asarray(self.sums) / max(float(self.count), 1.0)


@dataclass(frozen=True)
class Verdict:
    """A choice, and the variance of a value that is expected of it, relative to that of a return."""

    choice: Choice
    variance: float = 1.0


def decide(forecast: Forecast, spread: Spread) -> Verdict:
    """Who is to act from now on.

    The closed form, if the variance that the model predicts for it, with all that its prior fears, is less than Monte
    Carlo's and at most half of what it predicts for staying; or if the environment has shown no noise of its own, so
    that a model which has seen everything leaves nothing. Else the policy itself: for good, unless the returns have not
    varied yet or hang on a few episodes.
    """
    plain = spread.variance
    if plain <= 0.0:
        return Verdict(Choice.UNDECIDED)
    staying, moving = (forecast.variance(behavior) for behavior in (forecast.policy, forecast.behavior(SHARE)))
    if moving <= plain:
        if forecast.seen_variance() <= SOLVED * plain:
            return Verdict(Choice.SOLVE, moving / plain)
        if moving <= GAIN * staying:
            return Verdict(Choice.MOVE, moving / plain)
    return Verdict(Choice.UNDECIDED if spread.effective_episodes < FEW else Choice.STAY)


def is_decision(told: int) -> bool:
    """Whether it is decided after so many batches: after 2, 4, 8, 16, ..., as long as nothing is decided."""
    return told >= 2 and told & (told - 1) == 0


def can_model(policy: Policy) -> bool:
    """Whether a model can be solved batch by batch: a table, not too large, that is not deterministic."""
    if not isinstance(policy, SoftmaxTable) or policy.deterministic:
        return False
    states, actions = policy.logits.shape
    return int(states) * int(actions) * int(states) <= LARGEST


def can_choose(policy: Policy) -> bool:
    """Whether there is anything to choose: a table, not too large, with a rare action."""
    if not can_model(policy):
        return False
    assert isinstance(policy, SoftmaxTable)
    probabilities = policy.probabilities
    return bool(np.any((probabilities > 0.0) & (probabilities < RARE)))


@pytree()
@dataclass(frozen=True, eq=False)
class Course:
    """What was told so far, and what was decided by it.

    Attributes:
        seen: the evaluation policy, and what all episodes have shown.
        spread: of the returns of its own episodes.
        told: how many batches.
        choice: a `Choice`.
        decided: after how many batches it was decided for good; −1 if it is not.
    """

    seen: SeenTable
    spread: Spread
    told: Scalar
    choice: Scalar
    decided: Scalar

    @classmethod
    def of(cls, policy: Policy, discount: float) -> "Course":
        """Before the first batch."""
        return cls(SeenTable.of(policy, discount), Spread.none(), np.int64(0), np.int64(0), np.int64(-1))

    @property
    def moved(self) -> bool:
        """Whether another behavior acts than the policy."""
        return Choice(int(self.choice)).moved

    def add(self, batch: Trajectories) -> "Course":
        """After another batch, of whoever acts now."""
        told = np.int64(self.told + 1)
        if self.decided >= 0:
            return replace(self, told=told, seen=self.seen.add(batch) if self.moved else self.seen)
        if batch.final_observations is None:  # without which no model learns
            return replace(self, told=told, choice=np.int64(Choice.STAY), decided=told)
        seen = self.seen.add(batch)
        spread = self.spread.add(np.asarray(batch.returns(float(self.seen.discount))))
        found = decide(seen.forecast, spread).choice if is_decision(int(told)) else Choice.UNDECIDED
        decided = self.decided if found is Choice.UNDECIDED else told
        return Course(seen, spread, told, np.int64(found), decided)
