"""How episodes are valued: from batches, and what was fixed when they were asked, to values and their error."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float64, PyTree

from bpsearch._core.arrays import Array, NumpyArray
from bpsearch._core.jaxtools import in_64_bit, in_turn, replace, to_numpy
from bpsearch.control_variates.base import KINDS, AnyControlVariate, join
from bpsearch.control_variates.modeled import Model, ModeledEstimator, ModeledState
from bpsearch.errors import InvalidArgumentError, WeightOverflowError
from bpsearch.estimators.base import ON_POLICY_TOLERANCE, Estimator, check_on_policy, check_values, log_ratios
from bpsearch.estimators.on_policy import monte_carlo
from bpsearch.inference.counting import count_episodes
from bpsearch.inference.cross_fitting import CrossFit, Knowledge, cross_fit, value_next
from bpsearch.inference.difference import Turn
from bpsearch.inference.intervals import MeanError, martingale_error
from bpsearch.inference.unseen import add_unseen, at_least, farthest, make_room
from bpsearch.policies.base import Policy
from bpsearch.sampling.trajectories import Trajectories

LARGEST_VALUE = 1e75  # the fourth power, which errors of errors need, still fits a 64-bit float


@dataclass(frozen=True, eq=False)
class ValuedBatch:
    """What is kept of a batch once it is valued.

    Attributes:
        values: (N,), the estimator's, with what was fixed before the batch.
        log_weights: (N,), log ρ_{0:L}.
        returns: (N,), as they came.
        summaries: what each control variate keeps of the batch; None where it cannot be used.
        weight: what an episode counts relative to later ones, fixed before the batch (`counting`).
        asked: how many batches had been told when it was asked for, where that matters.
        moved: whether another behavior has run it than the policy, where both may be.
        offered: how many starts each of its episodes was offered, where they may be chosen.
    """

    values: Float64[NumpyArray, " episodes"]
    log_weights: Float64[NumpyArray, " episodes"]
    returns: Float64[NumpyArray, " episodes"]
    summaries: tuple[PyTree[NumpyArray] | None, ...] = ()
    weight: float = 1.0
    asked: int = 0
    moved: bool = False
    offered: int = 1


@dataclass(frozen=True, eq=False)
class Values:
    """All batches of a study, valued with what all of them teach.

    Attributes:
        batches: the values of each.
        weights: what an episode of each batch counts in the mean.
        error: of the mean of all values, with room for what the episodes have not shown; None if it cannot be known.
        tight_error: the same without that room: what the spread of the values says.
        explained: the shares of Monte Carlo's variance that control variates are thought to remove, by kind of noise;
            None if there are none.
    """

    batches: list[Float64[NumpyArray, " episodes"]]
    weights: list[float]
    error: MeanError | None
    tight_error: MeanError | None
    explained: dict[str, float] | None = None

    @property
    def mean(self) -> float:
        """The estimate."""
        total = sum(weight * len(batch) for weight, batch in zip(self.weights, self.batches, strict=True))
        return float(sum(w * batch.sum() for w, batch in zip(self.weights, self.batches, strict=True)) / total)


@dataclass(frozen=True)
class Valuation:
    """An estimator and any number of control variates.

    A model of the estimator learns predictably: each batch is valued with what was known when it was asked for.
    Control variates are cross-fitted among all episodes, which for that must be independent: the evaluation policy's
    own. Where none of them explains anything the values are the estimator's.

    Attributes:
        estimator: values a batch.
        model: for an estimator that takes q̂ and v̂.
        control_variates: what may be subtracted, for episodes of the evaluation policy itself.
    """

    # Whether the episodes of a batch are independent of each other, which certified intervals need.
    independent: ClassVar[bool] = True

    estimator: Estimator = monte_carlo
    model: Model | None = None
    control_variates: tuple[AnyControlVariate, ...] = ()

    def __post_init__(self) -> None:
        modeled = self.modeled  # checks that estimator and model belong together
        object.__setattr__(self, "control_variates", tuple(self.control_variates))
        if modeled.revalues:
            raise InvalidArgumentError(
                "a model with use='update' values all batches by what they taught it, which biases the estimate; a "
                "study takes use='predictable' or 'fixed'"
            )
        if self.control_variates and (not self.estimator.on_policy or self.model is not None):
            raise InvalidArgumentError(
                f"control variates are cross-fitted among episodes of the evaluation policy, with monte_carlo; got "
                f"{self.estimator.name}"
            )

    @cached_property
    def modeled(self) -> ModeledEstimator:
        """The estimator with its model."""
        return ModeledEstimator(self.estimator, self.model)

    def conclude_alone(self, state: ModeledState, batches: Sequence[ValuedBatch], kind: str) -> Values:
        """`conclude` with the control variates of one kind of noise only."""
        own = [number for number, control in enumerate(self.control_variates) if control.kind == kind]
        only = replace(self, control_variates=tuple(self.control_variates[number] for number in own))
        less = [replace(batch, summaries=tuple(batch.summaries[number] for number in own)) for batch in batches]
        return only.conclude(state, less)

    def bind(self, policy: Policy, discount: float) -> list[AnyControlVariate | None]:
        """The control variates for this policy; None for those that are of no use for it."""
        return [None if c.refuse(policy) else c.bind(policy, discount) for c in self.control_variates]

    def used_kinds(self, policy: Policy, batches: Sequence[ValuedBatch]) -> list[str]:
        """The kinds of noise about which something can be learned from these batches."""
        used = [
            control.kind
            for number, control in enumerate(self.control_variates)
            if not control.refuse(policy) and all(batch.summaries[number] is not None for batch in batches)
        ]
        return [kind for kind in KINDS if kind in used]

    def needs_resets(self, policy: Policy) -> bool:
        """Whether further starts would be used for this policy."""
        return any(control.needs_resets and not control.refuse(policy) for control in self.control_variates)

    def unused(self, policy: Policy) -> tuple[str, ...]:
        """What would help with this policy, were it not too large."""
        deterministic = policy.deterministic
        found = (c.too_large(policy) for c in self.control_variates if c.kind == "starts" or not deterministic)
        return tuple(reason for reason in found if reason)

    def init(self, policy: Policy, discount: float = 1.0) -> ModeledState:
        """What is known before the first batch."""
        return self.modeled.init(policy, discount)

    @in_64_bit
    def value(self, state: ModeledState, batch: Trajectories, shift: float = 0.0, weight: float = 1.0) -> ValuedBatch:
        """Value a batch with what was fixed when it was asked for: the state, and the search's shift and weight.

        Raises:
            OnPolicyError: the estimator is on-policy and the episodes are not.
            WeightOverflowError: a value does not fit a 64-bit float.
        """
        policy = state.evaluation
        value = _jitted_value if policy.traceable and self.modeled.traceable else _value
        values, log_weights, largest = to_numpy(value(self.modeled, state, batch, shift))
        if not np.isfinite(values).all() or (self.estimator.on_policy and largest > 0.0):
            ratios = np.asarray(log_ratios(policy, batch))
            check_on_policy(self.estimator, ratios)
            check_values(f"the {self.estimator.name} value", values, ratios)
        if np.abs(values).max() > LARGEST_VALUE:
            episode = int(np.argmax(np.abs(values)))
            raise WeightOverflowError(
                f"the {self.estimator.name} value of episode {episode} is {values[episode]:.6g}: beyond "
                f"{LARGEST_VALUE:g} its powers do not fit a 64-bit float; give rewards in a larger unit"
            )
        summaries = self.summarize(state, batch)
        # Copies: views would keep the compiled program's results alive, which weigh more than the numbers themselves.
        returns = np.asarray(batch.returns(float(state.discount)))
        return ValuedBatch(np.array(values), np.array(log_weights), returns, summaries, weight)

    def summarize(self, state: ModeledState, batch: Trajectories) -> tuple[PyTree[NumpyArray] | None, ...]:
        """What each control variate keeps of a batch; None where it cannot be used."""
        bound = self.bind(state.evaluation, float(state.discount))
        return tuple(None if control is None else control.summarize(batch) for control in bound)

    @in_64_bit
    def learn(self, state: ModeledState, batch: Trajectories) -> ModeledState:
        """What is known after a batch."""
        if self.model is None:
            return state
        learn = _jitted_learn if self.modeled.traceable else ModeledEstimator.learn
        learned: ModeledState = to_numpy(learn(self.modeled, state, batch))
        return learned

    def conclude(self, state: ModeledState, batches: Sequence[ValuedBatch]) -> Values:
        """The values of all batches, in the order of asking, and the error of their mean.

        Args:
            state: what is known.
            batches: at least one.
        """
        weights = count_episodes([batch.weight for batch in batches], [len(batch.values) for batch in batches])
        values, explained, unseen, expected = [batch.values for batch in batches], None, 0.0, 0.0
        returns = [batch.returns for batch in batches]
        if self.control_variates:
            fit = self._fit(state, batches)
            values = np.split(fit.values, np.cumsum([len(batch.values) for batch in batches])[:-1])
            explained, unseen, expected = fit.explained, fit.unseen, fit.expected
        tight = self._error(batches, values, weights)
        if not self.estimator.on_policy:
            return Values(values, weights, tight, tight, explained)
        plain, every = martingale_error(returns, weights), np.concatenate(returns)
        error = make_room(add_unseen(tight, unseen), plain, farthest(every), len(every))
        error = at_least(error, expected, len(every))
        return Values(values, weights, error, tight, explained)

    def check_certifiable(self) -> None:
        """Refuse certified intervals for episodes that are not independent."""
        if not self.independent:
            raise InvalidArgumentError(
                "nothing can be certified here: certified intervals need episodes that are independent of each other, "
                "and the starts of these are chosen together; use another method, 'auto' for instance"
            )

    def missing(self, turns: Iterable[Turn]) -> float:
        """How far an event may lie that a search has not found, if the values are those of one that it looks for."""
        return 0.0

    def plain(self, batch: ValuedBatch) -> NumpyArray | None:
        """The returns of a batch, if the evaluation policy itself has run it."""
        return batch.returns if self.estimator.on_policy else None

    def advance(
        self, state: ModeledState, knowledge: Knowledge | None, batch: ValuedBatch
    ) -> tuple[Float64[NumpyArray, " episodes"], Knowledge | None]:
        """The values of a batch given the batches before it, which no later batch changes, and what is known after it.

        Given everything before, they have the right expectation: what a sequence of intervals needs. The first batch,
        which has nothing before it, is cross-fitted; so is one that can be used with other control variates than those
        before it.
        """
        if not self.control_variates:
            return batch.values, None
        found = self._controls(state, [batch])
        controls, about = list(found.values()), tuple(found)
        if knowledge is not None and knowledge.about == about:
            values, learned = value_next(controls, batch.returns, knowledge)
            return values, replace(learned, about=about)
        fit = cross_fit(controls, batch.returns)
        return fit.values, knowledge if fit.knowledge is None else replace(fit.knowledge, about=about)

    def _fit(self, state: Any, batches: Sequence[ValuedBatch]) -> CrossFit:
        """The values of all episodes with control variates."""
        controls = list(self._controls(state, batches).values())
        return cross_fit(controls, np.concatenate([batch.returns for batch in batches]))

    def _error(
        self, batches: Sequence[ValuedBatch], values: Sequence[NumpyArray], weights: Sequence[float]
    ) -> MeanError | None:
        """The error of the mean of the values, by their spread."""
        return martingale_error(values, weights)

    def _controls(
        self, state: ModeledState, batches: Sequence[ValuedBatch]
    ) -> dict[int, tuple[AnyControlVariate, Any]]:
        """By number, the control variates that all batches can be used with, and their summaries of all episodes."""
        found = {}
        for number, control in enumerate(self.bind(state.evaluation, float(state.discount))):
            parts = [batch.summaries[number] for batch in batches]
            if control is not None and all(part is not None for part in parts):
                found[number] = (control, join(parts))
        return found


def _value(
    modeled: ModeledEstimator, state: ModeledState, batch: Trajectories, shift: float
) -> tuple[Array, Array, Array]:
    """The values X + b (1 − w), log w, and how far any log-ratio is beyond rounding from 0."""
    arguments = modeled.arguments(state, batch)
    log_weights = arguments[1].sum(axis=-1)
    values = modeled.estimator.function(*arguments)
    if not modeled.estimator.on_policy:
        values = values + shift * (1.0 - jnp.exp(log_weights))
    return values, log_weights, jnp.abs(arguments[1]).max() - ON_POLICY_TOLERANCE


_jitted_value = in_turn(jax.jit(_value))
_jitted_learn = in_turn(jax.jit(ModeledEstimator.learn))
