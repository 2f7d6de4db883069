"""Many episodes from each of many start states, for the split of a return's variance (`variance_split`).

The paper's simulators are deterministic after the start, so that episodes of one start differ by their actions only.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from bpsearch._core.arrays import Array, NumpyArray
from bpsearch._core.jaxtools import in_64_bit, pytree
from bpsearch.envs.base import CompiledEnv
from bpsearch.envs.wrapper import CompiledWrapper
from bpsearch.policies.base import Policy
from bpsearch.sampling.compiled import rollout
from bpsearch.sampling.seeds import batch_key

CHUNK = 100  # start states per compiled call


@pytree(static=("horizon", "discount"))
@dataclass(frozen=True, eq=False)
class FixedStart(CompiledWrapper):
    """`env` with every episode starting in `start`."""

    env: CompiledEnv
    start: Any
    horizon: int
    discount: float

    def reset(self, key: Array) -> PyTree[Array]:
        """Always `start`."""
        return self.start


@in_64_bit
def returns_by_start(env: CompiledEnv, policy: Policy, starts: int, repeats: int, seed: int = 0) -> NumpyArray:
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
