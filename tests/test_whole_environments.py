"""Environments as one program: used only if the episodes are those of single environments, to the last bit."""

from typing import Any

import gymnasium
import numpy as np
import pytest

import bpsearch as bps
from bpsearch.envs import whole
from bpsearch.envs.resolve import Make
from bpsearch.sampling.slots import EnvSlots, VectorSlots
from test_gymnasium_sampler import assert_same, for_env


def opened(env: Any, **options: Any) -> bps.GymnasiumSampler:
    return bps.GymnasiumSampler(env, **options)


@pytest.mark.parametrize(
    ("env_id", "kwargs", "horizon"),
    [
        ("CartPole-v1", {}, None),
        ("CartPole-v1", {"sutton_barto_reward": True}, 30),
        pytest.param("CartPole-v0", {}, None, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:.*The environment CartPole-v0 is out of date")
def test_the_episodes_are_those_of_single_environments(
    env_id: str, kwargs: dict[str, Any], horizon: int | None
) -> None:
    policy = for_env(env_id)
    with (
        opened(env_id, env_kwargs=kwargs, horizon=horizon) as program,
        opened(lambda: gymnasium.make(env_id, **kwargs), horizon=horizon) as singles,
    ):
        assert isinstance(program._slots, VectorSlots)
        assert isinstance(singles._slots, EnvSlots)
        assert program.longest == singles.longest
        for batch in (0, 1):
            found = program.sample(policy, 300, seed=5, batch=batch, resets=2)
            assert_same(found, singles.sample(policy, 300, seed=5, batch=batch, resets=2))
        assert found.lengths.max() > 2 * found.lengths.min()  # some have ended long before others


def test_the_numbers_of_environments_and_of_batches_at_once_make_no_difference() -> None:
    policy = for_env("CartPole-v1")
    with opened("CartPole-v1", num_envs=16) as few, opened("CartPole-v1") as many:
        together = many.sample_batches(policy, [(0, range(40)), (1, range(40))], seed=2)
        for batch in (0, 1):
            assert_same(few.sample(policy, 40, seed=2, batch=batch), together[batch])


def test_truncation_at_the_time_limit() -> None:
    balance = bps.FunctionPolicy(
        lambda seen: int(seen[2] + 0.5 * seen[3] + 0.02 * seen[0] + 0.1 * seen[1] > 0.0),
        (bps.envs.classic_cartpole().observation_space, gymnasium.spaces.Discrete(2)),
    )
    assert set(bps.sample("CartPole-v1", balance, 20, seed=0).lengths.tolist()) == {500}


@pytest.mark.parametrize(
    ("factory", "count"),
    [
        (Make("CartPole-v1"), whole.FEWEST - 1),
        (Make("CartPole-v1", {"render_mode": "rgb_array"}), 64),
        (lambda: gymnasium.make("CartPole-v1"), 64),
        (Make("Acrobot-v1"), 64),
    ],
    ids=["few", "another argument", "a factory, which may change it", "no vector entry point"],
)
def test_single_environments_are_used_where_the_program_may_differ(factory: Any, count: int) -> None:
    with factory() as single:
        assert whole.find_whole(factory, single, count) is None


def test_a_program_of_other_steps_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lighter(whole.WholeCartPole):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.gravity = np.nextafter(self.gravity, 0.0)

    key = next(iter(whole._KNOWN))
    monkeypatch.setitem(whole._KNOWN, key, (Lighter, whole._KNOWN[key][1]))
    with gymnasium.make("CartPole-v1") as single:
        assert whole.find_whole(Make("CartPole-v1"), single, 64) is None


def test_a_policy_that_runs_alone_gets_one_environment() -> None:
    spaces = (bps.envs.classic_cartpole().observation_space, gymnasium.spaces.Discrete(2))
    flagged = bps.policies.function.FlaggedPolicy(lambda seen, episode_start: int(seen[2] > 0.0), spaces)
    plain = bps.FunctionPolicy(lambda seen: int(seen[2] > 0.0), spaces)
    with opened("CartPole-v1") as sampler:
        alone = sampler.sample(flagged, 5, seed=1)
        assert sampler._slots.count == 1
        assert_same(alone, sampler.sample(plain, 5, seed=1))
        assert sampler._slots.count > 1
