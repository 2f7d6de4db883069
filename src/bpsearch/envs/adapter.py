"""Any compiled environment as a Gymnasium environment."""

from typing import Any

import gymnasium
import jax
import numpy as np

from bpsearch.envs.base import CompiledEnv
from bpsearch.errors import InvalidArgumentError
from bpsearch.numerics import in_64_bit


class GymnasiumEnv(gymnasium.Env[Any, Any]):
    """One episode at a time of a compiled environment, through Gymnasium's interface.

    The episode ends by termination as the environment says, and by truncation at its horizon.
    """

    def __init__(self, env: CompiledEnv) -> None:
        self.env = env
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self._reset = jax.jit(env.reset)
        self._step = jax.jit(env.step)
        self._observe = jax.jit(env.observe)
        self._state: Any = None
        self._key: Any = None
        self._steps = 0

    @in_64_bit
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; with the same seed, the same episode for the same actions."""
        super().reset(seed=seed)
        self._key, start = jax.random.split(jax.random.key(int(self.np_random.integers(2**63))))
        self._state, self._steps = self._reset(start), 0
        return self._observation(), {}

    @in_64_bit
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        if not self.action_space.contains(action):
            raise InvalidArgumentError(f"action must be in {self.action_space}, got {action!r}")
        key = jax.random.fold_in(self._key, self._steps)
        self._state, reward, terminated = self._step(key, self._state, action)
        self._steps += 1
        truncated = not terminated and self._steps >= self.env.horizon
        return self._observation(), float(reward), bool(terminated), bool(truncated), {}

    def _observation(self) -> Any:
        observation = np.asarray(self._observe(self._state))
        return np.int64(observation) if observation.ndim == 0 else observation
