"""evaluate(): every kind of policy and environment, every method, and what is refused."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO
from torch.distributions import Categorical

import bpsearch as bps
from bpsearch.errors import (
    DeterministicPolicyError,
    InvalidArgumentError,
    PolicyFileError,
    SpaceMismatchError,
    UnknownProbabilitiesError,
)

AGENTS = Path(__file__).parent / "agents"
CARTPOLE = AGENTS / "ppo-cartpole-v1.zip"


class Actor(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(4, 8)
        self.head = torch.nn.Linear(8, 2)

    def forward(self, observations: torch.Tensor) -> Categorical:
        return Categorical(logits=self.head(torch.tanh(self.body(observations))))


def test_every_method_agrees_with_a_long_run_of_monte_carlo() -> None:
    """z-tests at a false-alarm rate of 1e-6 each, against 1000 episodes of Monte Carlo with another seed."""
    truth = bps.evaluate(CARTPOLE, "CartPole-v1", 1000, "mc", seed=99, horizon=200)
    for method in ("mc", "bpg", "pdis-bpg"):
        result = bps.evaluate(CARTPOLE, "CartPole-v1", 300, method, seed=1, horizon=200)
        assert abs(result.value - truth.value) < 4.9 * np.hypot(result.std_error, truth.std_error), method
        if method != "mc":
            assert result.std_error < 1.1 * truth.std_error * np.sqrt(1000 / 300)
            assert result.savings > 1.5


def test_an_agent_where_start_states_make_the_variance() -> None:
    """Pendulum: little to gain, nothing lost."""
    result = bps.evaluate(AGENTS / "ppo-pendulum-v1.zip", "Pendulum-v1", 200)
    assert result.diagnostics.variance < 1.21 * result.diagnostics.monte_carlo_variance
    assert result.explained < 0.5


def test_kinds_of_policies() -> None:
    options: dict[str, Any] = {"episodes": 20, "batch_size": 10, "horizon": 20}
    model = PPO("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [8]}, device="cpu", seed=0)
    mlp = bps.CategoricalMLP.init(0, gymnasium.spaces.Box(-np.inf, np.inf, (4,)), gymnasium.spaces.Discrete(2))
    for policy in (model, Actor(), mlp, lambda observation: int(observation[2] > 0), str(CARTPOLE)):
        result = bps.evaluate(policy, "CartPole-v1", **options)
        assert 5 < result.value <= 20
        assert result.settings["env"] == "CartPole-v1"
    torch_policy = bps.policies.sources.policy_of(Actor(), "CartPole-v1")
    assert len(torch_policy.flat) == 18, "the last layer only"


def test_kinds_of_environments() -> None:
    options: dict[str, Any] = {"episodes": 20, "batch_size": 10, "horizon": 20}
    same = [
        bps.evaluate(CARTPOLE, env, **options).value
        for env in (
            "CartPole-v1",
            lambda: gymnasium.make("CartPole-v1"),
            gymnasium.make("CartPole-v1"),
            gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync"),
        )
    ]
    np.testing.assert_allclose(same, same[0])
    policy = bps.shipped_policy("gridworld-early")
    by_id = bps.evaluate(policy, "bpsearch/Gridworld-v0", 50)
    assert by_id.value == bps.evaluate("gridworld-early", bps.envs.gridworld(), 50).value
    assert by_id.settings["env"] == "bpsearch/Gridworld-v0"


def test_a_compiled_environment_runs_a_policy_that_cannot_be_traced() -> None:
    result = bps.evaluate(lambda state: 1, bps.envs.gridworld(), 10, horizon=5)
    assert result.settings["horizon"] == 5
    assert np.isfinite(result.value)


def test_unbounded_actions_are_clipped_to_the_environment() -> None:
    seen: list[float] = []

    class Watched(gymnasium.Wrapper):  # type: ignore[type-arg]
        def step(self, action: Any) -> Any:
            seen.append(float(np.abs(action).max()))
            return self.env.step(action)

    spaces = bps.envs.sources.spaces_of("Pendulum-v1")
    policy = bps.GaussianMLP.init(0, *spaces)
    wide = policy.with_parameters((*policy.parameters[:-1], np.float32([2.0])))
    bps.evaluate(wide, lambda: Watched(gymnasium.make("Pendulum-v1")), 4, "mc", horizon=20)
    assert max(seen) == 2.0


def test_a_policy_that_no_search_can_help() -> None:
    """Without a method: Monte Carlo, and the reason. With one: the error that offers Monte Carlo."""
    always_left = bps.evaluate(lambda observation: 0, "CartPole-v1", 30)
    assert "behavior search cannot help here, because the policy's action probabilities are unknown" in str(always_left)
    assert always_left.settings["method"] == "mc"
    greedy = DQN("MlpPolicy", "CartPole-v1", device="cpu", buffer_size=10, seed=0)
    assert "because the policy is deterministic" in str(bps.evaluate(greedy, "CartPole-v1", 10))
    assert "cannot help" not in str(bps.evaluate(greedy, "CartPole-v1", 10, "mc"))
    with pytest.raises(DeterministicPolicyError, match="method='mc'"):
        bps.evaluate(greedy, "CartPole-v1", 10, "bpg")
    with pytest.raises(UnknownProbabilitiesError, match="method='mc'"):
        bps.evaluate(lambda observation: 0, "CartPole-v1", 10, "bpg")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"method": "magic"}, InvalidArgumentError, "method must be one of"),
        ({"method": "dr-bpg"}, InvalidArgumentError, "needs a TabularMDP"),
        ({"episodes": 0}, InvalidArgumentError, "episodes must be a whole number of at least 1, got 0"),
        ({"batch_size": 0}, InvalidArgumentError, "batch_size"),
        ({"horizon": 0}, InvalidArgumentError, "horizon"),
        ({"discount": 1.5}, InvalidArgumentError, "discount must be a finite number in"),
        ({"num_envs": 0}, InvalidArgumentError, "num_envs"),
        ({"env": "Acrobot-v1"}, SpaceMismatchError, "Acrobot|spaces differ|observation"),
        ({"env": "Nowhere-v0"}, InvalidArgumentError, "cannot make the environment 'Nowhere-v0'"),
        ({"policy": "nobody.zip"}, PolicyFileError, "nobody.zip"),
        ({"policy": "nobody.npz"}, PolicyFileError, "nobody.npz"),
        ({"policy": 7}, PolicyFileError, "policy must be"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        bps.evaluate(**({"policy": CARTPOLE, "env": "CartPole-v1", "episodes": 10} | arguments))


def test_options_that_have_no_meaning_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="num_envs has no meaning"):
        bps.evaluate("gridworld-early", bps.envs.gridworld(), 10, num_envs=2)
    with pytest.raises(InvalidArgumentError, match="trust has a meaning only for"):
        bps.evaluate("gridworld-early", bps.envs.gridworld(), 10, trust=True)
    with pytest.raises(InvalidArgumentError, match="env_kwargs do not fit"):
        bps.evaluate("gridworld-early", "bpsearch/Gridworld-v0", 10, env_kwargs={"size": 3})
