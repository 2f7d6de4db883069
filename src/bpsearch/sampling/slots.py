"""Slots: environments that run side by side, one episode each at a time."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from bpsearch._core.arrays import NumpyArray
from bpsearch.envs.observations import empty_observations, write
from bpsearch.errors import InvalidArgumentError


class SlotsCrashedError(Exception):
    """An environment raised an error, its cause, while the given slots were running."""

    def __init__(self, slots: Sequence[int]) -> None:
        super().__init__(slots)
        self.slots = slots


class Slots(ABC):
    """A number of environments; an episode runs in one of them from `start` to its end.

    Attributes:
        count: how many.
        restarts_single: whether one slot can start an episode while others are running theirs.
        observation_space: of one environment.
        action_space: of one environment.
        observations: (count, ...), what each slot observed last; after the last step of an episode its final
            observation. The arrays are written in place.
        rewards: (count,), 64 bit, of the last step.
        ended: (count,) bool, whether the last step was the episode's last, by termination or truncation.
    """

    restarts_single = True

    def __init__(self, count: int, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        self.count = count
        self.observation_space = observation_space
        self.action_space = action_space
        self.observations = empty_observations(observation_space, count)
        self.rewards = np.zeros(count)
        self.ended = np.zeros(count, bool)

    @abstractmethod
    def start(self, slots: Sequence[int], seeds: Sequence[int]) -> None:
        """Start an episode in each of `slots`, with its seed."""

    @abstractmethod
    def step(self, slots: Sequence[int], actions: NumpyArray) -> None:
        """Take a step in each of `slots`; `actions` has one row for every slot, running or not."""

    @abstractmethod
    def call(self, method: str, slots: Sequence[int]) -> list[Any]:
        """What a method of the environments gives in each of `slots`.

        Raises:
            InvalidArgumentError: they have no such method.
        """

    @abstractmethod
    def close(self) -> None:
        """Free what the environments hold."""


class EnvSlots(Slots):
    """Environments stepped one after the other in this process; slots without an episode cost nothing."""

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
        super().__init__(len(envs), envs[0].observation_space, envs[0].action_space)
        self._envs = envs

    def start(self, slots: Sequence[int], seeds: Sequence[int]) -> None:
        """Reset the environments of `slots`."""
        for slot, seed in zip(slots, seeds, strict=True):
            try:
                observation, _ = self._envs[slot].reset(seed=seed)
            except Exception as error:
                raise SlotsCrashedError([slot]) from error
            write(self.observations, slot, observation)

    def step(self, slots: Sequence[int], actions: NumpyArray) -> None:
        """Step the environments of `slots`."""
        observations, rewards, ended, envs = self.observations, self.rewards, self.ended, self._envs
        for slot in slots:
            try:
                observation, reward, terminated, truncated, _ = envs[slot].step(actions[slot])
            except Exception as error:
                raise SlotsCrashedError([slot]) from error
            write(observations, slot, observation)
            rewards[slot] = reward
            ended[slot] = terminated or truncated

    def call(self, method: str, slots: Sequence[int]) -> list[Any]:
        """Of the environment or one of its wrappers."""
        try:
            return [self._envs[slot].get_wrapper_attr(method)() for slot in slots]
        except AttributeError as error:
            raise _no_method(method, self._envs[0], error) from error

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            env.close()


class VectorSlots(Slots):
    """The sub-environments of a Gymnasium `VectorEnv`, in any autoreset mode.

    Gymnasium's own vector environments, and all without autoreset, start single sub-environments with a seed by
    `reset_mask`: whatever autoreset did before or would do at the next step is replaced. Others are reset only as a
    whole, with one seed per sub-environment, after all have ended.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
        mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._env = env
        self._same_step = mode == AutoresetMode.SAME_STEP
        self._disabled = mode == AutoresetMode.DISABLED
        base = env.unwrapped
        if isinstance(base, AsyncVectorEnv) and not base.shared_memory and mode == AutoresetMode.NEXT_STEP:
            # Its workers do not cancel, on a reset, the autoreset that is due at the next step.
            raise InvalidArgumentError(
                "an AsyncVectorEnv without shared memory cannot be reset with a seed in the autoreset mode NEXT_STEP; "
                "make it with shared_memory=True or in another mode"
            )
        self.restarts_single = self._disabled or isinstance(base, SyncVectorEnv | AsyncVectorEnv)
        self._fresh = False
        self._begun = False
        self._one_seed = False

    def start(self, slots: Sequence[int], seeds: Sequence[int]) -> None:
        """Reset the sub-environments of `slots`; before the first step and after a crash, all of them."""
        by_slot = dict(zip(slots, seeds, strict=True))
        # Slots without an episode are stepped along: which seed they have does not matter.
        every_seed: Any = seeds[0] if self._one_seed else [by_slot.get(slot, seeds[0]) for slot in range(self.count)]
        options = None
        if self._fresh and self.restarts_single:
            options = {"reset_mask": np.isin(np.arange(self.count), slots)}
        try:
            observations, _ = self._env.reset(seed=every_seed, options=options)
        except Exception as error:
            self._fresh = False
            if not self.restarts_single and not self._one_seed and not self._begun:
                # Vector environments of one piece, as `gymnasium.make_vec` gives them, draw all from one generator.
                self._one_seed = True
                warnings.warn(
                    f"{self._env} does not accept one seed per sub-environment ({type(error).__name__}: {error}): its "
                    f"episodes are independent, but depend on how many run side by side; give the environment's id or "
                    f"a factory to avoid that",
                    UserWarning,
                    stacklevel=2,
                )
                self.start(slots, seeds)
                return
            raise SlotsCrashedError(slots) from error
        self._fresh = self._begun = True
        self.ended[list(slots)] = False
        write(self.observations, slice(None), observations)

    def step(self, slots: Sequence[int], actions: NumpyArray) -> None:
        """Step all sub-environments, since a vector environment cannot step a part of them."""
        running = list(slots)
        try:
            if self._disabled:
                # Only slots that are not running can have ended: without autoreset they must be reset to be stepped.
                self._revive()
            observations, rewards, terminated, truncated, info = self._env.step(actions[: self.count])
        except Exception as error:
            self._fresh = False
            raise SlotsCrashedError(running) from error
        write(self.observations, slice(None), observations)
        self.rewards[:] = 0.0
        self.rewards[running] = rewards[running]
        np.logical_or(terminated, truncated, out=self.ended)
        if self._same_step and self.ended.any():
            for slot in [slot for slot in running if self.ended[slot]]:
                write(self.observations, slot, _final_observation(info, slot))

    def _revive(self) -> None:
        if self.ended.any():
            self._env.reset(options={"reset_mask": self.ended.copy()})
            self.ended[:] = False

    def call(self, method: str, slots: Sequence[int]) -> list[Any]:
        """Of all sub-environments, since a vector environment cannot call a part of them."""
        try:
            found = self._env.call(method)  # type: ignore[attr-defined]
        except AttributeError as error:
            raise _no_method(method, self._env, error) from error
        return [found[slot] for slot in slots]

    def close(self) -> None:
        """Close the vector environment."""
        if isinstance(self._env, AsyncVectorEnv) and not self._fresh:
            self._env.close(terminate=True)  # a crashed worker would not answer
        else:
            self._env.close()


def _no_method(method: str, env: object, error: AttributeError) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the policy needs {method}() of the environment, which {env} does not have ({error}); give an environment "
        f"with that method, or in a wrapper that has it (sb3_contrib.common.wrappers.ActionMasker)"
    )


def _final_observation(info: dict[str, Any], slot: int) -> Any:
    final = info["final_obs"]
    return {key: value[slot] for key, value in final.items()} if isinstance(final, dict) else final[slot]
