"""Train the policies of the tasks that are not shipped with the package, and write them to data/.

python -m benchmarks.evaluators.train
"""

from benchmarks.evaluators.tasks import DATA

import bpsearch as bps
from bpsearch.policies.files import save_policy

# REINFORCE as for the shipped policies, stopped after this many steps: one training run each.
SETTINGS = {"batch_size": 100, "step_size": 0.005, "seed": 1}
STAGES = {
    "gridworld": (bps.envs.gridworld, {"middle": 75, "noisy": 600}),
    "stochastic": (bps.envs.stochastic_gridworld, {"early": 1, "middle": 60, "late": 600}),
}


def main() -> None:
    DATA.mkdir(exist_ok=True)
    for name, (make, stages) in STAGES.items():
        env = make()
        policies = bps.training.reinforce(env, iterations=max(stages.values()), **SETTINGS)
        for stage, iteration in stages.items():
            save_policy(policies[iteration], DATA / f"{name}-{stage}.npz")
            print(f"{name}-{stage}: value {bps.oracle.value(env, policies[iteration]):.2f}")


if __name__ == "__main__":
    main()
