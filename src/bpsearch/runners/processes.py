"""Workers as processes of this computer."""

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from bpsearch._core.checks import check_integer
from bpsearch.errors import WorkerError
from bpsearch.runners.backend import Backend, Outcome
from bpsearch.runners.chunks import Answer, Chunk
from bpsearch.runners.worker import receive, send

_TRIES = 5  # processes in a row, for each worker, that may end before they say that they are ready: then none will
_END = object()  # in the place of a message: there will be no more
_REMEMBERED = 64  # digests that a process is known to have been sent
# Each of several workers with a thread for each core would slow the others down.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_PROGRAM = "from bpsearch.runners.worker import main; main()"


class Processes(Backend):
    """A fixed number of worker processes. They start when they are first needed, and stay until `close`.

    `evaluate(..., workers=4)` opens them for one call. To keep them for several calls, open them yourself:
    `with Processes(4) as workers: evaluate(..., workers=workers)`.

    Args:
        count: how many.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = check_integer("workers", count)
        self._crew: list[_Process] = []
        self._heard: queue.SimpleQueue[tuple[_Process, Any]] = queue.SimpleQueue()
        self._unready = 0

    @property
    def workers(self) -> int:
        """How many processes."""
        return self._count

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that are running."""
        return [worker.process.pid for worker in self._crew]

    def submit(self, ticket: int, chunk: Chunk, blobs: Mapping[str, bytes]) -> None:
        """Give the chunk to the worker with the least to do."""
        while len(self._crew) < self._count:
            self._crew.append(_Process(self._heard))
        min(self._crew, key=lambda worker: len(worker.tasks)).give(ticket, chunk, blobs)

    def wait(self, timeout: float | None = None) -> list[Outcome]:
        """Outcomes of workers that have answered or ended."""
        outcomes: list[Outcome] = []
        deadline = None if timeout is None else time.monotonic() + timeout
        while any(worker.tasks for worker in self._crew):
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            try:
                worker, message = self._heard.get(timeout=0.0 if outcomes else left)
            except queue.Empty:
                break
            outcomes += self._hear(worker, message)
        return outcomes

    def close(self) -> None:
        """End all workers, whatever they are doing."""
        for worker in self._crew:
            worker.end()
        self._crew.clear()

    def _hear(self, worker: "_Process", message: Any) -> list[Outcome]:
        if worker not in self._crew:
            return []
        if message is not _END:
            self._unready = 0
            found = None if message is None else worker.take(*message)
            return [] if found is None else [found]
        self._crew.remove(worker)
        lost = worker.obituary()
        self._unready += 1
        if self._unready >= _TRIES * self._count:
            raise WorkerError(
                f"{self._unready} worker processes in a row have ended before they were ready, the last: {lost}; what "
                f"they wrote to standard error tells why"
            )
        # Only the first can have begun; the others were waiting behind it.
        return [Outcome(ticket, lost=lost, blamed=place == 0) for place, ticket in enumerate(worker.tasks)]


class _Process:
    """One worker process, and what it has been given to do, in order.

    A thread listens to it and puts (process, message) into a queue that all of them share. The first message, None,
    says that it is ready.
    """

    def __init__(self, heard: "queue.SimpleQueue[tuple[_Process, Any]]") -> None:
        self.tasks: dict[int, tuple[Chunk, Mapping[str, bytes]]] = {}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_ONE_THREAD | dict(os.environ),
        )
        self._sent: deque[str] = deque(maxlen=_REMEMBERED)
        self._since = time.monotonic()
        self._say(sys.path)
        threading.Thread(target=self._listen, args=(heard,), daemon=True).start()

    def give(self, ticket: int, chunk: Chunk, blobs: Mapping[str, bytes]) -> None:
        """Send a chunk, with the bytes that this worker has not been sent before."""
        if not self.tasks:
            self._since = time.monotonic()
        self.tasks[ticket] = (chunk, blobs)
        new = {digest: data for digest, data in blobs.items() if digest not in self._sent}
        self._sent.extend(new)
        self._say((ticket, chunk, new))

    def take(self, ticket: int, answer: Answer) -> Outcome | None:
        """Its answer as an outcome. None if it no longer has bytes that it was sent: they are sent again."""
        chunk, blobs = self.tasks.pop(ticket)
        self._since = time.monotonic()
        if not answer.missing:
            return Outcome(ticket, answer)
        for digest in answer.missing:
            self._sent.remove(digest)
        self.give(ticket, chunk, blobs)
        return None

    def obituary(self) -> str:
        """How a process ended that has ended."""
        elapsed = time.monotonic() - self._since
        self.process.wait()
        self._close()
        code = self.process.returncode
        limit = next((chunk.time_limit for chunk, _ in self.tasks.values()), None)
        if limit is not None and elapsed >= limit and code > 0:
            return f"it took longer than episode_timeout = {limit:g} s"
        return f"its process ended by signal {-code}" if code < 0 else f"its process ended with exit code {code}"

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self._close()

    def _close(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # what was not yet written to a process that has ended
            self.process.stdin.close()

    def _say(self, message: Any) -> None:
        assert self.process.stdin is not None
        # A process that has ended is noticed when its output ends.
        with contextlib.suppress(OSError):
            send(self.process.stdin, message)

    def _listen(self, heard: "queue.SimpleQueue[tuple[_Process, Any]]") -> None:
        assert self.process.stdout is not None
        try:
            while True:
                heard.put((self, receive(self.process.stdout)))
        except (EOFError, OSError, ValueError):
            heard.put((self, _END))
        finally:
            self.process.stdout.close()
