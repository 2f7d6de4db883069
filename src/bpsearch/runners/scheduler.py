"""The scheduler: batches into chunks, chunks to workers, answers back into batches in the order of numbers."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from bpsearch._core.jaxtools import replace as pytree_replace
from bpsearch.errors import EpisodeCrashError
from bpsearch.runners.backend import Backend, Outcome
from bpsearch.runners.chunks import Answer, Chunk
from bpsearch.sampling.trajectories import Trajectories

ATTEMPTS = 3  # how often an episode may lose its worker before the study stops
TARGET_SECONDS = 0.25  # that a chunk is to take at least: long beside the cost of sending it; at most four times that
FIRST_SIZE = 8  # episodes of a chunk before anything is known of their time
_AHEAD = 3  # chunks for each worker that are to be waiting
_TIMED_SHARE = 0.25  # of a time limit per episode, what a chunk of several may take


@dataclass(frozen=True)
class Order:
    """A batch that is wanted: the same as a chunk of all its episodes.

    Attributes:
        chunk: all episodes of the batch.
        grain: chunks begin at multiples of this, and have a multiple of it but for the last.
    """

    chunk: Chunk
    grain: int


@dataclass(eq=False)
class _Batch:
    """An order on its way."""

    order: Order
    blobs: Mapping[str, bytes]
    cut: int = 0  # episodes that were handed out, from the front
    losses: dict[int, list[str]] = field(default_factory=dict)  # by the number of the episode that was alone
    answers: dict[int, Answer] = field(default_factory=dict)  # by the number of the first episode
    answered: int = 0
    failed: bool = False
    wanted: bool = True

    @property
    def uncut(self) -> int:
        return self.order.chunk.episodes - self.cut

    @property
    def done(self) -> bool:
        """Whether all episodes are here, or an error is and all before it."""
        return self.answered == self.order.chunk.episodes or (self.failed and self._first_error() is not None)

    def settle(self, chunk: Chunk, answer: Answer) -> None:
        """Keep the answer to a chunk."""
        self.answers[chunk.first] = answer
        self.answered += chunk.episodes
        self.failed |= answer.error is not None

    def _first_error(self) -> BaseException | None:
        """The error with the smallest number, if all episodes before it are here: the same whoever came back first."""
        expected = 0
        for first in sorted(self.answers):
            if first != expected:
                return None
            answer = self.answers[first]
            if answer.error is not None:
                return answer.error
            assert answer.episodes is not None
            expected += len(answer.episodes)
        return None

    def result(self) -> Trajectories:
        error = self._first_error()
        if error is not None:
            raise error
        parts = [self.answers[first].episodes for first in sorted(self.answers)]
        return join([part for part in parts if part is not None], self.order.chunk)


class Scheduler:
    """Hands out chunks of batches, oldest batch first, and gives batches back whole.

    Which worker runs an episode, beside which others, and how often makes no difference to it. So the sizes of chunks
    may follow the clock: they are cut when a worker has room, by the time that chunks have taken so far.

    If a worker is lost, what it was running runs again, one episode at a time, so that the one that ends its workers
    shows itself. It has `ATTEMPTS` of them. Then the study stops, with the episode named: to leave it out would bias
    the estimate.

    Args:
        backend: where the workers are.
        episode_timeout: seconds that an episode may take by itself; a worker that takes longer is ended.
    """

    def __init__(self, backend: Backend, episode_timeout: float | None = None) -> None:
        self.backend = backend
        self.episode_timeout = episode_timeout
        self._batches: dict[Order, _Batch] = {}
        self._uncut: deque[_Batch] = deque()  # those of which not all was handed out, oldest first
        self._again: deque[tuple[_Batch, Chunk]] = deque()  # what lost its worker: before all else
        self._waiting = 0  # episodes of both

    @property
    def hungry(self) -> bool:
        """Whether workers will soon have nothing to do, and what is waiting to be fetched is not too much."""
        target = self._target(self._uncut[-1].order) if self._uncut else 0
        few = self._waiting <= _AHEAD * self.backend.workers * target
        return few and len(self._batches) < 2 + 2 * self.backend.workers

    def submit(self, order: Order, blobs: Mapping[str, bytes]) -> None:
        """Begin a batch; nothing happens if it was begun before."""
        if order not in self._batches:
            batch = self._batches[order] = _Batch(order, blobs)
            self._uncut.append(batch)
            self._waiting += batch.uncut
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
        while self._waiting and self.backend.room > 0:
            batch, chunk = self._again.popleft() if self._again else self._cut(self._uncut[0])
            self._waiting -= chunk.episodes
            if batch.wanted:
                self.backend.hand_out(chunk, batch.blobs, partial(self._settle, batch, chunk))

    def _cut(self, batch: _Batch) -> tuple[_Batch, Chunk]:
        whole, grain = batch.order.chunk, batch.order.grain
        # Towards the end of what is known the pieces get smaller, so that workers finish together; not too small, since
        # episodes that run side by side cost less.
        target = self._target(batch.order)
        size = max(min(target, math.ceil(self._waiting / (2 * self.backend.workers))), target // 2, 1)
        size = min(math.ceil(size / grain) * grain, batch.uncut)
        chunk = replace(whole, first=batch.cut, episodes=size, time_limit=self.episode_timeout)
        batch.cut += size
        if not batch.uncut:
            self._uncut.popleft()
        return batch, chunk

    def _settle(self, batch: _Batch, chunk: Chunk, outcome: Outcome) -> None:
        if outcome.answer is None:
            self._run_again(batch, chunk, outcome)
            return
        if outcome.answer.episodes is not None:
            self._learn_size(batch.order, chunk, outcome.answer)
        batch.settle(chunk, outcome.answer)

    def _run_again(self, batch: _Batch, chunk: Chunk, outcome: Outcome) -> None:
        grain, last = batch.order.grain, chunk.first + chunk.episodes
        pieces = [chunk]
        if outcome.blamed and chunk.episodes > grain:
            starts = range(chunk.first, last, grain)
            pieces = [replace(chunk, first=start, episodes=min(grain, last - start)) for start in starts]
        elif outcome.blamed:
            losses = batch.losses.setdefault(chunk.first, [])
            losses.append(outcome.lost)
            if len(losses) >= ATTEMPTS:
                batch.settle(chunk, Answer(error=_crash(chunk, losses)))
                return
        self._again.extend((batch, piece) for piece in pieces)
        self._waiting += chunk.episodes

    def _learn_size(self, order: Order, chunk: Chunk, answer: Answer) -> None:
        """Twice as many if a chunk of full size was fast, half as many if it was slow.

        The time of an episode alone would mislead: many that run side by side take hardly longer than one.
        """
        goal = TARGET_SECONDS
        if self.episode_timeout is not None:
            goal = min(goal, _TIMED_SHARE * self.episode_timeout)
        size, seconds = self._target(order), answer.seconds
        least = answer.together if self.episode_timeout is None else 1
        if size < least:
            self.backend.sizes[chunk.place] = least
        elif chunk.episodes >= size and seconds < goal:
            self.backend.sizes[chunk.place] = 2 * chunk.episodes
        elif chunk.episodes <= size and seconds > 4.0 * goal:
            self.backend.sizes[chunk.place] = max(chunk.episodes // 2, least)


def join(parts: list[Trajectories], chunk: Chunk) -> Trajectories:
    """The batch of a chunk from those of its pieces, in order, with its origin.

    A batch is as long as its longest episode, rounded up to a power of two. That of the whole is the largest of the
    parts', so padding them to it gives what one process would have given.
    """
    whole = parts[0] if len(parts) == 1 else Trajectories.concatenate(parts)
    return pytree_replace(
        whole,
        behavior_parameters=parts[0].behavior_parameters,
        seed=np.array([chunk.seed, chunk.batch], dtype=np.int64),
    )


def _crash(chunk: Chunk, losses: list[str]) -> EpisodeCrashError:
    told = "; ".join(dict.fromkeys(losses))
    return EpisodeCrashError(
        f"{chunk.named} lost its worker {len(losses)} times, each time with the same seed and policy ({told}); "
        f"dropping it would bias the estimate, so the batch is not counted"
    )
