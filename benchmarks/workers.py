"""What workers cost and what they bring; every figure is a ratio or a time taken in this run.

    python -m benchmarks.workers

- efficiency per core with episodes of 10 ms: seconds of one process over (workers times seconds with workers);
- seconds for 1,000 CartPole-v1 episodes of a Stable-Baselines3 agent, beside SB3's `evaluate_policy` at the best of
  several numbers of environments;
- how long workers take to start, and what a chunk costs besides its episodes, for processes and (if installed) for Ray;
- bytes and seconds of the coordinator for an episode, and a simulation of many workers through the real scheduler;
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
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import bpsearch as bps
from bpsearch.runners import Processes, runner_for
from bpsearch.runners.backend import Backend, Outcome
from bpsearch.runners.chunks import Answer, Chunk
from bpsearch.runners.scheduler import Order, Scheduler

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
        ours()
        ours(crew)
        for _ in range(turns):
            times = {f"sb3, {envs} envs": seconds_of(partial(sb3, envs)) for envs in (8, 32, 64, 128)}
            best = min(times.values())
            times["one process"] = seconds_of(ours)
            times[f"{workers} workers"] = seconds_of(partial(ours, crew))
            times["one process / best sb3"] = times["one process"] / best
            times[f"{workers} workers / best sb3"] = times[f"{workers} workers"] / best
            for name, value in times.items():
                found.setdefault(name, []).append(value)
    scale = 1000 / episodes
    return {n: statistics.median(v) * (1.0 if "/" in n else scale) for n, v in found.items()}


def chunk_cost(backend: Backend, chunks: int = 200) -> dict:
    """Start-up, and the time for a chunk of one episode of one step that does nothing."""
    policy = bps.SoftmaxTable(np.zeros((2, 2)))
    env = partial(Instant)
    made: Any = runner_for(env, policy, workers=backend)
    with made as runner:
        start = seconds_of(lambda: runner.run(policy, 2, seed=0, batch=0))
        runner.run(policy, 100, seed=0, batch=1)
        backend.sizes = dict.fromkeys(backend.sizes, 1)
        runner._scheduler._learn_size = lambda *_: None  # chunks of one episode, whatever they take
        each = seconds_of(lambda: runner.run(policy, chunks, seed=0, batch=2)) / chunks
    return {"start_seconds": start, "chunk_ms": 1e3 * each, "in_flight": 2 * backend.workers}


class Instant(gymnasium.Env):
    """One step."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        """Gymnasium's."""
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        """Gymnasium's."""
        return 1, 1.0, True, False, {}


class Simulated(Backend):
    """Workers that need no time: what is left is the coordinator's own work, with episodes of real size."""

    def __init__(self, count: int, steps: int) -> None:
        super().__init__()
        self._count, self._steps = count, steps
        self._open: deque = deque()
        self.own_seconds = 0.0
        self.chunks = 0

    @property
    def workers(self) -> int:
        """As many as were asked for."""
        return self._count

    def submit(self, ticket: int, chunk: Chunk, blobs) -> None:
        """Keep it."""
        self._open.append((ticket, chunk))
        self.chunks += 1

    def wait(self, timeout=None) -> list[Outcome]:
        """All answers, as a process would have read them; what it takes to fake them is not the coordinator's."""
        start = time.process_time()
        found = [Outcome(ticket, self._answer(chunk)) for ticket, chunk in self._open]
        self._open.clear()
        self.own_seconds += time.process_time() - start
        return found

    def _answer(self, chunk: Chunk) -> Answer:
        shape = (chunk.episodes, self._steps)
        zeros = np.zeros(shape)
        episodes = bps.Trajectories(zeros.astype(int), zeros.astype(int), zeros + 1.0, zeros, np.ones(shape, bool))
        return Answer(episodes, seconds=0.01 * chunk.episodes)


def simulate(workers: int, episodes: int, batch: int = 5000) -> dict:
    """Fake episodes of 10 ms and 128 steps through the real scheduler."""
    backend = Simulated(workers, 128)
    scheduler = Scheduler(backend)
    orders = [Order(Chunk("place", "behavior", 0, number, 1, 0, batch), 1) for number in range(episodes // batch)]
    start = time.process_time()
    for number, order in enumerate(orders):
        for later in orders[number:]:
            if not scheduler.hungry:
                break
            scheduler.submit(later, {})
        scheduler.submit(order, {})
        assert len(scheduler.fetch(order)) == batch
    seconds = time.process_time() - start - backend.own_seconds
    per_second = len(orders) * batch / seconds
    return {
        "workers": workers,
        "episodes_per_chunk": len(orders) * batch / backend.chunks,
        "coordinator_us_per_episode": 1e6 / per_second,
        "episodes_per_second": per_second,
        "chunks": backend.chunks,
        "10 ms workers that this keeps busy": int(per_second * 0.01),
    }


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
    parser.add_argument("--only", action="append", help="efficiency, cartpole, processes, ray, simulate or frames")
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
        "processes": processes,
        "ray": ray,
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
