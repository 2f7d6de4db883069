"""The scheduler: batches into chunks, chunks to workers, answers back into batches in the order of numbers."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import jax
import numpy as np

from bpsearch._core.jaxtools import replace as pytree_replace
from bpsearch.errors import EpisodeCrashError
from bpsearch.runners.backend import Backend, Outcome
from bpsearch.runners.chunks import Answer, Chunk, Piece
from bpsearch.sampling.trajectories import Trajectories

ATTEMPTS = 3  # how often an episode may lose its worker before the study stops
TARGET_SECONDS = 0.25  # that a chunk is to take at least: long beside the cost of sending it; at most four times that
FIRST_SIZE = 8  # episodes of a chunk before anything is known of their time
_AHEAD = 3  # chunks for each worker that are to be waiting
_BYTES = 2**27  # that batches may hold which nobody has asked for yet, if they are more than a few
_PROGRAMS = 2  # times as many episodes as one program runs at once: with fewer most of it stands still for long
_TIMED_SHARE = 0.25  # of a time limit per episode, what a chunk of several may take


@dataclass(frozen=True)
class Order:
    """A batch that is wanted: the same as a chunk of all its episodes.

    Attributes:
        chunk: all episodes of the batch, its one piece.
        grain: pieces begin at multiples of this, and have a multiple of it but for the last.
    """

    chunk: Chunk
    grain: int

    def joins(self, other: "Order") -> bool:
        """Whether episodes of both may be in one chunk."""
        return replace(self.chunk, pieces=()) == replace(other.chunk, pieces=())


@dataclass(eq=False)
class _Batch:
    """An order on its way."""

    order: Order
    blobs: Mapping[str, bytes]
    cut: int = 0  # episodes that were handed out, from the front
    losses: dict[int, list[str]] = field(default_factory=dict)  # by the number of the episode that was alone
    found: dict[int, Trajectories | BaseException] = field(default_factory=dict)  # by the number of the first episode
    answered: int = 0
    failed: bool = False
    wanted: bool = True

    @property
    def whole(self) -> Piece:
        """All its episodes."""
        return self.order.chunk.pieces[0]

    @property
    def uncut(self) -> int:
        """Episodes that were not handed out."""
        return self.whole.episodes - self.cut

    @property
    def done(self) -> bool:
        """Whether all episodes are here, or an error is and all before it."""
        return self.answered == self.whole.episodes or (self.failed and self._first_error() is not None)

    def cut_off(self, episodes: int) -> Piece:
        """The next episodes: so many, rounded up to what can be run apart."""
        grain = self.order.grain
        piece = replace(self.whole, first=self.cut, episodes=min(math.ceil(episodes / grain) * grain, self.uncut))
        self.cut += piece.episodes
        return piece

    def settle(self, piece: Piece, found: Trajectories | BaseException) -> None:
        """Keep what became of a piece."""
        self.found[piece.first] = found
        self.answered += piece.episodes
        self.failed |= isinstance(found, BaseException)

    def _first_error(self) -> BaseException | None:
        """The error with the smallest number, if all episodes before it are here: the same whoever came back first."""
        expected = 0
        for first in sorted(self.found):
            if first != expected:
                return None
            found = self.found[first]
            if isinstance(found, BaseException):
                return found
            expected += len(found)
        return None

    def result(self) -> Trajectories:
        """The batch, or its first error."""
        error = self._first_error()
        if error is not None:
            raise error
        parts = [self.found[first] for first in sorted(self.found)]
        origin = (self.order.chunk.seed, self.whole.batch)
        return join([part for part in parts if isinstance(part, Trajectories)], origin)


_Load = list[tuple[_Batch, Piece]]  # what goes into a chunk: of one batch, or of neighbors


class Scheduler:
    """Hands out chunks of batches, oldest batch first, and gives batches back whole.

    Which worker runs an episode, beside which others, and how often makes no difference to it. So the sizes of chunks
    may follow the clock: they are cut when a worker has room, by the time that chunks have taken so far. Where episodes
    are short, a chunk spans several batches.

    If a worker is lost, what it was running runs again: each batch for itself, then one episode at a time, so that the
    one that ends its workers shows itself. It has `ATTEMPTS` of them. Then the study stops, with the episode named: to
    leave it out would bias the estimate.

    Args:
        backend: where the workers are.
        episode_timeout: seconds that an episode may take by itself; a worker that takes longer is ended.
    """

    def __init__(self, backend: Backend, episode_timeout: float | None = None) -> None:
        self.backend = backend
        self.episode_timeout = episode_timeout
        self._batches: dict[Order, _Batch] = {}
        self._uncut: deque[_Batch] = deque()  # those of which not all was handed out, oldest first
        self._again: deque[_Load] = deque()  # what lost its worker: before all else
        self._waiting = 0  # episodes of both

    @property
    def hungry(self) -> bool:
        """Whether workers will soon have nothing to do, and what is waiting to be fetched is not too much."""
        newest = next(reversed(self._batches), None)
        if newest is None:
            return True
        workers = self.backend.workers
        held = self.backend.bytes.get(newest.chunk.place, _BYTES) * newest.chunk.episodes
        few = len(self._batches) < max(2 + 2 * workers, _BYTES / max(held, 1.0))
        return few and self._waiting <= _AHEAD * workers * self._target(newest)

    def submit(self, order: Order, blobs: Mapping[str, bytes]) -> None:
        """Want a batch; nothing happens if it was wanted before. It begins with the next `begin` or `fetch`."""
        if order not in self._batches:
            batch = self._batches[order] = _Batch(order, blobs)
            self._uncut.append(batch)
            self._waiting += batch.uncut

    def begin(self) -> None:
        """Keep workers busy with what is wanted; waits for nothing."""
        self._hand_out()
        self.backend.take_in(0.0)

    def fetch(self, order: Order) -> Trajectories:
        """Wait for a batch that was begun. It is forgotten here.

        Raises:
            EpisodeCrashError: an episode has lost its worker again and again.
        """
        batch = self._batches[order]
        while not batch.done:
            self._hand_out()
            self.backend.take_in()
        del self._batches[order]
        self._drop(batch)
        self._hand_out()
        return batch.result()

    def forget(self) -> None:
        """Want nothing more of what was begun."""
        for batch in self._batches.values():
            self._drop(batch)
        self._batches.clear()

    def _drop(self, batch: _Batch) -> None:
        """Hand out nothing more of a batch: it is done, or ended by an error, or not wanted."""
        batch.wanted = False
        if batch.uncut:
            self._uncut.remove(batch)
            self._waiting -= batch.uncut

    def _target(self, order: Order) -> int:
        """Episodes that a chunk would have, were there no end of them."""
        return self.backend.sizes.get(order.chunk.place, FIRST_SIZE)

    def _hand_out(self) -> None:
        # As many rounds as it takes, every worker with a chunk of the same size in each, so that they finish together.
        # Not too small, since episodes that run side by side cost less.
        workers, target = self.backend.workers, self._target(self._uncut[0].order) if self._uncut else 1
        turns = workers * math.ceil(self._waiting / (workers * target))
        size = max(math.ceil(self._waiting / max(turns, 1)), target // 2, 1)
        while self._waiting and self.backend.room > 0:
            load = self._again.popleft() if self._again else self._cut(size)
            self._waiting -= sum(piece.episodes for _, piece in load)
            load = [(batch, piece) for batch, piece in load if batch.wanted]
            if load:
                first, pieces = load[0][0], tuple(piece for _, piece in load)
                chunk = replace(first.order.chunk, pieces=pieces, time_limit=self.episode_timeout)
                self.backend.hand_out(chunk, first.blobs, partial(self._settle, load, chunk))

    def _cut(self, size: int) -> _Load:
        """About so many episodes of the oldest batch, and of those after it that may run beside it."""
        load: _Load = []
        while size > 0 and self._uncut and (not load or self._uncut[0].order.joins(load[0][0].order)):
            batch = self._uncut[0]
            piece = batch.cut_off(size)
            load.append((batch, piece))
            size -= piece.episodes
            if not batch.uncut:
                self._uncut.popleft()
        return load

    def _settle(self, load: _Load, chunk: Chunk, outcome: Outcome) -> None:
        answer = outcome.answer
        if answer is None:
            self._run_again(load, chunk, outcome)
        elif answer.episodes is not None:
            self._learn(load[0][0].order, chunk, answer)
            for (batch, piece), found in zip(load, answer.episodes, strict=True):
                batch.settle(piece, found)
        elif len(load) > 1:  # it may be a later batch that fails, and those before it are to be counted
            self._wait_again([[part] for part in load])
        else:
            assert answer.error is not None
            load[0][0].settle(load[0][1], answer.error)

    def _run_again(self, load: _Load, chunk: Chunk, outcome: Outcome) -> None:
        batch, piece = load[0]
        grain = batch.order.grain
        if not outcome.blamed:
            self._wait_again([load])
        elif len(load) > 1:
            self._wait_again([[part] for part in load])
        elif piece.episodes > grain:
            starts = piece.numbers[::grain]
            sizes = [min(grain, piece.numbers.stop - start) for start in starts]
            cut = [replace(piece, first=start, episodes=size) for start, size in zip(starts, sizes, strict=True)]
            self._wait_again([[(batch, part)] for part in cut])
        else:
            losses = batch.losses.setdefault(piece.first, [])
            losses.append(outcome.lost)
            if len(losses) >= ATTEMPTS:
                batch.settle(piece, _crash(chunk, losses))
            else:
                self._wait_again([load])

    def _wait_again(self, loads: list[_Load]) -> None:
        self._again.extend(loads)
        self._waiting += sum(piece.episodes for load in loads for _, piece in load)

    def _learn(self, order: Order, chunk: Chunk, answer: Answer) -> None:
        """What an episode holds; twice as many if a chunk of full size was fast, half as many if it was slow.

        The time of an episode alone would mislead: many that run side by side take hardly longer than one.
        """
        assert answer.episodes is not None
        held = sum(leaf.nbytes for part in answer.episodes for leaf in jax.tree_util.tree_leaves(part))
        known = self.backend.bytes.get(chunk.place, 0.0)
        self.backend.bytes[chunk.place] = max(known, held / chunk.episodes)
        goal = TARGET_SECONDS
        if self.episode_timeout is not None:
            goal = min(goal, _TIMED_SHARE * self.episode_timeout)
        size, seconds = self._target(order), answer.seconds
        least = 1
        if self.episode_timeout is None and answer.together > 1:
            least = _PROGRAMS * answer.together
        if size < least:
            self.backend.sizes[chunk.place] = least
        elif chunk.episodes >= size and seconds < goal:
            self.backend.sizes[chunk.place] = 2 * chunk.episodes
        elif chunk.episodes <= size and seconds > 4.0 * goal:
            self.backend.sizes[chunk.place] = max(chunk.episodes // 2, least)


def join(parts: list[Trajectories], origin: tuple[int, int]) -> Trajectories:
    """A batch from its pieces, in order, with its seed and its number.

    A batch is as long as its longest episode, rounded up to a power of two. That of the whole is the largest of the
    parts', so padding them to it gives what one process would have given.
    """
    whole = parts[0] if len(parts) == 1 else Trajectories.concatenate(parts)
    return pytree_replace(
        whole,
        behavior_parameters=parts[0].behavior_parameters,
        seed=np.array(origin, dtype=np.int64),
    )


def _crash(chunk: Chunk, losses: list[str]) -> EpisodeCrashError:
    told = "; ".join(dict.fromkeys(losses))
    return EpisodeCrashError(
        f"{chunk.pieces[0].named} (seed {chunk.seed}) lost its worker {len(losses)} times, each time with the "
        f"same seed and policy ({told}); dropping it would bias the estimate, so the batch is not counted"
    )
