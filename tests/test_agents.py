"""Agents and environments of other libraries, against the real packages; those that few have are skipped if missing."""

from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize
from torch.distributions import Categorical, Normal

import bpsearch as bps
from bpsearch.envs.resolve import adapt
from bpsearch.errors import (
    InvalidActionError,
    InvalidArgumentError,
    NeverEndingError,
    PolicyFileError,
    SpaceMismatchError,
)
from bpsearch.estimators import log_ratios
from bpsearch.testing import check_policy
from toy_envs import Image, Toy

SMALL: dict[str, Any] = {"device": "cpu", "seed": 0}
AGENTS = Path(__file__).parent / "agents"


# Stable-Baselines3: files without trust, and vector environments


@pytest.mark.parametrize(
    ("algorithm", "env"), [("DQN", "CartPole-v1"), ("TD3", "Pendulum-v1"), ("QRDQN", "CartPole-v1")]
)
def test_greedy_policies_are_read_without_trust(algorithm: str, env: str, tmp_path: Path) -> None:
    import sb3_contrib

    kind: Any = {"DQN": DQN, "TD3": TD3}.get(algorithm) or getattr(sb3_contrib, algorithm)
    model = kind("MlpPolicy", env, buffer_size=10, policy_kwargs={"net_arch": [8, 4]}, **SMALL)
    model.save(tmp_path / "model.zip")
    policy = bps.load_sb3(tmp_path / "model.zip", env)
    batch = bps.sample(env, policy, 2, horizon=10)
    expected, _ = model.predict(batch.observations[batch.mask], deterministic=True)
    np.testing.assert_allclose(batch.actions[batch.mask], expected, rtol=1e-5)
    assert policy.mode() is policy


@pytest.mark.parametrize("algorithm", ["TRPO", "TQC"])
def test_policies_of_contrib_are_read_without_trust(algorithm: str, tmp_path: Path) -> None:
    import sb3_contrib

    more = {"buffer_size": 10} if algorithm == "TQC" else {}
    model = getattr(sb3_contrib, algorithm)(
        "MlpPolicy", "Pendulum-v1", policy_kwargs={"net_arch": [8]}, **SMALL, **more
    )
    model.save(tmp_path / "model.zip")
    safe, given = bps.load_sb3(tmp_path / "model.zip", "Pendulum-v1"), bps.from_sb3(model)
    batch = bps.sample("Pendulum-v1", given, 1, horizon=8)
    np.testing.assert_allclose(safe.log_prob(batch.observations, batch.actions), batch.log_probs, atol=1e-5)


@pytest.mark.parametrize("layout", ["image", "stack"])
def test_images_are_transposed_as_sb3_does(layout: str, tmp_path: Path) -> None:
    envs: Any = DummyVecEnv([Image] * 2)
    envs = VecFrameStack(envs, 2) if layout == "stack" else envs
    model = PPO("CnnPolicy", envs, n_steps=8, batch_size=8, **SMALL)
    model.save(tmp_path / "model.zip")
    place: Any = Image if layout == "image" else envs
    policy = bps.load_sb3(tmp_path / "model.zip", place).mode()
    batch = bps.sample(place, policy, 4, seed=0)
    expected, _ = model.predict(batch.observations[:, 0], deterministic=True)
    np.testing.assert_array_equal(batch.actions[:, 0], expected)
    assert batch.observations.shape[2:] == ((36, 36, 6) if layout == "stack" else (36, 36, 3))


def test_vector_environments_of_sb3_give_the_same_episodes() -> None:
    path = AGENTS / "ppo-cartpole-v1.zip"
    policy = bps.load_sb3(path, "CartPole-v1")
    expected = bps.sample("CartPole-v1", policy, 6, seed=3)
    found = bps.sample(make_vec_env("CartPole-v1", 3), policy, 6, seed=3)
    np.testing.assert_array_equal(found.mask, expected.mask)
    np.testing.assert_array_equal(found.observations[found.mask], expected.observations[found.mask])
    np.testing.assert_array_equal(found.final_observations, expected.final_observations)


def test_normalized_environments_keep_their_statistics_and_pay_their_own_rewards() -> None:
    envs = VecNormalize(make_vec_env("Pendulum-v1", 4, seed=0))
    model = PPO("MlpPolicy", envs, n_steps=64, batch_size=64, **SMALL).learn(256)
    mean = envs.obs_rms.mean.copy()  # type: ignore[union-attr]
    result = bps.evaluate(model, envs, episodes=8, seed=0, deterministic=True)
    np.testing.assert_array_equal(envs.obs_rms.mean, mean)  # type: ignore[union-attr]
    assert envs.training
    assert envs.norm_reward
    again = bps.evaluate(bps.from_sb3(model), "Pendulum-v1", episodes=8, seed=0, deterministic=True)
    assert result.value == pytest.approx(again.value, rel=1e-5)


def test_vector_environments_of_one_piece_run() -> None:
    envs = gymnasium.make_vec("CartPole-v1", num_envs=4, vectorization_mode="vector_entry_point")
    policy = bps.load_sb3(AGENTS / "ppo-cartpole-v1.zip", "CartPole-v1")
    with pytest.warns(UserWarning, match="one seed per sub-environment"):
        batch = bps.sample(envs, policy, 40, seed=0)
    reference = bps.sample("CartPole-v1", policy, 40, seed=1).returns()
    error = np.sqrt((np.var(batch.returns()) + np.var(reference)) / 40)
    assert abs(np.mean(batch.returns()) - np.mean(reference)) < 4.0 * error  # a false alarm once in 16,000 seeds
    synced = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")
    np.testing.assert_array_equal(bps.sample(synced, policy, 5, seed=1).returns(), reference[:5])


# CleanRL


def layer(inputs: int, outputs: int) -> torch.nn.Linear:
    return torch.nn.Linear(inputs, outputs)


class DiscreteAgent(torch.nn.Module):
    """As in ppo.py."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.critic = torch.nn.Sequential(layer(4, 8), torch.nn.Tanh(), layer(8, 1))
        self.actor = torch.nn.Sequential(layer(4, 8), torch.nn.Tanh(), layer(8, 2))

    def get_value(self, x: Any) -> Any:
        return self.critic(x)

    def get_action_and_value(self, x: Any, action: Any = None) -> Any:
        logits = self.actor(x)
        probs = Categorical(logits=logits)
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


class ContinuousAgent(torch.nn.Module):
    """As in ppo_continuous_action.py."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.critic = layer(3, 1)
        self.actor_mean = torch.nn.Sequential(layer(3, 8), torch.nn.Tanh(), layer(8, 1))
        self.actor_logstd = torch.nn.Parameter(torch.zeros(1, 1))

    def get_action_and_value(self, x: Any, action: Any = None) -> Any:
        mean = self.actor_mean(x)
        probs = Normal(mean, torch.exp(self.actor_logstd.expand_as(mean)))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action).sum(1), probs.entropy().sum(1), self.critic(x)


class SquashedActor(torch.nn.Module):
    """As in sac_continuous_action.py."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc1, self.fc_mean, self.fc_logstd = layer(3, 8), layer(8, 1), layer(8, 1)
        self.register_buffer("action_scale", torch.tensor([2.0]))
        self.register_buffer("action_bias", torch.tensor([0.0]))

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.fc1(x))
        return self.fc_mean(x), -5.0 + 3.5 * (torch.tanh(self.fc_logstd(x)) + 1.0)

    def get_action(self, x: Any) -> Any:
        mean, _ = self(x)
        action = torch.tanh(mean) * self.action_scale + self.action_bias
        return action, None, action


class LSTMAgent(torch.nn.Module):
    """As in ppo_atari_lstm.py, for vectors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network, self.lstm = layer(2, 8), torch.nn.LSTM(8, 6)
        self.actor, self.critic = layer(6, 2), layer(6, 1)

    def get_states(self, x: Any, lstm_state: Any, done: Any) -> Any:
        hidden = self.network(x)
        batch_size = lstm_state[0].shape[1]
        hidden = hidden.reshape((-1, batch_size, self.lstm.input_size))
        done = done.reshape((-1, batch_size))
        new_hidden = []
        for h, d in zip(hidden, done, strict=True):
            keep = (1.0 - d).view(1, -1, 1)
            h, lstm_state = self.lstm(h.unsqueeze(0), (keep * lstm_state[0], keep * lstm_state[1]))
            new_hidden += [h]
        return torch.flatten(torch.cat(new_hidden), 0, 1), lstm_state

    def get_action_and_value(self, x: Any, lstm_state: Any, done: Any, action: Any = None) -> Any:
        hidden, lstm_state = self.get_states(x, lstm_state, done)
        probs = Categorical(logits=self.actor(hidden))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(hidden), lstm_state


@pytest.mark.parametrize(("agent", "env"), [(DiscreteAgent(), "CartPole-v1"), (ContinuousAgent(), "Pendulum-v1")])
def test_agents_of_cleanrl_are_taken_as_they_are(agent: Any, env: str) -> None:
    result = bps.evaluate(agent, env, episodes=20, seed=0)
    assert result.method == "auto"
    from bpsearch.policies.resolve import load

    policy = load(agent, env)
    batch = bps.sample(env, policy, 2, seed=0, horizon=10)
    keep = batch.mask
    _, expected, _, _ = agent.get_action_and_value(
        torch.as_tensor(batch.observations[keep]), torch.as_tensor(batch.actions[keep])
    )
    np.testing.assert_allclose(batch.log_probs[keep], expected.detach().numpy(), atol=1e-5)
    assert Categorical.log_prob.__qualname__ == "Categorical.log_prob"  # nothing stays changed
    assert len(policy.flat) < 40  # the last layer of the actor


def test_squashed_agents_of_cleanrl() -> None:
    from bpsearch.policies.resolve import load

    actor = SquashedActor()
    policy = load(actor, "Pendulum-v1")
    observations = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    _, _, executed = policy.mode().act(np.zeros((16, 1)), observations)
    np.testing.assert_allclose(executed, actor.get_action(torch.as_tensor(observations))[0].detach(), atol=1e-5)


def test_agents_of_cleanrl_with_a_memory() -> None:
    from bpsearch.policies.resolve import load

    agent = LSTMAgent()
    policy = load(agent, Toy)
    batch = bps.sample(Toy, policy, 5, seed=0, num_envs=3)
    steps = int(batch.lengths[0])
    observations = torch.as_tensor(batch.observations[:, :steps]).transpose(0, 1).flatten(0, 1)
    actions = torch.as_tensor(batch.actions[:, :steps]).transpose(0, 1).flatten()
    zeros = tuple(torch.zeros(1, 5, 6) for _ in range(2))
    _, expected, *_ = agent.get_action_and_value(observations, zeros, torch.zeros(steps * 5), actions)
    theirs = expected.detach().numpy().reshape(steps, 5).T
    np.testing.assert_allclose(batch.log_probs[:, :steps], theirs, atol=1e-5)
    np.testing.assert_allclose(log_ratios(policy, batch), 0.0, atol=1e-5)


# JAX: environments and functions


def test_environments_of_gymnax_are_compiled() -> None:
    gymnax = pytest.importorskip("gymnax")
    env: Any = adapt("gymnax:CartPole-v1")
    assert isinstance(env, bps.envs.CompiledEnv)
    inner, params = gymnax.make("CartPole-v1")
    assert adapt((inner, params)).horizon == env.horizon == params.max_steps_in_episode
    # The same steps by gymnax itself, from the same start.
    key = jax.random.key(0)
    with jax.enable_x64(True):
        state = env.reset(key)
    _, theirs = inner.reset_env(key, params)
    for action in (0, 1, 1, 0):
        with jax.enable_x64(True):
            state, reward, ended = env.step(key, state, np.int64(action))
        seen, theirs, expected, over, _ = inner.step_env(key, theirs, action, params)
        np.testing.assert_allclose(env.observe(state), seen, rtol=1e-6)
        assert (float(reward), bool(ended)) == (float(expected), bool(over))


@pytest.mark.slow
def test_gymnax_agrees_with_gymnasium() -> None:
    """|z| < 4 for the difference of two means: a false alarm once in 16,000 seeds."""
    pytest.importorskip("gymnax")
    weights = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    space = gymnasium.make("CartPole-v1").observation_space

    def apply(parameters: Any, observation: Any) -> Any:
        return parameters @ observation

    env: Any = adapt("gymnax:CartPole-v1")
    ours = bps.evaluate(
        bps.from_jax(apply, weights, env.observation_space, env.action_space), env, episodes=200, seed=0
    )
    theirs = bps.evaluate(bps.from_jax(apply, weights, space, env.action_space), "CartPole-v1", episodes=200, seed=1)
    error = np.hypot(ours.std_error or 0.0, theirs.std_error or 0.0)
    assert abs(ours.value - theirs.value) < 4.0 * error
    assert ours.method == "auto"


def network(parameters: Any, observation: Any) -> Any:
    hidden = jnp.tanh(parameters["hidden"] @ observation)
    return parameters["last"] @ hidden


def test_functions_of_jax_are_policies() -> None:
    generator = np.random.default_rng(0)
    parameters = {
        "hidden": generator.normal(size=(8, 4)).astype(np.float32),
        "last": {"kernel": generator.normal(size=(2, 8)).astype(np.float32)},
    }
    space, actions = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32), gymnasium.spaces.Discrete(2)

    def apply(own: Any, observation: Any) -> Any:
        return network({"hidden": own["hidden"], "last": own["last"]["kernel"]}, observation), jnp.float32(0.0)

    observations = generator.uniform(-1.0, 1.0, (6, 4)).astype(np.float32)
    policy = bps.from_jax(apply, parameters, space, actions)
    check_policy(policy, observations)
    assert len(policy.flat) == 8 * 4 + 8 * 2
    assert len(bps.from_jax(apply, parameters, space, actions, adapt="last").flat) == 16
    mode = policy.mode().act(np.zeros((6, 1)), observations)[0]
    np.testing.assert_array_equal(mode, [np.argmax(apply(parameters, row)[0]) for row in observations])
    with pytest.raises(SpaceMismatchError, match="3 logits"):
        bps.from_jax(apply, parameters, space, gymnasium.spaces.Discrete(3))
    with pytest.raises(InvalidArgumentError, match="adapt must name"):
        bps.from_jax(apply, parameters, space, actions, adapt="nothing")


# Functions and objects


class Counter:
    """Acts by how many steps of the episode it has seen."""

    def __init__(self) -> None:
        self.steps = 100

    def reset(self) -> None:
        self.steps = 0

    def __call__(self, observation: Any) -> int:
        self.steps += 1
        return (self.steps - 1) % 2


def test_objects_with_a_memory_are_reset_and_have_one_for_each_episode() -> None:
    from bpsearch.policies.resolve import load

    batch = bps.sample(Toy, load(Counter(), Toy), 7, seed=0, num_envs=3)
    np.testing.assert_array_equal(batch.actions[:, :5], np.tile([0, 1, 0, 1, 0], (7, 1)))


@pytest.mark.parametrize("num_envs", [1, 3])
def test_functions_are_told_when_an_episode_starts(num_envs: int) -> None:
    from bpsearch.policies.resolve import load

    steps = 0

    def act(observation: Any, episode_start: bool) -> int:
        nonlocal steps
        steps = 0 if episode_start else steps + 1
        assert steps == observation[0]
        return steps % 2

    batch = bps.sample(Toy, load(act, Toy), 7, seed=0, num_envs=num_envs)
    np.testing.assert_array_equal(batch.actions[:, :5], np.tile([0, 1, 0, 1, 0], (7, 1)))


def test_a_function_that_looks_as_if_it_had_a_memory_is_warned_of() -> None:
    steps = 0

    def act(observation: Any) -> int:
        nonlocal steps
        steps += 1
        return steps % 2

    with pytest.warns(UserWarning, match="changes steps outside of itself"):
        result = bps.evaluate(act, Toy, episodes=4)
    assert "another policy" in str(result)


def test_invalid_actions_are_the_policys_fault() -> None:
    def bold(observation: Any) -> int:
        return 7 if observation[0] == 2 else 0

    with pytest.raises(InvalidActionError, match=r"bold gave the action 7 in episode 0, step 2.*Discrete\(2\)"):
        bps.evaluate(bold, Toy, episodes=4)
    with pytest.raises(InvalidActionError, match="nan"):
        bps.evaluate(lambda observation: np.array([np.nan]), "Pendulum-v1", episodes=4)
    with pytest.raises(InvalidActionError, match="shape"):
        bps.evaluate(lambda observation: [0, 1], Toy, episodes=4)
    batch = bps.sample(Toy, bps.from_function(lambda observation: np.array([1]), Toy), 2)
    assert batch.actions.shape == (2, 8)


def test_vectorized_functions_get_all_observations_at_once() -> None:
    shapes = []

    def act(observations: Any) -> Any:
        shapes.append(observations.shape)
        return (observations[:, 1] > 0.5).astype(int)

    policy = bps.from_function(act, Toy, vectorized=True, deterministic=True)
    batch = bps.sample(Toy, policy, 4, seed=0)
    assert set(shapes) == {(16, 2)}
    np.testing.assert_array_equal(batch.actions[batch.mask], batch.observations[batch.mask][:, 1] > 0.5)
    assert bps.evaluate(policy, Toy, episodes=4, deterministic=True).deterministic


def test_predict_of_scikit_learn() -> None:
    tree = pytest.importorskip("sklearn.tree")
    observations = np.random.default_rng(0).normal(size=(200, 4))
    model = tree.DecisionTreeClassifier(max_depth=3).fit(observations, observations[:, 2] > 0.0)
    assert bps.evaluate(model, "CartPole-v1", episodes=10, seed=0).value > 30.0


def test_episodes_that_never_end_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bpsearch.sampling.stepping.LONGEST", 500)
    with pytest.raises(NeverEndingError, match=r"has not ended after 500 steps.*horizon=1000"):
        bps.evaluate(lambda observation: 0, "CliffWalking-v1", episodes=4)
    limited = bps.environment("CliffWalking-v1", horizon=1000)
    assert bps.evaluate(lambda observation: 0, limited, episodes=4).value == -1000.0
    blackjack = bps.evaluate(lambda observation: int(observation[0] < 17), "Blackjack-v1", episodes=50, seed=0)
    assert -1.0 <= blackjack.value <= 1.0


def test_missions_of_minigrid_are_texts() -> None:
    minigrid = pytest.importorskip("minigrid")
    assert minigrid
    missions = set()

    def act(observation: Any) -> int:
        missions.add(observation["mission"])
        assert observation["image"].shape == (7, 7, 3)
        return 2

    bps.evaluate(act, bps.environment("MiniGrid-Empty-5x5-v0", horizon=10), episodes=4)
    assert missions == {"get to the green goal square"}


def test_box2d_and_mujoco_agree_with_evaluate_policy() -> None:
    """|z| < 4 for the difference of two means: a false alarm once in 16,000 seeds."""
    pytest.importorskip("mujoco")
    envs = make_vec_env("InvertedPendulum-v5", 4, seed=0)
    model = PPO("MlpPolicy", envs, n_steps=64, batch_size=64, **SMALL).learn(1024)
    theirs, _ = evaluate_policy(model, envs, n_eval_episodes=40, deterministic=False, return_episode_rewards=True)
    result = bps.evaluate(model, "InvertedPendulum-v5", episodes=40, seed=0)
    error = np.sqrt(np.var(theirs, ddof=1) / 40 + (result.std_error or 0.0) ** 2)
    assert abs(np.mean(theirs) - result.value) < 4.0 * error


# Folders and the hub


def test_folders_of_rl_zoo(tmp_path: Path) -> None:
    model = (AGENTS / "ppo-cartpole-v1.zip").read_bytes()
    with pytest.raises(PolicyFileError, match=r"holds no \.zip"):
        bps.evaluate(tmp_path, "CartPole-v1", episodes=4)
    (tmp_path / "CartPole-v1").mkdir()
    (tmp_path / "CartPole-v1" / "config.yml").write_text("- - n_envs\n  - 8\n- - policy\n  - MlpPolicy\n")
    for name in ("CartPole-v1.zip", "best_model.zip", "rl_model_500_steps.zip"):
        (tmp_path / name).write_bytes(model)
    expected = bps.evaluate(AGENTS / "ppo-cartpole-v1.zip", "CartPole-v1", episodes=4, seed=0).value
    assert bps.evaluate(tmp_path, "CartPole-v1", episodes=4, seed=0).value == expected
    (tmp_path / "CartPole-v1" / "config.yml").write_text("- - env_wrapper\n  - rl_zoo3.wrappers.HistoryWrapper\n")
    with pytest.raises(InvalidArgumentError, match="HistoryWrapper"):
        bps.evaluate(tmp_path, "CartPole-v1", episodes=4)
