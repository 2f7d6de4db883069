"""The scheduler: whatever its workers do, batches come back whole, in order, and nothing else is kept."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import bpsearch as bps
from benchmarks.worker_scale import fetch_in_turn
from bpsearch.errors import EpisodeCrashError, InvalidTrajectoriesError
from bpsearch.runners.backend import Backend, Outcome
from bpsearch.runners.chunks import Answer, Chunk, Piece
from bpsearch.runners.scheduler import Order, Scheduler


class Fake(Backend):
    """Workers of another make: every chunk is answered by numbers of its own, late, out of order, or not at all."""

    def __init__(self, count: int, seed: int, losses: float) -> None:
        super().__init__()
        self._count, self._losses = count, losses
        self._rng = np.random.default_rng(seed)
        self._open: list[tuple[int, Chunk]] = []
        self.most = 0

    @property
    def workers(self) -> int:
        return self._count

    def submit(self, ticket: int, chunk: Chunk, blobs: Any) -> None:
        self._open.append((ticket, chunk))
        self.most = max(self.most, len(self._open))

    def wait(self, timeout: float | None = None) -> list[Outcome]:
        if not self._open:
            return []
        ticket, chunk = self._open.pop(int(self._rng.integers(len(self._open))))
        if self._rng.random() < self._losses:
            return [Outcome(ticket, lost="by chance", blamed=bool(self._rng.random() < 0.5))]
        episodes = tuple(self._episodes(piece) for piece in chunk.pieces)
        return [Outcome(ticket, Answer(episodes, seconds=float(self._rng.exponential(0.2))))]

    def _episodes(self, piece: Piece) -> bps.Trajectories:
        numbers = np.array(piece.numbers, dtype=np.float64)[:, None]
        zeros = np.zeros_like(numbers)
        return bps.Trajectories(zeros, zeros.astype(int), numbers, zeros, np.ones_like(zeros, bool))


@pytest.mark.parametrize("count", [1, 7, 300])
@pytest.mark.parametrize("grain", [1, 2, 1000])
def test_whatever_comes_back_when_batches_are_whole_and_in_order(count: int, grain: int) -> None:
    backend = Fake(count, seed=count + grain, losses=0.02)
    scheduler = Scheduler(backend)
    orders = [Order(Chunk("place", "behavior", 0, (Piece(batch, 0, 400),)), grain) for batch in range(6)]
    expected = 0
    for number, batch in enumerate(fetch_in_turn(scheduler, orders)):
        np.testing.assert_array_equal(batch.rewards[:, 0], np.arange(400))
        np.testing.assert_array_equal(batch.seed, [0, number])
        expected += 1
    assert expected == 6
    assert backend.most <= 2 * count


class Picky(Fake):
    """Two workers that know their task: chunks with episode 5 of batch 2 are lost, or fail."""

    def __init__(self, trouble: str = "") -> None:
        super().__init__(2, seed=0, losses=0.0)
        self.sizes, self.bytes = {"place": 1000}, {"place": 8.0}
        self.trouble, self.chunks, self.troubled = trouble, list[Chunk](), list[int]()

    def submit(self, ticket: int, chunk: Chunk, blobs: Any) -> None:
        self.chunks.append(chunk)
        super().submit(ticket, chunk, blobs)

    def wait(self, timeout: float | None = None) -> list[Outcome]:
        chunks = dict(self._open)
        return [self._judge(outcome, chunks[outcome.ticket]) for outcome in super().wait(timeout)]

    def _judge(self, outcome: Outcome, chunk: Chunk) -> Outcome:
        if not self.trouble or not any(piece.batch == 2 and 5 in piece.numbers for piece in chunk.pieces):
            return outcome
        self.troubled.append(chunk.episodes)
        if self.trouble == "lost":
            return Outcome(outcome.ticket, lost="as always")
        return Outcome(outcome.ticket, Answer(error=InvalidTrajectoriesError("episode 5 is wrong")))


def orders_of(batches: int, behavior: str = "behavior") -> list[Order]:
    return [Order(Chunk("place", behavior, 0, (Piece(number, 0, 100),)), 1) for number in range(batches)]


def fetch_all(scheduler: Scheduler, orders: list[Order]) -> Iterator[int]:
    for order in orders:
        scheduler.submit(order, {})
    scheduler.begin()
    for order in orders:
        np.testing.assert_array_equal(scheduler.fetch(order).rewards[:, 0], np.arange(100))
        yield order.chunk.pieces[0].batch


def test_what_is_expected_is_shared_out_evenly() -> None:
    backend = Picky()
    assert list(fetch_all(Scheduler(backend), orders_of(11))) == list(range(11))
    assert [chunk.episodes for chunk in backend.chunks] == [550, 550]
    assert [piece.batch for piece in backend.chunks[1].pieces] == [5, 6, 7, 8, 9, 10]  # the fifth is cut in half


def test_a_chunk_has_one_behavior() -> None:
    backend = Picky()
    orders = orders_of(2) + orders_of(4, "another")[2:]
    assert list(fetch_all(Scheduler(backend), orders)) == [0, 1, 2, 3]
    assert all(len({piece.batch // 2 for piece in chunk.pieces}) == 1 for chunk in backend.chunks)


@pytest.mark.parametrize(("trouble", "error"), [("lost", EpisodeCrashError), ("wrong", InvalidTrajectoriesError)])
def test_batches_before_an_episode_that_fails_are_counted(trouble: str, error: type[Exception]) -> None:
    backend = Picky(trouble)
    fetched = fetch_all(Scheduler(backend), orders_of(10))
    assert [next(fetched), next(fetched)] == [0, 1]
    named = r"episode 5 of batch 2 \(seed 0\) lost its worker 3 times"
    with pytest.raises(error, match=named if trouble == "lost" else "episode 5 is wrong"):
        next(fetched)
    # Beside other batches, with its own, and alone.
    assert backend.troubled == ([500, 100, 1, 1, 1] if trouble == "lost" else [500, 100])


@pytest.mark.parametrize(("held", "most"), [(2**27 / 2000, 20), (2**27, 6)])
def test_as_many_batches_are_begun_as_memory_allows(held: float, most: int) -> None:
    """Each of 100 episodes, of so many bytes."""
    backend = Picky()
    backend.bytes = {"place": held}
    scheduler = Scheduler(backend)
    begun = 0
    for order in orders_of(50):
        if not scheduler.hungry:
            break
        scheduler.submit(order, {})
        begun += 1
    assert begun == most


class Timed(Fake):
    """Workers by a clock of their own, on which episodes take an exponential time; no two runs differ.

    Attributes:
        now: what the clock says.
    """

    def __init__(self, count: int, mean: float) -> None:
        super().__init__(count, seed=0, losses=0.0)
        self.mean, self.now = mean, 0.0
        self._free, self._tasks = [0.0] * count, [0] * count
        self._ends: dict[int, tuple[float, float, int]] = {}  # when, after how long, and whose

    def submit(self, ticket: int, chunk: Chunk, blobs: Any) -> None:
        super().submit(ticket, chunk, blobs)
        seconds = sum(self.time_of(piece).sum() for piece in chunk.pieces)
        worker = int(np.argmin(self._tasks))  # as `Processes` does
        self._tasks[worker] += 1
        self._free[worker] = max(self._free[worker], self.now) + seconds
        self._ends[ticket] = (self._free[worker], seconds, worker)

    def wait(self, timeout: float | None = None) -> list[Outcome]:
        if not self._open or timeout is not None:
            return []
        ticket, chunk = self._open.pop(min(range(len(self._open)), key=lambda at: self._ends[self._open[at][0]]))
        self.now, seconds, worker = self._ends.pop(ticket)
        self._tasks[worker] -= 1
        return [Outcome(ticket, Answer(tuple(self._episodes(piece) for piece in chunk.pieces), seconds=seconds))]

    def time_of(self, piece: Piece) -> Any:
        times = np.random.default_rng(piece.batch).exponential(self.mean, 100)
        return times[piece.first : piece.first + piece.episodes]


@pytest.mark.parametrize("mean", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("count", [2, 8])
def test_long_episodes_are_spread_evenly(count: int, mean: float) -> None:
    """1,000 of them, all expected: work over what the workers had time for."""
    backend = Timed(count, mean)
    scheduler, orders = Scheduler(backend), orders_of(10)
    for found in fetch_in_turn(scheduler, orders):
        assert len(found) == 100
    work = sum(backend.time_of(order.chunk.pieces[0]).sum() for order in orders)
    assert work / (count * backend.now) > 0.85
