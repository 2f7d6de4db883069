"""What the processes of the benchmark do: the cells of one method on one task after the other."""

import time

import jax

from benchmarks.evaluators.measure import Cell, cell
from benchmarks.evaluators.methods import METHODS
from benchmarks.evaluators.run import Settings, run
from benchmarks.evaluators.table import error_text
from benchmarks.evaluators.tasks import TASKS, references
from bpsearch.cli.shared import prepare_jax


def prepare_worker() -> None:
    """One device for each process: it has one core."""
    prepare_jax()
    jax.config.update("jax_num_cpu_devices", 1)


def measure(settings: Settings, pair: tuple[str, str]) -> list[Cell]:
    """The cells of one method on one task."""
    task, (_, name), start = TASKS[pair[0]](), pair, time.perf_counter()
    method, known = METHODS[name], references()[task.name]
    outcomes = run(task, name, method, settings)
    if outcomes is None:
        return []
    cells = [cell(*pair, outcome, budget, biased=method.biased, **known.truth) for budget, outcome in outcomes.items()]
    seconds = time.perf_counter() - start
    print(f"{task.name:20} {name:14} {'  '.join(map(error_text, cells))}  [{seconds:.0f} s]", flush=True)
    return cells
