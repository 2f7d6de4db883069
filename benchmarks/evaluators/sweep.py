"""The constant step of the paper's algorithm that serves each task best, among powers of ten: `Task.paper_step`.

    python -m benchmarks.evaluators.sweep [TASK ...]

Printed is the mean squared error after 3,000 episodes in batches of 100, relative to Monte Carlo's, over 40 studies,
from the errors of all batches. The random numbers are not those of the benchmark. The grid follows from the unit of the
returns, E[g²].
"""

import argparse
import math

import numpy as np

import bpsearch as bps
from benchmarks.evaluators.measure import Studies, cell
from benchmarks.evaluators.run import GROUP
from benchmarks.evaluators.tasks import TASKS, references
from bpsearch.cli.shared import prepare_jax
from bpsearch.paper.continuous import record_moments
from bpsearch.paper.trials import Trials

STUDIES, EPISODES, BATCH, DECADES = 40, 3000, 100, 5
SEED = 1_900_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=list(TASKS), help="all by default")
    options = parser.parse_args()
    prepare_jax()
    for name in options.tasks:
        task, known = TASKS[name](), references()[name]
        # Networks bear less than a hundredth of what tables do: a parameter serves all states.
        shift = 1 if isinstance(task.env, bps.TabularMDP) else -2
        largest = math.floor(-math.log10(known.variance + known.value**2)) + shift
        found: dict[float, float] = {}
        for exponent in range(largest, largest - DECADES, -1):
            step = float(f"1e{exponent}")
            trials = Trials(bps.BPG(step), EPISODES // BATCH, BATCH, SEED, record_moments, group=GROUP)
            _, (means, variances) = trials.run(task.env, task.policy, STUDIES)
            outcome = Studies(means, variances, BATCH, np.ones(EPISODES // BATCH)).at(EPISODES)
            found[step] = cell(name, "paper", outcome, EPISODES, biased=False, **known.truth).refined or np.inf
        ratios = ", ".join(f"{step:g}: {ratio:.3g}" for step, ratio in found.items())
        print(f"{name}: {ratios}; best {min(found, key=lambda step: found[step]):g}", flush=True)


if __name__ == "__main__":
    main()
