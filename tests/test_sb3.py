"""Stable-Baselines3 models and files as policies."""

import base64
import json
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import bpsearch as bps
from bpsearch.errors import (
    DeterministicPolicyError,
    InvalidArgumentError,
    PolicyFileError,
    SpaceMismatchError,
    UntrustedFileError,
)
from bpsearch.search import normalized
from toy_envs import DictToy, Image, ImageDict, Toy

AGENTS = Path(__file__).parent / "agents"
CARTPOLE = AGENTS / "ppo-cartpole-v1.zip"
SMALL: dict[str, Any] = {"device": "cpu", "seed": 0}


class BinaryToy(Toy):
    action_space = gymnasium.spaces.MultiBinary(3)


class BoxToy(Toy):
    action_space = gymnasium.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))


def observations_and_actions(policy: Any, env: Any, episodes: int = 8) -> tuple[Any, Any, Any]:
    batch = bps.sample(env, policy, episodes, horizon=30)
    keep = batch.mask
    observations = (
        {key: value[keep] for key, value in batch.observations.items()}
        if isinstance(batch.observations, dict)
        else batch.observations[keep]
    )
    return observations, batch.actions[keep], batch.log_probs[keep]


@pytest.mark.parametrize(
    ("algorithm", "kind", "env"),
    [
        (PPO, "MlpPolicy", "CartPole-v1"),
        (A2C, "MlpPolicy", "Pendulum-v1"),
        (PPO, "MultiInputPolicy", DictToy),
        (A2C, "MlpPolicy", BinaryToy),
        (PPO, "MlpPolicy", BoxToy),
    ],
)
def test_log_probabilities_are_those_of_sb3(algorithm: Any, kind: str, env: Any) -> None:
    model = algorithm(kind, env if isinstance(env, str) else DummyVecEnv([env]), **SMALL)
    policy = bps.from_sb3(model)
    observations, actions, log_probs = observations_and_actions(policy, env)
    tensor, _ = model.policy.obs_to_tensor(observations)
    with torch.no_grad():
        _, expected, _ = model.policy.evaluate_actions(tensor, torch.as_tensor(actions, dtype=torch.float32))
    np.testing.assert_allclose(log_probs, expected.numpy(), atol=1e-5)


def test_sac_is_a_squashed_gaussian() -> None:
    model = SAC("MlpPolicy", "Pendulum-v1", buffer_size=10, **SMALL)
    policy = bps.from_sb3(model)
    observations = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    raw, log_probs, executed = policy.act(np.random.default_rng(1).random((16, 1)), observations)
    np.testing.assert_allclose(executed, 2.0 * np.tanh(raw), rtol=1e-6)
    mean, log_std, _ = model.actor.get_action_dist_params(torch.tensor(observations))
    distribution = model.actor.action_dist.proba_distribution(mean, log_std)
    squashed = distribution.log_prob(torch.tanh(torch.tensor(raw)), torch.tensor(raw)).detach().numpy()
    # SB3's log-probability has the Jacobian of tanh besides, which cancels from every ratio.
    jacobian = np.log(1.0 - np.tanh(raw) ** 2 + 1e-6).sum(axis=1)
    np.testing.assert_allclose(log_probs - jacobian, squashed, atol=1e-5)
    assert len(bps.from_sb3(model, adapt="actor.mu").flat) == 256 + 1


@pytest.mark.parametrize(("algorithm", "env_id"), [(DQN, "CartPole-v1"), (TD3, "Pendulum-v1")])
def test_policies_without_action_noise_are_for_monte_carlo_only(algorithm: Any, env_id: str) -> None:
    model = algorithm("MlpPolicy", env_id, buffer_size=10, **SMALL)
    policy = bps.from_sb3(model)
    with pytest.raises(DeterministicPolicyError, match="Monte Carlo"):
        bps.BPG(0.1).init(policy)
    batch = bps.sample(env_id, policy, 3, horizon=10)
    expected, _ = model.predict(batch.observations[batch.mask], deterministic=True)
    np.testing.assert_allclose(batch.actions[batch.mask], expected, rtol=1e-6)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="load_sb3"):
        bps.from_sb3("ppo.zip")  # type: ignore[arg-type]


def test_statistics_of_vec_normalize_are_part_of_the_policy(tmp_path: Path) -> None:
    envs = VecNormalize(make_vec_env("Pendulum-v1", n_envs=2, seed=0))
    model = PPO("MlpPolicy", envs, n_steps=32, batch_size=32, **SMALL).learn(64)
    policy = bps.from_sb3(model)
    observations, actions, log_probs = observations_and_actions(policy, "Pendulum-v1")
    tensor, _ = model.policy.obs_to_tensor(envs.normalize_obs(observations))
    with torch.no_grad():
        _, expected, _ = model.policy.evaluate_actions(tensor, torch.as_tensor(actions))
    np.testing.assert_allclose(log_probs, expected.numpy(), atol=1e-5)
    model.learn(64)  # moves the statistics of the environment, not those of the policy
    np.testing.assert_allclose(policy.log_prob(observations, actions), log_probs, atol=1e-6)

    model.save(tmp_path / "ppo.zip")
    envs.save(str(tmp_path / "statistics.pkl"))
    now = bps.from_sb3(model).log_prob(observations, actions)
    for loaded in (
        bps.load_sb3(tmp_path / "ppo.zip", "Pendulum-v1", normalize=envs),
        bps.load_sb3(tmp_path / "ppo", "Pendulum-v1", normalize=tmp_path / "statistics.pkl"),
        bps.load_sb3(tmp_path / "ppo", "Pendulum-v1", normalize=tmp_path / "statistics.pkl", trust=True),
    ):
        np.testing.assert_allclose(loaded.log_prob(observations, actions), now, atol=1e-6)


@pytest.mark.parametrize(("env_id", "episodes"), [("CartPole-v1", 100), ("Acrobot-v1", 40), ("Pendulum-v1", 40)])
def test_monte_carlo_agrees_with_evaluate_policy(env_id: str, episodes: int) -> None:
    """|z| < 4 for the difference of two means: a false alarm once in 16,000 seeds."""
    model = PPO.load(AGENTS / f"ppo-{env_id.lower()}.zip", device="cpu")
    envs = make_vec_env(env_id, n_envs=8, seed=1)
    theirs, _ = evaluate_policy(model, envs, n_eval_episodes=episodes, deterministic=False, return_episode_rewards=True)
    ours = bps.sample(env_id, bps.from_sb3(model), episodes, seed=1).returns()
    error = np.sqrt(np.var(theirs, ddof=1) / len(theirs) + np.var(ours, ddof=1) / len(ours))
    assert abs(np.mean(theirs) - np.mean(ours)) < 4.0 * error


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_episodes_of_agents_do_not_depend_on_the_number_of_environments(env_id: str) -> None:
    policy = bps.load_sb3(AGENTS / f"ppo-{env_id.lower()}.zip", env_id)
    alone = bps.sample(env_id, policy, 12, seed=2, num_envs=1, horizon=100)
    for num_envs in (5, 12):
        beside = bps.sample(env_id, policy, 12, seed=2, num_envs=num_envs, horizon=100)
        np.testing.assert_array_equal(beside.observations, alone.observations)
        np.testing.assert_array_equal(beside.actions, alone.actions)
        np.testing.assert_allclose(beside.log_probs, alone.log_probs, atol=1e-12)
    again = policy.log_prob(alone.observations, alone.actions)
    np.testing.assert_allclose(np.where(alone.mask, again, 0.0), alone.log_probs, atol=1e-12)


def test_search_agrees_with_monte_carlo() -> None:
    """|z| < 4 for the difference of two means: a false alarm once in 16,000 seeds."""
    policy = bps.load_sb3(CARTPOLE, "CartPole-v1", adapt="action_net")
    search, valuation = bps.BPG(normalized(1e-3)), bps.Valuation(bps.estimators.importance_sampling)
    state, known = search.init(policy), valuation.init(policy)
    values, moved = [], 0.0
    with bps.GymnasiumSampler("CartPole-v1", horizon=100) as sampler:
        for batch in range(4):
            behavior = search.behavior(state)
            episodes = bps.sample(sampler, behavior, 60, seed=5, batch=batch)
            valued = valuation.value(known, episodes)
            state, info = search.step(state, episodes)
            np.testing.assert_allclose(info.values, valued.values, rtol=1e-12)
            values.append(valued.values)
            moved = max(moved, float(np.abs(behavior.flat - policy.flat).max()))
        reference = bps.sample(sampler, policy, 240, seed=6).returns()
    assert moved > 0.0
    assert np.abs(valued.log_weights).max() > 0.01
    ours = np.concatenate(values)
    error = np.sqrt(np.var(ours, ddof=1) / len(ours) + np.var(reference, ddof=1) / len(reference))
    assert abs(ours.mean() - reference.mean()) < 4.0 * error


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1"])
def test_files_are_read_without_trust(env_id: str) -> None:
    path = AGENTS / f"ppo-{env_id.lower()}.zip"
    safe, trusted = bps.load_sb3(path, env_id), bps.load_sb3(path, env_id, trust=True)
    np.testing.assert_array_equal(safe.flat, trusted.flat)
    observations, actions, log_probs = observations_and_actions(safe, env_id)
    np.testing.assert_allclose(trusted.log_prob(observations, actions), log_probs, atol=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "kind", "env", "options"),
    [
        (A2C, "MlpPolicy", "CartPole-v1", {}),
        (PPO, "MlpPolicy", "CartPole-v1", {"activation_fn": torch.nn.ReLU, "net_arch": {"pi": [8], "vf": [4, 4]}}),
        (PPO, "MlpPolicy", "CartPole-v1", {"net_arch": []}),
        (PPO, "MultiInputPolicy", DictToy, {"share_features_extractor": False}),
        (PPO, "MultiInputPolicy", ImageDict, {"features_extractor_kwargs": {"cnn_output_dim": 16}}),
        (A2C, "CnnPolicy", Image, {"features_extractor_kwargs": {"features_dim": 24}}),
        (SAC, "MlpPolicy", "Pendulum-v1", {"net_arch": [16, 8], "n_critics": 1}),
    ],
)
def test_networks_are_rebuilt_from_their_tensors(
    algorithm: Any, kind: str, env: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    more = {"buffer_size": 10} if algorithm is SAC else {}
    model = algorithm(kind, env if isinstance(env, str) else DummyVecEnv([env]), policy_kwargs=options, **SMALL, **more)
    model.save(tmp_path / "model.zip")
    expected = bps.from_sb3(model)
    loaded = bps.load_sb3(tmp_path / "model.zip", env)
    observations, actions, log_probs = observations_and_actions(expected, env, 2)
    np.testing.assert_allclose(loaded.log_prob(observations, actions), log_probs, atol=1e-6)


class Canary:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def rewritten(path: Path, **entries: Any) -> Path:
    with zipfile.ZipFile(CARTPOLE) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    contents |= {name.replace("__", "."): content for name, content in entries.items()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            if content is not None:
                archive.writestr(name, content)
    return path


def data_with(**changes: Any) -> str:
    with zipfile.ZipFile(CARTPOLE) as archive:
        return json.dumps(json.loads(archive.read("data")) | changes)


def test_a_malicious_file_does_not_run_without_trust(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    payload = base64.b64encode(pickle.dumps(Canary(canary))).decode()
    poisoned = {":type:": "<class 'dict'>", ":serialized:": payload}
    everywhere = json.loads(data_with())
    for entry in everywhere.values():
        if isinstance(entry, dict) and ":serialized:" in entry:
            entry[":serialized:"] = payload
    everywhere["policy_kwargs"] = poisoned | {"net_arch": [32, 32]}
    data = rewritten(tmp_path / "data.zip", data=json.dumps(everywhere))
    bps.load_sb3(data, "CartPole-v1")  # all that is needed is there in plain text
    assert not canary.exists()

    torch.save({"weights": Canary(canary)}, tmp_path / "evil.pth")
    tensors = rewritten(tmp_path / "tensors.zip", policy__pth=(tmp_path / "evil.pth").read_bytes())
    with pytest.raises(UntrustedFileError, match="holds more than tensors"):
        bps.load_sb3(tensors, "CartPole-v1")
    (tmp_path / "statistics.pkl").write_bytes(pickle.dumps(Canary(canary)))
    with pytest.raises(UntrustedFileError, match="trust=True"):
        bps.load_sb3(CARTPOLE, "CartPole-v1", normalize=tmp_path / "statistics.pkl")
    assert not canary.exists()

    # The canary is alive: with trust it sings.
    with pytest.raises(PolicyFileError, match="holds no VecNormalize"):
        bps.load_sb3(CARTPOLE, "CartPole-v1", normalize=tmp_path / "statistics.pkl", trust=True)
    assert canary.exists()


def test_files_that_need_trust_say_so(tmp_path: Path) -> None:
    for reason, changes in (
        ("class of its own", {"policy_class": {":type:": "x", ":serialized:": "", "__module__": "mine"}}),
        ("features_extractor_class=", {"policy_kwargs": {"features_extractor_class": "<class 'mine.Net'>"}}),
        ("its activation function is", {"policy_kwargs": {"activation_fn": "<class 'mine.Sine'>"}}),
    ):
        path = rewritten(tmp_path / "custom.zip", data=data_with(**changes))
        with pytest.raises(UntrustedFileError, match=f"{reason}.*trust=True"):
            bps.load_sb3(path, "CartPole-v1")


def test_bad_files_give_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(PolicyFileError, match=re.escape(f"no policy file '{tmp_path / 'absent.zip'}'")):
        bps.load_sb3(tmp_path / "absent.zip", "CartPole-v1")
    (tmp_path / "text.zip").write_text("hello")
    with pytest.raises(PolicyFileError, match="not a zip archive"):
        bps.load_sb3(tmp_path / "text.zip", "CartPole-v1")
    with pytest.raises(PolicyFileError, match=r"has no policy\.pth"):
        bps.load_sb3(rewritten(tmp_path / "other.zip", policy__pth=None), "CartPole-v1")
    for damage in ({"data": "{"}, {"policy__pth": b"PK\x03\x04 cut off"}):
        with pytest.raises((PolicyFileError, UntrustedFileError), match=r"broken\.zip"):
            bps.load_sb3(rewritten(tmp_path / "broken.zip", **damage), "CartPole-v1")
    for env_id in ("Acrobot-v1", "Pendulum-v1"):
        with pytest.raises(SpaceMismatchError, match="is it the environment for which"):
            bps.load_sb3(CARTPOLE, env_id)
        with pytest.raises(SpaceMismatchError, match="observation spaces differ"):
            bps.load_sb3(CARTPOLE, env_id, trust=True)
