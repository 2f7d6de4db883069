"""Routes on which the value of another policy was given without a word: each gives the right one now, or refuses."""

import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO, RecurrentPPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete, InvalidActionEnvMultiDiscrete
from sb3_contrib.common.maskable.utils import get_action_masks
from stable_baselines3 import DQN, PPO, SAC, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import bpsearch as bps
from bpsearch.errors import InvalidArgumentError, MissingStatisticsError, PolicyFileError, SpaceMismatchError
from bpsearch.estimators import log_ratios
from toy_envs import Toy

SMALL: dict[str, Any] = {"device": "cpu", "seed": 0, "n_steps": 32, "batch_size": 32}


class Cue(Toy):
    """Shows ±1 in its first step and noise afterwards; pays for each step in which the action is the cue."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def observe(self) -> Any:
        if self.steps == 0:
            self.cue = int(self.np_random.integers(2))
        shown = 2.0 * self.cue - 1.0 if self.steps == 0 else 0.0
        return np.array([shown, self.np_random.uniform(-1.0, 1.0)], np.float32)

    def reward(self, action: Any) -> float:
        return float(action == self.cue)


# Statistics of VecNormalize


@pytest.fixture(scope="module")
def normalized(tmp_path_factory: pytest.TempPathFactory) -> tuple[PPO, VecNormalize, Path]:
    envs = VecNormalize(make_vec_env("Pendulum-v1", n_envs=2, seed=0))
    model = PPO("MlpPolicy", envs, **SMALL).learn(128)
    folder = tmp_path_factory.mktemp("normalized")
    model.save(folder / "Pendulum-v1.zip")
    envs.save(str(folder / "statistics.pkl"))
    return model, envs, folder


@pytest.mark.parametrize(
    ("model_name", "statistics_name"),
    [
        ("model.zip", "vecnormalize.pkl"),
        ("model.zip", "vec_normalize.pkl"),
        ("Pendulum-v1.zip", "Pendulum-v1/vecnormalize.pkl"),  # as rl_zoo3 has it
        ("best_model.zip", "Pendulum-v1/vecnormalize.pkl"),
        ("rl_model_128_steps.zip", "rl_model_vecnormalize_128_steps.pkl"),  # as CheckpointCallback has it
    ],
)
def test_statistics_are_found_beside_the_model(
    normalized: Any, model_name: str, statistics_name: str, tmp_path: Path
) -> None:
    model, envs, folder = normalized
    shutil.copy(folder / "Pendulum-v1.zip", tmp_path / model_name)
    (tmp_path / statistics_name).parent.mkdir(exist_ok=True)
    shutil.copy(folder / "statistics.pkl", tmp_path / statistics_name)
    policy = bps.load_sb3(tmp_path / model_name, "Pendulum-v1").mode()
    raw = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    expected, _ = model.predict(envs.normalize_obs(raw), deterministic=True)
    np.testing.assert_allclose(policy.act(np.zeros((16, 1)), raw)[2], expected, atol=1e-6)
    assert any(statistics_name.rpartition("/")[2] in note for note in policy.notes)


def test_missing_statistics_are_not_guessed(normalized: Any, tmp_path: Path) -> None:
    model, _, folder = normalized
    path = shutil.copy(folder / "Pendulum-v1.zip", tmp_path / "model.zip")
    for trust in (False, True):
        with pytest.raises(MissingStatisticsError, match=r"VecNormalize.*normalize=False \(--normalize none\)"):
            bps.load_sb3(path, "Pendulum-v1", trust=trust)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        shutil.copy(folder / "statistics.pkl", tmp_path / name / "vecnormalize.pkl")
    with pytest.raises(MissingStatisticsError, match="several files"):
        bps.load_sb3(path, "Pendulum-v1")
    with pytest.raises(MissingStatisticsError, match="has no such environment now"):
        bps.from_sb3(PPO.load(path, device="cpu"))
    raw = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    expected, _ = model.predict(raw, deterministic=True)
    for policy in (bps.load_sb3(path, "Pendulum-v1", normalize=False), bps.from_sb3(model, normalize=False)):
        np.testing.assert_allclose(policy.mode().act(np.zeros((4, 1)), raw)[2], expected, atol=1e-6)


def test_statistics_of_rewards_alone_change_nothing(tmp_path: Path) -> None:
    envs = VecNormalize(make_vec_env("CartPole-v1", n_envs=1, seed=0), norm_obs=False)
    PPO("MlpPolicy", envs, **SMALL).learn(32).save(tmp_path / "model.zip")
    envs.save(str(tmp_path / "vecnormalize.pkl"))
    found, none = (bps.load_sb3(tmp_path / "model.zip", "CartPole-v1", normalize=given) for given in (None, False))
    observations = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    np.testing.assert_array_equal(*(policy.log_prob(observations, np.zeros(8, int)) for policy in (found, none)))


class Raw(Toy):
    """Observations of a given type, far from 0."""

    def __init__(self, kind: Any = np.float32) -> None:
        super().__init__()
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), kind)

    def observe(self) -> Any:
        return self.np_random.normal(5.0, 1.0, 2).astype(self.observation_space.dtype)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("normalizes", [False, True])
def test_algorithms_with_a_replay_buffer_say_less_of_statistics(kind: Any, normalizes: bool, tmp_path: Path) -> None:
    """SB3 writes a raw observation down whether there were others or not; only types may tell."""
    envs: Any = DummyVecEnv([lambda: Raw(kind)])
    envs = VecNormalize(envs) if normalizes else envs
    model = DQN("MlpPolicy", envs, device="cpu", seed=0, buffer_size=50, learning_starts=10).learn(40)
    path = tmp_path / "model.zip"
    model.save(path)
    assert bps.from_sb3(model).notes == ()  # its environment tells
    loaded = DQN.load(path, device="cpu")
    if kind is np.float64 and normalizes:
        with pytest.raises(MissingStatisticsError, match="VecNormalize"):
            bps.load_sb3(path, lambda: Raw(kind))
        with pytest.raises(MissingStatisticsError, match="VecNormalize"):
            bps.from_sb3(loaded)
    else:
        expected = 1 if kind is np.float32 else 0  # a word where nothing tells
        assert [len(policy.notes) for policy in (bps.load_sb3(path, lambda: Raw(kind)), bps.from_sb3(loaded))] == [
            expected,
            expected,
        ]
    if normalizes:
        envs.save(str(tmp_path / "vecnormalize.pkl"))
        raw = np.random.default_rng(0).normal(5.0, 1.0, (32, 2)).astype(kind)
        greedy, _ = model.predict(envs.normalize_obs(raw), deterministic=True)
        policy = bps.load_sb3(path, lambda: Raw(kind))
        np.testing.assert_array_equal(policy.act(np.zeros((32, 1)), raw)[2], greedy)
        assert "vecnormalize.pkl" in policy.notes[0]


class Reach(Toy):
    """A goal that differs from episode to episode, as hindsight replay wants it."""

    observation_space = gymnasium.spaces.Dict(
        {
            key: gymnasium.spaces.Box(-9.0, 9.0, (2,), np.float32)
            for key in ("observation", "achieved_goal", "desired_goal")
        }
    )
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def observe(self) -> Any:
        return {key: self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32) for key in self.observation_space}

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return -np.linalg.norm(achieved - desired, axis=-1)


def test_a_trained_file_of_a_goal_is_read(tmp_path: Path) -> None:
    more: Any = {"replay_buffer_class": HerReplayBuffer, "buffer_size": 100, "learning_starts": 20}
    model = SAC("MultiInputPolicy", Reach(), device="cpu", seed=0, policy_kwargs={"net_arch": [8]}, **more).learn(24)
    model.save(tmp_path / "model.zip")
    policy = bps.load_sb3(tmp_path / "model.zip", Reach)
    batch = bps.sample(Reach, policy.mode(), 3, seed=0)
    observed: Any = batch.observations
    seen = {key: part[batch.mask] for key, part in observed.items()}
    expected, _ = model.predict(seen, deterministic=True)
    np.testing.assert_allclose(policy.mode().act(np.zeros((len(expected), 1)), seen)[2], expected, atol=1e-5)
    assert "does not write down whether" in policy.notes[0]


def test_statistics_of_something_else_are_refused(normalized: Any, tmp_path: Path) -> None:
    _, _, folder = normalized
    other = VecNormalize(make_vec_env("CartPole-v1", n_envs=1))
    other.save(str(tmp_path / "other.pkl"))
    with pytest.raises(SpaceMismatchError, match=r"have the shape \(4,\)"):
        bps.load_sb3(folder / "Pendulum-v1.zip", "Pendulum-v1", normalize=tmp_path / "other.pkl")
    content = (folder / "statistics.pkl").read_bytes()
    (tmp_path / "cut.pkl").write_bytes(content[: len(content) // 2])
    with pytest.raises(PolicyFileError, match="cannot read the statistics"):
        bps.load_sb3(folder / "Pendulum-v1.zip", "Pendulum-v1", normalize=tmp_path / "cut.pkl")


# Memory


@pytest.fixture(scope="module")
def recurrent() -> RecurrentPPO:
    kwargs = {"lstm_hidden_size": 8, "n_lstm_layers": 2, "net_arch": [8], "enable_critic_lstm": False}
    model = RecurrentPPO("MlpLstmPolicy", DummyVecEnv([Cue]), policy_kwargs=kwargs, **SMALL)
    with torch.no_grad():
        for parameter in model.policy.lstm_actor.parameters():
            parameter *= 3.0  # so that the memory matters
        model.policy.action_net.weight *= 100.0
    return model


def test_recurrent_policies_act_as_their_library_says(recurrent: RecurrentPPO) -> None:
    batch = bps.sample(Cue, bps.from_sb3(recurrent).mode(), 12, seed=0, num_envs=5)
    for episode in range(12):
        state = None
        for step in range(5):
            action, state = recurrent.predict(
                batch.observations[episode, step], state, np.array([step == 0]), deterministic=True
            )
            assert action == batch.actions[episode, step]


def test_log_probabilities_follow_the_memory(recurrent: RecurrentPPO, tmp_path: Path) -> None:
    recurrent.save(tmp_path / "recurrent.zip")
    policy = bps.load_sb3(tmp_path / "recurrent.zip", Cue, adapt="last")
    batch = bps.sample(Cue, policy, 16, seed=0)
    observations, actions = (torch.as_tensor(array) for array in (batch.observations, batch.actions))
    observations, actions, mask = observations[:, :5], actions[:, :5], batch.mask[:, :5]
    assert mask.all()
    zeros = tuple(torch.zeros(2, 16, 8) for _ in range(2))
    starts = torch.zeros(16, 5)
    starts[:, 0] = 1.0
    with torch.no_grad():
        distribution, _ = recurrent.policy.get_distribution(observations.flatten(0, 1), zeros, starts.flatten())
        expected = distribution.log_prob(actions.flatten()).reshape(16, 5).numpy()
    np.testing.assert_allclose(batch.log_probs[:, :5], expected, atol=1e-5)
    np.testing.assert_allclose(np.where(batch.mask, log_ratios(policy, batch), 0.0), 0.0, atol=1e-10)
    assert np.abs(expected[0, 1:] - expected[0, 0]).max() > 1e-3


@pytest.mark.parametrize("adapt", ["last", None])
def test_scores_follow_the_memory(recurrent: RecurrentPPO, adapt: str | None) -> None:
    policy = bps.from_sb3(recurrent, adapt=adapt)
    batch = bps.sample(Cue, policy, 3, seed=1)
    steps = (batch.observations, batch.actions)
    scores = policy.episode_scores(*steps, batch.mask)
    np.testing.assert_allclose(
        scores.sum(axis=0), policy.score(*steps, batch.mask.astype(float)), rtol=1e-9, atol=1e-12
    )
    direction = np.random.default_rng(0).normal(size=len(policy.flat))
    if adapt is None:
        assert len(policy.flat) > 500  # the LSTM is among them
    small = 1e-6
    ends = [
        np.sum(policy.with_flat(policy.flat + side * small * direction).log_prob(*steps), axis=1, where=batch.mask)
        for side in (1.0, -1.0)
    ]
    # 32-bit features limit what a difference can show.
    np.testing.assert_allclose(scores @ direction, (ends[0] - ends[1]) / (2.0 * small), rtol=1e-3, atol=1e-3)


def test_a_search_over_a_memory_is_unbiased(recurrent: RecurrentPPO) -> None:
    """Σ_h b(h) Π π_e/b g(h) = Σ_h π_e(h) g(h), over all 2^4 sequences of actions of one sequence of observations."""
    policy = bps.from_sb3(recurrent, adapt="last")
    behavior = policy.with_flat(policy.flat + 0.3 * np.random.default_rng(0).normal(size=len(policy.flat)))
    observations = np.random.default_rng(1).uniform(-1.0, 1.0, (1, 4, 2)).astype(np.float32).repeat(16, axis=0)
    actions = np.array(np.unravel_index(np.arange(16), (2,) * 4)).T
    rewards = np.random.default_rng(2).normal(size=16)
    ours, theirs = (p.log_prob(observations, actions).sum(axis=1) for p in (policy, behavior))
    np.testing.assert_allclose([np.exp(ours).sum(), np.exp(theirs).sum()], 1.0, rtol=1e-12)
    weighted = np.sum(np.exp(theirs) * np.exp(ours - theirs) * rewards)
    np.testing.assert_allclose(weighted, np.sum(np.exp(ours) * rewards), rtol=1e-12)
    assert np.abs(ours - theirs).max() > 0.01
    result = bps.evaluate(policy, Cue, episodes=60, method="bpg", seed=0)
    plain = bps.evaluate(policy, Cue, episodes=60, method="mc", seed=1)
    error = np.hypot(result.std_error or 0.0, plain.std_error or 0.0)
    assert abs(result.value - plain.value) < 4.0 * error  # a false alarm once in 16,000 seeds


def test_a_defensive_mixture_over_a_memory_is_refused(recurrent: RecurrentPPO) -> None:
    policy = bps.from_sb3(recurrent, adapt="last")
    with pytest.raises(InvalidArgumentError, match="has a memory"):
        bps.evaluate(policy, Cue, episodes=60, method=bps.BPG(0.1, defensive=0.2), seed=0)


# Masks


@pytest.mark.filterwarnings("ignore:the environment ignores seeds")  # those of sb3-contrib do
@pytest.mark.parametrize("env", [InvalidActionEnvDiscrete, InvalidActionEnvMultiDiscrete])
@pytest.mark.parametrize("vectorization", ["env", "vector"])
def test_masks_are_part_of_the_distribution(env: Any, vectorization: str, tmp_path: Path) -> None:
    def make() -> Any:
        made = (
            env(dim=8, n_invalid_actions=3)
            if env is InvalidActionEnvDiscrete
            else env(dims=[3, 4], n_invalid_actions=3)
        )
        return gymnasium.wrappers.TimeLimit(made, 10)

    model = MaskablePPO("MlpPolicy", make(), **SMALL)
    model.save(tmp_path / "maskable.zip")
    place = make if vectorization == "env" else gymnasium.vector.SyncVectorEnv([make] * 3)
    policy = bps.load_sb3(tmp_path / "maskable.zip", make())
    batch = bps.sample(place, policy, 6, seed=0)
    keep = batch.mask
    observed: Any = batch.observations
    masks, states = observed["action_mask"][keep], observed["observation"][keep]
    assert not masks.all()
    with torch.no_grad():
        tensor, _ = model.policy.obs_to_tensor(states)
        actions = torch.as_tensor(batch.actions[keep])
        _, expected, _ = model.policy.evaluate_actions(tensor, actions, masks.astype(bool))
    np.testing.assert_allclose(batch.log_probs[keep], expected.numpy(), atol=1e-5)
    again = policy.log_prob(batch.observations, batch.actions)[keep]
    np.testing.assert_allclose(again, batch.log_probs[keep], atol=1e-12)
    greedy = bps.sample(place, policy.mode(), 3, seed=0)
    observed = greedy.observations
    expected_action, _ = model.predict(
        observed["observation"][0, 0], action_masks=observed["action_mask"][0, 0].astype(bool), deterministic=True
    )
    np.testing.assert_array_equal(greedy.actions[0, 0], expected_action)
    result = bps.evaluate(model, place, episodes=20, seed=0, method="auto" if vectorization == "env" else "bpg")
    assert result.value <= 10.0


def test_masks_that_an_environment_does_not_have_are_missed() -> None:
    model = MaskablePPO("MlpPolicy", InvalidActionEnvDiscrete(dim=8, n_invalid_actions=3), **SMALL)
    space = InvalidActionEnvDiscrete(dim=8).observation_space

    class Maskless(Toy):
        observation_space = space
        action_space = gymnasium.spaces.Discrete(8)

        def observe(self) -> Any:
            return space.sample()

    with pytest.raises(InvalidArgumentError, match=r"action_masks\(\)"):
        bps.evaluate(model, Maskless, episodes=4)


@pytest.mark.parametrize("how", ["method", "lambda", "closure"])
def test_masks_and_memory_do_not_get_lost_in_a_function(recurrent: RecurrentPPO, how: str) -> None:
    maskable = MaskablePPO("MlpPolicy", InvalidActionEnvDiscrete(dim=8, n_invalid_actions=3), **SMALL)
    for model, env, lost in ((recurrent, Cue, "memory"), (maskable, InvalidActionEnvDiscrete, "masks")):

        def closure(observation: Any, inside: Any = None) -> Any:
            return model.predict(observation)[0]  # noqa: B023

        functions = {
            "method": model.predict,
            "lambda": lambda observation, m=model: m.predict(observation)[0],
            "closure": closure,
        }
        with pytest.raises(InvalidArgumentError, match=f"would lose its {lost}.*give the model itself"):
            bps.evaluate(functions[how], env, episodes=4)  # type: ignore[arg-type]


def test_masks_of_their_library() -> None:
    """The method that is asked is the one that sb3-contrib asks."""
    env = InvalidActionEnvDiscrete(dim=8, n_invalid_actions=3)
    env.reset(seed=0)
    assert np.asarray(get_action_masks(env)).shape == (8,)
