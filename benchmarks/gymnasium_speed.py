"""Time from a policy's file to its value: SB3's `evaluate_policy`, and `bps.evaluate` by every method for it.

    python -m benchmarks.gymnasium_speed

Each contestant does all that its user waits for: it loads the same file, makes as many environments, runs as many
episodes and gives its answer. They take turns in one process, so that other work on the computer slows all of them
alike, and what is judged are medians over the turns of the ratios within a turn. `mc` and `auto` of a turn
run the same episodes; SB3 has random numbers of its own, and episodes of other lengths.

The turns are warm: a batch of episodes before them, which is not counted, imports what is needed and compiles JAX's
programs for batches of that shape; a shape that comes up later is compiled within its turn. What a first call costs is
printed beside it: the whole life of a process that makes that one call, with the start of Python, imports and
compilation, and without a cache of compiled programs.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

AGENTS = Path(__file__).parents[1] / "tests" / "agents"
# What a contestant is compared with, and the largest ratio that we accept.
LIMITS = {("mc", "sb3"): 1.0, ("bpg", "sb3"): 1.5, ("auto", "sb3"): None, ("auto", "mc"): 1.5}
CONTESTANTS = ("sb3", "mc", "bpg", "auto")
BATCH = 100  # episodes; the default of `evaluate`


def evaluation(contestant: str, env_id: str, episodes: int, num_envs: int) -> Callable[[int], float]:
    """A function from a seed to the value, with nothing prepared but its imports."""
    import torch

    torch.set_num_threads(1)  # networks this small are slower on several threads, SB3's as well as ours
    path = AGENTS / f"ppo-{env_id.lower()}.zip"
    if contestant == "sb3":
        from stable_baselines3 import PPO
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.evaluation import evaluate_policy

        def run(seed: int) -> float:
            model = PPO.load(path, device="cpu")
            model.set_random_seed(seed)
            envs = make_vec_env(env_id, n_envs=num_envs, seed=seed)
            value, _ = evaluate_policy(model, envs, n_eval_episodes=episodes, deterministic=False)
            envs.close()
            assert isinstance(value, float)
            return value

        return run
    import bpsearch as bps

    def evaluate(seed: int) -> float:
        with bps.GymnasiumSampler(env_id, num_envs=num_envs) as sampler:
            return bps.evaluate(path, sampler, episodes, contestant, seed=seed).value

    return evaluate


def seconds_of(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def first_call(contestant: str, options: argparse.Namespace, env_id: str) -> None:
    """Make one call in a process of its own."""
    numbers = {"--episodes": options.episodes, "--num-envs": options.num_envs}
    arguments = [str(part) for pair in numbers.items() for part in pair]
    subprocess.run([sys.executable, __file__, "--once", contestant, "--env", env_id, *arguments], check=True)


def compare(env_id: str, options: argparse.Namespace) -> None:
    print(f"{env_id}, {options.episodes} episodes, {options.num_envs} environments")
    for name in CONTESTANTS:
        evaluation(name, env_id, min(BATCH, options.episodes), options.num_envs)(0)
    runs = {name: evaluation(name, env_id, options.episodes, options.num_envs) for name in CONTESTANTS}
    times: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for turn in range(1, options.turns + 1):
        for name, run in runs.items():
            times[name].append(seconds_of(partial(run, turn)))
        print(f"  turn {turn}:", *(f"{name} {times[name][-1]:.2f} s" for name in CONTESTANTS), flush=True)
    if not options.warm_only:
        first = {name: seconds_of(partial(first_call, name, options, env_id)) for name in CONTESTANTS}
        print("  first call:", *(f"{name} {seconds:.2f} s" for name, seconds in first.items()), flush=True)
    for (name, other), limit in LIMITS.items():
        ratios = [own / its for own, its in zip(times[name], times[other], strict=True)]
        verdict = "" if limit is None else f", at most {limit}: {'yes' if statistics.median(ratios) <= limit else 'NO'}"
        print(f"  {name} / {other}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}){verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", action="append", help="CartPole-v1, Acrobot-v1 and Pendulum-v1 by default")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--warm-only", action="store_true", help="leave out the first calls")
    parser.add_argument("--once", choices=CONTESTANTS, help="make one call and end")
    options = parser.parse_args()
    for env_id in options.env or ("CartPole-v1", "Acrobot-v1", "Pendulum-v1"):
        if options.once:
            evaluation(options.once, env_id, options.episodes, options.num_envs)(0)
        else:
            compare(env_id, options)


if __name__ == "__main__":
    main()
