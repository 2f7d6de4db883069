"""The scheduler: batches into chunks, chunks to workers, answers back into batches in the order of numbers."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from bpsearch.errors import EpisodeCrashError
from bpsearch.runners.backend import Backend, Outcome
from bpsearch.runners.chunks import Answer, Chunk
from bpsearch.sampling.trajectories import Trajectories

ATTEMPTS = 3  # how often an episode may lose its worker before the study stops
TARGET_SECONDS = 0.25  # what a chunk is to take: long beside the cost of sending it, short beside a batch
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


@dataclass
class _Batch:
    """An order on its way. Pieces that were cut and lost their worker wait in `again`."""

    order: Order
    blobs: Mapping[str, bytes]
    cut: int = 0  # episodes that were handed out, from the front
    again: deque[Chunk] = field(default_factory=deque)
    losses: dict[int, list[str]] = field(default_factory=dict)  # by the first episode of what failed alone
    answers: dict[int, Answer] = field(default_factory=dict)  # by the number of the first episode
    answered: int = 0

    @property
    def uncut(self) -> int:
        return self.order.chunk.episodes - self.cut + sum(chunk.episodes for chunk in self.again)

    @property
    def failed(self) -> bool:
        return any(answer.error is not None for answer in self.answers.values())

    @property
    def done(self) -> bool:
        """Whether all episodes are here, or an error is and all before it."""
        return self.answered == self.order.chunk.episodes or (self.failed and self._first_error() is not None)

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
    may follow the clock: they are cut when a worker has room, by the time that episodes have taken so far.

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
        self._episode_seconds: dict[str, float] = {}  # by place

    @property
    def hungry(self) -> bool:
        """Whether workers will soon have nothing to do, and what is waiting to be fetched is not too much."""
        waiting = sum(batch.uncut for batch in self._batches.values())
        few = waiting <= self.backend.workers * max(map(self._target, self._batches), default=1)
        return few and len(self._batches) < 2 + 2 * self.backend.workers

    def submit(self, order: Order, blobs: Mapping[str, bytes]) -> None:
        """Begin a batch; nothing happens if it was begun before."""
        if order not in self._batches:
            self._batches[order] = _Batch(order, blobs)
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
        self._hand_out()
        return batch.result()

    def forget(self) -> None:
        """Want nothing more of what was begun."""
        self._batches.clear()

    def _target(self, order: Order) -> int:
        """Episodes that a chunk would have, were there no end of them."""
        seconds = self._episode_seconds.get(order.chunk.place)
        if seconds is None:
            return max(order.chunk.episodes // (4 * self.backend.workers), 1)
        goal = TARGET_SECONDS
        if self.episode_timeout is not None:
            goal = min(goal, _TIMED_SHARE * self.episode_timeout)
        return max(int(goal / max(seconds, 1e-9)), 1)

    def _hand_out(self) -> None:
        for batch in list(self._batches.values()):
            while batch.uncut and self.backend.room > 0:
                chunk = batch.again.popleft() if batch.again else self._cut(batch)
                self.backend.hand_out(chunk, batch.blobs, partial(self._settle, batch, chunk))

    def _cut(self, batch: _Batch) -> Chunk:
        whole, grain = batch.order.chunk, batch.order.grain
        waiting = sum(other.uncut for other in self._batches.values())
        # Towards the end of what is known the pieces get smaller, so that workers finish together.
        size = min(self._target(batch.order), math.ceil(waiting / (2 * self.backend.workers)))
        size = min(math.ceil(size / grain) * grain, whole.episodes - batch.cut)
        chunk = replace(whole, first=batch.cut, episodes=size, time_limit=self.episode_timeout)
        batch.cut += size
        return chunk

    def _settle(self, batch: _Batch, chunk: Chunk, outcome: Outcome) -> None:
        if outcome.answer is None:
            self._run_again(batch, chunk, outcome)
            return
        if outcome.answer.episodes is not None:
            self._learn_seconds(chunk, outcome.answer.seconds)
        batch.answers[chunk.first] = outcome.answer
        batch.answered += chunk.episodes

    def _run_again(self, batch: _Batch, chunk: Chunk, outcome: Outcome) -> None:
        if not outcome.blamed:
            batch.again.append(chunk)
            return
        grain = batch.order.grain
        if chunk.episodes > grain:
            starts = range(chunk.first, chunk.first + chunk.episodes, grain)
            last = chunk.first + chunk.episodes
            batch.again.extend(replace(chunk, first=start, episodes=min(grain, last - start)) for start in starts)
            return
        losses = batch.losses.setdefault(chunk.first, [])
        losses.append(outcome.lost)
        if len(losses) < ATTEMPTS:
            batch.again.append(chunk)
            return
        told = "; ".join(dict.fromkeys(losses))
        error = EpisodeCrashError(
            f"{chunk.named} lost its worker {ATTEMPTS} times, each time with the same seed and policy ({told}); "
            f"dropping it would bias the estimate, so the batch is not counted"
        )
        batch.answers[chunk.first] = Answer(error=error)
        batch.answered += chunk.episodes

    def _learn_seconds(self, chunk: Chunk, seconds: float) -> None:
        found = seconds / chunk.episodes
        known = self._episode_seconds.get(chunk.place, found)
        self._episode_seconds[chunk.place] = 0.5 * (known + found)


def join(parts: list[Trajectories], chunk: Chunk) -> Trajectories:
    """The batch of a chunk from those of its pieces, in order, with its origin.

    A batch is as long as its longest episode, rounded up to a power of two. That of the whole is the largest of the
    parts', so padding them to it gives what one process would have given.
    """
    whole = parts[0] if len(parts) == 1 else Trajectories.concatenate(parts)
    return replace(
        whole,
        behavior_parameters=parts[0].behavior_parameters,
        seed=np.array([chunk.seed, chunk.batch], dtype=np.int64),
    )
