"""The compiled copies of Gymnasium's classic tasks are those tasks: step by step, and where they start."""

import gymnasium
import jax
import numpy as np
import pytest
from scipy import stats

import bpsearch as bps
from bpsearch._core.jaxtools import in_64_bit
from bpsearch.envs.classic_control import ClassicAcrobotState, ClassicCartPoleState, PendulumState
from bpsearch.sampling.compiled import rollout

TASKS = {
    "CartPole-v1": (bps.envs.classic_cartpole, ClassicCartPoleState),
    "Acrobot-v1": (bps.envs.classic_acrobot, ClassicAcrobotState),
    "Pendulum-v1": (bps.envs.pendulum, PendulumState),
}
EPISODES = {"CartPole-v1": 20, "Acrobot-v1": 100, "Pendulum-v1": 5}


def recorded(env_id):
    """States, actions, next states, next observations, rewards and ends of Gymnasium's own episodes."""
    env = gymnasium.make(env_id)
    env.action_space.seed(1)
    rows = []
    for episode in range(EPISODES[env_id]):
        env.reset(seed=episode)
        if env_id == "Acrobot-v1" and episode > 0:
            # Faster than episodes start, so that the rates meet their limits and the tip its height.
            env.unwrapped.state = np.random.default_rng(episode).uniform(-1.0, 1.0, 4) * [3.0, 3.0, 12.0, 28.0]
        ended = False
        while not ended:
            before = np.array(env.unwrapped.state, np.float64)
            action = env.action_space.sample()
            if env_id == "Pendulum-v1":
                action = 1.5 * action.astype(np.float64)  # beyond the bounds, which clip it
            observation, reward, terminated, truncated, _ = env.step(action)
            rows.append((before, action, np.array(env.unwrapped.state, np.float64), observation, reward, terminated))
            ended = terminated or truncated
    return [np.array(column) for column in zip(*rows, strict=True)]


@in_64_bit
def stepped(env, kind, states, actions):
    def step(state, action):
        after, reward, ended = env.step(jax.random.key(0), kind(*state.astype(env.dtype)), action)
        return jax.numpy.stack(after), env.observe(after), reward, ended

    return [np.array(x) for x in jax.jit(jax.vmap(step))(states, actions)]


@pytest.mark.parametrize("env_id", TASKS)
def test_every_step_is_gymnasiums(env_id):
    """64 bit to rounding, 32 bit (the default) to its own rounding, over thousands of steps with random actions."""
    make, kind = TASKS[env_id]
    before, actions, after, observations, rewards, ends = recorded(env_id)
    assert len(before) > 300
    for dtype, tolerance in ((np.float64, 1e-10), (np.float32, 2e-4)):
        states, seen, paid, ended = stepped(make(dtype=dtype), kind, before, actions)
        if env_id == "Acrobot-v1":
            # On the circle −π and π are the same angle.
            turns = (states[:, :2] - after[:, :2]) / (2.0 * np.pi)
            states[:, :2] -= 2.0 * np.pi * np.round(turns)
        np.testing.assert_allclose(states, after, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(seen, observations, rtol=max(tolerance, 1e-6), atol=max(tolerance, 1e-6))
        np.testing.assert_allclose(paid, rewards, rtol=tolerance, atol=tolerance)
        np.testing.assert_array_equal(ended, ends)
    assert ends.any() == (env_id != "Pendulum-v1")


@pytest.mark.parametrize("env_id", TASKS)
def test_limits_and_spaces_are_gymnasiums(env_id):
    env, theirs = TASKS[env_id][0](), gymnasium.make(env_id)
    assert env.horizon == theirs.spec.max_episode_steps
    assert env.observation_space == theirs.observation_space
    assert env.action_space == theirs.action_space


@pytest.mark.parametrize("env_id", TASKS)
def test_episodes_start_where_gymnasiums_do(env_id):
    """Kolmogorov and Smirnov, 2,000 starts of each; false alarms in 1 of 1,000 runs for all components together."""
    env, theirs = TASKS[env_id][0](), gymnasium.make(env_id).unwrapped
    starts = np.stack(jax.vmap(env.reset)(jax.random.split(jax.random.key(3), 2000)), axis=1)
    gymnasiums = []
    for seed in range(2000):
        theirs.reset(seed=seed)
        gymnasiums.append(np.array(theirs.state))
    for ours, other in zip(starts.T, np.array(gymnasiums).T, strict=True):
        assert stats.ks_2samp(ours, other).pvalue > 1e-3 / starts.shape[1]
    correlations = np.corrcoef(starts.T)[np.triu_indices(starts.shape[1], 1)]
    assert np.abs(correlations).max() < 4.0 / np.sqrt(2000)  # 6 of them at most: false alarms in 1 of 2,500


@pytest.mark.parametrize("env_id", TASKS)
@in_64_bit
def test_the_simulation_stays_in_its_type(env_id):
    env = TASKS[env_id][0]()
    network = bps.GaussianMLP if env_id == "Pendulum-v1" else bps.CategoricalMLP
    policy = network.init(0, env.observation_space, env.action_space)
    traced = jax.make_jaxpr(lambda key: rollout(env, policy, key, 3))(jax.random.key(0))
    (scan,) = [equation for equation in traced.eqns if equation.primitive.name == "scan"]
    inside = {v.aval.dtype for e in scan.params["jaxpr"].eqns for v in e.outvars if hasattr(v.aval, "dtype")}
    assert {d for d in inside if jax.numpy.issubdtype(d, jax.numpy.floating)} == {np.dtype(np.float32)}
