"""What the processes of the benchmark do: the cells of one method on one task after the other."""

import argparse
import time
from typing import Any

import jax

from benchmarks.evaluators.measure import Cell, cell
from benchmarks.evaluators.methods import METHODS
from benchmarks.evaluators.run import run
from benchmarks.evaluators.table import error_text
from benchmarks.evaluators.tasks import TASKS, references
from bpsearch.cli.shared import prepare_jax


def prepare_worker() -> None:
    """One device for each process: it has one core."""
    prepare_jax()
    jax.config.update("jax_num_cpu_devices", 1)


def measure(options: argparse.Namespace, pair: tuple[str, str]) -> list[Cell]:
    """The cells of one method on one task."""
    task, (_, name), start = TASKS[pair[0]](), pair, time.perf_counter()
    method, known = METHODS[name], references()[task.name]
    studies = run(
        task,
        name,
        method,
        studies=options.studies,
        episodes=max(options.budget),
        batch_size=options.batch,
        seed=options.seed,
        store=options.store,
        fresh=options.fresh,
    )
    if studies is None:
        return []
    truth: dict[str, Any] = {"truth": known.value, "truth_error": known.std_error, "variance": known.variance}
    cells = [cell(*pair, studies, n, biased=method.biased, **truth) for n in sorted(options.budget)]
    seconds = time.perf_counter() - start
    print(f"{task.name:20} {name:14} {'  '.join(map(error_text, cells))}  [{seconds:.0f} s]", flush=True)
    return cells
