"""TRPO: its parts by other routes, and that it improves the policy within its trust region."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bpsearch as bps
from bpsearch.errors import InvalidArgumentError
from bpsearch.paper.training import RECIPES, TRPO
from bpsearch.paper.training.recipes import TRPORecipe
from bpsearch.paper.training.trpo import _advantages, _conjugate_gradients
from bpsearch.sampling.compiled import trajectories_inside_jit

pytestmark = pytest.mark.slow


def test_conjugate_gradients_solve_the_system():
    with jax.enable_x64(True):
        random = np.random.default_rng(0)
        root = random.standard_normal((6, 6))
        matrix, target = root @ root.T + np.eye(6), random.standard_normal(6)
        solution = _conjugate_gradients(lambda v: jnp.asarray(matrix) @ v, jnp.asarray(target), 6)
        np.testing.assert_allclose(solution, np.linalg.solve(matrix, target), rtol=1e-8)
        np.testing.assert_array_equal(_conjugate_gradients(lambda v: v, jnp.zeros(6), 6), np.zeros(6))


@pytest.mark.parametrize("gae_lambda", [0.0, 0.7, 1.0])
def test_advantages_are_those_of_the_definition(gae_lambda):
    random = np.random.default_rng(1)
    count, steps, discount = 4, 5, 0.9
    mask = np.arange(steps) < np.array([5, 3, 1, 4])[:, None]
    rewards = np.where(mask, random.standard_normal((count, steps)), 0.0)
    values = random.standard_normal((count, steps))
    batch = trajectories_inside_jit(observations=None, actions=None, rewards=rewards, log_probs=None, mask=mask)
    with jax.enable_x64(True):
        trpo = TRPO(discount=discount, gae_lambda=gae_lambda)
        advantages, returns = map(np.asarray, _advantages(trpo, batch, jnp.asarray(values)))
    expected = np.zeros((count, steps))
    for n, length in enumerate(mask.sum(axis=1)):
        after = np.append(values[n, 1:length], 0.0)
        delta = rewards[n, :length] + discount * after - values[n, :length]
        for t in range(length):
            expected[n, t] = sum((discount * gae_lambda) ** k * delta[t + k] for k in range(length - t))
            assert returns[n, t] == pytest.approx(sum(discount**k * rewards[n, t + k] for k in range(length - t)))
    chosen = expected[mask]
    np.testing.assert_allclose(advantages[mask], (chosen - chosen.mean()) / (chosen.std() + 1e-8), rtol=1e-10)
    assert not advantages[~mask].any()


@pytest.mark.slow
def test_training_improves_within_the_trust_region():
    """Ten iterations: the return rises by more than 5 standard errors of its difference."""
    env = bps.envs.cartpole_swingup()
    start = bps.GaussianMLP.init(0, env.observation_space, env.action_space)
    steps = []
    trained = TRPO().train(env, start, 10, progress=lambda _, info: steps.append(info))
    assert all(0.0 <= info.kl <= 0.01 for info in steps)
    assert sum(info.improvement > 0.0 for info in steps) >= 8
    before, after = (bps.sample(env, policy, 1000, seed=9).returns() for policy in (start, trained))
    error = np.hypot(before.std(), after.std()) / np.sqrt(1000)
    assert after.mean() - before.mean() > 5.0 * error


@pytest.mark.slow
def test_the_seed_decides_what_is_trained():
    env = bps.envs.cartpole_swingup()
    start = bps.GaussianMLP.init(0, env.observation_space, env.action_space)
    first, again, other = (TRPO().train(env, start, 2, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.flat, again.flat)
    assert not np.array_equal(first.flat, other.flat)


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if isinstance(recipe, TRPORecipe)])
def test_the_shipped_policies_are_better_than_random(name):
    """By 50 and more, where the standard errors are below 15."""
    env, shipped = RECIPES[name].environment(), bps.shipped_policy(name)
    random = bps.GaussianMLP.init(0, env.observation_space, env.action_space)
    assert shipped.hidden == (32, 32)
    assert shipped.dtype == np.float32
    trained, untrained = (bps.sample(env, policy, 500).returns().mean() for policy in (shipped, random))
    assert trained > untrained + 50.0


def test_an_unknown_name_is_refused():
    with pytest.raises(InvalidArgumentError, match="'pendulum'"):
        bps.shipped_policy("pendulum")
