"""How often anytime-valid intervals of whole studies hold: looks after every batch, and stops at a target.

    python -m benchmarks.coverage_studies --studies 2000 --cache runs/coverage --out docs/intervals

Tasks are tabular: the oracle knows their values exactly. Failures are those of `rare_levels`, with the probability of
some from 2,000,000 episodes. Each study has 1,000 episodes and looks after each batch of 100. Counted is how often the
asymptotic sequence of a study without a target holds at all looks at once, and that of a study with one where it ends:
when half the width is at most its median after 400 episodes in a pilot of other studies. What is in the cache is not
run again: the same command goes on after an interrupt, and with more `--studies`. The cache holds the values of all
episodes, so that the sequences, which take minutes, can be made of them again when their formula changes.
"""

import argparse
import json
import time
from collections.abc import Callable, Collection, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import bpsearch as bps
from benchmarks import rare_levels
from benchmarks.coverage_studies.collect import BATCH, EPISODES, LOOKS, Problem, Told, chunk_of, collect, method_of
from benchmarks.evaluators.tasks import TASKS
from bpsearch.inference.confidence_sequence import OPEN_ENDED

NAMES = (
    "gridworld-early",
    "gridworld-middle",
    "gridworld-noisy",
    "gridworld-converged",
    "random-0",
    "random-1",
    "random-2",
    "rare-0.3",
    "rare-0.05",
    "stochastic-early",
    "stochastic-middle",
    "stochastic-late",
)
METHODS = ("mc", "auto", "as", "systematic", "starts", "bpg", "pdis-bpg", "dr-bpg", "closed-form")
FAILURES = (
    "two levels of 0.1",
    "slips, 0.01",
    "one action of 0.004",
    "gridworld, return < -80",
    "gridworld, return < -200",
    "doors, starts and actions",
)
FOR_FAILURES = ("mc", "failures", "levels", "levels-starts")
GROUPS = ((NAMES, METHODS), (FAILURES, FOR_FAILURES))
WIDTHS = ("half_width", "tight_half_width")  # with room for unseen events, and without
STUDIES, PILOT = 0, 1  # seeds
PILOT_STUDIES = 25
Cell = dict[str, Any]


def problem_of(name: str) -> Problem:
    """Where, of which policy, what, and the truth."""
    if name in FAILURES:
        failure = rare_levels.TASKS[name]()
        truth, _ = rare_levels.truth_of(name, 2_000_000)
        return Problem(failure.env, failure.policy, failure.asked, truth)
    task = TASKS[name]()
    assert isinstance(task.env, bps.TabularMDP)
    return Problem(task.env, task.policy, bps.Return(task.env.discount), bps.oracle.value(task.env, task.policy))


def studies_of(name: str, method: str, seed: int, studies: int, cache: Path | None) -> Iterator[Told]:
    """What the studies say, by chunks; those in the cache are read."""
    problem = problem_of(name)
    chosen = method_of(method, problem)
    start = time.process_time()
    for chunk in range(-(-studies // chunk_of(problem, chosen))):
        path = None if cache is None else cache / f"{name}-{method}-{seed}-{chunk}.npz"
        if path is not None and path.exists():
            yield Told.read(path)
            continue
        found = collect(problem, chosen, seed, chunk)
        if path is not None:
            found.write(path)
        yield found
    print(f"{name}, {method}: {time.process_time() - start:.0f} s", flush=True)


def measure_looks(name: str, method: str, studies: int, cache: Path | None) -> Cell:
    """How often the sequence of a study without a target holds, and how wide it is."""
    found = courses_of(name, method, STUDIES, studies, cache, EPISODES)
    holds = _holds(found, problem_of(name).truth)
    # None where most studies claim nothing.
    half_width, tight = (float(at) if np.isfinite(at) else None for at in np.median(found[:, -1, 1:], axis=0))
    return {
        "task": name,
        "method": method,
        "studies": studies,
        "always": float(holds.all(axis=1).mean()),
        "first": float(holds[:, 0].mean()),
        "last": float(holds[:, -1].mean()),
        "half_width": half_width,
        "tight_half_width": tight,
    }


def measure_targets(name: str, method: str, studies: int, cache: Path | None) -> Cell:
    """How often the sequence of a study with a target holds where that ends, and would hold if it went on."""
    pilot = courses_of(name, method, PILOT, PILOT_STUDIES, cache, OPEN_ENDED)
    found = courses_of(name, method, STUDIES, studies, cache, OPEN_ENDED)
    target = np.median(pilot[:, LOOKS * 2 // 5 - 1, 1])
    narrow = found[..., 1] <= target
    narrow[:, -1] = True
    stop = narrow.argmax(axis=1)
    holds = _holds(found, problem_of(name).truth)
    return {
        "task": name,
        "method": method,
        "studies": studies,
        "always": float(holds.all(axis=1).mean()),
        "stopped": float(np.take_along_axis(holds, stop[:, None], axis=1).mean()),
        "half_width": float(target) if np.isfinite(target) else None,
        "episodes": float(BATCH * (1 + stop).mean()),
    }


def courses_of(
    name: str, method: str, seed: int, studies: int, cache: Path | None, tightest: int
) -> NDArray[np.float64]:
    """(S, looks, 3), the courses of so many studies (`Told.courses`)."""
    told = studies_of(name, method, seed, studies, cache)
    return np.concatenate([part.courses(tightest) for part in told])[:studies]


def _holds(courses: NDArray[np.float64], truth: float) -> NDArray[np.bool_]:
    """(S, looks), whether the interval holds the truth; as long as nothing counts, nothing is claimed."""
    return ~(np.abs(courses[..., 0] - truth) > courses[..., 1])


MEASURED: dict[str, tuple[Callable[[str, str, int, Path | None], Cell], tuple[str, ...]]] = {
    "looks": (measure_looks, ("always", *WIDTHS)),
    "targets": (measure_targets, ("stopped",)),
}


def table(cells: list[Cell], what: str, group: tuple[Collection[str], Collection[str]]) -> str:
    """One kind of percentage, or of median half-width after the last look; fewer than 2,000 studies in brackets.

    Where most studies claim nothing it is a dash.
    """
    names, every = group
    known = {(cell["task"], cell["method"]): cell for cell in cells if cell["task"] in names}
    methods = [method for method in every if any(method == key[1] for key in known)]
    lines = [f"| task | {' | '.join(methods)} |", "|---" * (len(methods) + 1) + "|"]
    for task in names:
        row = []
        for method in methods:
            cell = known.get((task, method))
            few = "" if cell is None or cell["studies"] >= 2000 else f" ({cell['studies']})"
            row.append(f"{_entry(cell, what)}{few}")
        lines.append(f"| {task} | {' | '.join(row)} |")
    return "\n".join(lines)


def _entry(cell: Cell | None, what: str) -> str:
    if cell is None:
        return ""
    if cell["half_width"] is None:
        return "–"
    return f"{cell[what]:.3g}" if what in WIDTHS else f"{100 * cell[what]:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--task", choices=NAMES + FAILURES, action="append", help="all of them by default")
    parser.add_argument(
        "--method", choices=dict.fromkeys(METHODS + FOR_FAILURES), action="append", help="all of them by default"
    )
    parser.add_argument("--cache", type=Path, default=None, help="directory for the values of all episodes")
    parser.add_argument("--what", choices=MEASURED, action="append", help="both by default")
    parser.add_argument(
        "--out", type=Path, default=None, help="directory for coverage-looks.json, coverage-targets.json"
    )
    options = parser.parse_args()
    every = [(name, method) for names, methods in GROUPS for method in methods for name in names]
    wanted = [
        (name, method)
        for name, method in every
        if name in (options.task or (name,)) and method in (options.method or (method,))
    ]
    for kind in options.what or MEASURED:
        path = None if options.out is None else options.out / f"coverage-{kind}.json"
        cells: dict[tuple[str, str], Cell] = {}
        if path is not None and path.exists():
            cells = {(cell["task"], cell["method"]): cell for cell in json.loads(path.read_text(encoding="utf-8"))}
        measure, columns = MEASURED[kind]
        for name, method in wanted:
            cells[name, method] = measure(name, method, options.studies, options.cache)
            print(cells[name, method], flush=True)
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                ordered = [cells[key] for key in every if key in cells]
                path.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
        for what, group in product(columns, GROUPS):
            print(f"\n{what}\n{table(list(cells.values()), what, group)}")


if __name__ == "__main__":
    main()
