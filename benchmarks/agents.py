"""What the default saves on the agents of the tests: its standard error against Monte Carlo's at the same episodes.

    python benchmarks/agents.py --seeds 5 --episodes 1000

Both studies run the same number of episodes, with other random numbers. The default's standard error is printed for
every seed relative to Monte Carlo's of one other seed, and to the root mean square of Monte Carlo's over all seeds:
where returns have a long tail a single standard error is itself uncertain. The savings come from the mean variances
over all seeds.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

import bpsearch as bps

AGENTS = Path(__file__).parents[1] / "tests" / "agents"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", action="append", help="CartPole-v1, Acrobot-v1 and Pendulum-v1 by default")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--method", action="append", help="bpg and pdis-bpg by default")
    options = parser.parse_args()
    torch.set_num_threads(1)  # networks this small are slower on several threads
    for env_id in options.env or ("CartPole-v1", "Acrobot-v1", "Pendulum-v1"):
        path = AGENTS / f"ppo-{env_id.lower()}.zip"
        errors: dict[str, list[float]] = {}
        for method in ("mc", *(options.method or ("bpg", "pdis-bpg"))):
            for seed in range(options.seeds):
                # Another seed than the other method's: neither shares its luck.
                result = bps.evaluate(path, env_id, options.episodes, method, seed=seed + 100 * (method == "mc"))
                errors.setdefault(method, []).append(result.std_error or float("nan"))
        for method, own in errors.items():
            if method != "mc":
                single = np.array(own) / np.array(errors["mc"])
                pooled = np.array(own) / np.sqrt(np.mean(np.square(errors["mc"])))
                savings = np.mean(np.square(errors["mc"])) / np.mean(np.square(own))
                print(
                    f"{env_id}, {options.episodes} episodes, {method}: standard error relative to Monte Carlo's "
                    f"{' '.join(f'{ratio:.2f}' for ratio in single)} (of one seed), "
                    f"{' '.join(f'{ratio:.2f}' for ratio in pooled)} (of all); savings {savings:.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
