"""Many independent trials of one search as one compiled program, spread over the devices."""

import queue
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bpsearch._core.arrays import Array
from bpsearch._core.checks import check_integer
from bpsearch._core.jaxtools import in_64_bit
from bpsearch.envs.base import CompiledEnv
from bpsearch.policies.base import Policy
from bpsearch.sampling import check_spaces
from bpsearch.sampling.compiled import rollout
from bpsearch.sampling.seeds import batch_key
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search.base import Info
from bpsearch.search.compiled import CompiledSearch

AnySearch = CompiledSearch[Any]
Record = Callable[[AnySearch, Any, Info, Trajectories], Any]
LONGEST_BLOCK = 50


def mean_values(search: AnySearch, state: Any, info: Info, batch: Trajectories) -> Array:
    """The mean of the batch's values: what a curve of errors against episodes is made of."""
    return jnp.mean(info.values)


@dataclass(frozen=True)
class Trials:
    """A search repeated from the same start with other random streams, to measure its mean squared error.

    Trials run in groups, all by the same compiled program. A trial's numbers depend on its own index and the seed only:
    neither on how many devices there are nor on where an earlier run was interrupted. Runs that differ in numbers only
    (step size, seed, iterations, environments of the same shape) share their compiled program.

    Attributes:
        search: the search.
        iterations: batches per trial.
        batch_size: episodes per batch.
        seed: trial i of the same seed is the same trial.
        record: what to keep of every iteration: a function of the search, its state after the step, the step's info
            and its batch.
        group: trials per call: enough to fill the vector units, few enough to stay in cache.
    """

    search: AnySearch
    iterations: int
    batch_size: int
    seed: int = 0
    record: Record = mean_values
    group: int = 5

    def __post_init__(self) -> None:
        for name in ("iterations", "batch_size", "group"):
            check_integer(name, getattr(self, name))

    def run(self, env: CompiledEnv, policy: Policy, trials: int) -> tuple[Any, Any]:
        """Run trials 0 to `trials` − 1; return their final states and records, stacked along a first axis."""
        job = Job(self, env, policy, list(range(check_integer("trials", trials))))
        parts = {group[0]: outcome for _, group, outcome in run_jobs([job])}
        ordered = [parts[first] for first in sorted(parts)]
        stacked: tuple[Any, Any] = jax.tree_util.tree_map(lambda *leaves: np.concatenate(leaves), *ordered)
        return stacked

    @property
    def program(self) -> "Program":
        """What is compiled."""
        block = max(size for size in range(1, LONGEST_BLOCK + 1) if self.iterations % size == 0)
        return Program(self.batch_size, block, self.record)

    @in_64_bit
    def run_group(self, device: Any, env: CompiledEnv, policy: Policy, group: list[int]) -> tuple[Any, Any]:
        """Run the trials of these indices, at most `group`, on one device; return their final states and records.

        The last trial is repeated to give all groups one shape, and dropped again.
        """
        padded = np.asarray(group + group[-1:] * (self.group - len(group)))
        program, state = self.program, self.search.init(policy, env.discount)

        def spread(path: Any, leaf: Any) -> Any:
            return leaf if _is_shared(path) else np.broadcast_to(leaf, (self.group, *np.shape(leaf)))

        state = jax.tree_util.tree_map_with_path(spread, state)
        placed = (self.search, env, state, batch_key(self.seed), padded)
        search, env, state, key, indices = jax.device_put(placed, device)
        records = []
        for start in range(0, self.iterations, program.block):
            state, record = _run_block(program, search, env, state, key, indices, start)
            records.append(record)
        joined = jax.tree_util.tree_map(lambda *leaves: np.concatenate(leaves, axis=1), *records)

        def gather(path: Any, leaf: Any) -> Any:
            whole = np.asarray(leaf)
            return np.broadcast_to(whole, (self.group, *whole.shape)) if _is_shared(path) else whole

        outcome = (jax.tree_util.tree_map_with_path(gather, state), joined)
        trimmed: tuple[Any, Any] = jax.tree_util.tree_map(lambda leaf: leaf[: len(group)], outcome)
        return trimmed


@dataclass(frozen=True)
class Program:
    """What is compiled, besides the search: everything that is not a number in the arguments."""

    batch_size: int
    block: int
    record: Record

    def trial(
        self, search: AnySearch, env: CompiledEnv, state: Any, key: Array, index: Array, start: Array
    ) -> tuple[Any, Any]:
        """`block` iterations of one trial."""
        trial_key = jax.random.fold_in(key, index)

        def iterate(state: Any, iteration: Any) -> tuple[Any, Any]:
            behavior = search.behavior(state)
            batch = rollout(env, behavior, jax.random.fold_in(trial_key, iteration), self.batch_size)
            state, info = search.update(state, batch)
            return state, self.record(search, state, info, batch)

        return jax.lax.scan(iterate, state, start + jnp.arange(self.block))


@partial(jax.jit, static_argnums=0)
def _run_block(
    program: Program, search: AnySearch, env: CompiledEnv, state: Any, key: Array, indices: Array, start: Array
) -> tuple[Any, Any]:
    """One block of one group on one device.

    Every device runs this same program on its own group. One program partitioned over the devices would be as fast but
    is compiled differently for each number of devices, which changes the last bits of the results.
    """
    axes = jax.tree_util.tree_map_with_path(lambda path, _: None if _is_shared(path) else 0, state)
    over_trials = jax.vmap(program.trial, in_axes=(None, None, axes, None, 0, None), out_axes=(axes, 0))
    outcome: tuple[Any, Any] = over_trials(search, env, state, key, indices, start)
    return outcome


def _is_shared(path: Any) -> bool:
    """Whether a leaf of the state is the same in all trials: the count of batches.

    What depends on it alone (when to fit a model) is then decided once for all trials, where a decision per trial would
    have to compute both outcomes.
    """
    return jax.tree_util.GetAttrKey("batches") in path


@dataclass(frozen=True, eq=False)
class Job:
    """Trials that are to be run: those of `indices`, in groups."""

    trials: Trials
    env: CompiledEnv
    policy: Policy
    indices: list[int]

    @property
    def groups(self) -> list[list[int]]:
        """The indices by group."""
        size = self.trials.group
        return [self.indices[start : start + size] for start in range(0, len(self.indices), size)]

    @property
    def compiled(self) -> Any:
        """Jobs of equal `compiled` share their compiled program."""
        leaves, structure = jax.tree_util.tree_flatten((self.trials.search, self.env, self.policy))
        return self.trials.program, self.trials.group, structure, tuple(np.shape(leaf) for leaf in leaves)


def run_jobs(jobs: Sequence[Job]) -> Generator[tuple[int, list[int], tuple[Any, Any]]]:
    """Run all jobs on all devices; yield the job's position, a finished group, and its states and records.

    CPU devices are cores of one machine: a program compiled for the first of them runs there in as many threads as
    there are devices, where each device would want it compiled again.
    """
    for job in jobs:
        check_spaces(job.env, job.policy)
    work = _Work(jobs)
    devices = jax.devices()
    if devices[0].platform == "cpu":
        devices = devices[:1] * len(devices)
    with ThreadPoolExecutor(len(devices)) as threads:
        for device in devices:
            threads.submit(work.serve, device)
        try:
            for _ in range(sum(len(job.groups) for job in jobs)):
                outcome = work.done.get()
                if isinstance(outcome, BaseException):
                    raise outcome
                yield outcome
        finally:
            work.cancel()


class _Work:
    """The groups that wait, and how the threads that serve devices choose among them.

    They are taken in the order of the jobs, so that what comes of the first jobs can be looked at while the others run.
    A program is compiled with its first group on a device, which takes seconds: meanwhile the other threads pass over
    what needs it. What another device has begun is compiled again only if enough of it is left.
    """

    WORTH_COMPILING = 3  # groups

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._waiting = [job.groups for job in jobs]
        self._programs = [job.compiled for job in jobs]
        self._begun: set[Any] = set()  # programs
        self._compiling: set[Any] = set()  # programs with devices
        self._compiled: set[Any] = set()
        self._changed = threading.Condition()

    def serve(self, device: Any) -> None:
        """Run groups on `device` until none is left for it."""
        try:
            while (taken := self._take(device)) is not None:
                position, group = taken
                job = self.jobs[position]
                outcome = job.trials.run_group(device, job.env, job.policy, group)
                self._mark_compiled(self._programs[position], device)
                self.done.put((position, group, outcome))
        except BaseException as error:  # it belongs to whoever waits for the groups
            self.cancel()
            self.done.put(error)

    def cancel(self) -> None:
        """Begin no further group."""
        with self._changed:
            self._waiting = [[] for _ in self._waiting]
            self._changed.notify_all()

    def _mark_compiled(self, program: Any, device: Any) -> None:
        with self._changed:
            self._compiled.add((program, device))
            self._compiling.discard((program, device))
            self._changed.notify_all()

    def _take(self, device: Any) -> tuple[int, list[int]] | None:
        """The next group for `device`; waits while those that are left need a program that is being compiled for it."""
        with self._changed:
            while True:
                left = [position for position, groups in enumerate(self._waiting) if groups]
                chosen = next((position for position in left if self._may_begin(position, device)), None)
                if chosen is not None:
                    program = self._programs[chosen]
                    self._begun.add(program)
                    if (program, device) not in self._compiled:
                        self._compiling.add((program, device))
                    return chosen, self._waiting[chosen].pop(0)
                if not any((self._programs[position], device) in self._compiling for position in left):
                    return None
                self._changed.wait()

    def _may_begin(self, position: int, device: Any) -> bool:
        program = self._programs[position]
        if (program, device) in self._compiling:
            return False
        is_compiled, is_new = (program, device) in self._compiled, program not in self._begun
        return is_compiled or is_new or len(self._waiting[position]) >= self.WORTH_COMPILING
