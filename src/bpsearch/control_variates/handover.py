"""Failures on tables: levels look for them, and the closed form takes over where they are common enough.

Levels make the failures that they know likely. One that they do not know counts up to two episodes' worth: half of the
episodes that count are the policy's own. For a failure of one in a million that is a price worth paying. Of one in a
hundred, those episodes keep showing others. There the closed form with a model of all earlier batches leaves less.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bpsearch._core.arrays import Array, Flag, NumpyArray, Scalar
from bpsearch._core.jaxtools import in_64_bit, pytree, replace
from bpsearch.control_variates.choice import GAIN, SHARE
from bpsearch.control_variates.forecast import Forecast, SeenTable
from bpsearch.control_variates.tabular_model import Use
from bpsearch.estimators.base import log_ratios
from bpsearch.estimators.doubly_robust import doubly_robust
from bpsearch.policies.base import Policy
from bpsearch.sampling.trajectories import Trajectories

COMMON = 0.003  # the estimated probability of failures from which on the closed form may take over
FEW = 5  # failures at least must have been seen by then
TRIAL = 200  # episodes of the closed form after which it is judged by its own values


@pytree()
@dataclass(frozen=True, eq=False)
class Handover:
    """What was told so far, and who acts next. It is decided by told batches alone, before the next one is run.

    Search and valuation each carry one and are told the same batches, so each batch is added twice, and both decide
    alike without knowing each other.

    Attributes:
        seen: the evaluation policy, and what all episodes have shown.
        episodes: how many there were.
        failures: how many of them failed.
        total: the sum of their values, each with what was known before its batch.
        tried: episodes that the closed form has run.
        squares: the sum of their squared deviations from the estimate so far.
        closed: whether the closed form runs the next batch.
        refused: whether it has been tried and left more than Monte Carlo would have.
    """

    seen: SeenTable
    episodes: Scalar
    failures: Scalar
    total: Scalar
    tried: Scalar
    squares: Scalar
    closed: Flag
    refused: Flag

    @classmethod
    def of(cls, policy: Policy, discount: float) -> "Handover":
        """Before the first batch: levels."""
        none, no = np.float64(0.0), np.bool_(False)
        return cls(SeenTable.of(policy, discount), np.int64(0), np.int64(0), none, np.int64(0), none, no, no)

    @property
    def probability(self) -> float:
        """Of a failure, as estimated so far."""
        return float(self.total) / max(float(self.episodes), 1.0)

    @property
    def common(self) -> bool:
        """Whether failures seem common, by enough of them."""
        return bool(self.failures >= FEW and self.probability >= COMMON)

    @in_64_bit
    def add(self, batch: Trajectories) -> "Handover":
        """After another batch, of whoever acts now."""
        if batch.final_observations is None:  # without which no model learns
            return replace(self, closed=np.bool_(False), refused=np.bool_(True))
        discount = float(self.seen.discount)
        values = self._value(batch)
        failures = int(np.count_nonzero(np.asarray(batch.returns(discount)) > 0.0))
        told = replace(
            self,
            seen=self.seen.add(batch),
            episodes=np.int64(self.episodes + len(batch)),
            failures=np.int64(self.failures + failures),
            total=np.float64(self.total + values.sum()),
        )
        if self.closed:
            away = float(np.sum((values - told.probability) ** 2))
            told = replace(told, tried=np.int64(told.tried + len(batch)), squares=np.float64(told.squares + away))
        return told._decide()

    def along(self, batch: Trajectories) -> tuple[NumpyArray, NumpyArray]:
        """q̂ and v̂ of an episode's steps; 0 for those of levels, whose values are then importance sampling's."""
        if self.closed:
            return self.seen.forecast.along(batch)
        episodes, steps = np.shape(batch.mask)
        return np.zeros((episodes, steps)), np.zeros((episodes, steps + 1))

    def _value(self, batch: Trajectories) -> NumpyArray:
        ratios = log_ratios(self.seen.evaluation, batch)
        return np.asarray(doubly_robust(batch.rewards, ratios, batch.mask, self.seen.discount, *self.along(batch)))

    def _decide(self) -> "Handover":
        probability = self.probability
        plain = probability * (1.0 - probability)
        if self.refused or not self.common or plain <= 0.0:
            return replace(self, closed=np.bool_(False))
        if self.tried >= TRIAL and self.squares > plain * float(self.tried):
            return replace(self, closed=np.bool_(False), refused=np.bool_(True))
        if self.closed:
            return self
        forecast: Forecast = self.seen.forecast
        return replace(self, closed=np.bool_(forecast.variance(forecast.behavior(SHARE)) <= GAIN * plain))

    def behavior(self) -> Array:
        """(S, A), logits of the closed form."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.seen.forecast.behavior(SHARE)))


@dataclass(frozen=True)
class HandoverModel:
    """The model of the closed form, for its batches alone."""

    use: ClassVar[Use] = Use.PREDICTABLE
    traceable: ClassVar[bool] = False
    warm_up: ClassVar[Scalar] = np.int64(0)

    def init(self, policy: Policy, discount: float) -> Handover:
        """Nothing is known."""
        return Handover.of(policy, discount)

    def learn(self, state: Handover, number: Scalar, batch: Trajectories, policy: Policy, discount: Scalar) -> Handover:
        """What is known after a batch."""
        return state.add(batch)

    def on_trajectories(self, state: Handover, batch: Trajectories) -> tuple[NumpyArray, NumpyArray]:
        """The values along the episodes."""
        return state.along(batch)
