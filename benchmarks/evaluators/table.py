"""The results as CSV and as markdown tables."""

import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from benchmarks.evaluators.measure import Cell
from benchmarks.evaluators.methods import METHODS
from benchmarks.evaluators.tasks import Reference, Task


def write_csv(cells: Sequence[Cell], path: Path) -> None:
    """Every number of every cell, six digits."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Cell)], lineterminator="\n")
        writer.writeheader()
        for cell in cells:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in asdict(cell).items()})


def read_csv(path: Path) -> list[Cell]:
    """What `write_csv` wrote."""
    kinds = {field.name: field.type for field in fields(Cell)}
    with path.open(newline="") as file:
        return [
            Cell(**{name: _parsed(text, kinds[name]) for name, text in row.items()}) for row in csv.DictReader(file)
        ]


def _parsed(text: str, kind: object) -> object:
    if kind is bool:
        return text == "True"
    if kind in (str, int):
        return kind(text)
    return float(text) if text else None


def markdown(cells: Sequence[Cell], tasks: Sequence[Task], references: dict[str, Reference]) -> str:
    """What is possible on each task, then errors, coverage and, if they were measured, widths by budget."""
    methods = list(dict.fromkeys(cell.method for cell in cells))
    found = {(cell.task, cell.method, cell.episodes): cell for cell in cells}
    parts = [possible(tasks, references)]
    texts = {"Mean squared error relative to Monte Carlo's": error_text, "Coverage": coverage_text}
    if any(cell.width is not None for cell in cells):
        texts["Median width of the interval relative to Monte Carlo's (tight)"] = width_text
    for what, text in texts.items():
        for episodes in sorted({cell.episodes for cell in cells}):
            heads = [METHODS[method].title for method in methods]
            rows = [
                [task.title, *(text(found.get((task.name, method, episodes))) for method in methods)] for task in tasks
            ]
            parts.append(f"### {what}, {episodes} episodes\n\n{table(['task', *heads], rows)}")
    return "\n\n".join(parts) + "\n"


def possible(tasks: Sequence[Task], references: dict[str, Reference]) -> str:
    """The tasks, and what the oracle says about them."""
    rows = []
    for task in tasks:
        known = references[task.name]
        error = "exact" if known.episodes == 0 else f"± {known.std_error:.2g}"
        limits = ["" if x is None else f"{x:.3g}" for x in (known.optimum, known.environment_share, known.best)]
        rows.append([task.title, f"{known.value:.4g} ({error})", f"{known.variance:.4g}", *limits])
    limits = ["best IS behavior", "perfect control variate", "best behavior with it"]
    heads = ["task", "value", "variance of a return", *limits]
    return f"### The tasks\n\n{table(heads, rows)}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def error_text(cell: Cell | None) -> str:
    """The ratio with its interval; a missing cell is a dash."""
    if cell is None:
        return "–"
    if cell.diverged:
        return f"diverged in {cell.diverged} of {cell.studies}"
    ratio, low, high = cell.error
    return f"{ratio:.2g} ({low:.2g}–{high:.2g})"


def coverage_text(cell: Cell | None) -> str:
    """The share of intervals that hold the truth."""
    return "–" if cell is None else f"{100 * cell.coverage:.0f}%"


def width_text(cell: Cell | None) -> str:
    """The median width, and that without room for events that no episode has shown."""
    if cell is None or cell.width is None:
        return "–"
    return f"{cell.width:.2g}" if cell.tight_width is None else f"{cell.width:.2g} ({cell.tight_width:.2g})"
