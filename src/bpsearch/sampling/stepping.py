"""The loop over steps: episodes in slots, their policy in rows that do not depend on who runs beside them."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import jax
import numpy as np

from bpsearch._core.arrays import NumpyArray, Observations
from bpsearch._core.checks import quote
from bpsearch.envs.observations import empty_observations, take, write
from bpsearch.envs.spaces import first, outside, parts_of
from bpsearch.errors import InvalidActionError, InvalidTrajectoriesError, NeverEndingError
from bpsearch.policies.base import Policy, clip_to
from bpsearch.sampling.records import Records
from bpsearch.sampling.seeds import episode_numbers
from bpsearch.sampling.slots import ObservationError, Slots

LONGEST = 100_000  # steps after which an episode without a horizon is taken for one that never ends
_NOISE_STEPS = 64  # steps of action noise drawn at once for an episode; the noise does not depend on it


class Stepper:
    """Runs numbered episodes of one policy, of one batch or of several, to their ends.

    An environment runs in a slot, its policy in a row of what `policy.act_in_blocks` is called with. Matrix products
    may round a row differently in another place or beside other numbers of rows. So a block always has
    `policy.row_multiple` rows, and episode n always has the place n mod `row_multiple` in its block: the numbers of an
    episode come out of the same instructions however many others run, here or in another process.

    Args:
        policy: who acts.
        records: where steps are recorded; an episode has the place there that it has among the `numbers`.
        horizon: the number of steps after which an episode is cut.
        seed: of the study.
        numbers: batch and number of each episode.
        repeats: see `sample`.
        start_seeds: of chosen starts, one for each episode; None if episodes start wherever their own seeds say.

    Attributes:
        place: (slots,), which episode each slot is running, by its place among the numbers, or −1.
    """

    def __init__(
        self,
        policy: Policy,
        records: Records,
        horizon: int | None,
        seed: int,
        numbers: Sequence[tuple[int, int]],
        repeats: int,
        start_seeds: Sequence[int] | None = None,
    ) -> None:
        self.start_seeds = start_seeds
        self.policy, self.records, self.horizon = policy, records, horizon
        self.seed, self.numbers, self.repeats = seed, numbers, repeats
        self.place: NumpyArray = np.zeros(0, int)

    def run(self, slots: Slots, waiting: deque[int]) -> None:
        """Run the `waiting` episodes, by their places, to their ends; those that have started leave the queue."""
        policy, records, count = self.policy, self.records, slots.count
        rows = _Rows(policy, slots)
        # A policy of unbounded actions knows nothing of the environment's bounds.
        bounded = policy.action_space != slots.action_space
        step = np.zeros(count, int)
        self.place = np.full(count, -1)
        running = np.zeros(0, int)
        startable = True
        while True:
            if startable and waiting and (slots.restarts_single or not len(running)):
                startable = False
                self._start(slots, rows, waiting, step)
                running = np.flatnonzero(self.place >= 0)
                self._check_observations(slots, step)
            if not len(running):
                return
            # A copy: the slots write their observations in place.
            seen = take(slots.observations, running)
            actions, log_probs, executed = rows.act(running, seen)
            own = rows.of_slot[running]
            records.before(self.place[running], step[running], seen, actions[own], log_probs[own])
            executed = executed[rows.of_slot]
            self._check_actions(slots.action_space, executed, running, step)
            given = clip_to(slots.action_space, executed) if bounded else executed
            self._obey(slots.step, running.tolist(), given, step, 1)
            records.after(slots.rewards[running])
            self._check_rewards(slots.rewards, step)
            step[running] += 1
            self._check_observations(slots, step)
            if self.horizon is None and step.max() >= LONGEST:
                self._refuse_to_go_on(slots, step)
            over = slots.ended if self.horizon is None else slots.ended | (step >= self.horizon)
            if over[running].any():
                for slot in running[over[running]].tolist():
                    records.end(int(self.place[slot]), int(step[slot]), slots.observations, slot)
                    rows.release(slot, self._episode(slot))
                    self.place[slot] = -1
                running = running[~over[running]]
                startable = True
            rows.advance(running)

    def _start(self, slots: Slots, rows: "_Rows", waiting: deque[int], step: NumpyArray) -> None:
        started, seeds = [], []
        free = np.flatnonzero(self.place < 0).tolist()
        if self.policy.alone:
            free = free[: int(len(free) == len(self.place))]
        for slot in free:
            place = next((place for place in waiting if rows.has_place(self.numbers[place][1])), None)
            if place is None:
                break
            waiting.remove(place)
            batch, episode = self.numbers[place]
            env_seed, stream = episode_numbers(self.seed, batch, episode, self.repeats)
            if self.start_seeds is not None:
                env_seed = self.start_seeds[place]
            rows.take(slot, episode, stream)
            self.place[slot], step[slot] = place, 0
            started.append(slot)
            seeds.append(env_seed)
        if started:  # none, if those that wait have no row in their place
            self._obey(slots.start, started, seeds, step, 0)

    def _episode(self, slot: int) -> int:
        """The number, in its batch, of the episode that a slot is running."""
        return self.numbers[int(self.place[slot])][1]

    def _check_actions(
        self, space: gymnasium.Space[Any], actions: NumpyArray, running: NumpyArray, step: NumpyArray
    ) -> None:
        """Refuse an action that does not exist, in the policy's name: the environment may do anything with it."""
        own = actions[running]
        bad = outside(space, own, 1) if own.shape[1:] == space.shape else None
        at = None if bad is None else first(bad)
        if at is not None:
            slot = running[at[0]]
            raise InvalidActionError(
                f"{self.policy.name} gave the action {quote(actions[slot])} in episode {self._episode(slot)}, step "
                f"{step[slot]}, but the environment's actions are {space}"
            )

    def _refuse_to_go_on(self, slots: Slots, step: NumpyArray) -> None:
        for slot in np.flatnonzero((step >= LONGEST) & (self.place >= 0) & ~slots.ended):
            batch, episode = self.numbers[self.place[slot]]
            raise NeverEndingError(
                f"episode {episode} of batch {batch} (seed {self.seed}) has not ended after "
                f"{step[slot]} steps, and nothing limits its length: give a step limit, "
                f"bps.environment(env, horizon=1000) (--horizon 1000); the value is then of the return up to there"
            )

    def _obey(self, act: Callable[..., None], slots: Sequence[int], what: Any, step: NumpyArray, ahead: int) -> None:
        """Start or step the slots; what an environment gives must have the shape and the kind that it declares."""
        try:
            act(slots, what)
        except ObservationError as error:
            slot = slots[0] if error.slot is None else error.slot
            raise InvalidTrajectoriesError(
                f"the environment gave {error.got} in episode {self._episode(slot)}, step {step[slot] + ahead}, but "
                f"declares {error.expected}; the batch is not counted"
            ) from error

    def _check_observations(self, slots: Slots, step: NumpyArray) -> None:
        """Refuse what no episode can show before the policy or the environment chokes on it."""
        seen = slots.observations
        if not slots.doubtful or (not isinstance(seen, dict) and seen.dtype.kind == "f" and np.isfinite(seen).all()):
            return
        for name, space, values in parts_of(slots.observation_space, seen, "observation"):
            bad = outside(space, values, 1)
            at = None if bad is None else first(bad, self.place >= 0)
            if at is not None:
                must = "finite" if values.dtype.kind == "f" else f"one of {space}"
                self._refuse(name, values, at[0], step, must)

    def _check_rewards(self, rewards: NumpyArray, step: NumpyArray) -> None:
        if not np.isfinite(rewards).all():
            at = first(~np.isfinite(rewards), self.place >= 0)
            if at is not None:
                self._refuse("reward", rewards, at[0], step, "finite")

    def _refuse(self, what: str, values: NumpyArray, slot: int, step: NumpyArray, must: str) -> None:
        raise InvalidTrajectoriesError(
            f"{what} of episode {self._episode(slot)}, step {step[slot]} is {quote(values[slot])}: every {what} must "
            f"be {must}; the batch is not counted"
        )


class _Rows:
    """The rows in which the policy is evaluated: blocks of fixed size, each with one place for each residue.

    Attributes:
        of_slot: (slots,), the row of the episode that each slot runs; 0 where none runs.
    """

    def __init__(self, policy: Policy, slots: Slots) -> None:
        self.policy = policy
        self.block = policy.row_multiple
        blocks = -(-slots.count // self.block)
        count = blocks * self.block
        self.of_slot = np.zeros(slots.count, int)
        # Of each residue the free rows, that of the first block last: it is taken first, so that few blocks are used.
        self._free = [list(range(count - self.block + place, -1, -self.block)) for place in range(self.block)]
        self._observations = empty_observations(slots.observation_space, count)
        self._noise = np.zeros((count, _NOISE_STEPS, policy.uniforms))
        self._position = np.zeros(count, int)
        self._every = np.arange(count)
        self._streams: dict[int, np.random.Generator] = {}
        self._memory = policy.begin(np.zeros(count))

    def has_place(self, episode: int) -> bool:
        """Whether a row of the episode's residue is free."""
        return bool(self._free[episode % self.block])

    def take(self, slot: int, episode: int, stream: np.random.Generator) -> None:
        """A row for an episode that starts, with its own stream of noise."""
        row = self._free[episode % self.block].pop()
        if self.policy.remembers:
            self._memory = _renew(self._memory, row, self.policy.begin(stream.random(1)))
        stream.random(out=self._noise[row])
        self.of_slot[slot], self._streams[row], self._position[row] = row, stream, 0

    def release(self, slot: int, episode: int) -> None:
        """The row of an episode that has ended is free again."""
        self._free[episode % self.block].append(int(self.of_slot[slot]))
        self._free[episode % self.block].sort(reverse=True)
        self.of_slot[slot] = 0  # always computed

    def act(self, running: NumpyArray, observations: Observations) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
        """Actions, log-probabilities and what is executed, by rows; those of slots that do not run mean nothing."""
        own = self.of_slot[running]
        write(self._observations, own, observations)
        noise = self._noise[self._every, self._position]
        if self.block == 1 and len(own) < len(noise):
            return self._act_in(own, noise, observations)
        used = (int(own.max()) // self.block + 1) * self.block  # rows of later blocks are not computed
        if used == len(noise):
            *found, self._memory = self.policy.act_in_blocks(noise, self._observations, self._memory)
            return found[0], found[1], found[2]
        memory = jax.tree_util.tree_map(lambda array: array[:used], self._memory)
        *found, memory = self.policy.act_in_blocks(noise[:used], take(self._observations, slice(used)), memory)
        self._memory = jax.tree_util.tree_map(lambda new, old: np.concatenate([new, old[used:]]), memory, self._memory)
        return found[0], found[1], found[2]

    def _act_in(
        self, rows: NumpyArray, noise: NumpyArray, observations: Observations
    ) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
        """A function is not asked about environments that stand still: those get the first one's action."""
        memory = jax.tree_util.tree_map(lambda column: column[rows], self._memory)
        *parts, after = self.policy.act_next(noise[rows], observations, memory)

        def spread(part: NumpyArray) -> NumpyArray:
            column = np.repeat(part[:1], len(noise), axis=0)
            column[rows] = part
            return column

        def remember(column: NumpyArray, part: NumpyArray) -> NumpyArray:
            column = np.array(column)
            column[rows] = part
            return column

        self._memory = jax.tree_util.tree_map(remember, self._memory, after)
        actions, log_probs, executed = (spread(np.asarray(part)) for part in parts)
        return actions, log_probs, executed

    def advance(self, running: NumpyArray) -> None:
        """The next step's noise."""
        own = self.of_slot[running]
        self._position[own] += 1
        if len(own) and self._position.max() == _NOISE_STEPS:
            for row in own[self._position[own] == _NOISE_STEPS].tolist():
                self._streams[row].random(out=self._noise[row])
            self._position %= _NOISE_STEPS


def _renew(memory: Any, row: int, new: Any) -> Any:
    """The policy's memory with that of one row as it is when an episode begins."""

    def write_row(column: NumpyArray, begun: NumpyArray) -> NumpyArray:
        column = np.array(column)
        column[row] = begun[0]
        return column

    return jax.tree_util.tree_map(write_row, memory, new)
