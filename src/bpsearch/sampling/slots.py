"""Slots: environments that run side by side, one episode each at a time."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from bpsearch._core.arrays import NumpyArray, Observations
from bpsearch._core.foreign import KINDS, own_array
from bpsearch.errors import InvalidArgumentError, InvalidTrajectoriesError

_SPACES = (
    gymnasium.spaces.Box,
    gymnasium.spaces.Discrete,
    gymnasium.spaces.MultiDiscrete,
    gymnasium.spaces.MultiBinary,
)


_PLAIN = (float, int)  # of most rewards


class SlotsCrashedError(Exception):
    """An environment raised an error, its cause, while the given slots were running."""

    def __init__(self, slots: Sequence[int]) -> None:
        super().__init__(slots)
        self.slots = slots


class ObservationError(Exception):
    """An environment gave something else than it declares.

    Attributes:
        expected: what it declares.
        got: what it gave.
        slot: in which; None if in all of them.
    """

    def __init__(self, expected: str, got: Any, slot: int | None = None) -> None:
        super().__init__(expected, got, slot)
        self.expected, self.got, self.slot = expected, got, slot


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
        doubtful: whether values of the last observations may lie outside of their space.
    """

    restarts_single = True
    doubtful = True

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
    def close(self) -> None:
        """Free what the environments hold."""


class EnvSlots(Slots):
    """Environments stepped one after the other in this process; slots without an episode cost nothing."""

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
        super().__init__(len(envs), envs[0].observation_space, envs[0].action_space)
        self._envs = envs
        space, rows = self.observation_space, self.observations
        self._states = range(0)  # of a Discrete space
        if isinstance(space, gymnasium.spaces.Discrete):
            self._states = range(int(space.start), int(space.start + space.n))
        self._row = (None, ()) if isinstance(rows, dict) else (rows.dtype, rows.shape[1:])

    def start(self, slots: Sequence[int], seeds: Sequence[int]) -> None:
        """Reset the environments of `slots`."""
        for slot, seed in zip(slots, seeds, strict=True):
            try:
                observation, _ = self._envs[slot].reset(seed=seed)
            except Exception as error:
                raise SlotsCrashedError([slot]) from error
            accept(self.observations, slot, observation)
        self.doubtful = True

    def step(self, slots: Sequence[int], actions: NumpyArray) -> None:
        """Step the environments of `slots`."""
        observations, rewards, ended, envs = self.observations, self.rewards, self.ended, self._envs
        states, (dtype, shape), doubtful = self._states, self._row, False
        for slot in slots:
            try:
                observation, reward, terminated, truncated, _ = envs[slot].step(actions[slot])
            except Exception as error:
                raise SlotsCrashedError([slot]) from error
            # What most environments give is known to fit at a glance; this is the loop that takes the time.
            if type(observation) is int and observation in states:
                observations[slot] = observation  # type: ignore[index, assignment]
            else:
                doubtful = True
                if type(observation) is np.ndarray and observation.dtype is dtype and observation.shape == shape:
                    observations[slot] = observation  # type: ignore[index]
                else:
                    accept(observations, slot, observation)
            rewards[slot] = reward if isinstance(reward, _PLAIN) else _reward(reward, slot)
            ended[slot] = terminated or truncated
        self.doubtful = doubtful

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

    def start(self, slots: Sequence[int], seeds: Sequence[int]) -> None:
        """Reset the sub-environments of `slots`; before the first step and after a crash, all of them."""
        by_slot = dict(zip(slots, seeds, strict=True))
        # Slots without an episode are stepped along: which seed they have does not matter.
        every_seed: Any = [by_slot.get(slot, seeds[0]) for slot in range(self.count)]
        options = None
        if self._fresh and self.restarts_single:
            options = {"reset_mask": np.isin(np.arange(self.count), slots)}
        try:
            observations, _ = self._env.reset(seed=every_seed, options=options)
        except Exception as error:
            self._fresh = False
            if isinstance(error, gymnasium.error.Error) and not self.restarts_single:
                raise InvalidArgumentError(
                    f"{self._env} does not accept one seed per sub-environment ({error}); give the environment's id "
                    f"or a factory instead"
                ) from error
            raise SlotsCrashedError(slots) from error
        self._fresh = True
        self.ended[list(slots)] = False
        accept(self.observations, None, observations)

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
        accept(self.observations, None, observations)
        self.rewards[:] = 0.0
        if np.shape(rewards) != self.rewards.shape:
            raise ObservationError(f"rewards of the shape {self.rewards.shape}", f"the shape {np.shape(rewards)}")
        self.rewards[running] = own_array("rewards", rewards, error=InvalidTrajectoriesError)[running]
        np.logical_or(terminated, truncated, out=self.ended)
        if self._same_step and self.ended.any():
            for slot in [slot for slot in running if self.ended[slot]]:
                accept(self.observations, slot, _final_observation(info, slot))

    def _revive(self) -> None:
        if self.ended.any():
            self._env.reset(options={"reset_mask": self.ended.copy()})
            self.ended[:] = False

    def close(self) -> None:
        """Close the vector environment."""
        if isinstance(self._env, AsyncVectorEnv) and not self._fresh:
            self._env.close(terminate=True)  # a crashed worker would not answer
        else:
            self._env.close()


def _final_observation(info: dict[str, Any], slot: int) -> Any:
    final = info["final_obs"]
    return {key: value[slot] for key, value in final.items()} if isinstance(final, dict) else final[slot]


def empty_observations(space: gymnasium.Space[Any], *leading: int) -> Observations:
    """Zeros for observations of `space`: an array, or a dict of arrays for a `Dict` space."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: empty_observations(part, *leading) for key, part in space.items()}
    if not isinstance(space, _SPACES):
        raise InvalidArgumentError(
            f"observations must be of a Box, Discrete, MultiDiscrete or MultiBinary space, or of a Dict of them, got "
            f"{space}"
        )
    return np.zeros((*leading, *(space.shape or ())), space.dtype)


def accept(arrays: Observations, slot: int | None, values: Any) -> None:
    """`arrays[slot] = values`, of all slots if None, if the values have the shape and the kind that the space declares.

    NumPy would broadcast another shape, cut off what is no whole number, and read a text as a number.
    """
    if isinstance(arrays, dict):
        if not isinstance(values, dict) or values.keys() != arrays.keys():
            got = sorted(map(str, values)) if isinstance(values, dict) else type(values).__name__
            raise ObservationError(f"the keys {sorted(arrays)}", got, slot)
        for key, array in arrays.items():
            accept(array, slot, values[key])
        return
    if type(values) is not np.ndarray:
        values = np.asarray(values)
    expected = arrays.shape if slot is None else arrays.shape[1:]
    if values.shape != expected:
        raise ObservationError(f"the shape {expected}", f"{values.shape}", slot)
    kind = values.dtype.kind
    if kind not in KINDS or (kind == "f" and arrays.dtype.kind != "f"):
        raise ObservationError(f"the type {arrays.dtype}", f"{values.dtype}", slot)
    arrays[slice(None) if slot is None else slot] = values


def _reward(reward: Any, slot: int) -> Any:
    if not isinstance(reward, int | np.integer | np.floating | np.bool_) and (
        np.shape(reward) != () or np.asarray(reward).dtype.kind not in KINDS
    ):
        raise ObservationError("a number as reward", f"{reward!r:.200}", slot)
    return reward


def write(arrays: Observations, index: Any, values: Any) -> None:
    """`arrays[index] = values`, through dicts."""
    if isinstance(arrays, dict):
        for key, array in arrays.items():
            write(array, index, values[key])
    else:
        arrays[index] = values
