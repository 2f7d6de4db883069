"""A real Ray cluster of two nodes on this computer: the same bits, also if a worker or a node is lost.

    make test-ray

It takes Ray (`pip install bpsearch[ray]`) and about a minute, so CI runs it apart from the other tests.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import bpsearch as bps
from bpsearch.errors import EpisodeCrashError
from bpsearch.methods import find_method
from test_workers import AGENTS, bits, coin, high
from toy_envs import RandomLength
from worker_envs import Deadly

if not os.environ.get("BPSEARCH_TEST_RAY"):
    pytest.skip("the tests of Ray start a cluster: run them by `make test-ray`", allow_module_level=True)
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'bpsearch[ray]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, about its future defaults


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    os.environ["PYTHONPATH"] = path  # nodes inherit it, and find the environments of these tests
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.mark.parametrize("method", ["mc", "auto", "bpg"])
def test_an_agent_has_the_same_bits_on_two_nodes(cluster: Any, method: str) -> None:
    agent, options = AGENTS / "ppo-cartpole-v1.zip", {"seed": 5, "method": method}
    alone = bps.evaluate(agent, "CartPole-v1", 250, **options)
    assert bits(bps.evaluate(agent, "CartPole-v1", 250, workers=cluster.address, **options)) == bits(alone)


@pytest.mark.parametrize(
    ("method", "options"),
    [("auto", {}), ("bpg", {}), ("dr-bpg", {}), ("bpg", {"failure": "return < -60"})],
)
def test_a_table_has_the_same_bits_on_two_nodes(cluster: Any, method: str, options: dict[str, Any]) -> None:
    policy, env = bps.shipped_policy("gridworld-early"), bps.envs.gridworld()
    alone = bps.evaluate(policy, env, 350, method, seed=5, **options)
    assert bits(bps.evaluate(policy, env, 350, method, seed=5, workers=cluster.address, **options)) == bits(alone)


def test_a_lag_and_a_comparison_have_the_same_bits_on_two_nodes(cluster: Any) -> None:
    policy, env = bps.shipped_policy("gridworld-early"), bps.envs.gridworld()
    method = replace(find_method("bpg"), lag=1)
    alone = bps.evaluate(policy, env, 350, method, seed=5)
    assert bits(bps.evaluate(policy, env, 350, method, seed=5, workers=cluster.address)) == bits(alone)
    policies = {"coin": coin(), "high": high()}
    one, two = (bps.compare(policies, RandomLength, 120, seed=5, workers=w) for w in (None, cluster.address))
    assert two.to_json() == one.to_json()


def test_ray_is_the_cluster_to_which_the_process_is_connected(cluster: Any) -> None:
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        assert len([node for node in ray.nodes() if node["Alive"]]) == 2
        # Connected already: "ray" is this cluster.
        assert bits(bps.evaluate(coin(), RandomLength, 300, "mc", seed=1, workers="ray")) == bits(
            bps.evaluate(coin(), RandomLength, 300, "mc", seed=1)
        )
    finally:
        ray.shutdown()


@pytest.mark.parametrize("how", ["segfault", "hang"])
def test_lost_workers_are_replaced(cluster: Any, how: str, tmp_path: Path) -> None:
    env = partial(Deadly, how, str(tmp_path))
    options = {"method": "mc", "seed": 0, "episodes": 60}
    alone = bps.evaluate(high(), partial(env, 0), **options)
    survived = bps.evaluate(high(), partial(env, 1), workers=cluster.address, episode_timeout=5.0, **options)
    assert len(list(tmp_path.iterdir())) == 1
    assert bits(survived) == bits(alone)


def test_an_episode_that_always_ends_its_worker_is_named(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(EpisodeCrashError, match=r"episode 7 of batch 0 \(seed 0\) lost its worker 3 times"):
        bps.evaluate(high(), partial(Deadly, "segfault", str(tmp_path), 999), 25, "mc", seed=0, workers=cluster.address)


def test_a_lost_node_is_survived(cluster: Any) -> None:
    node = cluster.add_node(num_cpus=1)
    removed: list[Any] = []

    def remove(study: bps.Study, _: Any) -> None:
        if not removed:
            removed.append(node)
            cluster.remove_node(node, allow_graceful=False)

    survived = bps.evaluate(high(), RandomLength, 900, "mc", seed=2, workers=cluster.address, on_batch=remove)
    assert removed
    assert bits(survived) == bits(bps.evaluate(high(), RandomLength, 900, "mc", seed=2))
