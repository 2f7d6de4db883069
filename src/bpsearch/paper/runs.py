"""Runs of an experiment: many trials each, kept on disk as they finish, so that an interrupted one goes on."""

import hashlib
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bpsearch._core.arrays import Array, NumpyArray
from bpsearch.envs.base import CompiledEnv
from bpsearch.paper.trials import AnySearch, Job, Trials, run_jobs
from bpsearch.policies.base import Policy
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search import Info

Arrays = dict[str, NumpyArray]
Keep = Callable[[Any, Any], Arrays]
Advance = Callable[[int, float], None]


@dataclass(frozen=True)
class Run:
    """One curve or point of a figure.

    Attributes:
        name: unique within the experiment; the name of its directory.
        trials: the search, its length and its seed.
        env: where.
        policy: the evaluation policy.
        count: how many trials.
        keep: what to keep of the final states and records of a group of trials: named arrays, one row per trial.
        store: the experiment among whose trials they are kept, if several share them; by default its own.
    """

    name: str
    trials: Trials
    env: CompiledEnv
    policy: Policy
    count: int
    keep: Keep
    store: str | None = None

    @property
    def cost(self) -> float:
        """Environment steps, for the progress display."""
        return float(self.count * self.trials.iterations * self.trials.batch_size * self.env.horizon)


def record_means_and_parameters(search: AnySearch, state: Any, info: Info, batch: Trajectories) -> tuple[Array, Array]:
    """The batch's mean value, and θ after the step."""
    return jnp.mean(info.values), state.parameters


def means_only(states: Any, records: Any) -> Arrays:
    """Keep the mean value of each batch."""
    return {"means": records}


def execute(runs: Sequence[Run], directory: Path, progress: Advance) -> dict[str, Arrays]:
    """The kept arrays of all trials of each run, by its name.

    Finished trials are read from below `directory`, new ones are written there as they finish.
    """
    with closing(execute_each([(directory, run) for run in runs], progress)) as finished:
        return {runs[position].name: arrays for position, arrays in finished}


def execute_each(runs: Sequence[tuple[Path, Run]], progress: Advance) -> Generator[tuple[int, Arrays]]:
    """`execute` for runs with a directory each: yields a run's position and its arrays as soon as they are whole.

    Runs that keep the same trials in the same place run them once. `progress` is told the position and the steps.
    """
    stores = [_store(directory, run) for directory, run in runs]
    known = {store: _read_finished(store) for store in stores}
    for store in stores:
        store.mkdir(parents=True, exist_ok=True)
    planned = {store: set(trials) for store, trials in known.items()}
    jobs = []
    for position, (store, (_, run)) in enumerate(zip(stores, runs, strict=True)):
        missing = [index for index in range(run.count) if index not in planned[store]]
        planned[store].update(missing)
        progress(position, run.cost * (1.0 - len(missing) / run.count))
        jobs.append(Job(run.trials, run.env, run.policy, missing))
    waiting = set(range(len(runs)))

    def whole() -> Iterator[tuple[int, Arrays]]:
        for position in sorted(waiting):
            trials, count = known[stores[position]], runs[position][1].count
            if all(index in trials for index in range(count)):
                waiting.discard(position)
                yield position, {key: np.stack([trials[i][key] for i in range(count)]) for key in trials[0]}

    yield from whole()
    with closing(run_jobs(jobs)) as groups:
        for position, indices, (states, records) in groups:
            run, store = runs[position][1], stores[position]
            kept = run.keep(states, records)
            write_whole(store / f"{indices[0]:05d}-{indices[-1]:05d}.npz", indices=np.asarray(indices), **kept)
            known[store] |= _by_trial(indices, kept)
            progress(position, run.cost * len(indices) / run.count)
            yield from whole()


def _store(directory: Path, run: Run) -> Path:
    place = directory if run.store is None else directory.parent / run.store
    return place / f"{run.name}-{fingerprint(run)}"


def is_finished(directory: Path, run: Run) -> bool:
    """Whether all trials of a run are kept below `directory`."""
    return set(range(run.count)) <= set(_read_finished(_store(directory, run)))


def _read_finished(store: Path) -> dict[int, Arrays]:
    finished: dict[int, Arrays] = {}
    for path in sorted(store.glob("*.npz")):
        with np.load(path, allow_pickle=False) as arrays:
            finished |= _by_trial(arrays["indices"], {key: arrays[key] for key in arrays.files if key != "indices"})
    return finished


def _by_trial(indices: Sequence[int], arrays: Arrays) -> dict[int, Arrays]:
    return {int(index): {key: value[row] for key, value in arrays.items()} for row, index in enumerate(indices)}


def write_whole(path: Path, **arrays: NumpyArray) -> None:
    """Write whole or not at all: an interrupted run leaves no half file."""
    contents: dict[str, Any] = dict(arrays)
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        np.savez(file, **contents)
    os.replace(temporary, path)


def fingerprint(run: Run) -> str:
    """Changes whenever a setting, the environment or the policy does: stale trials are never mixed in."""
    trials, search = run.trials, run.trials.search
    settings = (
        type(search).__name__,
        search.estimator.name,
        [f"{k}={v}" for k, v in sorted(vars(search).items()) if k != "estimator"],
        (trials.iterations, trials.batch_size, trials.seed, trials.record.__qualname__, run.keep.__qualname__),
        (run.env.horizon, run.env.discount),
    )
    return digest(settings, run.env, run.policy)


def digest(settings: object, *trees: PyTree[Array]) -> str:
    """Of settings, by what they print as, and of arrays."""
    found = hashlib.sha256(repr(settings).encode())
    for leaf in jax.tree_util.tree_leaves(trees):
        found.update(np.ascontiguousarray(leaf).tobytes())
    return found.hexdigest()[:12]
