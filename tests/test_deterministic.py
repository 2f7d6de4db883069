"""`deterministic=True`: the mode of a policy, and that every result says which question was answered."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import jsonschema
import numpy as np
import pytest
import torch
from stable_baselines3 import A2C, PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv

import bpsearch as bps
from bpsearch.errors import DeterministicPolicyError, UnknownProbabilitiesError
from bpsearch.report.json import SCHEMA, load_schema
from toy_envs import DictToy, Toy

AGENTS = Path(__file__).parent / "agents"
SMALL: dict[str, Any] = {"device": "cpu", "seed": 0}


class BinaryToy(Toy):
    action_space = gymnasium.spaces.MultiBinary(3)


@pytest.mark.parametrize(
    ("algorithm", "kind", "env", "more"),
    [
        (PPO, "MlpPolicy", "CartPole-v1", {}),
        (A2C, "MlpPolicy", "Pendulum-v1", {"use_sde": True}),
        (PPO, "MultiInputPolicy", DictToy, {}),
        (A2C, "MlpPolicy", BinaryToy, {}),
        (SAC, "MlpPolicy", "Pendulum-v1", {"buffer_size": 10}),
        (SAC, "MlpPolicy", "Pendulum-v1", {"buffer_size": 10, "use_sde": True}),
    ],
)
def test_the_mode_is_that_of_sb3(algorithm: Any, kind: str, env: Any, more: dict[str, Any], tmp_path: Path) -> None:
    model = algorithm(kind, env if isinstance(env, str) else DummyVecEnv([env]), **SMALL, **more)
    model.save(tmp_path / "model.zip")
    for policy in (bps.from_sb3(model), bps.load_sb3(tmp_path / "model.zip", env)):
        mode = policy.mode()
        batch = bps.sample(env, mode, 3, horizon=10)
        keep: Any = batch.mask
        observations: Any = batch.observations
        seen = {k: v[keep] for k, v in observations.items()} if isinstance(observations, dict) else observations[keep]
        expected, _ = model.predict(seen, deterministic=True)
        _, _, executed = mode.act(np.zeros((int(keep.sum()), 3)), seen)
        np.testing.assert_allclose(executed, expected, atol=1e-5)
        assert mode.mode() is mode
        with pytest.raises(DeterministicPolicyError):
            bps.BPG(0.1).init(mode)


def test_state_dependent_noise_is_drawn_as_its_probabilities_say(tmp_path: Path) -> None:
    model = PPO("MlpPolicy", "Pendulum-v1", use_sde=True, **SMALL)
    model.save(tmp_path / "sde.zip")
    policy = bps.load_sb3(tmp_path / "sde.zip", "Pendulum-v1")
    batch = bps.sample("Pendulum-v1", policy, 2, horizon=20)
    with torch.no_grad():
        tensor, actions = torch.as_tensor(batch.observations[0]), torch.as_tensor(batch.actions[0])
        _, expected, _ = model.policy.evaluate_actions(tensor, actions)
    np.testing.assert_allclose(batch.log_probs[0], expected.numpy(), atol=1e-5)
    assert any("use_sde" in note for note in policy.notes)


def test_the_value_is_that_of_evaluate_policy() -> None:
    """Pendulum's starts differ between the two: |z| < 4, a false alarm once in 16,000 seeds."""
    path = AGENTS / "ppo-pendulum-v1.zip"
    envs = make_vec_env("Pendulum-v1", n_envs=8, seed=1)
    theirs, _ = evaluate_policy(PPO.load(path, device="cpu"), envs, n_eval_episodes=40, return_episode_rewards=True)
    result = bps.evaluate(path, "Pendulum-v1", episodes=40, seed=1, deterministic=True)
    error = np.sqrt(np.var(theirs, ddof=1) / 40 + (result.std_error or 0.0) ** 2)
    assert abs(np.mean(theirs) - result.value) < 4.0 * error
    assert result.deterministic is True
    assert result.method == "auto"


def test_the_modes_of_our_own_policies() -> None:
    table = bps.SoftmaxTable(np.array([[0.0, 1.0], [2.0, 1.0]]))
    np.testing.assert_array_equal(table.mode().probabilities, [[0.0, 1.0], [1.0, 0.0]])
    env, policy = bps.envs.gridworld(), bps.shipped_policy("gridworld-early")
    result = bps.evaluate(policy, env, episodes=50, seed=0, deterministic=True)
    assert result.value == pytest.approx(bps.oracle.value(env, policy.mode()))
    network, acrobot = bps.shipped_policy("acrobot"), bps.envs.acrobot()
    batch = bps.sample(acrobot, network.mode(), 4, seed=0)
    expected = network.outputs(batch.observations[:, 0]).T
    np.testing.assert_allclose(batch.actions[:, 0], expected, rtol=1e-5)
    through = bps.sample(lambda: bps.envs.GymnasiumEnv(acrobot), network.mode(), 2, seed=0)
    np.testing.assert_allclose(through.actions[0, 0], network.outputs(through.observations[0, 0]), rtol=1e-5)


def test_a_function_has_no_mode() -> None:
    with pytest.raises(UnknownProbabilitiesError, match="deterministic=True"):
        bps.evaluate(lambda observation: 0, Toy, episodes=4, deterministic=True)


def test_results_say_which_question_was_answered(tmp_path: Path) -> None:
    path = str(AGENTS / "ppo-cartpole-v1.zip")
    drawn = bps.evaluate(path, "CartPole-v1", episodes=20, seed=0)
    mode = bps.evaluate(path, "CartPole-v1", episodes=20, seed=0, deterministic=True)
    assert "SB3's evaluate_policy is deterministic by default" in str(drawn)
    assert "SB3" not in str(mode)
    assert "the most likely actions" in str(mode)
    assert (drawn.to_json()["deterministic"], mode.to_json()["deterministic"]) == (False, True)
    assert "most likely actions" in mode.report(tmp_path / "page.html").read_text()
    assert "actions drawn from the policy" in drawn.report(tmp_path / "page.html").read_text()
    for result in (drawn, mode):
        jsonschema.validate(result.to_json(), SCHEMA)
    plan = bps.plan(path, "CartPole-v1", pilot=40, seed=0, deterministic=True)
    assert plan.deterministic
    jsonschema.validate(plan.to_json(), load_schema("plan-1"))
    own = bps.evaluate(lambda observation: 0, Toy, episodes=4)
    assert own.deterministic is None


def test_the_command_asks_the_same_question(in_process: Any) -> None:
    path = str(AGENTS / "ppo-cartpole-v1.zip")
    options = ["--env", "CartPole-v1", "--policy", path, "--episodes", "20", "--seed", "0", "--deterministic", "--json"]
    printed = json.loads(in_process("evaluate", *options).stdout)
    assert printed["deterministic"] is True
    assert printed["settings"]["deterministic"] is True
    assert printed["value"] == bps.evaluate(path, "CartPole-v1", episodes=20, seed=0, deterministic=True).value
