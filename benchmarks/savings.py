"""What the default saves today: `bps.evaluate(policy, env, episodes)` as a user calls it, beside Monte Carlo.

    python -m benchmarks.savings --studies 200 --out docs/savings     # README's table and docs/savings.md

A study is one call with its own seed. Its squared error, divided by Monte Carlo's exact Var(g)/n, is 1 on average if
nothing is saved. Savings are one over the mean of these ratios; their intervals come from the bootstrap over studies.
Finished tasks are kept in the CSV file, so that a run that was interrupted goes on.
"""

import argparse
import csv
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

import bpsearch as bps
from benchmarks.evaluators.tasks import TASKS, Reference, Task, references

DEFAULT_TASKS = (
    "gridworld-early",
    "cartpole-v1-half",
    "cartpole-v1-trained",
    "stochastic-middle",
    "acrobot",
    "pendulum-v1-trained",
    "random-1",
    "cartpole-swingup",
    "random-2",
    "gridworld-converged",
)


@dataclass(frozen=True)
class Row:
    """What the studies of one task and one number of episodes have shown."""

    task: str
    title: str
    episodes: int
    studies: int
    savings: float
    low: float
    high: float
    reported: float
    coverage: float


def measure(task: Task, reference: Reference, episodes: int, studies: int, seed: int) -> Row:
    """Run the studies.

    A truth that was itself sampled has an error, which is in every squared error: it is taken off their mean.
    """
    found = [bps.evaluate(task.policy, task.env, episodes, seed=seed + study) for study in range(studies)]
    errors = np.array([estimate.value - reference.value for estimate in found])
    ratios = (errors**2 - reference.std_error**2) * episodes / reference.variance
    rng = np.random.default_rng(0)
    means = ratios[rng.integers(studies, size=(2000, studies))].mean(axis=1)
    low, high = 1.0 / np.maximum(np.quantile(means, (0.975, 0.025)), 1e-12)
    ends = np.array([estimate.interval() for estimate in found])
    covered = (ends[:, 0] <= reference.value) & (reference.value <= ends[:, 1])
    reported = float(np.median([estimate.savings for estimate in found]))
    savings = 1.0 / max(float(ratios.mean()), 1e-12)
    return Row(task.name, task.title, episodes, studies, savings, low, high, reported, float(np.mean(covered)))


def read(path: Path) -> list[Row]:
    """The rows of a CSV file; none if there is no file."""
    if not path.exists():
        return []
    kinds = {field.name: field.type for field in fields(Row)}
    with path.open() as file:
        return [Row(**{name: kinds[name](text) for name, text in row.items()}) for row in csv.DictReader(file)]


def write(path: Path, rows: list[Row]) -> None:
    """All rows, in their order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in asdict(r).items()} for r in rows)


def number(value: float) -> str:
    """To two significant digits, without an exponent."""
    return f"{float(f'{value:.2g}'):,g}" if value < 1e6 else "over 1,000,000"


def short(row: Row) -> str:
    """A cell of README's table."""
    return f"{number(row.savings)} ({number(row.low)}–{number(row.high)})"


def markdown(rows: list[Row]) -> str:
    """The table of docs/savings.md."""
    lines = [
        "| task | episodes | savings (95%) | savings that results report | interval held |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        span = f"{number(row.savings)} ({number(row.low)} to {number(row.high)})"
        lines.append(f"| {row.title} | {row.episodes:,} | {span} | {number(row.reported)} | {row.coverage:.0%} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=DEFAULT_TASKS, choices=sorted(TASKS))
    parser.add_argument("--episodes", nargs="+", type=int, default=[300, 1000])
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("savings"))
    options = parser.parse_args()
    path = options.out / "savings.csv"
    rows = read(path)
    for name in options.tasks:
        for episodes in options.episodes:
            if not any((row.task, row.episodes, row.studies) == (name, episodes, options.studies) for row in rows):
                rows.append(measure(TASKS[name](), references()[name], episodes, options.studies, options.seed))
                write(path, rows)
    print(markdown(rows))


if __name__ == "__main__":
    main()
