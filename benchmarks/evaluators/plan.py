"""What pilots predict on the tasks of the suite, and what `auto` then saves.

    python -m benchmarks.evaluators.plan --tasks gridworld-early,pendulum-v1-half --studies 100

One row per task: the share of the actions, the savings that pilots predict (the median and the middle 80% of them) with
the largest that they hold possible; the savings that as many studies of as many episodes have had, Monte Carlo's MSE
divided by theirs, with its 95% interval; and how often a pilot's range held the number of episodes that Monte Carlo
needs.
"""

import argparse

import numpy as np

import bpsearch as bps
from benchmarks.evaluators.measure import Outcome, cell
from benchmarks.evaluators.tasks import TASKS, Task, references
from benchmarks.looks import look, own_returns, study_seed
from bpsearch.inference.intervals import episodes_for
from bpsearch.policies.mlp import MLP

RELATIVE = 0.02  # of the standard deviation: what is wanted of the interval


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--studies", type=int, default=100, help="pilots, and studies with as many episodes")
    parser.add_argument("--pilot", type=int, default=200)
    arguments = parser.parse_args()
    print("| task | actions | savings predicted | at most | savings realised | range of Monte Carlo's episodes held |")
    print("|---|---|---|---|---|---|")
    for name in arguments.tasks.split(","):
        print(row(TASKS[name](), arguments.pilot, arguments.studies), flush=True)


def row(task: Task, pilot: int, studies: int) -> str:
    """One row of the table."""
    known = references()[task.name]
    wanted = RELATIVE * float(np.sqrt(known.variance))
    plans = [bps.plan(task.policy, task.env, pilot, wanted, seed=seed) for seed in range(studies)]
    shares = [plan.action_share.estimate for plan in plans if plan.action_share is not None]
    savings = [plan.savings.estimate for plan in plans if plan.savings is not None]
    limits = [np.inf if plan.largest_savings is None else plan.largest_savings for plan in plans]
    needed, held = episodes_for(known.variance, wanted, 0.95), 0
    for plan in plans:
        found = plan.monte_carlo_episodes
        held += found is not None and (found.low or 0.0) <= needed <= (found.high or np.inf)
    realised, least, most = (f"{end:.3g}" for end in realised_savings(task, pilot, studies))
    low, middle, high = (f"{end:.3g}" for end in np.quantile(savings, [0.1, 0.5, 0.9]))
    return (
        f"| {task.title} | {np.median(shares):.0%} | {middle} ({low} to {high}) | {np.median(limits):.3g} | "
        f"{realised} ({least} to {most}) | {held / studies:.0%} |"
    )


def realised_savings(task: Task, episodes: int, studies: int) -> tuple[float, float, float]:
    """Monte Carlo's MSE divided by that of `auto`, and the ends of its 95% interval, as the suite would measure it."""
    known = references()[task.name]
    policy = task.policy.adapting("last") if isinstance(task.policy, MLP) else task.policy
    seeds = [study_seed(7, study) for study in range(studies)]
    estimates = np.array([look(policy, task.env, [episodes], "auto", seed)[0].value for seed in seeds])
    plain = np.array([own_returns(policy, task.env, episodes, seed).mean() for seed in seeds])
    outcome = Outcome(estimates, np.full(studies, np.nan), plain=plain)
    ratio, low, high = cell(task.name, "auto", outcome, episodes, biased=False, **known.truth).error
    return 1.0 / ratio, 1.0 / high, 1.0 / max(low, 1e-300)


if __name__ == "__main__":
    main()
