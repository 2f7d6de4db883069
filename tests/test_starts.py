"""What starts explain: exactly unbiased with further resets, however f is learned and chosen."""

import time
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import bpsearch as bps
from bpsearch.control_variates import Scores, Starts, StartStates
from bpsearch.control_variates import starts as starts_module
from bpsearch.control_variates.features import expand
from bpsearch.inference import judgement
from bpsearch.inference.cross_fitting import cross_fit
from bpsearch.inference.valuation import Valuation
from bpsearch.runners.choice import runner_for
from bpsearch.sampling.npz import load_npz, save_npz
from bpsearch.testing.enumeration import enumerate_trajectories, random_mdp, random_policy


def squared(states: Any) -> np.ndarray:
    return np.asarray(states, float) ** 2


CONTROLS = [StartStates(doubt=0.0), Starts(doubt=0.0, proxy=squared)]


def with_resets(batch: bps.Trajectories, resets: np.ndarray) -> bps.Trajectories:
    return replace(batch, resets=np.asarray(resets, np.int32).reshape(len(batch), -1))


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: type(control).__name__)
def test_values_are_unbiased(control, monkeypatch):
    """One episode takes every trajectory and every further start in turn; all others stay as they are."""
    monkeypatch.setattr(judgement, "CAUTION", 0.0)
    mdp = random_mdp(3, (4, 2, 1), 1.0)
    policy = random_policy(3, mdp)
    everything = enumerate_trajectories(mdp)
    batch, probabilities = everything.under(policy), everything.probabilities(policy.probabilities)
    rng = np.random.default_rng(3)
    rows = rng.choice(len(probabilities), size=30, p=probabilities)
    starts = np.flatnonzero(mdp.initial)
    resets = rng.choice(starts, size=30, p=mdp.initial[starts])
    valuation = Valuation(control_variates=(control,))
    state = valuation.init(policy, 1.0)
    for episode in (0, 13):
        total, moved = 0.0, 0
        for trajectory, probability in enumerate(probabilities):
            for start in starts:
                rows[episode], resets[episode] = trajectory, start
                told = valuation.value(state, with_resets(batch.take(rows), resets))
                values = valuation.conclude(state, [told]).batches[0]
                total += probability * mdp.initial[start] * values[episode]
                moved += values[episode] != told.returns[episode]
        assert total == pytest.approx(bps.oracle.value(mdp, policy), abs=1e-10)
        assert moved


def test_further_starts_of_another_distribution_would_bias():
    """The test above can fail."""
    mdp = random_mdp(3, (4, 2, 1), 1.0)
    policy = random_policy(3, mdp)
    everything = enumerate_trajectories(mdp)
    batch, probabilities = everything.under(policy), everything.probabilities(policy.probabilities)
    bound = StartStates().bind(policy, 1.0)
    rows = np.random.default_rng(0).choice(len(probabilities), size=60, p=probabilities)
    some = with_resets(batch.take(rows), np.zeros(60))
    fit = bound.fit(bound.evidence(bound.summarize(some), some.returns(), np.zeros(60, int), 1))
    always_first = bound.summarize(with_resets(batch, np.zeros(len(batch))))
    assert abs(float(bound.predict(fit, always_first)[0, 0] @ probabilities)) > 0.01


def sloped(starts: int = 12) -> tuple[bps.TabularMDP, bps.SoftmaxTable]:
    """The return is the number of the start, plus or minus 2 by the action, and a terminal state ends it."""
    states = starts + 1
    transitions = np.zeros((states, 2, states))
    transitions[..., -1] = 1.0
    rewards = np.broadcast_to(np.arange(states)[:, None, None] + np.array([-2.0, 2.0])[:, None], transitions.shape)
    initial = np.append(np.full(starts, 1.0 / starts), 0.0)
    terminal = np.arange(states) == starts
    return bps.TabularMDP(transitions, rewards, initial, terminal, 1), bps.SoftmaxTable(np.zeros((states, 2)))


@pytest.mark.slow
def test_starts_and_actions_add_up():
    mdp, policy = sloped()
    batch = bps.sample(mdp, policy, 400, seed=0, resets=50)
    spreads = {}
    for name, controls in {
        "none": (),
        "starts": (StartStates(),),
        "actions": (Scores(),),
        "both": (StartStates(), Scores()),
    }.items():
        valuation = Valuation(control_variates=controls)
        state = valuation.init(policy, 1.0)
        found = valuation.conclude(state, [valuation.value(state, batch)])
        spreads[name] = float(np.var(found.batches[0]))
    of_starts, of_actions = (12**2 - 1) / 12, 4.0
    assert spreads["none"] == pytest.approx(of_starts + of_actions, rel=0.15)
    assert spreads["starts"] == pytest.approx(of_actions, rel=0.15)
    assert spreads["actions"] == pytest.approx(of_starts, rel=0.15)
    assert spreads["both"] < 0.15 * of_actions + 0.1 * of_starts
    result = bps.evaluate(policy, mdp, 400, seed=1)
    assert result.explained_by["starts"] == pytest.approx(of_starts / (of_starts + of_actions), abs=0.1)
    assert result.explained_by["actions"] == pytest.approx(of_actions / (of_starts + of_actions), abs=0.1)
    assert result.to_json()["explained_by"] == result.explained_by


def test_the_variance_of_the_further_starts_is_in_the_error():
    """100 studies of 100 episodes with two further starts each; a right 95% interval misses 15 once in 10,000."""
    rng = np.random.default_rng(0)
    policy = bps.GaussianMLP.init(0, Box(-9, 9, (1,)), Box(-1, 1, (1,)))
    control = Starts().bind(policy, 1.0)
    missed = 0
    for _ in range(100):
        starts, resets = rng.normal(size=(100, 1)), rng.normal(size=(200, 1))
        summary = {"starts": starts, "resets": resets, "counts": np.full(100, 2)}
        values = cross_fit([(control, summary)], 3.0 * starts[:, 0] + 0.1 * rng.normal(size=100)).values
        missed += abs(values.mean()) > 1.984 * values.std(ddof=1) / np.sqrt(100)
    assert missed < 15


@pytest.mark.parametrize("env", ["Pendulum-v1", sloped()[0]], ids=["Gymnasium", "compiled"])
def test_resets_do_not_change_the_episodes(env):
    policy = sloped()[1] if env != "Pendulum-v1" else bps.GaussianMLP.init(0, Box(-8, 8, (3,)), Box(-2, 2, (1,)))
    plain = bps.sample(env, policy, 6, seed=4)
    more = bps.sample(env, policy, 6, seed=4, resets=3)
    np.testing.assert_array_equal(plain.rewards, more.rewards)
    assert more.resets.shape == (6, 3, *more.observations.shape[2:])
    assert len(np.unique(more.resets.reshape(18, -1), axis=0)) > 6
    again = bps.sample(env, policy, 6, seed=4, resets=3)
    np.testing.assert_array_equal(more.resets, again.resets)


def test_episodes_may_have_different_numbers_of_further_starts(monkeypatch):
    """What is predicted in runs of episodes is what the formula says of each: f(S_0) less the mean of f."""
    monkeypatch.setattr(starts_module, "CHUNK", 7)
    rng, policy = np.random.default_rng(0), bps.shipped_policy("acrobot")
    counts = np.array([3, 3, 3, 3, 5, 2, 2, 1, 9, 9])
    summary = {"starts": rng.normal(size=(10, 6)), "resets": rng.normal(size=(counts.sum(), 6)), "counts": counts}
    control = Starts().bind(policy, 1.0)
    fit = control.fit(control.evidence(summary, rng.normal(size=10), np.zeros(10, int), 1))
    found = control.predict(fit, summary)
    ends = np.cumsum(counts)
    for episode, end in enumerate(ends):
        own, further = (
            expand(fit.scale(rows)).astype(np.float64)
            for rows in (summary["starts"][[episode]], summary["resets"][end - counts[episode] : end])
        )
        assert found[0, :, episode] == pytest.approx(fit.coefficients[0] @ (own[0] - further.mean(axis=0)), abs=1e-5)


def test_resets_are_kept(tmp_path):
    mdp, policy = sloped()
    batch = bps.sample(mdp, policy, 30, seed=0, resets=2)
    loaded = load_npz(save_npz(tmp_path / "b.npz", batch)).trajectories
    np.testing.assert_array_equal(loaded.resets, batch.resets)
    halves = [batch.take(np.arange(15)), batch.take(np.arange(15, 30))]
    np.testing.assert_array_equal(bps.Trajectories.concatenate(halves).resets, batch.resets)
    assert bps.Trajectories.concatenate([halves[0], replace(halves[1], resets=None)]).resets is None
    with pytest.raises(bps.errors.InvalidTrajectoriesError, match=r"resets must have the shape \(30, 'r'\)"):
        replace(batch, resets=np.zeros((29, 2)))


def test_a_study_goes_on_with_the_same_numbers(tmp_path):
    mdp, policy = sloped()
    whole = bps.evaluate(policy, mdp, 300, seed=0)
    bps.evaluate(policy, mdp, 100, seed=0, store=tmp_path / "s.db")
    assert bps.evaluate(policy, mdp, 300, seed=0, store=tmp_path / "s.db").value == whole.value
    with bps.Study.open(tmp_path / "s.db") as study:
        assert study.verify() == []
    with pytest.raises(bps.errors.SettingsMismatchError, match="resets"):
        bps.evaluate(policy, mdp, 400, seed=0, store=tmp_path / "s.db", resets="never")


class Slope(gymnasium.Env[Any, Any]):
    """Pays where it started, at its first step of 400."""

    observation_space: Any = Box(-9.0, 9.0, (2,), np.float64)
    action_space: Any = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.start, self.steps = self.np_random.uniform(-1.0, 1.0, 2), 0
        return self.start, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.start, float(3.0 * self.start[0]) if self.steps == 1 else 0.0, self.steps == 400, False, {}


class Forgetful(Slope):
    """Starts anywhere, whatever the seed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=None)
        return self.start, {}


class Slow(Slope):
    """Takes longer to reset than to run."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        time.sleep(0.05)
        return super().reset(seed=seed)


class Pictures(Slope):
    observation_space: Any = Dict({"picture": Box(0, 255, (16, 16), np.uint8)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 1.0, True, False, {}


def test_a_plain_function_gains_from_starts():
    result = bps.evaluate(lambda observation: 0, Slope, 200, seed=0)
    assert result.settings["method"] == "auto"
    assert result.tight_savings > 5.0
    assert abs(result.value) < 4.0 * result.tight_error.std_error
    assert "cannot help" not in str(result)
    never = bps.evaluate(lambda observation: 0, Slope, 200, seed=0, resets="never")
    assert never.savings == pytest.approx(1.0, rel=0.02)
    assert never.value == never.data.returns.mean()


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        (Forgetful, "starts: starts do not come again when the environment is reset with the same seed"),
        (Slow, "starts: 10 resets would take longer than an episode"),
        (Pictures, "starts: one has 256 numbers, and at most 100 can be learned from"),
    ],
)
def test_it_knows_when_not_to(env, reason):
    result = bps.evaluate(lambda observation: 0, partial(env), 30, seed=0)
    assert result.unused == (reason,)
    assert reason in str(result)
    assert result.value == result.data.returns.mean()


def test_what_is_asked_for_must_make_sense():
    with pytest.raises(bps.errors.InvalidArgumentError, match="'auto', 'never' or a number, got 'sometimes'"):
        bps.evaluate(lambda observation: 0, Slope, 30, resets="sometimes")
    one_start = bps.envs.gridworld()
    with pytest.raises(bps.errors.InvalidArgumentError, match="cannot be drawn here"):
        bps.evaluate(bps.shipped_policy("gridworld-early"), one_start, 30, resets=5)
    with runner_for(one_start, bps.shipped_policy("gridworld-early")) as runner:
        assert runner.resets == 0


def test_nothing_to_gain_loses_nothing():
    """Returns that have nothing to do with starts, 50 studies of 100 episodes; `benchmarks/starts.py` has more."""
    rng = np.random.default_rng(1)
    policy = bps.GaussianMLP.init(0, Box(-9, 9, (4,)), Box(-1, 1, (1,)))
    control = Starts().bind(policy, 1.0)
    squares = []
    for _ in range(50):
        summary = {"starts": rng.normal(size=(100, 4)), "resets": rng.normal(size=(1000, 4))}
        targets = rng.exponential(size=100) - 1.0
        values = cross_fit([(control, summary | {"counts": np.full(100, 10)})], targets).values
        squares.append((values.mean() ** 2, targets.mean() ** 2))
    ours, plain = np.mean(squares, axis=0)
    assert ours / plain < 1.1


def test_the_critic_of_an_agent_is_a_feature():
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", "Pendulum-v1", n_steps=64, device="cpu", seed=0)
    policy = bps.from_sb3(model)
    observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    expected = model.policy.predict_values(model.policy.obs_to_tensor(observations)[0]).detach().numpy().ravel()
    np.testing.assert_allclose(policy.critic(observations), expected, rtol=1e-5)
    np.testing.assert_array_equal(policy.mode().critic(observations), policy.critic(observations))
    batch = bps.sample("Pendulum-v1", policy, 2, seed=0, resets=2, horizon=3)
    assert Starts().bind(policy, 1.0).summarize(batch)["starts"].shape == (2, 4)
    assert bps.shipped_policy("gridworld-early").critic(np.array([0])) is None


def a_bend(starts: Any) -> np.ndarray:
    return np.asarray(np.abs(starts[:, 0] - 0.3))


class Bend(Slope):
    """Pays what no line explains: |x − 0.3| of the start."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.start, float(a_bend(self.start[None])[0]) if self.steps == 1 else 0.0, self.steps == 400, False, {}


def test_a_proxy_helps_from_few_episodes_and_a_bad_one_does_no_harm(tmp_path):
    def evaluate(**more):
        return bps.evaluate(lambda observation: 0, Bend, 30, seed=0, resets=50, **more)

    plain = evaluate()
    helped = evaluate(proxy=a_bend)
    assert helped.tight_savings > 2.0 * plain.tight_savings
    assert helped.settings["proxy"] == "<a_bend>"
    useless = evaluate(proxy=lambda starts: np.sin(1e4 * starts[:, 1]))
    assert useless.tight_savings > 0.8 * plain.tight_savings
    stored = evaluate(proxy=a_bend, store=tmp_path / "s.db")
    assert stored.value == helped.value
    with pytest.raises(bps.errors.SettingsMismatchError, match="control_variates"):
        evaluate(store=tmp_path / "s.db")
    compared = bps.compare({"a": lambda observation: 0, "b": lambda observation: 1}, Bend, 30, seed=0, proxy=a_bend)
    assert compared.estimates["a"].explained_by["starts"] > 0.5
    assert compared.settings["proxy"] == "<a_bend>"
    planned = bps.plan(lambda observation: 0, Bend, 40, seed=0, proxy=a_bend)
    assert planned.savings.estimate > 3.0


def test_with_a_proxy_pictures_can_be_starts():
    def darkness(starts: Any) -> np.ndarray:
        return -np.asarray(starts["picture"], float).mean(axis=(1, 2))

    policy = bps.policies.resolve.load(lambda observation: 0, Pictures)
    control = Starts(proxy=darkness).bind(policy, 1.0)
    assert control.refuse(policy) == control.too_large(policy) == ""
    batch = bps.sample(Pictures, policy, 5, seed=0)
    pictures = np.random.default_rng(0).integers(0, 255, (5, 3, 16, 16), dtype=np.uint8)
    batch = replace(batch, resets={"picture": pictures})
    summary = control.summarize(batch)
    np.testing.assert_allclose(summary["starts"][:, 0], darkness({"picture": batch.observations["picture"][:, 0]}))
    assert summary["resets"].shape == (15, 1)


@pytest.mark.parametrize(
    ("proxy", "method", "message"),
    [
        (lambda starts: np.zeros(3), "auto", r"one number for each of the 30 starts .* shape \(3,\)"),
        (lambda starts: np.full(len(starts), np.nan), "auto", "finite numbers, got nan for start 0 of 30"),
        (lambda starts: ["low"] * len(starts), "auto", "one number for each"),
        ("a text", "auto", "a function of many starts, got 'a text'"),
        (a_bend, "mc", "learns from starts"),
    ],
)
def test_a_proxy_that_cannot_serve_is_refused(proxy, method, message):
    with pytest.raises(bps.errors.InvalidArgumentError, match=message):
        bps.evaluate(lambda observation: 0, Bend, 30, method, seed=0, proxy=proxy)
