"""What many workers cost their coordinator: a chunk, an episode, bytes; parts of `python -m benchmarks.workers`."""

import pickle
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np

import bpsearch as bps
from bpsearch.methods import find_method
from bpsearch.policies.base import Policy
from bpsearch.policies.resolve import load
from bpsearch.runners import runner_for
from bpsearch.runners.backend import Backend, Outcome
from bpsearch.runners.chunks import Answer, Chunk, Piece
from bpsearch.runners.scheduler import Order, Scheduler
from bpsearch.sampling.packing import pack, unpack


def chunk_cost(backend: Backend, chunks: int = 200) -> dict:
    """Start-up, and the time for a chunk of one episode of one step that does nothing.

    `coordinator_ms` is the processor time of this process for it, `most_in_flight` how many chunks were out at once.
    """
    policy = bps.SoftmaxTable(np.zeros((2, 2)))
    env = partial(Instant)
    made: Any = runner_for(env, policy, workers=backend)
    with made as runner:
        begun = time.perf_counter()
        runner.run(policy, 2, seed=0, batch=0)
        start = time.perf_counter() - begun
        runner.run(policy, 100, seed=0, batch=1)
        backend.sizes = dict.fromkeys(backend.sizes, 1)
        runner._scheduler._learn = lambda *_: None  # chunks of one episode, whatever they take
        most, submit = [0], backend.submit

        def count(*arguments: Any) -> None:
            submit(*arguments)
            most[0] = max(most[0], len(backend._flying))

        backend.submit = count  # type: ignore[assignment, method-assign]
        begun, own = time.perf_counter(), time.process_time()
        runner.run(policy, chunks, seed=0, batch=2)
        each, own = (time.perf_counter() - begun) / chunks, (time.process_time() - own) / chunks
    return {
        "workers": backend.workers,
        "start_seconds": start,
        "chunk_ms": 1e3 * each,
        "coordinator_ms": 1e3 * own,
        "most_in_flight": most[0],
    }


def ray_scale(workers: int) -> dict:
    """Ray's local cluster with as many tasks in flight as so many workers have; as many run as there are cores."""
    from bpsearch.runners.ray import RayTasks

    with RayTasks(workers=workers) as backend:
        return chunk_cost(backend, chunks=max(200, 3 * workers))


def processor_best(function: Callable[[], object]) -> float:
    """Processor seconds of the fastest of several calls."""
    found = []
    for _ in range(10):
        begun = time.process_time()
        function()
        found.append(time.process_time() - begun)
    return min(found)


def bytes_of_episodes(agent: Path) -> dict:
    """Of 100 episodes, for each: pickled as a worker sends them, the same without padding, and summaries of `auto`."""
    policies: dict[str, tuple[Policy, Any]] = {
        "CartPole-v1, PPO": (load(agent, "CartPole-v1"), "CartPole-v1"),
        "gridworld, a table": (bps.shipped_policy("gridworld-early"), bps.envs.gridworld()),
    }
    found = {}
    for name, (policy, env) in policies.items():
        batch = bps.sample(env, policy, 100, seed=0)
        valuation = find_method("auto").valuation
        summaries = valuation.value(valuation.init(policy, 1.0), batch, 0.0, 1.0).summaries
        sent, packed = pickle.dumps(Answer((batch,))), pickle.dumps(pack(batch))
        found[name] = {
            "steps": float(batch.lengths.mean()),
            "padded to": batch.mask.shape[1],
            "sent": len(sent) / 100,
            "without padding": len(packed) / 100,
            "us to read what is sent": 1e6 * processor_best(partial(pickle.loads, sent)) / 100,
            "us to read it without padding": 1e6 * processor_best(lambda: unpack(pickle.loads(packed))) / 100,  # noqa: B023
            "summaries of auto": sum(np.asarray(leaf).nbytes for leaf in jax.tree_util.tree_leaves(summaries)) / 100,
        }
    return found


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
        return Answer(tuple(self._episodes(piece) for piece in chunk.pieces), seconds=0.01 * chunk.episodes)

    def _episodes(self, piece: Piece) -> bps.Trajectories:
        shape = (piece.episodes, self._steps)
        zeros = np.zeros(shape)
        return bps.Trajectories(zeros.astype(int), zeros.astype(int), zeros + 1.0, zeros, np.ones(shape, bool))


def fetch_in_turn(scheduler: Scheduler, orders: Sequence[Order]) -> Iterator[bps.Trajectories]:
    """One batch after the other, the later ones expected as long as workers are hungry: as a study runs them."""
    for number, order in enumerate(orders):
        for later in orders[number:]:
            if not scheduler.hungry:
                break
            scheduler.submit(later, {})
        scheduler.begin()
        scheduler.submit(order, {})
        yield scheduler.fetch(order)


def simulate(workers: int, episodes: int, batch: int = 5000) -> dict:
    """Fake episodes of 10 ms and 128 steps through the real scheduler."""
    backend = Simulated(workers, 128)
    scheduler = Scheduler(backend)
    orders = [
        Order(Chunk("place", "behavior", 0, (Piece(number, 0, batch),)), 1) for number in range(episodes // batch)
    ]
    start = time.process_time()
    for found in fetch_in_turn(scheduler, orders):
        assert len(found) == batch
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
