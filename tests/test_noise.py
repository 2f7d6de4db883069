"""Declared noise: nature as a second policy, weighted like an agent, in compiled environments and through Gymnasium."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bpsearch as bps
from benchmarks import rare_levels
from bpsearch.envs.exposed import GivenNoise, Joint
from bpsearch.errors import InvalidArgumentError
from bpsearch.estimators import importance_sampling, log_ratios
from bpsearch.policies.nature import nature_of
from bpsearch.policies.product import Product
from bpsearch.testing import check_policy, check_search, enumerate_trajectories, random_mdp, random_policy
from tests.test_levels import expectation

BOX = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
COIN = bps.envs.Categorical((0.7, 0.2, 0.1))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Walk(bps.envs.NoisyEnv):
    """A walk whose step is the action plus a coin's outcome plus a normal number; it has its own randomness, too."""

    hidden: float = 0.0
    horizon: int = field(default=3, metadata={"static": True})
    discount: float = field(default=1.0, metadata={"static": True})
    noise: ClassVar[Mapping[str, object]] = {"coin": COIN, "push": bps.envs.Normal(2)}
    observation_space = BOX
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, key):
        return jnp.zeros(2)

    def observe(self, state):
        return state

    def step_with(self, key, state, action, noise):
        place = state[0] + action[0] + noise["coin"] + 0.1 * noise["push"].sum()
        place += self.hidden * jax.random.normal(key)
        return jnp.stack([place, state[1] + 1.0]), place, place > 100.0


def steer(observation):
    return np.array([-0.1 * np.tanh(observation[0])], np.float32)


def driver():
    return bps.GaussianMLP.init(0, BOX, Walk.action_space, (3,))


@pytest.mark.parametrize(
    "parts",
    [
        (gymnasium.spaces.Discrete(3), gymnasium.spaces.Discrete(4), gymnasium.spaces.Discrete(2)),
        (gymnasium.spaces.Discrete(3), gymnasium.spaces.Box(-2.0, 2.0, (2, 2), np.float32)),
        (gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32), COIN.space, bps.envs.Normal(2).space),
    ],
)
def test_actions_of_several_parts_come_back_as_they_were(parts):
    joint, rng = Joint(parts), np.random.default_rng(0)
    drawn = [
        rng.integers(space.n, size=(5, 4))
        if isinstance(space, gymnasium.spaces.Discrete)
        else rng.normal(size=(5, 4, *space.shape)).astype(space.dtype)
        for space in parts
    ]
    whole = joint.join(drawn)
    for found, given in zip(joint.split(whole), drawn, strict=True):
        np.testing.assert_array_equal(found, given)
    one = joint.join([np.asarray(part[0, 0]) for part in drawn])
    assert joint.space.shape == np.shape(one)
    assert all(np.array_equal(a, b[0, 0]) for a, b in zip(joint.split(np.asarray(one)), drawn, strict=True))


def test_nature_draws_what_is_declared_whatever_she_sees():
    seen = np.random.default_rng(0).normal(size=(6, 2))
    for noise, draws in ((COIN, np.arange(6) % 3), (bps.envs.Normal(2), np.linspace(-3.0, 3.0, 12).reshape(6, 2))):
        nature = nature_of(noise, BOX)
        with jax.enable_x64(True):
            np.testing.assert_allclose(nature.log_prob(seen, draws), noise.log_prob(draws), rtol=1e-12)
    table = nature_of(COIN, gymnasium.spaces.Discrete(4))
    np.testing.assert_allclose(table.probabilities, np.tile(COIN.probabilities, (4, 1)))


@pytest.mark.parametrize(
    "agent", [pytest.param(steer, id="function"), pytest.param(driver(), id="network", marks=pytest.mark.slow)]
)
def test_a_pair_keeps_the_promises_of_a_policy(agent):
    pair, env = bps.expose_noise(agent, Walk())
    assert isinstance(pair, Product)
    observations = np.random.default_rng(1).normal(size=(4, 2))
    check_policy(pair, observations)
    assert pair.fixed[0] == (agent is steer)
    assert env.action_space == pair.action_space or env.action_space.shape == pair.action_space.shape


@pytest.mark.parametrize("tilt", [0.0, 0.8])
def test_weights_of_tilted_noise_are_exact_by_enumeration(tilt):
    """Every sequence of three coins, of a nature who looks at the walk: Σ q w g = E g, and Σ q w = 1, to 1e-12."""
    pair, _ = bps.expose_noise(steer, Walk(), names=("coin",))
    parameters = np.asarray(pair.flat) + tilt * np.random.default_rng(2).normal(size=len(pair.flat))
    behavior = pair.with_flat(parameters)
    rows, chances, plain = [], [], []
    for coins in product(range(3), repeat=3):
        state, seen, actions, rewards = np.zeros(2), [], [], []
        for coin in coins:
            own = steer(state)
            actions.append(np.array([own[0], coin], np.float64))
            seen.append(state)
            state = np.array([state[0] + own[0] + coin, state[1] + 1.0])
            rewards.append(state[0] ** 2)
        log_probs = np.asarray(behavior.log_prob(np.stack(seen)[None], np.stack(actions)[None]))
        rows.append((np.stack(seen), np.stack(actions), rewards, log_probs[0]))
        chances.append(np.exp(log_probs.sum()))
        plain.append(np.prod([COIN.probabilities[coin] for coin in coins]))
    columns = [np.stack(column) for column in zip(*rows, strict=True)]
    batch = bps.Trajectories(*columns, np.ones(columns[2].shape, bool))
    ratios = np.asarray(log_ratios(pair, batch))
    assert np.sum(chances) == pytest.approx(1.0, abs=1e-12)
    assert chances @ np.exp(ratios.sum(axis=1)) == pytest.approx(1.0, abs=1e-12)
    values = np.asarray(importance_sampling(columns[2], ratios, batch.mask, 1.0))
    truth = np.array(plain) @ columns[2].sum(axis=1)
    assert chances @ values == pytest.approx(truth, rel=1e-12)
    assert (tilt == 0.0) == np.allclose(ratios, 0.0)


def test_a_table_with_exposed_transitions_is_the_same_task():
    """Values and, on every trajectory, rewards and probabilities: the chance of a transition is now an action's."""
    mdp = random_mdp(3, (4, 2, 3), 0.9)
    policy = random_policy(3, mdp)
    table, exposed = bps.expose_noise(policy, mdp)
    assert bps.oracle.value(exposed, table) == pytest.approx(bps.oracle.value(mdp, policy), rel=1e-12)
    whole, split = enumerate_trajectories(mdp), enumerate_trajectories(exposed)
    assert set(np.unique(exposed.transitions)) == {0.0, 1.0}
    one = np.sort(whole.probabilities(policy.probabilities))
    other = np.sort(split.probabilities(table.probabilities))
    np.testing.assert_allclose(other[other > 0.0], one, rtol=1e-12)


def test_whole_studies_on_exposed_noise_are_unbiased():
    """Every batch enumerated: looking around, levels, the switch, and behaviors that tilt agent and noise."""
    mdp, policy = (lambda task: (task.env, task.policy))(rare_levels.chain(1, 0.3, 0.4))
    table, exposed = bps.expose_noise(policy, mdp)
    found, _ = expectation(bps.Levels(), exposed, table, bps.Failure("return >= 1"), (2, 1, 1))
    assert found == pytest.approx(0.3 * 0.6, abs=1e-12)


def test_levels_go_through_exposed_noise_of_a_table():
    """Six levels of which the environment refuses a fifth: 1e-6, within 10% from 2,000 episodes, three seeds."""
    task = rare_levels.chain(6, 0.125, 0.2)
    table, exposed = bps.expose_noise(task.policy, task.env)
    for seed in range(3):
        found = bps.evaluate(table, exposed, 2000, "levels", failure="return >= 6", seed=seed)
        assert found.value == pytest.approx(task.truth, rel=0.1)


def test_searches_and_samplers_take_a_pair():
    pair, env = bps.expose_noise(driver(), Walk())
    batch = bps.Failure("return > 2").pay(bps.sample(env, pair, 20, seed=0))
    check_search(bps.Levels(), pair, [batch, batch])
    assert np.abs(np.asarray(log_ratios(pair, batch))).max() < 1e-6


def test_an_exposed_step_is_that_of_the_environment_with_the_same_noise():
    """To the last bit; what is not exposed is drawn as ever, and so is what was never declared."""
    env, state, action = Walk(hidden=0.5), np.array([0.3, 1.0]), np.array([0.25], np.float32)
    _, exposed = bps.expose_noise(steer, env, names=("push",))
    with jax.enable_x64(True):
        key = jax.random.key(5)
        rest, drawn = env.draw_noise(key)
        given = np.array([1.5, -0.25])
        expected = env.step_with(rest, state, action, drawn | {"push": given})
        found = exposed.step(key, state, np.array([*action, *given], np.float64))
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_array_equal(one, other)
        for one, other in zip(env.step(key, state, action), env.step_with(rest, state, action, drawn), strict=True):
            np.testing.assert_array_equal(one, other)


class Drift(bps.envs.NoiseMixin, gymnasium.Env):
    """A place that gusts push; it says what noise each step took."""

    noise: ClassVar = {"gust": bps.envs.Normal(1), "stall": bps.envs.Categorical((0.9, 0.1))}
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0.0
        return np.zeros(1), {}

    def step(self, action):
        noise = self.next_noise()
        self.taken = (action, float(noise["gust"][0]), int(noise["stall"]))
        self.place += (0.1 if action else -0.1) * (1 - noise["stall"]) + 0.3 * float(noise["gust"][0])
        return np.array([self.place]), self.place, False, False, {}


def make_drift():
    return gymnasium.wrappers.TimeLimit(Drift(), 8)


def test_a_step_of_gymnasium_takes_the_noise_that_it_is_given_once():
    env = GivenNoise(make_drift(), ("gust",))
    env.reset(seed=0)
    inner = env.unwrapped
    for action, gust in ((1, 2.5), (0, -0.25)):
        env.step(np.array([action, gust]))
        assert inner.taken[:2] == (action, gust)
    inner.step(0)
    assert inner.taken[1] not in (2.5, -0.25), "the next step draws again"
    assert env.action_space.shape == (2,)


def test_gymnasium_environments_with_declared_noise_are_searched(tmp_path):
    """A plain function in a wrapped environment: a place that gusts reach with probability 1e-4, and a store."""
    pair, env = bps.expose_noise(lambda observation: int(observation[0] < 0.0), make_drift, names=("gust",))
    asked = {"failure": lambda b: level(b) > 2.5, "level": lambda b: level(b)}

    def level(batch):
        return np.asarray(batch.final_observations)[:, 0]

    store = tmp_path / "drift.db"
    found = bps.evaluate(pair, env, 700, "levels", **asked, seed=0, store=store)
    again = bps.evaluate(pair, env, 700, "levels", **asked, seed=0, store=store)
    assert (again.value, again.std_error) == (found.value, found.std_error)
    assert found.events > 20
    assert np.sqrt(found.tight_error.variance) < 0.5 * found.value
    assert found.value < 1e-3


def test_what_declares_no_noise_is_refused():
    with pytest.raises(InvalidArgumentError, match="declares no noise"):
        bps.expose_noise(lambda observation: 0, "CartPole-v1")
    with pytest.raises(InvalidArgumentError, match=r"must be a bps\.envs\.NoisyEnv"):
        bps.expose_noise(bps.shipped_policy("acrobot"), bps.envs.acrobot())
    with pytest.raises(InvalidArgumentError, match="coin, push, got \\['gust'\\]"):
        bps.expose_noise(steer, Walk(), names=("gust",))
    with pytest.raises(InvalidArgumentError, match="must be a SoftmaxTable"):
        bps.expose_noise(lambda observation: 0, bps.envs.gridworld())
    with pytest.raises(InvalidArgumentError, match="with the sum 1"):
        bps.envs.Categorical((0.5, 0.4))
    with pytest.raises(InvalidArgumentError, match="open environment"):
        bps.expose_noise(lambda observation: 0, make_drift())
