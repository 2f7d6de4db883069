"""Vector environments of Stable-Baselines3 as Gymnasium's."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize

from bpsearch.errors import InvalidArgumentError


def as_vector_env(envs: VecEnv) -> "StableVectorEnv":
    """The same environments through Gymnasium's interface."""
    return StableVectorEnv(envs)


class StableVectorEnv(VectorEnv[Any, Any, Any]):
    """An SB3 `VecEnv` with its wrappers, frames that are stacked and observations that are normalised included.

    Rewards are the environment's own and statistics stay as they are: whatever `VecNormalize` does to both in training
    is switched off for the time of each call. All environments are reset at once, with a seed each, because wrappers
    such as `VecFrameStack` know no other way.

    Attributes:
        normalizes_observations: whether a policy gets observations that are normalised already.
    """

    def __init__(self, envs: VecEnv) -> None:
        self.envs = envs
        self.num_envs = envs.num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = envs.observation_space
        self.single_action_space = envs.action_space
        self.observation_space = batch_space(envs.observation_space, envs.num_envs)
        self.action_space = batch_space(envs.action_space, envs.num_envs)
        self._base: Any = envs
        self._normalizers: list[VecNormalize] = []
        while isinstance(self._base, VecEnvWrapper):
            if isinstance(self._base, VecNormalize):
                self._normalizers.append(self._base)
            self._base = self._base.venv
        self.normalizes_observations = any(wrapper.norm_obs for wrapper in self._normalizers)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments."""
        if options:
            raise InvalidArgumentError(f"an SB3 VecEnv is reset as a whole, without options, got {options!r}")
        if seed is not None:
            seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int | np.integer) else list(seed)
            # SB3's own `seed` gives consecutive ones only; these are used once, as those.
            self._base._seeds = [None if s is None else int(s) for s in seeds]
        with self._frozen():
            return self.envs.reset(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments; those that end are reset at once, by SB3."""
        with self._frozen():
            observations, rewards, ended, infos = self.envs.step(np.asarray(actions))
        truncated = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos]) & ended
        final = [info.get("terminal_observation") for info in infos]
        return observations, rewards, ended & ~truncated, truncated, {"final_obs": final}

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """A method of each environment."""
        return tuple(self.envs.env_method(name, *args, **kwargs))

    def close(self, **kwargs: Any) -> None:
        """Close them."""
        self.envs.close()

    @contextlib.contextmanager
    def _frozen(self) -> Iterator[None]:
        before = [(wrapper.training, wrapper.norm_reward) for wrapper in self._normalizers]
        for wrapper in self._normalizers:
            wrapper.training = wrapper.norm_reward = False
        try:
            yield
        finally:
            for wrapper, (training, norm_reward) in zip(self._normalizers, before, strict=True):
                wrapper.training, wrapper.norm_reward = training, norm_reward
