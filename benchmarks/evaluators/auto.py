"""`auto` on the tasks of the suite: MSE relative to Monte Carlo's, and the coverage of its interval.

Its episodes are all of the policy itself, so that a study of N episodes is one batch of N: no compiled trials needed.

    python -m benchmarks.evaluators.auto --tasks gridworld-early,rare-0.005 --studies 200
"""

import argparse

import numpy as np

import bpsearch as bps
from benchmarks.evaluators.tasks import TASKS, references
from bpsearch.intervals import martingale_error

BUDGETS = (100, 300, 1000)
LEVEL = 0.95


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)))
    arguments = parser.parse_args()
    print("| task | episodes | MSE / Monte Carlo's | ± | coverage of the 95% interval | of Monte Carlo's |")
    print("|---|---|---|---|---|---|")
    for task in arguments.tasks.split(","):
        for budget in map(int, arguments.budgets.split(",")):
            measure(task, budget, arguments.studies)


def measure(name: str, budget: int, studies: int) -> None:
    """Print one row."""
    task, known = TASKS[name](), references()[name]
    policy = task.policy.adapting("last") if hasattr(task.policy, "adapting") else task.policy
    search = bps.Auto()
    ratios, covered, plainly = [], [], []
    for study in range(studies):
        batch = bps.sample(task.env, policy, budget, seed=7, batch=study)
        values = search.revalued(policy, task.env.discount, [batch]).values
        ratios.append((values.mean() - known.value) ** 2 * budget / known.variance)
        covered.append(_covers(values, known.value))
        plainly.append(_covers(batch.returns(task.env.discount), known.value))
    error = np.std(ratios, ddof=1) / np.sqrt(studies)
    print(
        f"| {task.title} | {budget} | {np.mean(ratios):.4g} | {error:.2g} | {np.mean(covered):.1%} "
        f"| {np.mean(plainly):.1%} |",
        flush=True,
    )


def _covers(values: np.ndarray, truth: float) -> bool:
    error = martingale_error([values])
    return error is not None and abs(values.mean() - truth) <= error.half_width(LEVEL)


if __name__ == "__main__":
    main()
