"""Slots: environments that run side by side, one episode each at a time."""

import contextlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from bpsearch._core.arrays import NumpyArray, Observations
from bpsearch._core.foreign import KINDS, own_array
from bpsearch.envs.observations import TEXT, empty_observations, write
from bpsearch.envs.resolve import Factory
from bpsearch.errors import InvalidArgumentError, InvalidTrajectoriesError

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
        longest: steps after which every episode ends; None if that is not known.
        observation_space: of one environment.
        action_space: of one environment.
        observations: (count, ...), what each slot observed last; after the last step of an episode its final
            observation. The arrays are written in place.
        rewards: (count,), 64 bit, of the last step.
        ended: (count,) bool, whether the last step was the episode's last, by termination or truncation.
        doubtful: whether values of the last observations may lie outside of their space.
    """

    restarts_single = True
    longest: int | None = None
    doubtful = True

    def __init__(self, count: int, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        self.count = count
        self.observation_space = observation_space
        self.action_space = action_space
        self.observations = empty_observations(observation_space, count)
        self.rewards = np.zeros(count)
        self.ended = np.zeros(count, bool)

    @property
    def resets_together(self) -> int:
        """How many resets are quicker together than one after the other."""
        return self.count

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
    """Environments stepped one after the other in this process; slots without an episode cost nothing.

    Args:
        env: the first environment.
        count: how many there may be.
        factory: makes the others, each when its slot is first needed.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], count: int = 1, factory: Factory | None = None) -> None:
        super().__init__(count, env.observation_space, env.action_space)
        self._envs: list[gymnasium.Env[Any, Any] | None] = [env, *[None] * (count - 1)]
        self._factory = factory
        self.longest = None if env.spec is None else env.spec.max_episode_steps
        space, rows = self.observation_space, self.observations
        self._states = range(0)  # of a Discrete space
        if isinstance(space, gymnasium.spaces.Discrete):
            self._states = range(int(space.start), int(space.start + space.n))
        self._row = (None, ()) if isinstance(rows, dict) else (rows.dtype, rows.shape[1:])

    @property
    def resets_together(self) -> int:
        """As many as there are environments: none is made for it."""
        return sum(env is not None for env in self._envs)

    def start(self, slots: Sequence[int], seeds: Sequence[int]) -> None:
        """Reset the environments of `slots`."""
        self.doubtful = False
        for slot, seed in zip(slots, seeds, strict=True):
            env = self._envs[slot]
            if env is None:
                assert self._factory is not None
                env = self._envs[slot] = self._factory()
            try:
                observation, _ = env.reset(seed=seed)
            except Exception as error:
                raise SlotsCrashedError([slot]) from error
            self._accept(slot, observation)

    def step(self, slots: Sequence[int], actions: NumpyArray) -> None:
        """Step the environments of `slots`."""
        rewards, ended, envs = self.rewards, self.ended, self._envs
        self.doubtful = False
        for slot in slots:
            try:
                observation, reward, terminated, truncated, _ = envs[slot].step(actions[slot])  # type: ignore[union-attr]
            except Exception as error:
                raise SlotsCrashedError([slot]) from error
            self._accept(slot, observation)
            rewards[slot] = reward if isinstance(reward, _PLAIN) else _reward(reward, slot)
            ended[slot] = terminated or truncated

    def _accept(self, slot: int, observation: Any) -> None:
        """What most environments give is known to fit at a glance; this is where the time goes."""
        if type(observation) is int and observation in self._states:
            self.observations[slot] = observation  # type: ignore[index, assignment]
            return
        self.doubtful = True
        dtype, shape = self._row
        if type(observation) is np.ndarray and observation.dtype is dtype and observation.shape == shape:
            self.observations[slot] = observation  # type: ignore[index]
        else:
            accept(self.observations, slot, observation)

    def call(self, method: str, slots: Sequence[int]) -> list[Any]:
        """Of the environment or one of its wrappers."""
        try:
            return [self._envs[slot].get_wrapper_attr(method)() for slot in slots]  # type: ignore[union-attr]
        except AttributeError as error:
            raise _no_method(method, self._envs[0], error) from error

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            if env is not None:
                env.close()


class VectorSlots(Slots):
    """The sub-environments of a Gymnasium `VectorEnv`, in any autoreset mode.

    Gymnasium's own vector environments, and all without autoreset, start single sub-environments with a seed by
    `reset_mask`: whatever autoreset did before or would do at the next step is replaced. Others are reset only as a
    whole, with one seed per sub-environment, after all have ended.

    Args:
        env: the vector environment.
        timeout: seconds that a step or a reset of an `AsyncVectorEnv` may take; None for no limit.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], timeout: float | None = None) -> None:
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
        mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._env = env
        self._timeout = timeout
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
        self.longest = None if env.spec is None else env.spec.max_episode_steps
        self._begun = False
        self._one_seed = False

    def start(self, slots: Sequence[int], seeds: Sequence[int]) -> None:
        """Reset the sub-environments of `slots`; before the first step and after a crash, all of them."""
        # Slots without an episode are stepped along: which seed they have does not matter.
        every_seed: Any = seeds[0] if self._one_seed else [seeds[0]] * self.count
        if not self._one_seed:
            for slot, seed in zip(slots, seeds, strict=True):
                every_seed[slot] = seed
        options = None
        if self._fresh and self.restarts_single:
            options = {"reset_mask": np.isin(np.arange(self.count), slots)}
        try:
            observations, _ = self._reset(every_seed, options)
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
        accept(self.observations, None, observations)

    def step(self, slots: Sequence[int], actions: NumpyArray) -> None:
        """Step all sub-environments, since a vector environment cannot step a part of them."""
        running = list(slots)
        try:
            if self._disabled:
                # Only slots that are not running can have ended: without autoreset they must be reset to be stepped.
                self._revive()
            observations, rewards, terminated, truncated, info = self._step(actions[: self.count])
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

    def _reset(self, seed: Any, options: dict[str, Any] | None) -> Any:
        if not isinstance(self._env, AsyncVectorEnv):
            return self._env.reset(seed=seed, options=options)
        self._env.reset_async(seed=seed, options=options)
        return self._env.reset_wait(timeout=self._timeout)

    def _step(self, actions: NumpyArray) -> Any:
        if not isinstance(self._env, AsyncVectorEnv):
            return self._env.step(actions)
        self._env.step_async(actions)
        return self._env.step_wait(timeout=self._timeout)

    def _revive(self) -> None:
        if self.ended.any():
            self._reset(None, {"reset_mask": self.ended.copy()})
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
        if not isinstance(self._env, AsyncVectorEnv) or self._fresh:
            self._env.close()
            return
        # A process that was killed, or hangs, answers nothing more, and closing waits for answers.
        for process in self._env.processes:
            process.kill()
            process.join()
        with contextlib.suppress(EOFError, OSError):
            self._env.close(terminate=True)
        self._env.closed = True


def _no_method(method: str, env: object, error: AttributeError) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the policy needs {method}() of the environment, which {env} does not have ({error}); give an environment "
        f"with that method, or in a wrapper that has it (sb3_contrib.common.wrappers.ActionMasker)"
    )


def _final_observation(info: dict[str, Any], slot: int) -> Any:
    final = info["final_obs"]
    return {key: value[slot] for key, value in final.items()} if isinstance(final, dict) else final[slot]


def accept(arrays: Observations, slot: int | None, values: Any) -> None:
    """`arrays[slot] = values`, of all slots if None, if the values have the shape and the kind that the space declares.

    NumPy would broadcast another shape, cut off what is no whole number, and read a text as a number.
    """
    if isinstance(arrays, dict):
        if isinstance(values, tuple) and len(values) == len(arrays):
            values = dict(zip(arrays, values, strict=True))
        if not isinstance(values, dict) or values.keys() != arrays.keys():
            got = sorted(map(str, values)) if isinstance(values, dict) else type(values).__name__
            raise ObservationError(f"the keys {sorted(arrays)}", got, slot)
        for key, array in arrays.items():
            accept(array, slot, values[key])
        return
    index = slice(None) if slot is None else slot
    texts = (values,) if isinstance(values, str) else values
    if arrays.dtype == TEXT and isinstance(texts, tuple | list) and all(isinstance(text, str) for text in texts):
        write(arrays, index, values)
        return
    if type(values) is not np.ndarray:
        values = np.asarray(values)
    expected = arrays.shape if slot is None else arrays.shape[1:]
    if values.shape != expected:
        raise ObservationError(f"the shape {expected}", f"{values.shape}", slot)
    kind = values.dtype.kind
    if kind not in KINDS or (kind == "f" and arrays.dtype.kind != "f"):
        raise ObservationError(f"the type {arrays.dtype}", f"{values.dtype}", slot)
    arrays[index] = values


def _reward(reward: Any, slot: int) -> Any:
    if not isinstance(reward, int | np.integer | np.floating | np.bool_) and (
        np.shape(reward) != () or np.asarray(reward).dtype.kind not in KINDS
    ):
        raise ObservationError("a number as reward", f"{reward!r:.200}", slot)
    return reward
