"""Many independent trials of one search as one compiled program, spread over the devices."""

from collections import deque
from collections.abc import Callable, Iterator
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


def mean_values(search: Search, state: Any, info: Info, batch: Trajectories) -> Array:
    """The mean of the batch's values: what a curve of errors against episodes is made of."""
    return jnp.mean(info.values)


@dataclass(frozen=True)
class Trials:
    """A search repeated from the same start with other random streams, to measure its mean squared error.

    Trials run in groups, one at a time on each device, all groups by the same compiled program. A trial's numbers
    depend on its own index and the seed only: neither on how many devices there are nor on where an earlier run was
    interrupted.

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
    group: int = 10

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
        running: deque[tuple[list[int], Any]] = deque()
        for number, start in enumerate(range(0, len(indices), self.group)):
            if len(running) == len(devices):
                yield _finished(*running.popleft())
            group = list(indices[start : start + self.group])
            padded = group + group[-1:] * (self.group - len(group))
            running.append((group, self._start(devices[number % len(devices)], env, state, np.asarray(padded))))
        while running:
            yield _finished(*running.popleft())

    @in_64_bit
    def _start(self, device: Any, env: CompiledEnv, state: Any, indices: Array) -> Any:
        """Start a group on one device, without waiting for it."""
        return _run(self, *jax.device_put((env, state, batch_key(self.seed), indices), device))

    def _trial(self, env: CompiledEnv, state: Any, key: Array, index: Array) -> tuple[Any, Any]:
        trial_key = jax.random.fold_in(key, index)

        def iterate(state: Any, iteration: Array) -> tuple[Any, Any]:
            behavior = self.search.behavior(state)
            batch = rollout(env, behavior, jax.random.fold_in(trial_key, iteration), self.batch_size)
            state, info = self.search.update(state, batch)
            return state, self.record(self.search, state, info, batch)

        state = jax.tree_util.tree_map(jnp.asarray, state)
        return jax.lax.scan(iterate, state, jnp.arange(self.iterations))


def _finished(group: list[int], outcome: Any) -> tuple[list[int], tuple[Any, Any]]:
    """Wait for a group; drop the padding that gives all groups one shape."""
    trimmed: tuple[Any, Any] = jax.tree_util.tree_map(lambda leaf: np.asarray(leaf)[: len(group)], outcome)
    return group, trimmed


@partial(jax.jit, static_argnums=0)
def _run(trials: Trials, env: CompiledEnv, state: Any, key: Array, indices: Array) -> tuple[Any, Any]:
    """One group on one device.

    Every device runs this same program on its own group. One program partitioned over the devices would be as fast but
    is compiled differently for each number of devices, which changes the last bits of the results.
    """
    return jax.vmap(trials._trial, in_axes=(None, None, None, 0))(env, state, key, indices)
