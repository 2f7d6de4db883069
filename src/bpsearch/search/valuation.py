"""How a search values its episodes: an estimator, and the model that it may use."""

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from bpsearch.checks import check_discount
from bpsearch.errors import InvalidArgumentError, ModelRequiredError
from bpsearch.estimators.base import Estimator, log_ratios
from bpsearch.models.tabular import Schedule, TabularModel, TabularModelState, Use
from bpsearch.numerics import at_the_edge, in_64_bit, pytree, replace
from bpsearch.policies.base import Policy
from bpsearch.trajectories import Array, Trajectories


@pytree()
@dataclass(frozen=True, eq=False)
class AffineTotals:
    """Σ_n X_n over all episodes so far as a function of the model's tables, in which it is affine.

    Σ X(q, v) = constant + ⟨by_q, q⟩ + ⟨by_v, v⟩: with it, all data are valued anew by every new model at a cost that
    does not grow with the data.
    """

    episodes: Array
    constant: Array
    by_q: Array
    by_v: Array


@pytree()
@dataclass(frozen=True, eq=False)
class ValuationState:
    """What is carried from batch to batch.

    Attributes:
        evaluation: π_e.
        discount: γ.
        batches: how many batches have been seen.
        schedule: when the model learns; None without a model.
        model: what the model knows; None without a model.
        totals: the values of all data so far, kept only for a model that values them anew (`Use.UPDATE`).
    """

    evaluation: Policy
    discount: Array
    batches: Array
    schedule: Schedule | None
    model: TabularModelState | None
    totals: AffineTotals | None

    @property
    def warm_up(self) -> Array:
        """How many batches a fixed model learns from before the search may start."""
        return np.int64(0) if self.schedule is None else self.schedule.warm_up


@dataclass(frozen=True)
class Valuation:
    """An estimator with its model, applied to one batch after the other."""

    estimator: Estimator
    model: TabularModel | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.estimator, Estimator):
            raise InvalidArgumentError(
                f"estimator must be an Estimator, got {self.estimator!r}; decorate a function with bps.estimator"
            )
        if self.estimator.needs_model != (self.model is not None):
            what = "needs a model (q̂, v̂)" if self.estimator.needs_model else "uses no model"
            got = "got none" if self.model is None else f"got {self.model}"
            raise ModelRequiredError(f"{self.estimator.name} {what}, {got}")

    def init(self, policy: Policy, discount: float) -> ValuationState:
        """Before the first batch."""
        model, schedule = (None, None) if self.model is None else (self.model.init(), self.model.schedule)
        totals = None
        if model is not None and self.revalues:
            totals = AffineTotals(np.float64(0), np.float64(0), np.zeros_like(model.q), np.zeros_like(model.v))
        return ValuationState(policy, np.float64(check_discount(discount)), np.int64(0), schedule, model, totals)

    @property
    def revalues(self) -> bool:
        """Whether a new batch changes the values of the earlier ones."""
        return self.model is not None and self.model.use == Use.UPDATE

    @property
    def program(self) -> "Valuation":
        """The valuation without what its state holds as numbers."""
        return self if self.model is None else dataclasses.replace(self, model=self.model.program)

    def absorb(self, state: ValuationState, trajectories: Trajectories) -> tuple[ValuationState, tuple[Array, ...]]:
        """Take in a batch; return the new state and the arguments with which the estimator values the batch.

        A predictable or fixed model values the batch as it was *before* the batch, an updated one as it is after.
        """
        learned = self._learn(state, trajectories)
        used = learned if self.revalues else state.model
        arguments = self._arguments(state, used, trajectories)
        return replace(
            state,
            batches=state.batches + 1,
            model=learned,
            totals=self._add_to_totals(state, trajectories),
        ), arguments

    @in_64_bit
    def values(self, state: ValuationState, trajectories: Trajectories) -> Array:
        """The values of a batch under the model as it is in `state`."""
        return at_the_edge(self.estimator.function(*self._arguments(state, state.model, trajectories)))

    @in_64_bit
    def running_value(self, state: ValuationState) -> Array:
        """The mean over all episodes so far, all valued by the present model (`Use.UPDATE` only)."""
        assert state.totals is not None
        assert state.model is not None
        by_model = jnp.vdot(state.totals.by_q, state.model.q) + jnp.vdot(state.totals.by_v, state.model.v)
        return at_the_edge((state.totals.constant + by_model) / state.totals.episodes)

    def _learn(self, state: ValuationState, trajectories: Trajectories) -> TabularModelState | None:
        if self.model is None or state.model is None or state.schedule is None:
            return None
        model = self.model

        def count(before: TabularModelState) -> TabularModelState:
            return model.count(before, trajectories)

        def fit(counted: TabularModelState) -> TabularModelState:
            return model.fit(counted, state.evaluation, state.discount)  # type: ignore[arg-type]

        def keep(model_state: TabularModelState) -> TabularModelState:
            return model_state

        before = jax.tree_util.tree_map(jnp.asarray, state.model)
        phase = state.schedule.phase(state.batches + 1)
        counted = jax.lax.cond(phase == Schedule.KEEP, keep, count, before)
        learned: TabularModelState = jax.lax.cond(phase == Schedule.FIT, fit, keep, counted)
        return learned

    def _arguments(
        self, state: ValuationState, model_state: TabularModelState | None, trajectories: Trajectories
    ) -> tuple[Array, ...]:
        data = self._data(state, trajectories)
        if self.model is None or model_state is None:
            return data
        return (*data, *self.model.on_trajectories(model_state, trajectories))

    def _data(self, state: ValuationState, trajectories: Trajectories) -> tuple[Array, ...]:
        """The arguments of every estimator."""
        ratios = log_ratios(state.evaluation, trajectories)
        return trajectories.rewards, ratios, trajectories.mask, state.discount

    def _add_to_totals(self, state: ValuationState, trajectories: Trajectories) -> AffineTotals | None:
        totals = state.totals
        if totals is None:
            return None
        data = self._data(state, trajectories)

        def total(predictions: tuple[Array, Array]) -> Array:
            return self.estimator.function(*data, *predictions).sum()

        episodes, steps = trajectories.mask.shape
        zero = (jnp.zeros((episodes, steps)), jnp.zeros((episodes, steps + 1)))
        constant, (by_q, by_v) = jax.value_and_grad(total)(zero)
        mask, times = jnp.asarray(trajectories.mask), jnp.arange(steps)
        observations, actions = trajectories.observations, trajectories.actions
        return AffineTotals(
            totals.episodes + len(trajectories),
            totals.constant + constant,
            jnp.asarray(totals.by_q).at[times, observations, actions].add(jnp.where(mask, by_q, 0.0)),
            jnp.asarray(totals.by_v).at[times, observations].add(jnp.where(mask, by_v[:, :-1], 0.0)),
        )
