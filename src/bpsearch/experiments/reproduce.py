"""`bpsearch reproduce`: run the paper's experiments and turn its claims into verdicts."""

import platform
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bpsearch.experiments.claims import Claim
from bpsearch.experiments.control_variates import ControlVariates
from bpsearch.experiments.findings import Experiment, write_claims
from bpsearch.experiments.gridworld import Gridworld
from bpsearch.experiments.rare_event import RareEvent
from bpsearch.experiments.runs import execute

EXPERIMENTS: dict[str, Callable[[int, int], Experiment]] = {
    "gridworld": Gridworld,
    "control-variates": ControlVariates,
    "rare-event": RareEvent,
}


def reproduce(names: Iterable[str], *, trials: int, seed: int, out: Path, progress: Progress) -> dict[str, list[Claim]]:
    """Run the experiments of these names; write figures, CSV files and `claims.json` into `out`.

    Finished trials are kept below `out/trials`: a run that was interrupted goes on from there.
    """
    start = time.perf_counter()
    experiments = [EXPERIMENTS[name](trials, seed) for name in names]
    total = sum(run.cost for experiment in experiments for run in experiment.runs())
    task = progress.add_task("", total=total)
    claims: dict[str, list[Claim]] = {}
    out.mkdir(parents=True, exist_ok=True)
    for experiment in experiments:

        def advance(run: str, steps: float, name: str = experiment.name) -> None:
            progress.update(task, advance=steps, description=f"{name}: {run}")

        results = {run.name: execute(run, out / "trials" / experiment.name, advance) for run in experiment.runs()}
        progress.update(task, description=f"{experiment.name}: exact variances and figures")
        found = experiment.analyse(results, out)
        for table in found.tables:
            table.write(out, experiment.name)
        claims[experiment.name] = found.claims
    write_claims(out / "claims.json", claims, _settings(trials, seed, time.perf_counter() - start))
    return claims


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
