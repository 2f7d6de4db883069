"""Maximum-likelihood tabular models: q̂ and v̂ of the evaluation policy, as control variates."""

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bpsearch._core.arrays import Array, Scalar
from bpsearch._core.checks import check_integer, check_real
from bpsearch._core.jaxtools import pytree, replace
from bpsearch.envs.tabular import TabularMDP
from bpsearch.errors import InvalidArgumentError
from bpsearch.policies.base import Policy
from bpsearch.policies.table import SoftmaxTable
from bpsearch.sampling.trajectories import Trajectories


class Use(StrEnum):
    """Which batches a model learns from, and so what it promises.

    - `PREDICTABLE`: each batch is valued with the model of the batches before it. It improves and keeps the estimate
      exactly unbiased. The default.
    - `FIXED`: the model learns from the first m batches, which are valued without it, and then stands still; the
      search starts after them. Unbiased. The paper's "fixed".
    - `UPDATE`: all batches are valued with the model of all batches, themselves included. The paper's "update". It
      *loses the guarantee*: values depend on the model, the model on the values, and the estimate is biased.
    """

    PREDICTABLE = "predictable"
    FIXED = "fixed"
    UPDATE = "update"


@pytree()
@dataclass(frozen=True, eq=False)
class TabularModelState:
    """What the model has seen, and the value functions fitted to it.

    Attributes:
        counts: (S, A, S), transitions seen.
        reward_sums: (S, A), rewards seen.
        q: (L, S, A), q̂_t(s, a) of the evaluation policy; 0 where nothing is known.
        v: (L, S), v̂_t(s) = Σ_a π_e(a|s) q̂_t(s, a).
    """

    counts: Array
    reward_sums: Array
    q: Array
    v: Array


@pytree()
@dataclass(frozen=True, eq=False)
class Schedule:
    """When a model learns, as numbers.

    Attributes:
        warm_up: how many batches it is to see before it is fitted and the search starts; 0 for none.
        last: the last batch that it learns from.
        growth: the model is fitted again whenever the logarithm of the number of batches has grown by this.
    """

    COUNT, FIT, KEEP = 0, 1, 2

    warm_up: Scalar
    last: Scalar
    growth: Scalar

    def phase(self, batch: Scalar) -> jax.Array:
        """What to do with this batch, counted from 1: `COUNT` it, count it and `FIT` the model, or `KEEP` the model."""

        def fits(count: Scalar) -> jax.Array:
            return jnp.floor(jnp.log(count) / self.growth)

        grown = (self.growth == 0.0) | (fits(batch) > fits(jnp.maximum(batch - 1, 1)))
        first = jnp.maximum(self.warm_up, 1)
        due = (batch == first) | ((batch > first) & grown)
        return jnp.where(batch > self.last, self.KEEP, jnp.where(due, self.FIT, self.COUNT))


@dataclass(frozen=True)
class TabularModel:
    """Settings of a maximum-likelihood tabular model.

    The transition probabilities are the observed frequencies, the rewards the observed means, and the value functions
    follow by backward induction over the steps to the horizon: q̂ depends on time. State-action pairs never seen have
    q̂ = 0; so have terminal states, where no action is ever taken.

    Attributes:
        states: S.
        actions: A.
        horizon: L.
        use: which batches the model learns from, see `Use`.
        batches: m, how many batches a fixed model learns from.
        refit: a learning model is fitted again whenever the number of batches has grown by this factor; 1 fits it after
            every batch. Value functions of large tables cost more than the episodes: 1.05 saves nearly all of it.
    """

    states: int
    actions: int
    horizon: int
    use: Use | str = Use.PREDICTABLE
    batches: int = 10
    refit: float = 1.0

    def __post_init__(self) -> None:
        for name in ("states", "actions", "horizon", "batches"):
            object.__setattr__(self, name, check_integer(name, getattr(self, name)))
        if self.use not in list(Use):
            raise InvalidArgumentError(f"use must be one of {[str(use) for use in Use]}, got {self.use!r}")
        object.__setattr__(self, "use", Use(self.use))
        check_real("refit", self.refit, low=1.0)

    @classmethod
    def like(
        cls, mdp: TabularMDP, use: Use | str = Use.PREDICTABLE, batches: int = 10, refit: float = 1.0
    ) -> "TabularModel":
        """A model with the states, actions and horizon of `mdp`, and no knowledge of its dynamics."""
        return cls(mdp.states, mdp.actions, mdp.horizon, use, batches, refit)

    @property
    def traceable(self) -> bool:
        """It is."""
        return True

    @property
    def warm_up(self) -> Scalar:
        """How many batches a fixed model learns from before a search may start."""
        return self.schedule.warm_up

    def init(self, policy: Policy | None = None, discount: float = 1.0) -> TabularModelState:
        """A model that has seen nothing: q̂ = 0, with which the doubly robust estimator is per-decision IS."""
        table = (self.states, self.actions)
        return TabularModelState(
            counts=np.zeros((*table, self.states)),
            reward_sums=np.zeros(table),
            q=np.zeros((self.horizon, *table)),
            v=np.zeros((self.horizon, self.states)),
        )

    @cached_property
    def schedule(self) -> Schedule:
        """When the model learns."""
        warm_up, last = (self.batches, self.batches) if self.use == Use.FIXED else (0, np.iinfo(np.int64).max)
        return Schedule(np.int64(warm_up), np.int64(last), np.float64(math.log(self.refit)))

    def learn(
        self, state: TabularModelState, number: Scalar, batch: Trajectories, policy: Policy, discount: Scalar
    ) -> TabularModelState:
        """After batch `number`: as the schedule says it is counted, counted and the model fitted, or neither."""

        def count(before: TabularModelState) -> TabularModelState:
            return self.count(before, batch)

        def fit(counted: TabularModelState) -> TabularModelState:
            return self.fit(counted, policy, discount)  # type: ignore[arg-type]

        def keep(model_state: TabularModelState) -> TabularModelState:
            return model_state

        before = jax.tree_util.tree_map(jnp.asarray, state)
        phase = self.schedule.phase(number)
        counted = jax.lax.cond(phase == Schedule.KEEP, keep, count, before)
        learned: TabularModelState = jax.lax.cond(phase == Schedule.FIT, fit, keep, counted)
        return learned

    def count(self, state: TabularModelState, trajectories: Trajectories) -> TabularModelState:
        """The model that has also seen `trajectories`; its value functions are as before until `fit`."""
        observations, actions = jnp.asarray(trajectories.observations), jnp.asarray(trajectories.actions)
        mask = jnp.asarray(trajectories.mask)
        pairs = observations * self.actions + actions
        cells = pairs * self.states + trajectories.successors
        counts = jnp.asarray(state.counts).ravel().at[cells].add(mask.astype(jnp.float64))
        reward_sums = jnp.asarray(state.reward_sums).ravel().at[pairs].add(trajectories.rewards)
        return replace(
            state,
            counts=counts.reshape(state.counts.shape),
            reward_sums=reward_sums.reshape(state.reward_sums.shape),
        )

    def fit(self, state: TabularModelState, evaluation: SoftmaxTable, discount: Scalar) -> TabularModelState:
        """Backward induction: q̂_t = r̂ + γ Σ_s' P̂ v̂_{t+1}, v̂_t = Σ_a π_e q̂_t, v̂_L = 0."""
        visits = jnp.maximum(state.counts.sum(axis=-1), 1.0)
        mean_rewards = state.reward_sums / visits
        frequencies = (state.counts / visits[..., None]).reshape(-1, self.states)
        probabilities = jax.nn.softmax(jnp.asarray(evaluation.logits), axis=-1)

        def backward(v_next: jax.Array, _: None) -> tuple[jax.Array, tuple[Array, Array]]:
            q = mean_rewards + discount * (frequencies @ v_next).reshape(mean_rewards.shape)
            v = (probabilities * q).sum(axis=-1)
            return v, (q, v)

        _, (q, v) = jax.lax.scan(backward, jnp.zeros(self.states), None, length=self.horizon, reverse=True)
        return replace(state, q=q, v=v)

    def on_trajectories(self, state: TabularModelState, trajectories: Trajectories) -> tuple[Array, Array]:
        """q̂_t(S_t, A_t), (N, T), and v̂_t(S_t), (N, T + 1): 0 on padding, after the end and after the horizon."""
        mask = jnp.asarray(trajectories.mask)
        times = jnp.arange(mask.shape[1])
        observations, actions = jnp.asarray(trajectories.observations), jnp.asarray(trajectories.actions)
        q_hat = jnp.where(mask, jnp.asarray(state.q)[times, observations, actions], 0.0)
        v_hat = jnp.where(mask, jnp.asarray(state.v)[times, observations], 0.0)
        return q_hat, jnp.concatenate([v_hat, jnp.zeros_like(v_hat[:, :1])], axis=1)


def _flatten(model: TabularModel) -> tuple[tuple[Schedule], tuple[int, int, int, bool]]:
    return (model.schedule,), (model.states, model.actions, model.horizon, model.use == Use.UPDATE)


def _unflatten(shape: tuple[int, int, int, bool], leaves: tuple[Schedule]) -> TabularModel:
    model: Any = object.__new__(TabularModel)
    values = (*shape[:3], Use.UPDATE if shape[3] else Use.PREDICTABLE, leaves[0])
    for name, value in zip(("states", "actions", "horizon", "use", "schedule"), values, strict=True):
        object.__setattr__(model, name, value)
    found: TabularModel = model
    return found


# The schedule is an argument of what is compiled: models that differ in it alone share their compiled code.
jax.tree_util.register_pytree_node(TabularModel, _flatten, _unflatten)
