"""Where workers live: the contract that the scheduler needs, and no more."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Self

from bpsearch.runners.chunks import Answer, Chunk

LOOK_SECONDS = 5.0  # how long the number of cores of a cluster is taken to be the same


@dataclass(frozen=True)
class Outcome:
    """What became of a chunk.

    Attributes:
        ticket: the number under which it was submitted.
        answer: the worker's; None if the worker was lost.
        lost: why there is no answer, in words.
        blamed: whether the chunk was running when its worker was lost, and may be the reason.
    """

    ticket: int
    answer: Answer | None = None
    lost: str = ""
    blamed: bool = True


class Backend(ABC):
    """Runs chunks somewhere, in any order; it neither retries nor orders them, which is the scheduler's task.

    Every chunk that is submitted has exactly one outcome, whatever becomes of its worker. A lost worker is replaced.

    Attributes:
        sizes: by the digest of a place, how many episodes a chunk is to have there; schedulers learn it.
        bytes: the same, what an episode there holds at most.
        can_end_workers: whether a worker may end its own process, as a time limit does, without harm to others.
    """

    can_end_workers = True

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.bytes: dict[str, float] = {}
        self._numbers = count()
        self._flying: dict[int, Callable[[Outcome], None]] = {}

    @property
    @abstractmethod
    def workers(self) -> int:
        """How many chunks run at the same time. It may change."""

    @property
    def room(self) -> int:
        """How many more chunks may be handed out now: each worker has one, and the next one waiting."""
        return 2 * self.workers - len(self._flying)

    def hand_out(self, chunk: Chunk, blobs: Mapping[str, bytes], then: Callable[[Outcome], None]) -> None:
        """Have a chunk run, and `then` hear what became of it. Several schedulers may share the workers."""
        ticket = next(self._numbers)
        self._flying[ticket] = then
        self.submit(ticket, chunk, blobs)

    def take_in(self, timeout: float | None = None) -> None:
        """Wait for outcomes, at most `timeout` seconds, and tell those who wait for them."""
        for outcome in self.wait(timeout):
            self._flying.pop(outcome.ticket)(outcome)

    @abstractmethod
    def submit(self, ticket: int, chunk: Chunk, blobs: Mapping[str, bytes]) -> None:
        """Have a chunk run. `blobs` are the bytes of its place and its behavior; whoever has them needs no others."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> list[Outcome]:
        """Outcomes that have not been given before; waits for one, at most `timeout` seconds."""

    def close(self) -> None:  # noqa: B027
        """Let the workers go."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
