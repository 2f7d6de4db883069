"""The Gymnasium sampler: episodes of any environment, each a pure function of its own seed."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import gymnasium
import jax
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv

from bpsearch._core.arrays import NumpyArray
from bpsearch._core.checks import check_choice, check_integer, check_type, quote
from bpsearch._core.jaxtools import to_numpy
from bpsearch.envs.resolve import GymnasiumSource, factory_of
from bpsearch.envs.spaces import first, outside, parts_of
from bpsearch.errors import EpisodeCrashError, InvalidArgumentError, InvalidTrajectoriesError
from bpsearch.policies.base import Policy, clipped
from bpsearch.sampling.records import Records
from bpsearch.sampling.seeds import episode_numbers
from bpsearch.sampling.slots import (
    EnvSlots,
    ObservationError,
    Slots,
    SlotsCrashedError,
    VectorSlots,
    empty_observations,
    write,
)
from bpsearch.sampling.trajectories import Trajectories

DEFAULT_NUM_ENVS = 8
MAX_NUM_ENVS = 100_000
_NOISE_STEPS = 64  # steps of action noise drawn at once for an episode; the noise does not depend on it


class GymnasiumSampler:
    """Runs episodes in parallel Gymnasium environments, which stay open from batch to batch.

    The episodes of a batch are numbered before they run and each is run to its end, so none is preferred for being
    short. Environment and policy of an episode get their random numbers from (seed, batch, episode) only: the batch
    does not depend on the number of parallel environments, nor on how they run, as far as the environment forgets all
    about earlier episodes when it is reset with a seed.

    What remains is rounding: a matrix product may round a row differently in another place or number of rows. Policies
    that compute in 64 bit, tables and those of `from_sb3` (after their features) among them, are the same to the
    last bit but for one action in about a billion. In 32 bit most networks are too, because the sampler pads to a
    multiple of 16 rows; where one is not, an action differs about once in ten million steps.

    An environment that raises an error is replaced, and its episode replayed with the same seed and policy, once.

    Args:
        env: the id of a registered environment; a factory, called once per parallel environment; a single environment;
            or a vector environment in any autoreset mode.
        env_kwargs: what `gymnasium.make` is given besides an id.
        num_envs: how many environments run in parallel, 8 by default; a given environment has its own number.
        vectorization: "sync" steps the environments in this process, "async" each in a process of its own. Those are
            spawned, so a script must guard its entry point by `if __name__ == "__main__"`.
        horizon: the number of steps after which an episode is cut; its return up to there is what is estimated. By
            default episodes end as the environment says.

    Attributes:
        source: what the environments were made of, `env`.
        env_kwargs: as given.
        horizon: as given.
    """

    def __init__(
        self,
        env: GymnasiumSource,
        *,
        env_kwargs: dict[str, Any] | None = None,
        num_envs: int | None = None,
        vectorization: Literal["sync", "async"] = "sync",
        horizon: int | None = None,
    ) -> None:
        check_choice("vectorization", vectorization, ("sync", "async"))
        if env_kwargs is not None:
            check_type("env_kwargs", env_kwargs, dict, "a dict of arguments")
        self.source, self.env_kwargs = env, env_kwargs
        self.horizon = None if horizon is None else check_integer("horizon", horizon)
        self._factory = factory_of(env, env_kwargs)
        self._given = env if isinstance(env, gymnasium.Env | VectorEnv) else None
        if self._given is not None:
            own = self._given.num_envs if isinstance(self._given, VectorEnv) else 1
            if num_envs is not None and check_integer("num_envs", num_envs) != own:
                raise InvalidArgumentError(
                    f"num_envs must be {own}, the number of environments in {env!r}, got {num_envs}; give an id or a "
                    f"factory to choose it"
                )
        self._num_envs = DEFAULT_NUM_ENVS if num_envs is None else check_integer("num_envs", num_envs)
        if self._num_envs > MAX_NUM_ENVS:
            raise InvalidArgumentError(f"num_envs must be at most {MAX_NUM_ENVS}, got {quote(num_envs)}")
        self._async = vectorization == "async"
        self._slots = self._open()

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Of one environment."""
        return self._slots.observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Of one environment."""
        return self._slots.action_space

    def sample(self, policy: Policy, episodes: int, *, seed: int = 0, batch: int = 0, repeats: int = 1) -> Trajectories:
        """Run `policy` for whole episodes; see `bpsearch.sample`."""
        records = Records(self.observation_space, episodes)
        run = _Run(policy, records, self.horizon, seed, batch, repeats)
        waiting = deque(range(episodes))
        while waiting:
            try:
                run(self._slots, waiting)
            except SlotsCrashedError as crash:
                crashed = [int(run.episode[slot]) for slot in crash.slots]
                rest = [int(episode) for episode in run.episode if episode >= 0 and episode not in crashed]
                records.forget([*crashed, *rest])
                waiting.extendleft(reversed(rest))
                self._replay(run, crashed)
        return records.trajectories(
            horizon=self.horizon,
            behavior_parameters=to_numpy(policy.flat),
            seed=np.array([seed, batch], dtype=np.int64),
        )

    def close(self) -> None:
        """Close the environments that the sampler made; those that it was given stay open."""
        if self._given is None:
            self._slots.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> Slots:
        if isinstance(self._given, VectorEnv):
            return VectorSlots(self._given)
        if self._given is not None:
            return EnvSlots([self._given])
        assert self._factory is not None
        factories = [self._factory] * self._num_envs
        if self._async:
            # Forking a process that runs JAX's threads may deadlock.
            return VectorSlots(
                AsyncVectorEnv(factories, context="spawn", autoreset_mode=AutoresetMode.DISABLED, copy=False)
            )
        return EnvSlots([factory() for factory in factories])

    def _replay(self, run: "_Run", episodes: Sequence[int]) -> None:
        """Run crashed episodes once more: each alone in a fresh environment if one can be made."""
        self.close()
        if self._factory is None:
            self._slots = self._open()
            _again(run, self._slots, episodes)
            return
        for episode in episodes:
            alone = EnvSlots([self._factory()])
            try:
                _again(run, alone, [episode])
            finally:
                alone.close()
        self._slots = self._open()


def _again(run: "_Run", slots: Slots, episodes: Sequence[int]) -> None:
    try:
        run(slots, deque(episodes))
    except SlotsCrashedError as crash:
        named = ", ".join(str(episode) for episode in episodes)
        raise EpisodeCrashError(
            f"the environment failed in episode {named} of batch {run.batch} (seed {run.seed}) with "
            f"{type(crash.__cause__).__name__}: {crash.__cause__}, and failed again when the episode was replayed with "
            f"the same seed; dropping it would bias the estimate, so the batch is not counted"
        ) from crash.__cause__


def _renewed(memory: Any, slot: int, new: Any) -> Any:
    """The policy's memory with that of one slot as it is when an episode begins."""

    def write_row(column: NumpyArray, row: NumpyArray) -> NumpyArray:
        column = column.copy()
        column[slot] = row[0]
        return column

    return jax.tree_util.tree_map(write_row, memory, new)


class _Run:
    """The loop over steps; `episode` tells which episode each slot is running, or −1."""

    def __init__(
        self, policy: Policy, records: Records, horizon: int | None, seed: int, batch: int, repeats: int
    ) -> None:
        self.policy, self.records, self.horizon = policy, records, horizon
        self.seed, self.batch, self.repeats = seed, batch, repeats
        self.episode: NumpyArray = np.zeros(0, int)

    def __call__(self, slots: Slots, waiting: deque[int]) -> None:
        """Run the `waiting` episodes to their ends; those that have started are taken from the queue."""
        policy, records = self.policy, self.records
        count = slots.count
        rows = -(-count // policy.row_multiple) * policy.row_multiple
        observations = empty_observations(slots.observation_space, rows)
        noise = np.zeros((rows, _NOISE_STEPS, policy.uniforms))
        every_row = np.arange(rows)
        position = np.zeros(rows, int)
        memory = policy.begin(np.zeros(rows))
        streams: dict[int, np.random.Generator] = {}
        # A policy of unbounded actions knows nothing of the environment's bounds.
        bounded = policy.action_space != slots.action_space
        step = np.zeros(count, int)
        self.episode = np.full(count, -1)
        running: list[int] = []
        while True:
            if waiting and len(running) < count and (slots.restarts_single or not running):
                free = [slot for slot in range(count) if self.episode[slot] < 0][: len(waiting)]
                self.episode = self.episode.copy()
                seeds = []
                for slot in free:
                    self.episode[slot] = waiting.popleft()
                    env_seed, stream = episode_numbers(self.seed, self.batch, int(self.episode[slot]), self.repeats)
                    seeds.append(env_seed)
                    if policy.remembers:
                        memory = _renewed(memory, slot, policy.begin(stream.random(1)))
                    stream.random(out=noise[slot])
                    streams[slot] = stream
                step[free] = position[free] = 0
                self._obey(slots.start, free, seeds, step, 0)
                running = [slot for slot in range(count) if self.episode[slot] >= 0]
                self._check_observations(slots, step)
            if not running:
                return
            write(observations, slice(count), slots.observations)
            actions, log_probs, executed, memory = policy.act_next(noise[every_row, position], observations, memory)
            records.before(self.episode, step, slots.observations, actions[:count], log_probs[:count])
            self._obey(slots.step, running, clipped(slots.action_space, executed) if bounded else executed, step, 1)
            records.after(slots.rewards)
            self._check_rewards(slots.rewards, step)
            step = step + 1
            self._check_observations(slots, step)
            over = slots.ended if self.horizon is None else slots.ended | (step >= self.horizon)
            if over[running].any():
                ended = [slot for slot in running if over[slot]]
                for slot in ended:
                    records.end(self.episode[slot], step[slot], slots.observations, slot)
                self.episode = self.episode.copy()
                self.episode[ended] = -1
                running = [slot for slot in running if not over[slot]]
            position[:count] += 1
            if position.max() == _NOISE_STEPS:
                for slot in running:
                    if position[slot] == _NOISE_STEPS:
                        streams[slot].random(out=noise[slot])
                position %= _NOISE_STEPS

    def _obey(self, act: Callable[..., None], slots: Sequence[int], what: Any, step: NumpyArray, ahead: int) -> None:
        """Start or step the slots; what an environment gives must have the shape and the kind that it declares."""
        try:
            act(slots, what)
        except ObservationError as error:
            slot = slots[0] if error.slot is None else error.slot
            raise InvalidTrajectoriesError(
                f"the environment gave {error.got} in episode {self.episode[slot]}, step {step[slot] + ahead}, but "
                f"declares {error.expected}; the batch is not counted"
            ) from error

    def _check_observations(self, slots: Slots, step: NumpyArray) -> None:
        """Refuse what no episode can show before the policy or the environment chokes on it."""
        seen = slots.observations
        if not slots.doubtful or (not isinstance(seen, dict) and seen.dtype.kind == "f" and np.isfinite(seen).all()):
            return
        for name, space, values in parts_of(slots.observation_space, seen, "observation"):
            bad = outside(space, values, 1)
            at = None if bad is None else first(bad, self.episode >= 0)
            if at is not None:
                must = "finite" if values.dtype.kind == "f" else f"one of {space}"
                self._refuse(name, values, at[0], step, must)

    def _check_rewards(self, rewards: NumpyArray, step: NumpyArray) -> None:
        if not np.isfinite(rewards).all():
            at = first(~np.isfinite(rewards), self.episode >= 0)
            if at is not None:
                self._refuse("reward", rewards, at[0], step, "finite")

    def _refuse(self, what: str, values: NumpyArray, slot: int, step: NumpyArray, must: str) -> None:
        raise InvalidTrajectoriesError(
            f"{what} of episode {self.episode[slot]}, step {step[slot]} is {quote(values[slot])}: every {what} must be "
            f"{must}; the batch is not counted"
        )
