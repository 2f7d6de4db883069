"""What is known about each task, written to data/references.json: exact on tables, from long runs elsewhere.

python -m benchmarks.evaluators.references [TASK ...]
"""

import argparse
import json
from dataclasses import asdict

import numpy as np

import bpsearch as bps
from benchmarks.evaluators.tasks import REFERENCES, TASKS, Reference, Task
from bpsearch.cli.shared import prepare_jax
from bpsearch.paper.continuous import record_moments
from bpsearch.paper.on_policy import OnPolicyCurve
from bpsearch.paper.trials import Trials

COMMAND = "python -m benchmarks.evaluators.references"
SEED = 2_000_000_000  # no study has it


def exact(task: Task) -> Reference:
    """By the oracle."""
    env, policy = task.env, task.policy
    assert isinstance(env, bps.TabularMDP)
    assert isinstance(policy, bps.SoftmaxTable)
    variance = bps.oracle.variance(env, policy, None, "mc")
    truth = bps.oracle.q_function(env, policy)
    perfect = bps.oracle.variance(env, policy, None, "as", model=truth)
    return Reference(
        value=bps.oracle.value(env, policy),
        std_error=0.0,
        variance=variance,
        episodes=0,
        optimum=bps.oracle.optimum(env, policy)[1] / variance,
        # A deterministic environment leaves nothing; rounding can leave a little less.
        environment_share=max(perfect, 0.0) / variance,
        best=max(bps.oracle.optimal_behavior(env, policy, "dr", truth)[1], 0.0) / variance,
        command=f"{COMMAND} {task.name}",
    )


def sampled(task: Task, episodes: int) -> Reference:
    """By a long Monte Carlo run."""
    batch_size, iterations = 500, 20
    trials = Trials(OnPolicyCurve(), iterations, batch_size, SEED, record_moments, group=1)
    _, (means, variances) = trials.run(task.env, task.policy, -(-episodes // (batch_size * iterations)))
    variance = float(np.mean(variances) + np.mean((means - means.mean()) ** 2))
    return Reference(
        value=float(means.mean()),
        std_error=float(np.sqrt(variance / (means.size * batch_size))),
        variance=variance,
        episodes=means.size * batch_size,
        optimum=None,
        environment_share=None,
        best=None,
        command=f"{COMMAND} --episodes {episodes} {task.name}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=list(TASKS), help="all by default")
    parser.add_argument("--episodes", type=int, default=1_000_000, help="where there is no oracle")
    options = parser.parse_args()
    prepare_jax()
    stored = json.loads(REFERENCES.read_text()) if REFERENCES.exists() else {}
    for name in options.tasks:
        task = TASKS[name]()
        known = exact(task) if isinstance(task.env, bps.TabularMDP) else sampled(task, options.episodes)
        print(
            f"{name}: value {known.value:.6g} ± {known.std_error:.2g}, variance {known.variance:.6g}, optimum "
            f"{known.optimum}, environment {known.environment_share}",
            flush=True,
        )
        stored[name] = asdict(known)
        ordered = {key: stored[key] for key in TASKS if key in stored}
        REFERENCES.write_text(json.dumps(ordered, indent=2) + "\n")


if __name__ == "__main__":
    main()
