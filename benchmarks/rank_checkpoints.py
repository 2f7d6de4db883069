"""Rank six checkpoints of one training on CartPole-v1, and write the page about it.

    python benchmarks/rank_checkpoints.py --out runs/checkpoints

The agent is PPO with the settings of `train_agents.py`, saved after every sixth of the training. The checkpoints run in
the compiled environment, from the same starts. A margin says which differences do not matter.
"""

import argparse
import time
from pathlib import Path

import torch

import bpsearch as bps
from benchmarks.evaluators.agents import network_of
from benchmarks.train_agents import learned
from bpsearch.report.comparison_words import describe_lines

STEPS, STAGES = 4_096, 6


def checkpoints(seed: int) -> dict[str, bps.Policy]:
    """The policies of one training, by the number of steps before them."""
    model = learned("CartPole-v1", seed, STEPS)
    found: dict[str, bps.Policy] = {f"{STEPS // 1000}k": network_of(model.policy)}
    for stage in range(2, STAGES + 1):
        model.learn(STEPS, reset_num_timesteps=False)
        found[f"{stage * STEPS // 1000}k"] = network_of(model.policy)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1000, help="the most that a checkpoint may run")
    parser.add_argument("--margin", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="directory for page.html")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    policies = checkpoints(options.seed)
    print(f"trained in {time.perf_counter() - start:.0f} s", flush=True)
    start = time.perf_counter()
    env = bps.envs.classic_cartpole()
    found = bps.compare(policies, env, options.episodes, seed=options.seed, margin=options.margin)
    for line in describe_lines(found):
        print(line)
    print(f"compared in {time.perf_counter() - start:.0f} s")
    if options.out is not None:
        print(f"wrote {found.report(options.out / 'page.html')}")


if __name__ == "__main__":
    main()
