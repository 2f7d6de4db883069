"""Workers: the same numbers as one process, to the last bit, whatever becomes of the processes."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bpsearch as bps
from bpsearch.errors import EpisodeCrashError, InvalidArgumentError, InvalidTrajectoriesError
from bpsearch.runners import Processes, runner_for
from bpsearch.runners.chunks import Chunk, encode
from bpsearch.runners.distributed import place_of
from bpsearch.testing import check_runner
from toy_envs import Bad, Crashing, RandomLength, Toy
from worker_envs import Deadly

AGENTS = Path(__file__).parent / "agents"
FIELDS = (
    "observations",
    "actions",
    "rewards",
    "log_probs",
    "mask",
    "final_observations",
    "seed",
    "behavior_parameters",
)


class Coin(torch.nn.Module):
    """Logits linear in the observation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([[0.1, -0.2], [0.0, 0.3]]))
            self.layer.bias.zero_()

    def forward(self, observations: torch.Tensor) -> torch.distributions.Distribution:
        return torch.distributions.Categorical(logits=self.layer(observations))


def coin() -> Any:
    return bps.from_torch(Coin(), Toy.observation_space, Toy.action_space)


@pytest.fixture(scope="module")
def two() -> Iterator[Processes]:
    """Two processes for all tests that do not end them."""
    with Processes(2) as workers:
        yield workers


def bits(estimate: bps.Estimate) -> bytes:
    """Every number of an estimate."""
    data = estimate.data
    return pickle.dumps(
        [np.asarray(part).tobytes() for part in (data.values, data.log_weights, data.returns)]
        + [estimate.value, estimate.std_error, estimate.interval(), estimate.anytime_interval()]
    )


def assert_same(one: bps.Trajectories, other: bps.Trajectories) -> None:
    for name in FIELDS:
        found, expected = np.asarray(getattr(one, name)), np.asarray(getattr(other, name))
        assert found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes(), name


@pytest.mark.parametrize("method", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("mc", "auto")), "bpg"])
def test_an_agent_has_the_same_bits_with_workers(two: Processes, method: str) -> None:
    agent = AGENTS / "ppo-cartpole-v1.zip"
    env = partial(bps.environment, "CartPole-v1", horizon=60)
    with env() as here, env() as there:
        alone = bps.evaluate(agent, here, 70, method, seed=5)
        assert bits(bps.evaluate(agent, there, 70, method, seed=5, workers=two)) == bits(alone)


@pytest.mark.parametrize(
    ("method", "options"),
    [("mc", {}), ("auto", {}), ("bpg", {}), ("dr-bpg", {}), ("bpg", {"failure": "return < -60"})],
)
def test_a_table_has_the_same_bits_with_workers(two: Processes, method: str, options: dict[str, Any]) -> None:
    policy = bps.shipped_policy("gridworld-early")
    alone = bps.evaluate(policy, bps.envs.gridworld(), 350, method, seed=5, **options)
    assert bits(bps.evaluate(policy, "bpsearch/Gridworld-v0", 350, method, seed=5, workers=two, **options)) == bits(
        alone
    )


def test_a_comparison_has_the_same_bits_with_workers(two: Processes) -> None:
    policies = {"coin": coin(), "high": high()}
    alone = bps.compare(policies, RandomLength, 120, seed=5)
    assert bps.compare(policies, RandomLength, 120, seed=5, workers=two).to_json() == alone.to_json()


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_any_number_of_workers_gives_the_same_bits(count: int) -> None:
    alone = bps.evaluate(high(), RandomLength, 330, "mc", seed=3)
    assert bits(bps.evaluate(high(), RandomLength, 330, "mc", seed=3, workers=count)) == bits(alone)


def test_a_plan_has_the_same_bits_with_workers(two: Processes) -> None:
    """Pairs of episodes with the same start stay together."""
    alone = bps.plan(coin(), RandomLength, 50, seed=2)
    assert bps.plan(coin(), RandomLength, 50, seed=2, workers=two).to_json() == alone.to_json()


def test_workers_keep_the_promises_of_a_runner(two: Processes) -> None:
    with runner_for(RandomLength, coin(), workers=two) as runner:
        check_runner(runner, coin())
        with runner_for(RandomLength, coin()) as alone:
            assert_same(*(r.run(coin(), 41, seed=1, batch=3) for r in (runner, alone)))


@pytest.mark.parametrize("method", ["mc", "auto"])
def test_chunks_of_several_batches_have_the_same_bits(
    two: Processes, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CartPole-v1 is one program, so chunks are large whatever the clock says."""
    chunks: list[Chunk] = []
    submit = two.submit

    def listen(ticket: int, chunk: Chunk, blobs: Any) -> None:
        chunks.append(chunk)
        submit(ticket, chunk, blobs)

    monkeypatch.setattr(two, "submit", listen)
    table = bps.envs.classic_cartpole()
    lean = bps.FunctionPolicy(lambda seen: int(seen[2] > 0.0), (table.observation_space, table.action_space))
    alone = bps.evaluate(lean, "CartPole-v1", 730, method, seed=5)
    assert bits(bps.evaluate(lean, "CartPole-v1", 730, method, seed=5, workers=two)) == bits(alone)
    assert max(len(chunk.pieces) for chunk in chunks) > 2


def test_a_worker_knows_an_id_and_runs_it_as_one_program() -> None:
    with pickle.loads(encode(place_of("CartPole-v1", high()), "environment")).open() as sampler:
        assert sampler.together > 1
    with pickle.loads(encode(place_of(RandomLength, high()), "environment")).open() as sampler:
        assert sampler.together == 1


def test_what_a_script_defines_travels_whole(two: Processes) -> None:
    class Local(RandomLength):
        """Known to this function only."""

    policy = bps.FunctionPolicy(lambda seen: int(seen[1] > 0.5), (Toy.observation_space, Toy.action_space))
    assert bps.evaluate(policy, Local, 20, seed=0, workers=two).value == bps.evaluate(policy, Local, 20, seed=0).value


def test_errors_of_episodes_come_back_as_they_are(two: Processes) -> None:
    with pytest.raises(InvalidTrajectoriesError, match=r"reward of episode 0, step 2 is inf"):
        bps.evaluate(coin(), partial(Bad, "reward", np.inf), 20, "mc", seed=0, workers=two)
    with pytest.raises(EpisodeCrashError, match="the simulator broke down") as error:
        bps.evaluate(coin(), partial(Crashing, [1000]), 30, "mc", seed=0, workers=two)
    assert "in a worker" in error.value.__notes__[0]


def high() -> bps.FunctionPolicy:
    """A policy whose workers need not load torch."""
    return bps.FunctionPolicy(lambda seen: int(seen[1] > 0.5), (Toy.observation_space, Toy.action_space))


def fatal_episodes(seed: int, episodes: int) -> list[int]:
    batch = bps.sample(RandomLength, high(), episodes, seed=seed)
    return np.flatnonzero((batch.observations[:, 0, 1] > 0.95) & (batch.lengths > 1)).tolist()


@pytest.mark.slow
def test_an_episode_that_always_ends_its_process_is_named(tmp_path: Path) -> None:
    (fatal,) = fatal_episodes(0, 25)
    name = rf"episode {fatal} of batch 0 \(seed 0\) lost its worker 3 times"
    with pytest.raises(EpisodeCrashError, match=name) as error:
        bps.evaluate(high(), partial(Deadly, "segfault", str(tmp_path), 1000), 25, "mc", seed=0, workers=1)
    assert f"signal {signal.SIGSEGV:d}" in str(error.value)
    assert len(list(tmp_path.iterdir())) == 4  # beside others, and three times alone


@pytest.mark.slow
def test_an_environment_that_hangs_is_ended(tmp_path: Path) -> None:
    env = partial(Deadly, "hang", str(tmp_path))
    alone = bps.evaluate(high(), partial(env, 0), 25, "mc", seed=0)
    survived = bps.evaluate(high(), partial(env, 1), 25, "mc", seed=0, workers=2, episode_timeout=2.0)
    assert len(list(tmp_path.iterdir())) == 1
    assert bits(survived) == bits(alone)


@pytest.mark.slow
def test_killed_workers_are_replaced() -> None:
    alone = bps.evaluate(high(), RandomLength, 900, "mc", seed=0)
    with Processes(2) as workers:
        killed: list[int] = []

        def kill(study: bps.Study, _: Any) -> None:
            if len(killed) < 2:
                killed.append(workers.pids[-1])
                os.kill(killed[-1], signal.SIGKILL)

        survived = bps.evaluate(high(), RandomLength, 900, "mc", seed=0, workers=workers, on_batch=kill)
        assert len(killed) == 2
        assert not set(killed) & set(workers.pids)
    assert bits(survived) == bits(alone)


@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them() -> None:
    script = """
import time
from bpsearch.runners import Processes
from bpsearch.runners.chunks import Chunk, Piece
workers = Processes(2)
workers.submit(0, Chunk("place", "behavior", 0, (Piece(0, 0, 1),)), {"place": b"", "behavior": b""})
workers.wait()
print(*workers.pids, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        driver.kill()
    assert len(pids) == 2
    deadline = time.monotonic() + 30.0
    while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_alive(pid) for pid in pids)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_executors_that_a_user_brings() -> None:
    policy, env = bps.shipped_policy("gridworld-early"), bps.envs.gridworld()
    alone = bps.evaluate(policy, env, 300, seed=5)
    threads = bps.evaluate(coin(), RandomLength, 60, "mc", seed=5)
    with ThreadPoolExecutor(2) as executor:
        assert bits(bps.evaluate(coin(), RandomLength, 60, "mc", seed=5, workers=executor)) == bits(threads)
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        assert bits(bps.evaluate(policy, env, 300, seed=5, workers=executor)) == bits(alone)
        with pytest.raises(InvalidArgumentError, match="episode_timeout ends the process of a worker"):
            bps.evaluate(policy, env, 300, workers=executor, episode_timeout=1.0)


def test_arguments_are_checked() -> None:
    policy = coin()
    for match, env, options in (
        ("workers must be a whole number", RandomLength, {"workers": 0}),
        ("workers must be a number of processes", RandomLength, {"workers": 1.5}),
        ("workers must be a number of processes", RandomLength, {"workers": True}),
        ("episode_timeout needs workers", RandomLength, {"episode_timeout": 1.0}),
        ("episode_timeout must be", RandomLength, {"workers": 1, "episode_timeout": 0.0}),
        ("workers make their own environments", RandomLength(), {"workers": 1}),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            bps.evaluate(policy, env, 10, "mc", **options)  # type: ignore[arg-type]
    lock = threading.Lock()
    stuck = bps.FunctionPolicy(lambda seen: int(lock.locked()), (Toy.observation_space, Toy.action_space))
    with pytest.raises(InvalidArgumentError, match="the policy cannot be sent to workers"):
        bps.evaluate(stuck, RandomLength, 10, workers=1)
