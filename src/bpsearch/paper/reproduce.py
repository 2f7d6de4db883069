"""`bpsearch reproduce`: run the paper's experiments and turn its claims into verdicts."""

import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bpsearch.errors import InvalidArgumentError
from bpsearch.paper.claims import Claim
from bpsearch.paper.continuous import Continuous, ContinuousExtras
from bpsearch.paper.control_variates import ControlVariates
from bpsearch.paper.findings import Experiment, Results, write_claims
from bpsearch.paper.gridworld import Gridworld
from bpsearch.paper.rare_event import RareEvent
from bpsearch.paper.runs import Advance, Run, execute_each

EXPERIMENTS: dict[str, Callable[[int, int], Experiment]] = {
    "gridworld": Gridworld,
    "control-variates": ControlVariates,
    "rare-event": RareEvent,
    "continuous": Continuous,
    "continuous-extras": ContinuousExtras,
}
GROUPS = {"tabular": ("gridworld", "control-variates", "rare-event"), "all": tuple(EXPERIMENTS)}


def names_of(experiment: str) -> tuple[str, ...]:
    """The experiments that a name stands for: itself, or those of a group."""
    if experiment not in EXPERIMENTS and experiment not in GROUPS:
        raise InvalidArgumentError(
            f"experiment must be one of {', '.join((*EXPERIMENTS, *GROUPS))}, got {experiment!r}"
        )
    return GROUPS.get(experiment, (experiment,))


def reproduce(names: Iterable[str], *, trials: int, seed: int, out: Path, progress: Progress) -> dict[str, list[Claim]]:
    """Run the experiments of these names; write figures, CSV files and `claims.json` into `out`.

    Finished trials are kept below `out/trials`: a run that was interrupted goes on from there.
    """
    start = time.perf_counter()
    claims = run_experiments([EXPERIMENTS[name](trials, seed) for name in names], out, progress)
    write_claims(out, claims, _settings(trials, seed, time.perf_counter() - start))
    return claims


def run_experiments(experiments: Sequence[Experiment], out: Path, progress: Progress) -> dict[str, list[Claim]]:
    """Run these experiments, write their figures and tables into `out`, and return their claims.

    All their trials wait in one line for a free core; an experiment is analysed as soon as its own are there,
    beside the trials of the others.
    """
    task = progress.add_task("", total=sum(experiment.cost() for experiment in experiments))
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Results] = {experiment.name: {} for experiment in experiments}
    found: dict[str, Future[list[Claim]]] = {}
    with ThreadPoolExecutor(1) as analyst:
        stage = [(experiment, run) for experiment in experiments for run in experiment.runs()]
        for is_last in (False, True):
            following: list[tuple[Experiment, Run]] = []
            for experiment in _finish(stage, results, out / "trials", partial(_advance, progress, task, stage)):
                runs = [] if is_last else experiment.next_runs(results[experiment.name])
                following += [(experiment, run) for run in runs]
                if not runs:
                    found[experiment.name] = analyst.submit(_analyse, experiment, results[experiment.name], out)
            stage = following
        progress.update(task, description="variances and figures")
        return {experiment.name: found[experiment.name].result() for experiment in experiments}


def _finish(
    stage: Sequence[tuple[Experiment, Run]], results: dict[str, Results], trials: Path, advance: Advance
) -> Iterator[Experiment]:
    """Run a stage of several experiments; yield each experiment when all its runs are in `results`."""
    left = Counter(experiment.name for experiment, _ in stage)
    places = [(trials / experiment.name, run) for experiment, run in stage]
    with closing(execute_each(places, advance)) as finished:
        for position, arrays in finished:
            experiment, run = stage[position]
            results[experiment.name][run.name] = arrays
            left[experiment.name] -= 1
            if left[experiment.name] == 0:
                yield experiment


def _advance(
    progress: Progress, task: TaskID, stage: Sequence[tuple[Experiment, Run]], position: int, steps: float
) -> None:
    experiment, run = stage[position]
    progress.update(task, advance=steps, description=f"{experiment.name}: {run.name}")


def _analyse(experiment: Experiment, results: Results, out: Path) -> list[Claim]:
    findings = experiment.analyse(results, out)
    for table in findings.tables:
        table.write(out, experiment.name)
    return findings.claims


def progress_display(quiet: bool) -> Progress:
    """One bar over all trials, with the time left; nothing where nobody watches."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        disable=quiet,
    )


def _settings(trials: int, seed: int, seconds: float) -> dict[str, Any]:
    versions = {name: version(name) for name in ("bpsearch", "jax", "numpy", "scipy")}
    return {
        "trials": trials,
        "seed": seed,
        "seconds": round(seconds, 1),
        "python": platform.python_version(),
        "versions": versions,
    }
