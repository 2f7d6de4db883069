"""Trust region policy optimization (Schulman et al. 2015): how the continuous evaluation policies are made."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bpsearch._core.arrays import Array, Scalar
from bpsearch._core.checks import check_discount, check_integer, check_real
from bpsearch._core.jaxtools import in_64_bit, pytree, replace, to_numpy
from bpsearch.envs.base import CompiledEnv
from bpsearch.policies.mlp import MLP
from bpsearch.sampling import check_spaces
from bpsearch.sampling.compiled import rollout
from bpsearch.sampling.seeds import batch_key
from bpsearch.sampling.trajectories import Trajectories

_RIDGE = 1e-5


@pytree()
@dataclass(frozen=True, eq=False)
class TRPOState:
    """What is carried from iteration to iteration.

    Attributes:
        policy: π_i.
        baseline: the coefficients of the linear value function, fitted to the previous batch.
        iteration: i.
        key: the random stream of the run.
    """

    policy: MLP
    baseline: Array
    iteration: Scalar
    key: Array


@pytree()
@dataclass(frozen=True, eq=False)
class TRPOInfo:
    """What one iteration tells besides its new state.

    Attributes:
        mean_return: the mean undiscounted return of the batch, which the policy before the step collected.
        std_error: of that mean.
        improvement: by how much the surrogate objective rose.
        kl: the mean KL divergence of the step taken; 0 if the line search found none.
    """

    mean_return: Array
    std_error: Array
    improvement: Array
    kl: Array


@dataclass(frozen=True)
class TRPO:
    """Natural gradient steps within a trust region; the defaults are rllab's.

    Each iteration collects a batch, takes advantages Â from generalized advantage estimation with a linear value
    function of [o, o², τ, τ², τ³, 1] (τ = t / 100) fitted to the previous batch, and maximizes
    E[π_θ(a|s) / π_i(a|s) Â] subject to E[KL(π_i ‖ π_θ)] ≤ δ: the direction F⁻¹g comes from conjugate gradients on
    Fisher-vector products, its length from δ, and a line search shortens it until the objective has risen and the KL
    is within δ. An episode ends at the horizon of the environment: no value is added for what would come after.

    Attributes:
        kl: δ.
        episodes: the episodes of a batch; 100 of 50 steps are rllab's 5000 steps.
        discount: γ of the advantages, which is not the γ of an evaluation.
        gae_lambda: λ of the advantages.
        conjugate_gradients: how many of their iterations.
        damping: what is added to the diagonal of F.
        backtracks: how many steps the line search tries, each 0.8 of the one before.
    """

    kl: float = 0.01
    episodes: int = 100
    discount: float = 0.99
    gae_lambda: float = 1.0
    conjugate_gradients: int = 10
    damping: float = 1e-5
    backtracks: int = 15

    def __post_init__(self) -> None:
        check_real("kl", self.kl, above=0.0)
        check_integer("episodes", self.episodes)
        check_discount(self.discount)
        check_real("gae_lambda", self.gae_lambda, low=0.0, high=1.0)
        check_integer("conjugate_gradients", self.conjugate_gradients)
        check_real("damping", self.damping, low=0.0)
        check_integer("backtracks", self.backtracks)

    @in_64_bit
    def init(self, policy: MLP, seed: int = 0) -> TRPOState:
        """Before the first iteration: the value function is 0."""
        features = 2 * policy.observation_space.shape[0] + 4
        return TRPOState(policy, np.zeros(features), np.int64(0), batch_key(seed))

    @in_64_bit
    def step(self, env: CompiledEnv, state: TRPOState) -> tuple[TRPOState, TRPOInfo]:
        """One iteration: collect a batch, improve the policy, fit the value function."""
        check_spaces(env, state.policy)
        state, info = _jitted_step(self, env, state)
        return state, to_numpy(info)

    def train(
        self,
        env: CompiledEnv,
        policy: MLP,
        iterations: int,
        *,
        seed: int = 0,
        progress: Callable[[int, TRPOInfo], None] | None = None,
    ) -> MLP:
        """The policy after `iterations` iterations; `progress` is told of each."""
        state = self.init(policy, seed)
        for iteration in range(check_integer("iterations", iterations)):
            state, info = self.step(env, state)
            if progress is not None:
                progress(iteration, info)
        trained: MLP = to_numpy(state.policy)
        return trained


@partial(jax.jit, static_argnums=0)
def _jitted_step(trpo: TRPO, env: CompiledEnv, state: TRPOState) -> tuple[TRPOState, TRPOInfo]:
    batch = rollout(env, state.policy, jax.random.fold_in(state.key, state.iteration), trpo.episodes)
    features = _features(batch)
    advantages, returns = _advantages(trpo, batch, features @ state.baseline)
    policy, improvement, kl = _improve(trpo, state.policy, batch, advantages)
    total_returns = batch.rewards.sum(axis=1)
    return replace(
        state, policy=policy, baseline=_fit(features, returns, batch.mask), iteration=state.iteration + 1
    ), TRPOInfo(
        mean_return=jnp.mean(total_returns),
        std_error=jnp.std(total_returns, ddof=1) / np.sqrt(trpo.episodes),
        improvement=improvement,
        kl=kl,
    )


def _features(batch: Trajectories) -> Array:
    """(N, T, 2 d + 4), of the value function."""
    observations = jnp.clip(jnp.asarray(batch.observations).astype(jnp.float64), -10.0, 10.0)
    time = jnp.broadcast_to(jnp.arange(batch.mask.shape[1]) / 100.0, batch.mask.shape)[..., None]
    return jnp.concatenate([observations, observations**2, time, time**2, time**3, jnp.ones_like(time)], axis=-1)


def _fit(features: Array, returns: Array, mask: Array) -> Array:
    """Ridge regression of the returns on the features of the steps that happened."""
    rows = jnp.where(mask[..., None], features, 0.0).reshape(-1, features.shape[-1])
    gram = rows.T @ rows + _RIDGE * jnp.eye(rows.shape[1])
    solution: jax.Array = jnp.linalg.solve(gram, rows.T @ returns.ravel())
    return solution


def _advantages(trpo: TRPO, batch: Trajectories, values: Array) -> tuple[Array, Array]:
    """Standardized Â_t = Σ_k (γλ)^k δ_{t+k}, with δ_t = R_t + γ v(S_{t+1}) − v(S_t), and the discounted returns."""
    values = jnp.where(batch.mask, values, 0.0)
    after = jnp.concatenate([values[:, 1:], jnp.zeros_like(values[:, :1])], axis=1)
    delta = batch.rewards + trpo.discount * after - values

    def backwards(carry: tuple[Array, Array], step: tuple[Array, Array]) -> tuple[tuple[Array, Array], Any]:
        carry = (
            step[0] + trpo.discount * trpo.gae_lambda * carry[0],
            step[1] + trpo.discount * carry[1],
        )
        return carry, carry

    zero: Array = jnp.zeros(values.shape[0])
    _, (advantages, returns) = jax.lax.scan(backwards, (zero, zero), (delta.T, batch.rewards.T), reverse=True)
    steps = batch.mask.sum()
    mean = jnp.where(batch.mask, advantages.T, 0.0).sum() / steps
    centred = jnp.where(batch.mask, advantages.T - mean, 0.0)
    return centred / (jnp.sqrt((centred**2).sum() / steps) + 1e-8), returns.T


def _improve(trpo: TRPO, policy: MLP, batch: Trajectories, advantages: Array) -> tuple[MLP, Array, Array]:
    """The policy after the step, the rise of the objective and the KL divergence of the step."""
    steps = batch.mask.sum()
    observations = jnp.asarray(batch.observations)
    observations = observations.reshape(-1, observations.shape[-1])
    weights = (batch.mask.ravel() / steps).astype(policy.dtype)
    flat = policy.flat

    def mean_kl(vector: Array) -> Array:
        return jnp.vdot(weights, policy.kl(policy.with_flat(vector), observations))

    def objective(vector: Array) -> Array:
        log_probs = policy.with_flat(vector).log_prob(batch.observations, batch.actions)
        return jnp.sum(jnp.exp(log_probs - batch.log_probs) * advantages) / steps

    def fisher(vector: Array) -> Array:
        product: jax.Array = jax.jvp(jax.grad(mean_kl), (flat,), (vector,))[1]
        return product + trpo.damping * vector

    gradient = (policy.score(batch.observations, batch.actions, advantages) / steps).astype(policy.dtype)
    direction = _conjugate_gradients(fisher, gradient, trpo.conjugate_gradients)
    curvature = jnp.vdot(direction, fisher(direction))
    full_step = jnp.sqrt(2.0 * trpo.kl / jnp.maximum(curvature, 1e-12)) * direction
    before = objective(flat)

    def attempt(found: tuple[Array, ...], exponent: Array) -> tuple[tuple[Array, ...], None]:
        def search(found: tuple[Array, ...]) -> tuple[Array, ...]:
            candidate = flat + (0.8**exponent).astype(flat.dtype) * full_step
            improvement, kl = objective(candidate) - before, mean_kl(candidate)
            accepted = (improvement > 0.0) & (kl <= trpo.kl)
            new = (accepted, candidate, improvement, kl)
            return tuple(jnp.where(accepted, a, b) for a, b in zip(new, found, strict=True))

        return jax.lax.cond(found[0], lambda found: found, search, found), None

    nothing: tuple[Array, ...] = (
        jnp.zeros((), bool),
        flat,
        jnp.zeros_like(before),
        jnp.zeros((), policy.dtype),
    )
    (_, chosen, improvement, kl), _ = jax.lax.scan(attempt, nothing, jnp.arange(trpo.backtracks, dtype=jnp.float64))
    return policy.with_flat(chosen), improvement, kl


def _conjugate_gradients(multiply: Callable[[Array], Array], target: Array, iterations: int) -> Array:
    """The solution x of A x = b, approximately, for a symmetric positive definite A given by its products."""

    def iterate(_: Array, carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        x, residual, direction, norm = carry
        product = multiply(direction)
        # Once the residual is 0 the division is 0 / 0; there is nothing left to add.
        step = jnp.where(norm > 1e-20, norm / jnp.vdot(direction, product), 0.0)
        x, residual = x + step * direction, residual - step * product
        new_norm = jnp.vdot(residual, residual)
        return x, residual, residual + jnp.where(norm > 1e-20, new_norm / norm, 0.0) * direction, new_norm

    start = (jnp.zeros_like(target), target, target, jnp.vdot(target, target))
    solution: Array = jax.lax.fori_loop(0, iterations, iterate, start)[0]
    return solution
