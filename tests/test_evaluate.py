"""evaluate(): every kind of policy and environment, every method, and what is refused."""

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO
from torch.distributions import Categorical

import bpsearch as bps
from bpsearch.envs.resolve import spaces_of
from bpsearch.errors import (
    DeterministicPolicyError,
    InvalidArgumentError,
    PolicyFileError,
    SpaceMismatchError,
    UnknownProbabilitiesError,
)
from bpsearch.methods import find_method
from bpsearch.policies.resolve import load
from bpsearch.runners import InProcess

AGENTS = Path(__file__).parent / "agents"
CARTPOLE = AGENTS / "ppo-cartpole-v1.zip"


class Actor(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(4, 8)
        self.head = torch.nn.Linear(8, 2)

    def forward(self, observations: torch.Tensor) -> Categorical:
        return Categorical(logits=self.head(torch.tanh(self.body(observations))))


@pytest.mark.slow
def test_every_method_agrees_with_a_long_run_of_monte_carlo() -> None:
    """z-tests at a false-alarm rate of 1e-6 each, against 1000 episodes of Monte Carlo with another seed."""
    with bps.environment("CartPole-v1", horizon=200) as sampler:
        truth = bps.evaluate(CARTPOLE, sampler, 1000, "mc", seed=99)
        for method in ("mc", "bpg", "pdis-bpg"):
            result = bps.evaluate(CARTPOLE, sampler, 300, method, seed=1)
            assert abs(result.value - truth.value) < 4.9 * np.hypot(result.std_error, truth.std_error), method
            if method != "mc":
                assert result.std_error < 1.1 * truth.std_error * np.sqrt(1000 / 300)
                assert result.savings > 1.5


@pytest.mark.slow
def test_an_agent_where_start_states_make_the_variance() -> None:
    """Pendulum: actions explain little, starts most of it."""
    result = bps.evaluate(AGENTS / "ppo-pendulum-v1.zip", "Pendulum-v1", 200, seed=0)
    assert result.diagnostics.variance < 0.5 * result.diagnostics.monte_carlo_variance
    assert result.explained_by["starts"] > 0.5 > result.explained_by["actions"]
    never = bps.evaluate(AGENTS / "ppo-pendulum-v1.zip", "Pendulum-v1", 200, seed=0, resets="never")
    assert never.diagnostics.variance < 1.21 * never.diagnostics.monte_carlo_variance
    assert never.explained < 0.5


def in_batches_of(size: int) -> bps.Method:
    return dataclasses.replace(find_method("auto"), batch_size=size)


def test_kinds_of_policies() -> None:
    model = PPO("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [8]}, device="cpu", seed=0)
    mlp = bps.CategoricalMLP.init(0, gymnasium.spaces.Box(-np.inf, np.inf, (4,)), gymnasium.spaces.Discrete(2))
    with bps.environment("CartPole-v1", horizon=20) as sampler:
        policies = {
            "<PPO>": model,
            "<Actor>": Actor(),
            "<CategoricalMLP>": mlp,
            "<lambda>": lambda observation: int(observation[2] > 0),
            str(CARTPOLE): str(CARTPOLE),
        }
        for name, policy in policies.items():
            result = bps.evaluate(policy, sampler, 20, in_batches_of(10), seed=0)
            assert len(result.history.values) == 2
            assert 5 < result.value <= 20
            assert result.settings["env"] == "CartPole-v1"
            assert result.settings["horizon"] == 20
            assert result.settings["policy"] == name
    torch_policy = load(Actor(), "CartPole-v1")
    assert len(torch_policy.flat) == 18, "the last layer only"


def test_kinds_of_environments() -> None:
    """By name, factory, environment and vector environment, with and without further settings; sampler and runner."""
    sources = (
        "CartPole-v1",
        lambda: gymnasium.make("CartPole-v1"),
        gymnasium.make("CartPole-v1"),
        gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync"),
    )
    plain = [bps.evaluate(CARTPOLE, env, 20, in_batches_of(10), seed=0).value for env in sources]
    np.testing.assert_allclose(plain, plain[0])
    cut = []
    for source in sources:
        with bps.environment(source, horizon=20) as sampler:
            cut.append(bps.evaluate(CARTPOLE, sampler, 20, in_batches_of(10), seed=0).value)
            with InProcess(sampler) as runner:
                cut.append(bps.evaluate(CARTPOLE, runner, 20, in_batches_of(10), seed=0).value)
    np.testing.assert_allclose(cut, cut[0])
    assert cut[0] < plain[0]
    policy = bps.shipped_policy("gridworld-early")
    by_id = bps.evaluate(policy, "bpsearch/Gridworld-v0", 50, seed=0)
    assert by_id.value == bps.evaluate("gridworld-early", bps.envs.gridworld(), 50, seed=0).value
    assert by_id.settings["env"] == "bpsearch/Gridworld-v0"
    assert bps.evaluate(policy, bps.environment("bpsearch/Gridworld-v0"), 50, seed=0).value == by_id.value


def test_what_was_given_stays_open() -> None:
    """A sampler and an environment are closed by those who opened them."""
    env = gymnasium.make("CartPole-v1")
    with bps.environment("CartPole-v1", horizon=5) as sampler:
        for place in (sampler, env, sampler, env):
            assert bps.evaluate(CARTPOLE, place, 2, "mc", seed=0).episodes == 2
    env.reset()


def test_a_compiled_environment_runs_a_policy_that_cannot_be_traced() -> None:
    result = bps.evaluate(lambda state: 1, bps.environment(bps.envs.gridworld(), horizon=5), 10)
    assert result.settings["horizon"] == 5
    assert np.isfinite(result.value)


def test_a_seed_is_drawn_and_recorded() -> None:
    drawn = [bps.evaluate("gridworld-early", "bpsearch/Gridworld-v0", 20) for _ in range(2)]
    assert drawn[0].settings["seed"] != drawn[1].settings["seed"]
    for result in drawn:
        again = bps.evaluate("gridworld-early", "bpsearch/Gridworld-v0", 20, seed=result.settings["seed"])
        assert again.to_json() == result.to_json()


def test_any_method_object_will_do() -> None:
    """A search is valued by its own estimator; a `Method` says all."""
    env = bps.environment("bpsearch/Gridworld-v0")
    policy = bps.shipped_policy("gridworld-early")
    by_name = bps.evaluate(policy, env, 300, "bpg", seed=0)
    assert bps.evaluate(policy, env, 300, bps.AdaptiveBPG(), seed=0).value == by_name.value
    whole = bps.Method(bps.AdaptiveBPG(), bps.Valuation(bps.estimators.importance_sampling), name="bpg")
    assert bps.evaluate(policy, env, 300, whole, seed=0).value == by_name.value
    defended = bps.evaluate(policy, env, 300, bps.AdaptiveBPG(defensive=0.1), seed=0)
    assert defended.weight_bound == pytest.approx(10.0)
    assert np.exp(defended.data.log_weights).max() <= 10.0


def test_unbounded_actions_are_clipped_to_the_environment() -> None:
    seen: list[float] = []

    class Watched(gymnasium.Wrapper):  # type: ignore[type-arg]
        def step(self, action: Any) -> Any:
            seen.append(float(np.abs(action).max()))
            return self.env.step(action)

    spaces = spaces_of("Pendulum-v1")
    policy = bps.GaussianMLP.init(0, *spaces)
    wide = policy.with_parameters((*policy.parameters[:-1], np.float32([2.0])))
    with bps.environment(lambda: Watched(gymnasium.make("Pendulum-v1")), horizon=20) as sampler:
        bps.evaluate(wide, sampler, 4, "mc", seed=0)
    assert max(seen) == 2.0


def test_a_policy_that_no_search_can_help() -> None:
    """Without a method: Monte Carlo, and the reason. With one: the error that offers Monte Carlo."""
    always_left = bps.evaluate(lambda observation: 0, "CartPole-v1", 30, seed=0, resets="never")
    assert "behavior search cannot help here, because the policy's action probabilities are unknown" in str(always_left)
    assert always_left.settings["method"] == "auto"
    assert always_left.value == always_left.data.returns.mean()
    greedy = DQN("MlpPolicy", "CartPole-v1", device="cpu", buffer_size=10, seed=0)
    assert "because the policy is deterministic" in str(bps.evaluate(greedy, "CartPole-v1", 10, seed=0))
    assert "cannot help" not in str(bps.evaluate(greedy, "CartPole-v1", 10, "mc", seed=0))
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
        ({"seed": -1}, InvalidArgumentError, "seed must be a whole number from 0 to .*, got -1"),
        ({"target": 0.0}, InvalidArgumentError, "halfwidth must be a finite number greater than 0"),
        ({"failure": "return < 1", "estimand": bps.Return()}, InvalidArgumentError, "failure or estimand, not both"),
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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: in_batches_of(0), "batch_size"),
        (lambda: bps.environment("CartPole-v1", horizon=0), "horizon"),
        (lambda: bps.environment("CartPole-v1", num_envs=0), "num_envs"),
        (lambda: bps.environment("CartPole-v1", vectorization="parallel"), "vectorization must be"),
        (lambda: bps.environment(bps.envs.gridworld(), horizon=0), "horizon"),
        (lambda: bps.environment(bps.envs.gridworld(), discount=1.5), "discount must be a finite number in"),
        (lambda: bps.Return(discount=1.5), "discount must be a finite number in"),
        (lambda: bps.Target(seconds=-1.0), "seconds must be a finite number greater than 0"),
        (lambda: bps.Target(kind="sure"), "kind must be"),
    ],
)
def test_bad_settings(make: Any, message: str) -> None:
    """Those of the objects that own them."""
    with pytest.raises(InvalidArgumentError, match=message):
        make()


def test_options_that_have_no_meaning_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="num_envs has no meaning"):
        bps.environment(bps.envs.gridworld(), num_envs=2)
    with pytest.raises(InvalidArgumentError, match="num_envs has no meaning"):
        bps.environment("bpsearch/Gridworld-v0", num_envs=2)
    with pytest.raises(InvalidArgumentError, match="trust has a meaning only for"):
        load("gridworld-early", bps.envs.gridworld(), trust=True)
    with pytest.raises(InvalidArgumentError, match="env_kwargs do not fit"):
        bps.environment("bpsearch/Gridworld-v0", env_kwargs={"size": 3})
    with pytest.raises(InvalidArgumentError, match="discount belongs to a compiled environment"):
        bps.environment("CartPole-v1", discount=0.9)
