"""Is anything lost where failures are common? The default for failures of networks beside `bpg`, and Monte Carlo.

    python -m benchmarks.common_failures --studies 40

A failure is a return of at most a quantile of 20,000 episodes, which also tell its probability. Printed are mean
squared errors relative to Monte Carlo's, with standard errors over studies; those of the same study share a seed.
"""

import argparse

import numpy as np

import bpsearch as bps
from benchmarks.evaluators.tasks import TASKS

EPISODES, BATCH = 20_000, 2_000
DEFAULT_TASKS = ("cartpole-v1-half", "cartpole-v1-trained", "cartpole-swingup", "acrobot", "pendulum-v1-half")


def ratios(name: str, quantile: float, sizes: list[int], studies: int, methods: list[str]) -> list[str]:
    """Rows of one failure, one for each number of episodes."""
    task = TASKS[name]()
    batches = (bps.sample(task.env, task.policy, BATCH, seed=77, batch=n) for n in range(EPISODES // BATCH))
    returns = np.concatenate([np.asarray(batch.returns(task.env.discount)) for batch in batches])
    bound = float(np.quantile(returns, quantile))
    truth, rows = float(np.mean(returns <= bound)), []
    for size in sizes:
        cells = []
        for method in methods:
            calls = (
                bps.evaluate(task.policy, task.env, size, method, failure=f"return <= {bound!r}", seed=study)
                for study in range(studies)
            )
            squares = np.array([(found.value - truth) ** 2 for found in calls]) * size / (truth * (1.0 - truth))
            cells.append(f"{squares.mean():.2f} ± {squares.std(ddof=1) / np.sqrt(studies):.2f}")
        rows.append(f"| {task.title} | {truth:.3g} | {size} | {' | '.join(cells)} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=DEFAULT_TASKS, metavar="TASK")
    parser.add_argument("--quantiles", type=float, nargs="+", default=[0.2, 0.03, 0.004])
    parser.add_argument("--episodes", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--methods", nargs="+", default=["auto", "bpg"])
    parser.add_argument("--studies", type=int, default=40)
    options = parser.parse_args()
    print(f"| task | probability | episodes | {' | '.join(options.methods)} |")
    print("|---" * (3 + len(options.methods)) + "|", flush=True)
    for name in options.tasks:
        for quantile in options.quantiles:
            found = ratios(name, quantile, options.episodes, options.studies, options.methods)
            print("\n".join(found), flush=True)


if __name__ == "__main__":
    main()
