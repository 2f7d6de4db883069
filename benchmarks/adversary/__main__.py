"""The adversary: drawn tasks of all families, and what a method does on them beside Monte Carlo.

    python -m benchmarks.adversary --tasks 200 --studies 200 --episodes 50 100 300 1000 3000 --jobs 2 --out DIR
    python -m benchmarks.adversary --networks --tasks 42 --studies 200 --episodes 50 100 300 1000 --jobs 2 --out DIR
    python -m benchmarks.adversary --worst frozen-lake-4x4 --tasks 60 --studies 100 --episodes 100 300
    python -m benchmarks.adversary --family frozen-lake-4x4 --given planning=0.99 epsilon=0.1,0.01,0.001 --tasks 3

Finished tasks are kept in DIR, and an interrupted run goes on from there. What is kept knows the settings but not the
code: after a change of code use --fresh, or another DIR.
"""

import argparse
import shutil
from pathlib import Path

from benchmarks.adversary.families import FAMILIES, NETWORKS, TABLES
from benchmarks.adversary.methods import METHODS
from benchmarks.adversary.report import write
from benchmarks.adversary.run import Result, Settings, draws, run
from benchmarks.adversary.worst import OBJECTIVES, search


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=200, help="dealt out to the families in turn; 200 by default")
    parser.add_argument("--studies", type=int, default=200, help="of each task; 200 by default")
    parser.add_argument("--episodes", type=int, nargs="+", default=[50, 100, 300, 1000, 3000], help="of a study")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--family", nargs="+", choices=FAMILIES, default=list(TABLES), metavar="NAME", help="only it")
    chosen.add_argument(
        "--networks", dest="family", action="store_const", const=list(NETWORKS), help="all families seen by networks"
    )
    parser.add_argument("--given", nargs="+", default=[], metavar="NAME=VALUES", help="not drawn: one or more numbers")
    parser.add_argument("--worst", choices=FAMILIES, metavar="FAMILY", help="search for its worst case")
    parser.add_argument("--objective", choices=OBJECTIVES, default="ratio", help="of the search")
    parser.add_argument("--method", choices=METHODS, default="auto")
    parser.add_argument("--jobs", type=int, default=1, help="processes; each takes a core")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/adversary"), help="for results and tables")
    parser.add_argument("--fresh", action="store_true", help="throw away what is kept there of this method")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    settings = Settings(options.method, tuple(sorted(options.episodes)), options.studies, options.seed)
    if options.worst:
        print(search(options.worst, settings, options.tasks, options.objective, options.jobs))
        return
    store = options.out / "tasks" / options.method
    if options.fresh:
        shutil.rmtree(store, ignore_errors=True)
    given = {name: [float(value) for value in values.split(",")] for name, values in map(_split, options.given)}
    planned = draws(options.family, options.tasks, options.seed, given)
    results = []
    for result, seconds in run(planned, settings, options.jobs, store):
        results.append(result)
        print(progress(result, seconds, len(results), len(planned)), flush=True)
    order = {(draw.family, draw.number): place for place, draw in enumerate(planned)}
    results.sort(key=lambda result: order[result.family, result.number])
    print(write(results, options.out))
    print(f"written to {options.out}")


def _split(given: str) -> tuple[str, str]:
    name, _, values = given.partition("=")
    return name, values


def progress(result: Result, seconds: float, done: int, planned: int) -> str:
    ratios = "  ".join(f"{cell.ratio:.3g} ± {cell.ratio_error:.1g} ({cell.coverage:.0%})" for cell in result.cells)
    return f"[{done}/{planned}] {result.family:20} {result.number:3}  {ratios}  [{seconds:.0f} s]"


if __name__ == "__main__":
    main()
