"""Sampling: the one `sample` function over the compiled sampler."""

from typing import Any

import gymnasium
import jax
import numpy as np

from bpsearch.checks import check_integer
from bpsearch.envs.base import CompiledEnv
from bpsearch.errors import SpaceMismatchError
from bpsearch.numerics import in_64_bit, to_numpy
from bpsearch.policies.base import Policy
from bpsearch.sampling.compiled import jitted_rollout
from bpsearch.sampling.seeds import batch_key
from bpsearch.trajectories import Trajectories

__all__ = ["check_spaces", "sample"]

CHUNK = 1000  # episodes per random stream and compiled call; bounds memory, and results do not depend on it being met


@in_64_bit
def sample(env: CompiledEnv, policy: Policy, episodes: int = 100, *, seed: int = 0, batch: int = 0) -> Trajectories:
    """Run `policy` in `env` for `episodes` whole episodes.

    Args:
        env: a compiled environment, a `TabularMDP` for instance.
        policy: the behavior policy.
        episodes: how many episodes.
        seed: the same seed gives the same episodes.
        batch: the number of the batch within a study: another random stream of the same seed.

    Returns:
        The batch, checked, as NumPy arrays.
    """
    check_integer("episodes", episodes)
    check_spaces(env, policy)
    key = batch_key(seed, batch)
    sizes = [min(CHUNK, episodes - start) for start in range(0, episodes, CHUNK)]
    chunks = [jitted_rollout(env, policy, jax.random.fold_in(key, i), size) for i, size in enumerate(sizes)]
    fields = ("observations", "actions", "rewards", "log_probs", "mask", "final_observations")
    joined = {name: np.concatenate([np.asarray(getattr(chunk, name)) for chunk in chunks]) for name in fields}
    return Trajectories(
        **joined, behavior_parameters=to_numpy(policy.flat), seed=np.array([seed, batch], dtype=np.int64)
    )


def check_spaces(env: CompiledEnv, policy: Policy) -> None:
    """Refuse a policy that does not speak of the environment's observations and actions.

    Boxes must have the same shape and both hold real numbers; the policy's must have room for the environment's. Its
    raw actions may lie beyond the environment's bounds, which clips them, and 32 and 64 bit go together.
    """
    for what in ("observation", "action"):
        of_env, of_policy = getattr(env, f"{what}_space"), getattr(policy, f"{what}_space")
        if of_env != of_policy and not _has_room(of_policy, of_env):
            raise SpaceMismatchError(
                f"the {what} spaces differ: the environment has {of_env}, the policy has {of_policy}"
            )


def _has_room(outer: gymnasium.Space[Any], inner: gymnasium.Space[Any]) -> bool:
    if not (isinstance(outer, gymnasium.spaces.Box) and isinstance(inner, gymnasium.spaces.Box)):
        return False
    real = all(np.issubdtype(space.dtype, np.floating) for space in (outer, inner))
    same = outer.shape == inner.shape
    return real and same and bool(np.all(outer.low <= inner.low) and np.all(outer.high >= inner.high))
