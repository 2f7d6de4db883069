"""What the default saves on the agents of the tests: its errors against Monte Carlo's at the same number of episodes.

    python -m benchmarks.agents --studies 20 --episodes 300

Episodes of an on-policy method are Monte Carlo's too: each study is valued both ways, and what is printed is paired.

- The standard error relative to Monte Carlo's: the median over studies and the largest, which should not exceed 1.1.
- The mean squared error relative to Monte Carlo's, 1 + E[(a − ρ)² − (m − ρ)²] / (Var/n), for estimates a and m of the
  same study. Its noise is that of the difference only, and the mean of the *other* studies may stand for ρ without
  bias, because a and m have the same expectation.
- The savings: how many times as many episodes Monte Carlo would need, from the mean variances over all studies.

A method with behaviors of its own (`--method bpg`) is compared with Monte Carlo's studies of other random numbers:
unpaired, and noisier.
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
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--studies", type=int, default=20)
    parser.add_argument("--method", action="append", help="auto by default")
    options = parser.parse_args()
    torch.set_num_threads(1)  # networks this small are slower on several threads
    for env_id in options.env or ("CartPole-v1", "Acrobot-v1", "Pendulum-v1"):
        for method in options.method or ("auto",):
            print(row(env_id, method, options.episodes, options.studies), flush=True)


def row(env_id: str, method: str, episodes: int, studies: int) -> str:
    """What many studies say of one method and agent."""
    path = AGENTS / f"ppo-{env_id.lower()}.zip"
    found = [bps.evaluate(path, env_id, episodes, method, seed=seed) for seed in range(studies)]
    paired = not any(result.data.weighted for result in found)
    plain = found if paired else [bps.evaluate(path, env_id, episodes, "mc", seed=studies + s) for s in range(studies)]
    returns = np.array([result.data.returns for result in plain])
    variance = returns.var(axis=1, ddof=1).mean()
    own, monte_carlo = np.array([result.value for result in found]), returns.mean(axis=1)
    own_errors = np.array([result.std_error or np.nan for result in found])
    plain_errors = returns.std(axis=1, ddof=1) / np.sqrt(episodes)
    if paired:
        truth = (monte_carlo.sum() - monte_carlo) / (studies - 1)  # of the other studies
        squares = 1.0 + ((own - truth) ** 2 - (monte_carlo - truth) ** 2) * episodes / variance
        relative = own_errors / plain_errors
    else:
        # The truth is known up to the error of all of Monte Carlo's episodes.
        squares = (own - monte_carlo.mean()) ** 2 * episodes / variance - 1.0 / studies
        relative = own_errors / np.sqrt(np.mean(plain_errors**2))
    noise = squares.std(ddof=1) / np.sqrt(studies)
    return (
        f"{env_id}, {found[0].settings['method']}, {studies} studies of {episodes} episodes"
        f"{', paired' if paired else ''}: standard error {np.median(relative):.2f} of Monte Carlo's (largest "
        f"{relative.max():.2f}); mean squared error {squares.mean():.3f} ± {noise:.3f} of Monte Carlo's; "
        f"savings {np.mean(plain_errors**2) / np.mean(own_errors**2):.2f}"
    )


if __name__ == "__main__":
    main()
