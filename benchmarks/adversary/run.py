"""Run the studies of drawn tasks in processes of one core each; finished tasks are kept on disk."""

import hashlib
import json
import multiprocessing
import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path

import jax
import numpy as np

from benchmarks.adversary.families import FAMILIES, build
from benchmarks.adversary.measure import Cell, measure
from benchmarks.adversary.methods import METHODS
from bpsearch.cli.shared import prepare_jax


@dataclass(frozen=True)
class Settings:
    """How tasks are measured.

    Attributes:
        method: its name.
        sizes: numbers of episodes of a study.
        studies: of each task.
        seed: other seeds give other tasks and other episodes.
    """

    method: str
    sizes: tuple[int, ...]
    studies: int
    seed: int


@dataclass(frozen=True)
class Draw:
    """A task that is to be measured: the number of its family, and the parameters."""

    family: str
    number: int
    parameters: dict[str, float]

    @property
    def name(self) -> str:
        """For files and for the task's random numbers."""
        return f"{self.family}-{self.number}"


@dataclass(frozen=True)
class Result:
    """What was measured on a task, one cell for each number of episodes."""

    family: str
    number: int
    parameters: dict[str, float]
    states: int
    actions: int
    horizon: int
    truth: float
    variance: float
    kurtosis: float
    cells: tuple[Cell, ...]

    def to_json(self) -> str:
        """Everything; numbers that JSON does not know are written as Python does."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Result":
        """What `to_json` wrote."""
        found = json.loads(text)
        return cls(**{**found, "cells": tuple(Cell(**cell) for cell in found["cells"])})


def draws(
    families: Sequence[str], tasks: int, seed: int, given: Mapping[str, Sequence[float]] | None = None
) -> list[Draw]:
    """So many tasks, dealt out to the families in turn; more tasks leave the first ones as they are.

    The tasks of a family get the combinations of given values in turn; all other parameters are drawn.
    """
    found, given = [], given or {}
    combinations = [dict(zip(given, values, strict=True)) for values in product(*given.values())]
    for place in range(tasks):
        family, number = families[place % len(families)], place // len(families)
        rng = np.random.default_rng((seed, zlib.crc32(family.encode()), number))
        drawn, fixed = FAMILIES[family].draw(rng), combinations[number % len(combinations)]
        if unknown := sorted(set(fixed) - set(drawn)):
            raise ValueError(f"{family} has the parameters {', '.join(drawn)}, got {', '.join(unknown)}")
        found.append(Draw(family, number, drawn | fixed))
    return found


def judged(settings: Settings, draw: Draw) -> Result:
    """Measure one task. Draws of the same family and number get the same random numbers."""
    task = build(draw.family, draw.parameters)
    seed = zlib.crc32(draw.name.encode()) + settings.seed
    cells = measure(task, settings.sizes, settings.studies, seed, METHODS[settings.method])
    return Result(
        **asdict(draw),
        states=task.mdp.states,
        actions=task.mdp.actions,
        horizon=task.mdp.horizon,
        truth=task.truth,
        variance=task.variance,
        kurtosis=task.kurtosis,
        cells=tuple(cells),
    )


def kept_at(store: Path, settings: Settings, draw: Draw) -> Path:
    """Where the result is kept. The name knows the settings and the parameters, but not the code."""
    what = json.dumps([asdict(settings), asdict(draw)], sort_keys=True)
    return store / f"{draw.name}-{hashlib.sha256(what.encode()).hexdigest()[:12]}.json"


def run(planned: Sequence[Draw], settings: Settings, jobs: int, store: Path) -> Iterator[tuple[Result, float]]:
    """Each result as soon as it is there, with the seconds that it took; what is kept takes none."""
    store.mkdir(parents=True, exist_ok=True)
    paths = {draw.name: kept_at(store, settings, draw) for draw in planned}
    for path in paths.values():
        if path.exists():
            yield Result.from_json(path.read_text()), 0.0
    with workers(jobs) as pool:
        waiting = [pool.submit(_timed, settings, draw) for draw in planned if not paths[draw.name].exists()]
        for done in as_completed(waiting):
            result, seconds = done.result()
            path = paths[f"{result.family}-{result.number}"]
            unfinished = path.with_suffix(".part")
            unfinished.write_text(result.to_json())
            unfinished.replace(path)
            yield result, seconds


def workers(jobs: int) -> ProcessPoolExecutor:
    """Processes of one thread each. More threads than cores only wait for each other."""
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ[f"{library}_NUM_THREADS"] = "1"
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), prepare_worker)


def prepare_worker() -> None:
    """One device of one thread for each process."""
    prepare_jax(tables=True)
    os.environ["XLA_FLAGS"] += " --xla_cpu_multi_thread_eigen=false"
    jax.config.update("jax_num_cpu_devices", 1)


def judge_all(pool: ProcessPoolExecutor, settings: Settings, planned: Sequence[Draw]) -> list[Result]:
    """The results in the order of the draws; nothing is kept."""
    return list(pool.map(partial(judged, settings), planned))


def _timed(settings: Settings, draw: Draw) -> tuple[Result, float]:
    start = time.perf_counter()
    return judged(settings, draw), time.perf_counter() - start
