"""What workers cost and what they bring; every figure is a ratio or a time taken in this run.

    python -m benchmarks.workers

- efficiency per core with episodes of 10 ms: seconds of one process over (workers times seconds with workers);
- seconds for 1,000 CartPole-v1 episodes of a Stable-Baselines3 agent, beside SB3's `evaluate_policy` at the best of
  several numbers of environments;
- a search without a lag and with one;
- how long workers take to start, and what a chunk costs besides its episodes, for processes and (if installed) for Ray;
- seconds of the coordinator for an episode: 1,000 workers simulated through the real scheduler, and through Ray with as
  many tasks in flight (`--only ray-scale`);
- bytes of an episode: as it comes back from a worker, without padding, and what `auto` keeps of it (`--only bytes`);
- the peak of memory for 200 episodes of 84x84x4 frames.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np

import bpsearch as bps
from benchmarks.worker_scale import bytes_of_episodes, chunk_cost, ray_scale, simulate
from bpsearch.methods import find_method
from bpsearch.runners import Processes

AGENT = Path(__file__).parents[1] / "tests" / "agents" / "ppo-cartpole-v1.zip"


class Busy(gymnasium.Env):
    """Ten steps, each of which keeps the core busy for a tenth of the episode's time."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def reset(self, *, seed=None, options=None):
        """Gymnasium's."""
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def observe(self):
        """What is seen."""
        return self.np_random.random(2).astype(np.float32)

    def step(self, action):
        """Gymnasium's."""
        # Processor time, not the clock: a worker that has to wait for a core has done nothing.
        end = time.process_time() + self.seconds / 10
        while time.process_time() < end:
            pass
        self.steps += 1
        return self.observe(), float(action), self.steps >= 10, False, {}


class Frames(gymnasium.Env):
    """150 to 250 frames of 84x84x4 bytes."""

    observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        """Gymnasium's."""
        super().reset(seed=seed)
        self.length, self.steps = int(self.np_random.integers(150, 250)), 0
        return self.observe(), {}

    def observe(self):
        """What is seen."""
        return np.full((84, 84, 4), self.steps % 256, np.uint8)

    def step(self, action):
        """Gymnasium's."""
        self.steps += 1
        return self.observe(), float(action), self.steps >= self.length, False, {}


def coin(space) -> bps.FunctionPolicy:
    """A policy that costs nothing."""
    return bps.FunctionPolicy(lambda seen: int(np.ravel(seen)[0] > 0.5), (space.observation_space, space.action_space))


def processor_seconds(pids: list[int]) -> float:
    """Of this process and others that are running, as Linux counts them."""
    ticks = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13] for pid in pids]
    others = sum(int(part) for pair in ticks for part in pair) / os.sysconf("SC_CLK_TCK")
    return time.process_time() + others


def seconds_of(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def efficiency(workers: int, episodes: int, seconds: float, turns: int) -> dict:
    policy, env = coin(Busy), partial(Busy, seconds)
    run = partial(bps.evaluate, policy, env, episodes, "mc", seed=0)
    with Processes(workers) as crew:
        run(workers=crew)  # started, and the scheduler knows nothing that one process does not
        ratios, shares = [], []
        for _ in range(turns):
            before = time.process_time()
            one = seconds_of(run)
            alone = time.process_time() - before
            before = processor_seconds(crew.pids)
            ratios.append(one / (workers * seconds_of(partial(run, workers=crew))))
            shares.append(alone / (processor_seconds(crew.pids) - before))
    return {
        "workers": workers,
        "episode_ms": 1e3 * seconds,
        "efficiency": statistics.median(ratios),
        "turns": ratios,
        # What one process computes over what all compute together: it does not suffer from others on the computer.
        "processor_efficiency": statistics.median(shares),
    }


def cartpole(turns: int, episodes: int, workers: int) -> dict:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    torch.set_num_threads(1)

    def sb3(envs: int) -> None:
        model = PPO.load(AGENT, device="cpu")
        made = make_vec_env("CartPole-v1", n_envs=envs, seed=0)
        evaluate_policy(model, made, n_eval_episodes=episodes, deterministic=False)
        made.close()

    def ours(crew: Processes | None = None) -> None:
        bps.evaluate(AGENT, "CartPole-v1", episodes, "mc", seed=0, workers=crew)

    found: dict[str, list[float]] = {}
    with Processes(workers) as crew:

        def measure(function) -> tuple[float, float]:
            """The clock's seconds, and those that all processes have computed."""
            before = processor_seconds(crew.pids)
            return seconds_of(function), processor_seconds(crew.pids) - before

        ours()
        ours(crew)
        for _ in range(turns):
            times = {f"sb3, {envs} envs": measure(partial(sb3, envs)) for envs in (8, 32, 64, 128)}
            best = [min(part) for part in zip(*times.values(), strict=True)]
            times["one process"] = measure(ours)
            times[f"{workers} workers"] = measure(partial(ours, crew))
            for name, (clock, computed) in times.items():
                found.setdefault(name, []).append(clock * 1000 / episodes)
                found.setdefault(f"{name}, processor", []).append(computed * 1000 / episodes)
                if "sb3" not in name:
                    found.setdefault(f"{name} / best sb3", []).append(clock / best[0])
                    found.setdefault(f"{name} / best sb3, processor", []).append(computed / best[1])
    return {name: {"median": statistics.median(values), "best": min(values)} for name, values in found.items()}


def lag(turns: int, episodes: int, workers: int) -> dict:
    """A search in batches of 50 episodes of 10 ms: seconds with workers, without a lag and with one."""
    policy = bps.CategoricalMLP.init(0, Busy.observation_space, Busy.action_space, (4,))
    found: dict[str, list[float]] = {}
    with Processes(workers) as crew:
        for count in [0, 1] * (turns + 1):
            method = replace(find_method("bpg"), lag=count, batch_size=50)
            seconds = seconds_of(
                partial(bps.evaluate, policy, partial(Busy, 0.01), episodes, method, seed=0, workers=crew)
            )
            found.setdefault(f"lag {count}", []).append(seconds)
    best = {name: min(seconds[1:]) for name, seconds in found.items()}  # the first have workers to start
    return {"workers": workers, "episodes": episodes, **best, "lag 1 / lag 0": best["lag 1"] / best["lag 0"]}


def starting(turns: int, episodes: int, workers: int) -> dict:
    """The same evaluation with workers that are started for it: what `evaluate(..., workers=2)` takes."""
    run = partial(bps.evaluate, AGENT, "CartPole-v1", episodes, "mc", seed=0)
    run()
    times = [(seconds_of(run), seconds_of(partial(run, workers=workers))) for _ in range(turns)]
    one, started = (statistics.median(part) for part in zip(*times, strict=True))
    return {"one process": one, f"{workers} workers, started for it": started}


def frames() -> dict:
    """In a process of its own, whose peak is read at the end."""
    code = (
        "import resource, bpsearch as bps; from benchmarks.workers import Frames, coin; "
        "bps.evaluate(coin(Frames), Frames, 200, 'mc', seed=0); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {"peak_gib": float(done.stdout), "frames_gib": 200 * 200 * 84 * 84 * 4 / 2**30}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only",
        action="append",
        help="efficiency, cartpole, lag, start, processes, ray, ray-scale, simulate, bytes or frames",
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()

    def ray() -> dict:
        from bpsearch.runners.ray import RayTasks

        with RayTasks(workers=options.workers) as backend:
            return chunk_cost(backend)

    def processes() -> dict:
        with Processes(options.workers) as backend:
            return chunk_cost(backend)

    parts = {
        "efficiency": lambda: efficiency(options.workers, options.episodes, 0.01, options.turns),
        "cartpole": lambda: cartpole(options.turns, options.episodes, options.workers),
        "lag": lambda: lag(options.turns, options.episodes, options.workers),
        "start": lambda: starting(options.turns, options.episodes, options.workers),
        "processes": processes,
        "ray": ray,
        "ray-scale": lambda: [ray_scale(count) for count in (options.workers, 100, 1000)],
        "bytes": lambda: bytes_of_episodes(AGENT),
        "simulate": lambda: [simulate(count, max(100 * count, 20_000)) for count in (10, 100, 1000)],
        "frames": frames,
    }
    for name, part in parts.items():
        if options.only is None or name in options.only:
            try:
                print(json.dumps({name: part()}), flush=True)
            except bps.errors.MissingDependencyError as error:
                print(json.dumps({name: str(error)}), flush=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(json.dumps({"largest_child_gib": peak}))


if __name__ == "__main__":
    main()
