"""Values where the policy itself acts at first, and another behavior may act later.

A decision depends on the episodes told before it, and what comes after it depends on the decision. So those episodes
may be valued neither by what comes after nor by weights that depend on themselves. The batches between two decisions
are a *block*. With this, every value has the right expectation, and so has their mean, exactly:

- An episode of a block is valued with what the other folds of this block and of earlier ones say (`cross_fit`),
  whatever is decided after the block.
- A batch b of the closed form is valued by the doubly robust estimator with the model of the batches before it.
- What a batch counts within its block and all that comes after depends on *other* batches of this block and of earlier
  ones: by what they would have decided, and on the numbers of episodes. What is left to 1 counts for what comes after:

      mean = Σ_b u_b X̄_b + (1 − Σ_b u_b) X̄_after,    E[u_b X̄_b] = E[u_b] ρ,    E[X̄_after|before] = ρ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bpsearch._core.arrays import NumpyArray, Scalar
from bpsearch._core.jaxtools import pytree, replace
from bpsearch.control_variates.advantages import TabularAdvantages
from bpsearch.control_variates.choice import Choice, Course, Spread, decide, is_decision
from bpsearch.control_variates.forecast import ForecastModel, SeenTable
from bpsearch.control_variates.modeled import ModeledState
from bpsearch.estimators.doubly_robust import doubly_robust
from bpsearch.inference.cross_fitting import CrossFit, Knowledge
from bpsearch.inference.intervals import MeanError, martingale_error
from bpsearch.inference.unseen import NOTHING_ELSEWHERE, add_unseen, at_least, farthest, make_room, widen
from bpsearch.inference.valuation import Valuation, ValuedBatch, Values
from bpsearch.policies.base import Policy
from bpsearch.policies.table import SoftmaxTable
from bpsearch.sampling.trajectories import Trajectories

LEAST = 0.02  # of what an episode counts that was run before a decision to move
UNKNOWN = 0.5  # what it counts if the others have shown no variance at all, so that nothing can be expected
QUICKLY = 0.1  # what it counts if a model will soon know everything
_MOVED = Valuation(doubly_robust, ForecastModel())


@pytree()
@dataclass(frozen=True, eq=False)
class ChoosingState:
    """What was told and decided."""

    course: Course

    @property
    def evaluation(self) -> SoftmaxTable:
        """π_e."""
        return self.course.seen.evaluation

    @property
    def discount(self) -> Scalar:
        """γ."""
        return self.course.seen.discount


@dataclass(frozen=True)
class ChoosingValuation(Valuation):
    """Control variates for the policy's own batches, doubly robust values for those of the closed form."""

    def init(self, policy: Policy, discount: float = 1.0) -> Any:
        """Before the first batch."""
        return ChoosingState(Course.of(policy, discount))

    def value(self, state: Any, batch: Trajectories, shift: float = 0.0, weight: float = 1.0) -> ValuedBatch:
        """Value a batch with what was decided and known when it was asked for."""
        course: Course = state.course
        bare = ModeledState(course.seen.evaluation, course.seen.discount, course.told, None, None)
        if course.moved:
            valued = _MOVED.value(replace(bare, model=course.seen), batch)
            return replace(valued, asked=int(course.told), moved=True, summaries=(None,) * len(self.control_variates))
        return replace(super().value(bare, batch), asked=int(course.told))

    def learn(self, state: Any, batch: Trajectories) -> Any:
        """What is known after a batch."""
        return ChoosingState(state.course.add(batch))

    def plain(self, batch: ValuedBatch) -> NumpyArray | None:
        """The returns, unless the closed form has run the batch."""
        return None if batch.moved else batch.returns

    def advance(
        self, state: Any, knowledge: Knowledge | None, batch: ValuedBatch
    ) -> tuple[NumpyArray, Knowledge | None]:
        """As they are if the closed form has run them, else as without a choice."""
        return (batch.values, knowledge) if batch.moved else super().advance(state, knowledge, batch)

    def conclude(self, state: Any, batches: Sequence[ValuedBatch]) -> Values:
        """The values of all batches, in the order of asking, and the error of their mean."""
        course: Course = state.course
        blocks = [_block(batch.asked, int(course.decided)) for batch in batches]
        if len(set(blocks)) == 1:
            return super().conclude(state, batches)
        values, fit = self._values(state, batches, blocks)
        weights = self._weights(state, batches, blocks)
        tight = martingale_error(values, weights)
        own = np.concatenate([batch.returns for batch in batches if not batch.moved])
        count, elsewhere = sum(len(batch.values) for batch in batches), NOTHING_ELSEWHERE
        for batch in batches:
            if batch.moved:
                elsewhere = elsewhere.add(batch.returns, batch.log_weights)
        moved, variance = elsewhere.weight > 0.0, float(np.var(own, ddof=1))
        plain = MeanError(variance / count, len(own) - 1.0) if variance > 0.0 else None
        error = make_room(tight if moved else add_unseen(tight, fit.unseen), plain, farthest(own), count)
        mine = sum(w**2 * len(batch.values) for w, batch in zip(weights, batches, strict=True) if not batch.moved)
        error = widen(error, elsewhere.excess(variance) * mine)
        error = error if moved else at_least(error, fit.expected, count)
        return Values(values, weights, error, tight, None if moved else fit.explained)

    def _values(
        self, state: Any, batches: Sequence[ValuedBatch], blocks: Sequence[int]
    ) -> tuple[list[NumpyArray], CrossFit]:
        """Of each batch; and the fit of the last block of the policy's own."""
        values, fit = [batch.values for batch in batches], CrossFit.nothing(np.zeros(0))
        own = [number for number, batch in enumerate(batches) if not batch.moved]
        for block in sorted({blocks[number] for number in own}):
            before = [number for number in own if blocks[number] <= block]
            fit = self._fit(state, [batches[number] for number in before])
            ends = np.cumsum([len(batches[number].values) for number in before])
            for number, part in zip(before, np.split(fit.values, ends[:-1]), strict=True):
                if blocks[number] == block:
                    values[number] = part
        return values, fit

    def _weights(self, state: Any, batches: Sequence[ValuedBatch], blocks: Sequence[int]) -> list[float]:
        """What an episode of each batch counts; u_b divided by the size of the batch."""
        sizes, weights = np.array([len(batch.values) for batch in batches]), np.zeros(len(batches))
        numbers, last, left = np.array(blocks), max(blocks), 1.0
        for block in sorted(set(blocks) - {last}):
            after, here = sizes[numbers > block].sum(), numbers == block
            for number in np.flatnonzero(here):
                others = [b for n, b in enumerate(batches) if blocks[n] <= block and n != number and not b.moved]
                worth = self._worth(state, others)
                weights[number] = left * worth / (sizes[here].sum() * worth + after)
            left -= float(weights[here] @ sizes[here])
        open_ones = numbers == last
        # The model of a later batch has seen more. Of what it has not, without noise, the error falls faster than 1/n.
        power = {Choice.MOVE: 0.5, Choice.SOLVE: 1.0}.get(Choice(int(state.course.choice)), 0.0)
        shares = np.array([float(batch.asked) for batch in batches]) ** power * open_ones
        weights += left * shares / (shares @ sizes)
        return [float(weight) for weight in weights]

    def _worth(self, state: Any, others: Sequence[ValuedBatch]) -> float:
        """What an episode counts relative to later ones, by what other batches say of both."""
        if not others:
            return 1.0
        fit = self._fit(state, others)
        left = max(1.0 - sum(fit.explained.values()), LEAST)  # of the variance, by control variates
        place = next(n for n, control in enumerate(self.control_variates) if isinstance(control, TabularAdvantages))
        seen, spread = SeenTable.of(state.evaluation, float(state.discount)), Spread.none()
        for batch in others:
            steps: Any = batch.summaries[place]
            if steps is not None:
                seen = replace(seen, dynamics=seen.dynamics.add_steps(**steps))
            spread = spread.add(batch.returns)
        if spread.variance == 0.0:
            return UNKNOWN
        verdict = decide(seen.forecast, spread)
        if verdict.choice is Choice.SOLVE:
            return QUICKLY
        if verdict.choice.moved:
            # The prior's fears go on falling while later batches teach: half of the forecast is their mean.
            return float(np.clip(0.5 * verdict.variance / left, LEAST, 1.0))
        # Where most is explained it will be explained better; how much of the rest is the environment's is not known.
        return float(min(np.sqrt(2.0 * left), 1.0))


def _block(asked: int, decided: int) -> int:
    """The number of decisions before a request that was made after so many told batches."""
    last = asked if decided < 0 else min(asked, decided)
    return sum(is_decision(told) for told in range(1, last + 1))
