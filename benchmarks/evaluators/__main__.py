"""The benchmark of evaluators: mean squared error relative to Monte Carlo's, and coverage, for tasks x methods.

    python -m benchmarks.evaluators --tasks gridworld-early,rare-0.05 --methods mc,bpg --studies 50

Without options it runs everything. Parts of it can be run one after the other, and `--kept` then makes the tables and
figures of all that is there. Finished studies are kept in the store, and a run that was interrupted, or is asked
for more studies, goes on from there. What is kept knows a search's settings but not its code: after a change of code
use --fresh.
"""

import argparse
import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.evaluators.figure import draw, draw_method
from benchmarks.evaluators.methods import METHODS
from benchmarks.evaluators.run import Settings, is_kept
from benchmarks.evaluators.table import markdown, read_csv, write_csv
from benchmarks.evaluators.tasks import TASKS, references
from benchmarks.evaluators.worker import measure, prepare_worker


def names(allowed: Mapping[str, object]) -> Callable[[str], list[str]]:
    """A parser of lists of names."""

    def parse(text: str) -> list[str]:
        wanted = text.split(",")
        for name in wanted:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(allowed)}")
        return wanted

    return parse


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=names(TASKS), default=list(TASKS), help=f"of {', '.join(TASKS)}")
    parser.add_argument("--methods", type=names(METHODS), default=list(METHODS), help=f"of {', '.join(METHODS)}")
    parser.add_argument("--studies", type=int, default=200, help="per cell; 200 by default")
    parser.add_argument("--budget", type=int, nargs="+", default=[100, 300, 1000, 3000], help="episodes of a study")
    parser.add_argument("--batch", type=int, default=100, help="episodes between two steps of a search")
    parser.add_argument("--jobs", type=int, default=1, help="processes; each takes a core")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/evaluators"), help="for the tables and the figure")
    parser.add_argument("--store", type=Path, default=Path("runs/evaluators/studies"), help="for finished studies")
    stored = parser.add_mutually_exclusive_group()
    stored.add_argument("--kept", action="store_true", help="run nothing: only the pairs that the store has in full")
    stored.add_argument("--fresh", action="store_true", help="throw away what the store has of these cells")
    options = parser.parse_args()
    if any(budget % options.batch for budget in options.budget):
        parser.error(f"every budget must be a multiple of the batch of {options.batch}, got {options.budget}")
    return options


def main() -> None:
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    # A process has one core. More threads would only wait for each other, in XLA without end: a batch of linear systems
    # is dealt out to the very threads that wait for its solution.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    settings = Settings(
        studies=options.studies,
        budgets=tuple(sorted(options.budget)),
        batch_size=options.batch,
        seed=options.seed,
        store=options.store,
        fresh=options.fresh,
    )
    pairs = [(task, method) for task in options.tasks for method in options.methods]
    if options.kept:
        pairs = [(task, name) for task, name in pairs if is_kept(TASKS[task](), name, METHODS[name], settings)]
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"), prepare_worker) as pool:
        cells = [found for cells in pool.map(partial(measure, settings), pairs) for found in cells]
    tasks = [TASKS[name]() for name in dict.fromkeys(cell.task for cell in cells)]
    write_csv(cells, options.out / "evaluators.csv")
    cells = read_csv(options.out / "evaluators.csv")  # rounded: the tables are those of the file
    (options.out / "evaluators.md").write_text(markdown(cells, tasks, references()))
    draw(cells, tasks, references(), options.out)
    if any(cell.method == "auto" for cell in cells):
        draw_method("auto", cells, tasks, options.out)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
