"""The rare-failure example over many seeds: mean squared error of the default relative to Monte Carlo's.

    python -m benchmarks.rare_failure --trials 100

`bps.evaluate` is asked from 2,000 episodes what the courier of examples/rare_failure.py is worth, and how probable its
failure is, which happens in 0.4% of its episodes. The truth and Monte Carlo's mean squared error are exact. The default
is `auto` for the expected return and `levels` for the failure; the return by `bpg` is shown, too.
"""

import argparse
import runpy
from pathlib import Path
from typing import Any

import numpy as np

import bpsearch as bps

EXAMPLE = Path(__file__).parents[1] / "examples" / "rare_failure.py"
EPISODES = 2000
LARGEST = 1.0 / 3.0  # what the default's error may be of Monte Carlo's


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    options = parser.parse_args()
    example = runpy.run_path(str(EXAMPLE))
    env, policy = example["ridge"](), example["courier"]()
    failed = bps.TabularMDP(
        env.transitions, (env.rewards < -100.0).astype(float), env.initial, env.terminal, env.horizon
    )
    questions: list[tuple[str, bps.TabularMDP, list[dict[str, Any]]]] = [
        ("expected return", env, [{}, {"method": "bpg"}]),
        ("probability of the failure", failed, [{"failure": "return < -100"}]),
    ]
    for question, exact, settings in questions:
        truth = bps.oracle.value(exact, policy)
        monte_carlo = bps.oracle.variance(exact, policy, None, "mc") / EPISODES
        print(f"{question}: {truth:.6g}, root mean squared error of Monte Carlo {np.sqrt(monte_carlo):.3g}")
        for setting in settings:
            found = [bps.evaluate(policy, env, EPISODES, seed=seed, **setting) for seed in range(options.trials)]
            ratios = np.array([(result.value - truth) ** 2 for result in found]) / monte_carlo
            noise = ratios.std(ddof=1) / np.sqrt(options.trials)
            default = "" if "method" in setting else ", the default"
            print(
                f"  {found[0].settings['method']}{default}: mean squared error over {options.trials} seeds "
                f"{ratios.mean():.3f} +- {noise:.3f} of Monte Carlo's, at most {LARGEST:.2f}: "
                f"{'yes' if ratios.mean() <= LARGEST else 'NO'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
