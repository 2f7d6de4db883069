"""Rank six checkpoints of one training, and write the page about it.

    python -m benchmarks.rank_checkpoints --env CartPole-v1 --out runs/checkpoints
    python -m benchmarks.rank_checkpoints --env Reacher-v5 --out runs/reacher

The agent is PPO, saved after every sixth of the training. On CartPole-v1 it has the settings of `train_agents.py` and
runs in the compiled environment. On Reacher-v5 (MuJoCo) the files that SB3 saved are compared as they are; those that
are there already are not trained again. All checkpoints run from the same starts. A margin says which differences do
not matter.
"""

import argparse
import time
from pathlib import Path

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

import bpsearch as bps
from benchmarks.evaluators.agents import network_of
from benchmarks.train_agents import learned
from bpsearch.policies.resolve import PolicySource
from bpsearch.report.comparison_words import describe_lines
from bpsearch.runners.in_process import Environment

STAGES = 6
STEPS = {"CartPole-v1": 4_096, "Reacher-v5": 16_384}  # of a stage
MARGINS = {"CartPole-v1": 10.0, "Reacher-v5": 0.5}


def cartpole_checkpoints(seed: int) -> dict[str, PolicySource]:
    """The policies of one training, by the number of steps before them."""
    steps = STEPS["CartPole-v1"]
    model = learned("CartPole-v1", seed, steps)
    found: dict[str, PolicySource] = {f"{steps // 1000}k": network_of(model.policy)}
    for stage in range(2, STAGES + 1):
        model.learn(steps, reset_num_timesteps=False)
        found[f"{stage * steps // 1000}k"] = network_of(model.policy)
    return found


def reacher_checkpoints(seed: int, folder: Path) -> dict[str, PolicySource]:
    """The files of one training, by the number of steps before them."""
    steps = STEPS["Reacher-v5"]
    names = [f"{stage * steps // 1000}k" for stage in range(1, STAGES + 1)]
    files = {name: folder / f"reacher-{name}.zip" for name in names}
    if not all(path.exists() for path in files.values()):
        envs = make_vec_env("Reacher-v5", n_envs=8, seed=seed)
        settings = {"n_steps": 256, "batch_size": 256, "gamma": 0.9, "learning_rate": 1e-3}
        model = PPO("MlpPolicy", envs, seed=seed, device="cpu", policy_kwargs={"net_arch": [64, 64]}, **settings)
        for path in files.values():
            model.learn(steps, reset_num_timesteps=False)
            model.save(path)
    return dict(files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=list(STEPS), default="CartPole-v1")
    parser.add_argument("--episodes", type=int, default=1000, help="the most that a checkpoint may run")
    parser.add_argument("--margin", type=float, default=None, help="10 on CartPole-v1, 0.5 on Reacher-v5")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/checkpoints"), help="directory for page.html")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    env: Environment = options.env
    if options.env == "CartPole-v1":
        policies, env = cartpole_checkpoints(options.seed), bps.envs.classic_cartpole()
    else:
        policies = reacher_checkpoints(options.seed, options.out)
    print(f"trained in {time.perf_counter() - start:.0f} s", flush=True)
    start = time.perf_counter()
    margin = MARGINS[options.env] if options.margin is None else options.margin
    found = bps.compare(policies, env, options.episodes, seed=options.seed, margin=margin)
    for line in describe_lines(found):
        print(line)
    print(f"compared in {time.perf_counter() - start:.0f} s")
    print(f"wrote {found.report(options.out / 'page.html')}")


if __name__ == "__main__":
    main()
