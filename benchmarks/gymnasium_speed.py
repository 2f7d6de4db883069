"""Time to evaluate one policy: SB3's `evaluate_policy`, our Monte Carlo, and behavior policy gradient, side by side.

    python benchmarks/gymnasium_speed.py

The same policy, environment, number of parallel environments and episodes for all; the three take turns, so that other
work on the computer slows all of them alike. One line per environment: median seconds, and the ratio to SB3 per turn.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

import bpsearch as bps
from bpsearch.search import normalized

AGENTS = Path(__file__).parents[1] / "tests" / "agents"


def contestants(env_id: str, episodes: int, num_envs: int) -> dict[str, Callable[[int], int]]:
    """Functions from the number of the turn to the environment steps taken."""
    model = PPO.load(AGENTS / f"ppo-{env_id.lower()}.zip", device="cpu")
    envs = make_vec_env(env_id, n_envs=num_envs, seed=0)
    policy = bps.from_sb3(model)
    sampler = bps.GymnasiumSampler(env_id, num_envs=num_envs)
    mc, bpg = bps.OnPolicy(), bps.BPG(normalized(1e-4))
    states = {"mc": mc.init(policy), "bpg": bpg.init(policy)}

    def sb3(turn: int) -> int:
        _, lengths = evaluate_policy(
            model, envs, n_eval_episodes=episodes, deterministic=False, return_episode_rewards=True
        )
        return int(sum(lengths))

    def ours(name: str, search: bps.Search) -> Callable[[int], int]:
        def run(turn: int) -> int:
            batch = bps.sample(sampler, search.behavior(states[name]), episodes, batch=turn)
            states[name], _ = search.step(states[name], batch)
            return int(batch.lengths.sum())

        return run

    return {"sb3": sb3, "mc": ours("mc", mc), "bpg": ours("bpg", bpg)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", action="append", help="CartPole-v1 and Pendulum-v1 by default")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)  # networks this small are slower on several threads, SB3's as well as ours
    for env_id in options.env or ("CartPole-v1", "Pendulum-v1"):
        functions = contestants(env_id, options.episodes, options.num_envs)
        # Microseconds per environment step: episodes differ in length from contestant to contestant.
        costs: dict[str, list[float]] = {name: [] for name in functions}
        for turn in range(options.turns + 1):
            for name, function in functions.items():
                start = time.perf_counter()
                steps = function(turn)
                if turn > 0:  # the first turn compiles
                    costs[name].append((time.perf_counter() - start) / steps * 1e6)
        line = [f"{env_id}, {options.episodes} episodes, {options.num_envs} environments:"]
        for name, values in costs.items():
            ratio = statistics.median(own / sb3 for own, sb3 in zip(values, costs["sb3"], strict=True))
            line.append(f"{name} {statistics.median(values):.1f} us/step ({ratio:.2f}x)")
        print("  ".join(line), flush=True)


if __name__ == "__main__":
    main()
