"""What an experiment leaves: figures, the numbers behind them, and verdicts on the paper's claims."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch.paper.claims import Claim
from bpsearch.paper.curves import checkpoints
from bpsearch.paper.runs import Arrays, Run

Results = dict[str, Arrays]


@dataclass(frozen=True)
class Table:
    """Columns of equal length, to be written as CSV."""

    name: str
    columns: dict[str, NumpyArray]

    def write(self, directory: Path, prefix: str) -> Path:
        """Write `<prefix>-<name>.csv` into `directory`."""
        path = directory / f"{prefix}-{self.name}.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(self.columns)
            writer.writerows(zip(*(np.asarray(column).tolist() for column in self.columns.values()), strict=True))
        return path


def mse_table(errors: Arrays, batch_size: int) -> Table:
    """Mean squared errors with standard errors, from the running squared errors (trials, iterations) of each method."""
    points = checkpoints(next(iter(errors.values())).shape[1])
    columns = {"episodes": batch_size * (points + 1)}
    for name, squared in errors.items():
        columns[f"{name}-mse"] = squared[:, points].mean(axis=0)
        columns[f"{name}-std-error"] = squared[:, points].std(axis=0, ddof=1) / np.sqrt(len(squared))
    return Table("mse", columns)


@dataclass(frozen=True)
class Findings:
    """Figures (paths), tables and claims of one experiment."""

    figures: list[Path]
    tables: list[Table]
    claims: list[Claim]


class Experiment(Protocol):
    """An experiment of the paper: the runs that it needs, and what follows from their arrays.

    Most experiments know all their runs beforehand. One whose settings follow from what earlier runs gave (a step size
    from a sweep) says so by `next_runs`, and tells by `cost` what is to come.
    """

    name: str
    title: str

    def runs(self) -> list[Run]:
        """What to run first."""

    def next_runs(self, results: Results) -> list[Run]:
        """What to run after `runs`, given their results."""
        return []

    def cost(self) -> float:
        """Environment steps of all runs, for the progress display."""
        return sum(run.cost for run in self.runs())

    def analyse(self, results: Results, out: Path) -> Findings:
        """Figures written to `out`, tables and claims."""


def write_claims(directory: Path, claims: dict[str, list[Claim]], settings: dict[str, Any]) -> None:
    """Write `claims.json`, the settings of the run and per experiment its claims, and the same as `claims.md`."""
    content = {
        "settings": settings,
        "experiments": {name: [claim.to_json() for claim in found] for name, found in claims.items()},
    }
    (directory / "claims.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    sections = [f"## {name}\n\n{_markdown(found)}" for name, found in claims.items()]
    (directory / "claims.md").write_text("\n\n".join(sections) + "\n")


def _markdown(claims: list[Claim]) -> str:
    head = "| claim of the paper | measured | paper | ours | 95% interval | optimum | p | verdict |"
    rows = [head, "|---|---|---|---|---|---|---|---|"]
    for claim in claims:
        cells = (claim.text, claim.measured, *claim.numbers(), f"**{claim.verdict}**")
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)
