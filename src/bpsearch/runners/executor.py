"""Workers behind futures: any executor of `concurrent.futures`, and Dask clients."""

import math
import os
import queue
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Executor, ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, runtime_checkable

from bpsearch.runners.backend import LOOK_SECONDS, Backend, Outcome
from bpsearch.runners.chunks import Answer, Chunk, run_chunk


@runtime_checkable
class DaskClient(Protocol):
    """What is used of a `distributed.Client`."""

    def submit(self, function: Callable[..., object], *arguments: object, pure: bool, retries: int) -> object:
        """A future of a call."""

    def ncores(self) -> dict[str, int]:
        """The cores of each worker."""


class Futures(Backend):
    """Chunks as tasks of an executor that somebody else opens and closes.

    Which of its workers runs a task is the executor's affair, so a task is first sent without the bytes of place and
    behavior. A worker that lacks them says so, and the task is sent again with them.

    If the executor ends its workers' tasks with them (a broken process pool is), it stays broken, and the study stops.

    Args:
        executor: a `concurrent.futures.Executor`, or a `distributed.Client` of Dask.
    """

    def __init__(self, executor: Executor | DaskClient) -> None:
        super().__init__()
        self._executor: Any = executor
        self._open: dict[int, tuple[Chunk, Mapping[str, bytes]]] = {}
        self._heard: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._dask = not isinstance(executor, Executor)
        self._cores, self._looked = 1, -math.inf
        # Threads share this process, and a pool that has lost a process is broken for good. Dask replaces its workers.
        self.can_end_workers = self._dask

    @property
    def workers(self) -> int:
        """How many tasks the executor runs at the same time, as far as it tells; the number of cores if not."""
        if self._dask and time.monotonic() > self._looked + LOOK_SECONDS:
            self._cores = max(int(sum(self._executor.ncores().values())), 1)
            self._looked = time.monotonic()
        if self._dask:
            return self._cores
        return int(getattr(self._executor, "_max_workers", None) or os.cpu_count() or 1)

    def submit(self, ticket: int, chunk: Chunk, blobs: Mapping[str, bytes]) -> None:
        """Submit a task."""
        self._open[ticket] = (chunk, blobs)
        # Threads need no copies, so there is nothing to save.
        self._send(ticket, chunk, blobs if isinstance(self._executor, ThreadPoolExecutor) else {})

    def wait(self, timeout: float | None = None) -> list[Outcome]:
        """Outcomes of tasks that are done."""
        outcomes: list[Outcome] = []
        while self._open:
            try:
                ticket, future = self._heard.get(timeout=0.0 if outcomes else timeout)
            except queue.Empty:
                break
            outcomes += self._outcome(ticket, future)
        return outcomes

    def _send(self, ticket: int, chunk: Chunk, blobs: Mapping[str, bytes]) -> None:
        # Dask takes two calls with the same arguments for the same task unless it is told that they may differ.
        options = {"pure": False, "retries": 0} if self._dask else {}
        future = self._executor.submit(run_chunk, chunk, dict(blobs), **options)
        future.add_done_callback(partial(self._hear, ticket))

    def _hear(self, ticket: int, future: Any) -> None:
        self._heard.put((ticket, future))

    def _outcome(self, ticket: int, future: Any) -> list[Outcome]:
        chunk, blobs = self._open[ticket]
        try:
            answer: Answer = future.result()
        except (Exception, CancelledError) as error:
            # An error of the episodes would be in the answer: this one is the executor's.
            del self._open[ticket]
            return [Outcome(ticket, lost=f"{type(error).__name__}: {error}")]
        if answer.missing:
            self._send(ticket, chunk, {digest: blobs[digest] for digest in answer.missing})
            return []
        del self._open[ticket]
        return [Outcome(ticket, answer)]
