"""What an experiment leaves: figures, the numbers behind them, and verdicts on the paper's claims."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bpsearch.experiments.claims import Claim
from bpsearch.experiments.runs import Arrays, Run
from bpsearch.trajectories import Array

Results = dict[str, Arrays]


@dataclass(frozen=True)
class Table:
    """Columns of equal length, to be written as CSV."""

    name: str
    columns: dict[str, Array]

    def write(self, directory: Path, prefix: str) -> Path:
        """Write `<prefix>-<name>.csv` into `directory`."""
        path = directory / f"{prefix}-{self.name}.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(self.columns)
            writer.writerows(zip(*(np.asarray(column).tolist() for column in self.columns.values()), strict=True))
        return path


@dataclass(frozen=True)
class Findings:
    """Figures (paths), tables and claims of one experiment."""

    figures: list[Path]
    tables: list[Table]
    claims: list[Claim]


class Experiment(Protocol):
    """An experiment of the paper: the runs that it needs, and what follows from their arrays."""

    name: str
    title: str

    def runs(self) -> list[Run]:
        """What to run."""

    def analyse(self, results: Results, out: Path) -> Findings:
        """Figures written to `out`, tables and claims."""


def write_claims(path: Path, claims: dict[str, list[Claim]], settings: dict[str, Any]) -> None:
    """Write `claims.json`: the settings of the run, and per experiment its claims."""
    content = {
        "settings": settings,
        "experiments": {name: [claim.to_json() for claim in found] for name, found in claims.items()},
    }
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
