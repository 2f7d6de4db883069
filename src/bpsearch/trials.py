"""Many independent trials of one search as one compiled program, spread over the devices."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bpsearch.checks import check_integer
from bpsearch.envs.base import CompiledEnv
from bpsearch.numerics import in_64_bit
from bpsearch.policies.base import Policy
from bpsearch.sampling import check_spaces
from bpsearch.sampling.compiled import rollout
from bpsearch.sampling.seeds import batch_key
from bpsearch.search.base import Info, Search
from bpsearch.trajectories import Array, Trajectories

Record = Callable[[Search, Any, Info, Trajectories], Any]
LONGEST_BLOCK = 50


def mean_values(search: Search, state: Any, info: Info, batch: Trajectories) -> Array:
    """The mean of the batch's values: what a curve of errors against episodes is made of."""
    return jnp.mean(info.values)


@dataclass(frozen=True)
class Trials:
    """A search repeated from the same start with other random streams, to measure its mean squared error.

    Trials run in groups, one at a time on each device, all groups by the same compiled program. A trial's numbers
    depend on its own index and the seed only: neither on how many devices there are nor on where an earlier run was
    interrupted. Runs that differ in numbers only (step size, seed, iterations, environments of the same shape) share
    their compiled program.

    Attributes:
        search: the search.
        iterations: batches per trial.
        batch_size: episodes per batch.
        seed: trial i of the same seed is the same trial.
        record: what to keep of every iteration: a function of the search, its state after the step, the step's info
            and its batch.
        group: trials per call: enough to fill the vector units, few enough to stay in cache.
    """

    search: Search
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
        indices = range(check_integer("trials", trials))
        parts = [outcome for _, outcome in self.run_in_groups(env, policy, indices)]
        stacked: tuple[Any, Any] = jax.tree_util.tree_map(lambda *leaves: np.concatenate(leaves), *parts)
        return stacked

    def run_in_groups(
        self, env: CompiledEnv, policy: Policy, indices: range | list[int]
    ) -> Iterator[tuple[list[int], tuple[Any, Any]]]:
        """Run the trials of these indices; yield each finished group's indices with its states and records."""
        check_spaces(env, policy)
        state = self.search.init(policy, env.discount)
        devices = jax.devices()
        running: deque[tuple[list[int], Future[tuple[Any, Any]]]] = deque()
        # A thread per device: programs are compiled for the devices side by side too.
        with ThreadPoolExecutor(len(devices)) as threads:
            try:
                for number, start in enumerate(range(0, len(indices), self.group)):
                    if len(running) == len(devices):
                        group, finished = running.popleft()
                        yield group, finished.result()
                    group = list(indices[start : start + self.group])
                    device = devices[number % len(devices)]
                    running.append((group, threads.submit(self._run_group, device, env, state, group)))
                while running:
                    group, finished = running.popleft()
                    yield group, finished.result()
            finally:
                threads.shutdown(cancel_futures=True)

    @in_64_bit
    def _run_group(self, device: Any, env: CompiledEnv, state: Any, group: list[int]) -> tuple[Any, Any]:
        """Run a group on one device; its last trial is repeated to give all groups one shape, and dropped again."""
        padded = np.asarray(group + group[-1:] * (self.group - len(group)))
        block = max(size for size in range(1, LONGEST_BLOCK + 1) if self.iterations % size == 0)
        program = _Program(self.search.program, self.batch_size, block, self.record)

        def spread(path: Any, leaf: Any) -> Any:
            return leaf if _is_shared(path) else np.broadcast_to(leaf, (self.group, *np.shape(leaf)))

        state = jax.tree_util.tree_map_with_path(spread, state)
        env, state, key, indices = jax.device_put((env, state, batch_key(self.seed), padded), device)
        records = []
        for start in range(0, self.iterations, block):
            state, record = _run_block(program, env, state, key, indices, start)
            records.append(record)
        joined = jax.tree_util.tree_map(lambda *leaves: np.concatenate(leaves, axis=1), *records)

        def gather(path: Any, leaf: Any) -> Any:
            whole = np.asarray(leaf)
            return np.broadcast_to(whole, (self.group, *whole.shape)) if _is_shared(path) else whole

        outcome = (jax.tree_util.tree_map_with_path(gather, state), joined)
        trimmed: tuple[Any, Any] = jax.tree_util.tree_map(lambda leaf: leaf[: len(group)], outcome)
        return trimmed


@dataclass(frozen=True)
class _Program:
    """What is compiled: everything that is not a number in the arguments."""

    search: Search
    batch_size: int
    block: int
    record: Record

    def trial(self, env: CompiledEnv, state: Any, key: Array, index: Array, start: Array) -> tuple[Any, Any]:
        """`block` iterations of one trial."""
        trial_key = jax.random.fold_in(key, index)

        def iterate(state: Any, iteration: Array) -> tuple[Any, Any]:
            behavior = self.search.behavior(state)
            batch = rollout(env, behavior, jax.random.fold_in(trial_key, iteration), self.batch_size)
            state, info = self.search.update(state, batch)
            return state, self.record(self.search, state, info, batch)

        return jax.lax.scan(iterate, state, start + jnp.arange(self.block))


@partial(jax.jit, static_argnums=0)
def _run_block(
    program: _Program, env: CompiledEnv, state: Any, key: Array, indices: Array, start: Array
) -> tuple[Any, Any]:
    """One block of one group on one device.

    Every device runs this same program on its own group. One program partitioned over the devices would be as fast but
    is compiled differently for each number of devices, which changes the last bits of the results.
    """
    axes = jax.tree_util.tree_map_with_path(lambda path, _: None if _is_shared(path) else 0, state)
    over_trials = jax.vmap(program.trial, in_axes=(None, axes, None, 0, None), out_axes=(axes, 0))
    outcome: tuple[Any, Any] = over_trials(env, state, key, indices, start)
    return outcome


def _is_shared(path: Any) -> bool:
    """Whether a leaf of the state is the same in all trials: the count of batches.

    What depends on the count alone (when to fit a model) is then decided once for all trials, where a decision per
    trial would have to compute both outcomes.
    """
    return bool(path[-1] == jax.tree_util.GetAttrKey("batches"))
