"""An estimator together with the model that it may use, applied to one batch after the other."""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from bpsearch._core.arrays import Array, Scalar
from bpsearch._core.checks import check_discount, quote
from bpsearch._core.jaxtools import at_the_edge, in_64_bit, pytree, replace
from bpsearch.control_variates.tabular_model import Use
from bpsearch.errors import InvalidArgumentError, ModelRequiredError
from bpsearch.estimators.base import Estimator, log_ratios
from bpsearch.policies.base import Policy
from bpsearch.sampling.trajectories import Trajectories

# Rewards, log-ratios, mask and discount; and q̂ and v̂ for an estimator with a model.
Arguments: TypeAlias = tuple[Array, Array, Array, Scalar] | tuple[Array, Array, Array, Scalar, Array, Array]


class Model(Protocol):
    """What gives an estimator its q̂ and v̂: settings; what it has learned is a pytree of arrays."""

    @property
    def use(self) -> Use | str:
        """Which batches it learns from."""
        ...

    @property
    def traceable(self) -> bool:
        """Whether JAX can compile its functions."""
        ...

    @property
    def warm_up(self) -> Scalar:
        """How many batches it is to see before a search may start."""
        ...

    def init(self, policy: Policy, discount: float, /) -> Any:
        """Before the first batch."""
        ...

    def learn(self, state: Any, number: Scalar, batch: Trajectories, policy: Policy, discount: Scalar, /) -> Any:
        """After batch `number`, counted from 1."""
        ...

    def on_trajectories(self, state: Any, batch: Trajectories, /) -> tuple[Array, Array]:
        """q̂_t(S_t, A_t), (N, T), and v̂_t(S_t), (N, T + 1): 0 on padding, after the end and after the horizon."""
        ...


@pytree()
@dataclass(frozen=True, eq=False)
class AffineTotals:
    """Σ_n X_n over all episodes so far as a function of the model's tables, in which it is affine.

    Σ X(q, v) = constant + ⟨by_q, q⟩ + ⟨by_v, v⟩: with it, all data are valued again by every new model at a cost that
    does not grow with the data.
    """

    episodes: Scalar
    constant: Scalar
    by_q: Array
    by_v: Array


@pytree()
@dataclass(frozen=True, eq=False)
class ModeledState:
    """What is carried from batch to batch.

    Attributes:
        evaluation: π_e.
        discount: γ.
        batches: how many batches have been seen.
        model: what the model knows; None without a model.
        totals: the values of all data so far, kept only for a model that values them again (`Use.UPDATE`).
    """

    evaluation: Policy
    discount: Scalar
    batches: Scalar
    model: Any
    totals: AffineTotals | None


@pytree(static=("estimator",))
@dataclass(frozen=True)
class ModeledEstimator:
    """An estimator with its model.

    Attributes:
        estimator: the estimator.
        model: what gives it q̂ and v̂; None for an estimator that takes none.
    """

    estimator: Estimator
    model: Model | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.estimator, Estimator):
            raise InvalidArgumentError(
                f"estimator must be an Estimator, got {quote(self.estimator)}; decorate a function with bps.estimator"
            )
        if self.estimator.needs_model != (self.model is not None):
            what = "needs a model (q̂, v̂)" if self.estimator.needs_model else "uses no model"
            got = "got none" if self.model is None else f"got {self.model}"
            raise ModelRequiredError(f"{self.estimator.name} {what}, {got}")

    def init(self, policy: Policy, discount: float) -> ModeledState:
        """Before the first batch."""
        model = None if self.model is None else self.model.init(policy, discount)
        totals = None
        if model is not None and self.revalues:
            totals = AffineTotals(np.float64(0), np.float64(0), np.zeros_like(model.q), np.zeros_like(model.v))
        return ModeledState(policy, np.float64(check_discount(discount)), np.int64(0), model, totals)

    @property
    def revalues(self) -> bool:
        """Whether a new batch changes the values of the earlier ones."""
        return self.model is not None and self.model.use == Use.UPDATE

    @property
    def warm_up(self) -> Scalar:
        """How many batches a fixed model learns from before a search may start."""
        return np.int64(0) if self.model is None else self.model.warm_up

    @property
    def traceable(self) -> bool:
        """Whether JAX can compile it, as far as the model is concerned."""
        return self.model is None or self.model.traceable

    def absorb(self, state: ModeledState, batch: Trajectories) -> tuple[ModeledState, Arguments]:
        """Take in a batch; return the new state and the arguments with which the estimator values the batch.

        A predictable or fixed model values the batch as it was *before* the batch, an updated one as it is after.
        """
        learned = self.learn(state, batch)
        return learned, self.arguments(learned if self.revalues else state, batch)

    def learn(self, state: ModeledState, batch: Trajectories) -> ModeledState:
        """What is known after a batch."""
        return replace(
            state,
            batches=state.batches + 1,
            model=self._learn(state, batch),
            totals=self._add_to_totals(state, batch),
        )

    def arguments(self, state: ModeledState, batch: Trajectories) -> Arguments:
        """The arguments with which the estimator values a batch, with what is known in `state`."""
        data = self._data(state, batch)
        if self.model is None or state.model is None:
            return data
        return (*data, *self.model.on_trajectories(state.model, batch))

    @in_64_bit
    def running_value(self, state: ModeledState) -> Array:
        """The mean over all episodes so far, all valued by the present model (`Use.UPDATE` only)."""
        assert state.totals is not None
        assert state.model is not None
        by_model = jnp.vdot(state.totals.by_q, state.model.q) + jnp.vdot(state.totals.by_v, state.model.v)
        return at_the_edge((state.totals.constant + by_model) / state.totals.episodes)

    def _learn(self, state: ModeledState, batch: Trajectories) -> Any:
        if self.model is None or state.model is None:
            return None
        return self.model.learn(state.model, state.batches + 1, batch, state.evaluation, state.discount)

    def _data(self, state: ModeledState, batch: Trajectories) -> tuple[Array, Array, Array, Scalar]:
        """The arguments of every estimator."""
        ratios = log_ratios(state.evaluation, batch)
        return batch.rewards, ratios, batch.mask, state.discount

    def _add_to_totals(self, state: ModeledState, batch: Trajectories) -> AffineTotals | None:
        totals = state.totals
        if totals is None:
            return None
        data = self._data(state, batch)

        def total(predictions: tuple[Array, Array]) -> Array:
            return self.estimator.function(*data, *predictions).sum()

        episodes, steps = batch.mask.shape
        zero = (jnp.zeros((episodes, steps)), jnp.zeros((episodes, steps + 1)))
        constant, (by_q, by_v) = jax.value_and_grad(total)(zero)
        mask, times = jnp.asarray(batch.mask), jnp.arange(steps)
        observations, actions = batch.observations, batch.actions
        return AffineTotals(
            totals.episodes + len(batch),
            totals.constant + constant,
            jnp.asarray(totals.by_q).at[times, observations, actions].add(jnp.where(mask, by_q, 0.0)),
            jnp.asarray(totals.by_v).at[times, observations].add(jnp.where(mask, by_v[:, :-1], 0.0)),
        )
