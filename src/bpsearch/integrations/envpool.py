"""Pools of EnvPool as Gymnasium's vector environments."""

import warnings
from typing import Any

import jax
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from bpsearch.errors import InvalidArgumentError


def as_vector_env(pool: Any) -> "PoolVectorEnv":
    """The same environments, of which each can start an episode by itself.

    Raises:
        InvalidArgumentError: the pool speaks another interface than Gymnasium's, or answers with those that are ready
            first: short steps would be preferred.
    """
    if not isinstance(pool, VectorEnv):
        raise InvalidArgumentError(
            f"a pool must speak Gymnasium's interface, got {type(pool).__name__}: make it by "
            f"envpool.make_gymnasium(...), or with env_type='gymnasium'"
        )
    config: Any = pool.config  # type: ignore[attr-defined]
    count, size = int(config["num_envs"]), int(config["batch_size"])
    if size != count:
        raise InvalidArgumentError(
            f"a pool must answer with all its {count} environments, but its batch_size is {size}: leave batch_size out"
        )
    return PoolVectorEnv(pool)


class PoolVectorEnv(VectorEnv[Any, Any, Any]):
    """A pool whose environments are started one by one, in place of its own autoreset.

    EnvPool takes seeds when a pool is made and ignores those of `reset`. Its episodes are independent, since each of
    its environments goes on with its own random numbers. But they do not come again with a study's seed: a study
    cannot be repeated, policies are not compared on common random numbers, and further starts are not drawn.
    """

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.num_envs = int(pool.config["num_envs"])
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.single_observation_space, self.single_action_space = pool.observation_space, pool.action_space
        self.observation_space = batch_space(pool.observation_space, self.num_envs)
        self.action_space = batch_space(pool.action_space, self.num_envs)
        self._observations: Any = None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start episodes in the environments of `options["reset_mask"]`, in all of them without one."""
        if seed is not None:
            warnings.warn(
                "EnvPool ignores the seeds of resets: episodes are independent, but do not come again with the same "
                "seed. Give the environment's Gymnasium id if the result must be repeatable",
                UserWarning,
                stacklevel=2,
            )
        mask = np.ones(self.num_envs, bool) if options is None else np.asarray(options["reset_mask"], bool)
        chosen = np.flatnonzero(mask).astype(np.int32)
        shown, info = self.pool.reset(chosen)
        if self._observations is None:
            self._observations = jax.tree_util.tree_map(
                lambda part: np.zeros((self.num_envs, *part.shape[1:]), part.dtype), shown
            )
        # The pool answers in the order in which its threads are done.
        places = np.asarray(info["env_id"])
        jax.tree_util.tree_map(lambda own, part: own.__setitem__(places, part), self._observations, shown)
        return self._observations, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments."""
        actions = np.asarray(actions)
        if isinstance(self.single_action_space.dtype, np.dtype):
            actions = actions.astype(self.single_action_space.dtype, copy=False)
        shown, rewards, terminated, truncated, info = self.pool.step(actions)
        order = np.argsort(np.asarray(info["env_id"]))
        self._observations = jax.tree_util.tree_map(lambda part: np.array(part[order]), shown)
        return self._observations, rewards[order], terminated[order], truncated[order], {}

    def close(self, **kwargs: Any) -> None:
        """Close the pool."""
        self.pool.close()
