"""Workers on a Ray cluster."""

import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from bpsearch._core.checks import check_integer
from bpsearch.errors import MissingDependencyError, WorkerError
from bpsearch.runners.backend import LOOK_SECONDS, Backend, Outcome
from bpsearch.runners.chunks import Answer, Chunk, run_chunk

# What decides how JAX rounds must be the same on all nodes as here.
_CARRIED = ("XLA_FLAGS", "JAX_PLATFORMS", "JAX_ENABLE_X64")


class RayTasks(Backend):
    """Chunks as tasks of a Ray cluster, one core each.

    The bytes of places and behaviors are put into Ray's object store once, and Ray brings them to a node once. Ray
    itself retries nothing: the scheduler does, so that an episode that ends its workers is named.

    Args:
        address: of a cluster; None for the one to which this process is connected, or a new one on this computer.
        workers: how many tasks run at the same time; as many as the cluster has cores by default.
    """

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        super().__init__()
        try:
            import ray
        except ModuleNotFoundError as error:
            raise MissingDependencyError("workers='ray' needs the package ray: pip install 'bpsearch[ray]'") from error
        self._ray: Any = ray
        self._began = not ray.is_initialized()
        if self._began:
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING, include_dashboard=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise WorkerError(f"cannot connect to a Ray cluster at {address!r}: {error}") from error
        carried = {name: os.environ[name] for name in _CARRIED if name in os.environ}
        options: dict[str, Any] = {"num_cpus": 1, "max_retries": 0}
        if carried:
            options["runtime_env"] = {"env_vars": carried}
        self._task = ray.remote(**options)(_run)
        self._asked = None if workers is None else check_integer("workers", workers)
        self._cores, self._looked = 1, -LOOK_SECONDS
        self._references: dict[str, Any] = {}
        self._open: dict[Any, int] = {}

    @property
    def workers(self) -> int:
        """How many cores the cluster has now: nodes may join and leave."""
        if self._asked is not None:
            return self._asked
        if time.monotonic() > self._looked + LOOK_SECONDS:
            self._cores = max(int(self._ray.cluster_resources().get("CPU", 1)), 1)
            self._looked = time.monotonic()
        return self._cores

    def submit(self, ticket: int, chunk: Chunk, blobs: Mapping[str, bytes]) -> None:
        """Submit a task."""
        for digest, data in blobs.items():
            if digest not in self._references:
                self._references[digest] = self._ray.put(data)
        while len(self._references) > 64:
            self._references.pop(next(iter(self._references)))
        references = {digest: self._references[digest] for digest in blobs if digest in self._references}
        self._open[self._task.remote(chunk, list(references), *references.values())] = ticket

    def wait(self, timeout: float | None = None) -> list[Outcome]:
        """Outcomes of tasks that are done."""
        if not self._open:
            return []
        done, _ = self._ray.wait(list(self._open), num_returns=1, timeout=timeout)
        if done:  # and all others that are done by now
            done, _ = self._ray.wait(list(self._open), num_returns=len(self._open), timeout=0)
        return [self._outcome(reference) for reference in done]

    def close(self) -> None:
        """End what is running, and the cluster if it was begun here."""
        for reference in self._open:
            self._ray.cancel(reference, force=True)
        self._open.clear()
        self._references.clear()
        if self._began:
            self._ray.shutdown()

    def _outcome(self, reference: Any) -> Outcome:
        ticket = self._open.pop(reference)
        try:
            answer: Answer = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            # An error of the episodes would be in the answer: this one is Ray's, of a worker, a node or an object.
            return Outcome(ticket, lost=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
        return Outcome(ticket, answer)


def _run(chunk: Chunk, digests: list[str], *blobs: bytes) -> Answer:
    return run_chunk(chunk, dict(zip(digests, blobs, strict=True)))
