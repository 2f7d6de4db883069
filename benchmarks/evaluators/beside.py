"""One method in two runs of the benchmark, side by side: what a change of code costs, and what it gains.

    python -m benchmarks.evaluators.beside OLD.csv NEW.csv [--method auto]

Both runs have the same random numbers if they have the same seed, so that less noise stands between them than the
intervals of each say. Widths are relative to Monte Carlo's, with those of the tight intervals in brackets.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.evaluators.measure import Cell
from benchmarks.evaluators.table import coverage_text, error_text, read_csv, table, width_text
from benchmarks.evaluators.tasks import TASKS


def beside(old: Sequence[Cell], new: Sequence[Cell], method: str) -> str:
    """A Markdown table of all cells that both have."""
    before, after = ({(c.task, c.episodes): c for c in cells if c.method == method} for cells in (old, new))
    rows = []
    for task, episodes in (pair for pair in after if pair in before):
        cells = before[task, episodes], after[task, episodes]
        (first, *_), (second, *_) = (cell.error for cell in cells)
        change = f"{second / first:.2f}" if first > 0.0 else "–"  # noise can make a refined ratio negative
        texts = [text(cell) for text in (error_text, coverage_text, width_text) for cell in cells]
        rows.append([TASKS[task]().title, str(episodes), *texts[:2], change, *texts[2:]])
    heads = ["task", "episodes", "MSE ratio, old", "new", "new / old"]
    return table([*heads, "coverage, old", "new", "width, old", "new"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--method", default="auto")
    options = parser.parse_args()
    print(beside(read_csv(options.old), read_csv(options.new), options.method))


if __name__ == "__main__":
    main()
