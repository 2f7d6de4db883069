"""How much of a return's variance comes from the start state, how much from action noise.

Var[g] = Var[E[g|S_0]] + E[Var[g|S_0]]. No behavior policy can change where episodes start: only the second part can be
removed, and all of it only if no return differs in sign from another.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import jax
import numpy as np

from bpsearch.envs.base import CompiledEnv
from bpsearch.numerics import in_64_bit, pytree
from bpsearch.policies.base import Policy
from bpsearch.sampling.compiled import rollout
from bpsearch.sampling.seeds import batch_key
from bpsearch.trajectories import Array

CHUNK = 100  # start states per compiled call


@dataclass(frozen=True)
class VarianceSplit:
    """The two parts of a return's variance.

    Attributes:
        start: Var[E[g|S_0]].
        action: E[Var[g|S_0]].
        share: of the action noise in the whole: the largest relative reduction that any behavior can reach.
        std_errors: of the three, by the jackknife over start states.
    """

    start: float
    action: float
    share: float
    std_errors: tuple[float, float, float]


@pytree(static=("horizon", "discount"))
@dataclass(frozen=True, eq=False)
class FixedStart(CompiledEnv):
    """`env` with every episode starting in `start`."""

    env: CompiledEnv
    start: Any
    horizon: int
    discount: float

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """That of `env`."""
        return self.env.observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """That of `env`."""
        return self.env.action_space

    def reset(self, key: Array) -> Array:
        """Always `start`."""
        return self.start

    def observe(self, state: Array) -> Array:
        """As `env` does."""
        return self.env.observe(state)

    def step(self, key: Array, state: Array, action: Array) -> tuple[Array, Array, Array]:
        """As `env` does."""
        return self.env.step(key, state, action)


@in_64_bit
def returns_by_start(env: CompiledEnv, policy: Policy, starts: int, repeats: int, seed: int = 0) -> Array:
    """(starts, repeats), the returns of `repeats` episodes from each of `starts` start states."""
    keys = jax.random.split(batch_key(seed), -(-starts // CHUNK))
    return np.concatenate([np.asarray(_returns_of_chunk(env, policy, key, repeats)) for key in keys])[:starts]


@partial(jax.jit, static_argnames="repeats")
def _returns_of_chunk(env: CompiledEnv, policy: Policy, key: Array, repeats: int) -> Array:
    def from_one_start(key: Array) -> Array:
        start_key, key = jax.random.split(key)
        fixed = FixedStart(env, env.reset(start_key), env.horizon, env.discount)
        rewards = rollout(fixed, policy, key, repeats).rewards
        return rewards @ env.discount ** np.arange(env.horizon)

    return jax.vmap(from_one_start)(jax.random.split(key, CHUNK))


def split_variance(returns: Array) -> VarianceSplit:
    """Unbiased estimates of the two parts from `returns_by_start`.

    The sample variance of the K episodes from one start state estimates Var[g|S_0]; the variance of their means, less
    1/K of it, estimates Var[E[g|S_0]].
    """
    starts, repeats = returns.shape
    centred, inner = returns.mean(axis=1) - returns.mean(), returns.var(axis=1, ddof=1)

    def parts(total: Array, squares: Array, noise: Array, count: int) -> Array:
        action = noise / count
        start = (squares - total**2 / count) / (count - 1) - action / repeats
        return np.array([start, action, action / (start + action)])

    whole = centred.sum(), (centred**2).sum(), inner.sum()
    left_out = parts(whole[0] - centred, whole[1] - centred**2, whole[2] - inner, starts - 1)
    errors = np.sqrt((starts - 1) * left_out.var(axis=1))
    start, action, share, *deviations = (float(x) for x in (*parts(*whole, starts), *errors))
    return VarianceSplit(start, action, share, (deviations[0], deviations[1], deviations[2]))
