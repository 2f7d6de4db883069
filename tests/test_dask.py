"""Dask as the workers that a user brings: its client, and the executor that a client gives; the same bits."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import bpsearch as bps
from test_workers import bits, high
from toy_envs import RandomLength
from worker_envs import Deadly

distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install distributed")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    os.environ["PYTHONPATH"] = path  # workers find the environments of these tests
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.mark.parametrize("kind", ["client", "executor"])
def test_the_bits_are_those_of_one_process(client: Any, kind: str) -> None:
    workers = client if kind == "client" else client.get_executor()
    policy, env = bps.shipped_policy("gridworld-early"), bps.envs.gridworld()
    for method in ("mc", "bpg"):
        alone = bps.evaluate(policy, env, 350, method, seed=5)
        assert bits(bps.evaluate(policy, env, 350, method, seed=5, workers=workers)) == bits(alone)
    alone = bps.evaluate(high(), RandomLength, 300, "mc", seed=1)
    assert bits(bps.evaluate(high(), RandomLength, 300, "mc", seed=1, workers=workers)) == bits(alone)


def test_a_worker_that_its_environment_ends_is_replaced(client: Any, tmp_path: Path) -> None:
    env = partial(Deadly, "segfault", str(tmp_path))
    alone = bps.evaluate(high(), partial(env, 0), 60, "mc", seed=0)
    assert bits(bps.evaluate(high(), partial(env, 1), 60, "mc", seed=0, workers=client)) == bits(alone)
    assert len(list(tmp_path.iterdir())) == 1
