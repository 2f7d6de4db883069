"""The compiled sampler: whole episodes, exact distributions, reproducible streams."""

import numpy as np
import pytest
from scipy import stats

import bpsearch as bps
from bpsearch.errors import InvalidArgumentError, SpaceMismatchError
from enumeration import random_mdp, random_policy


@pytest.mark.slow
def test_the_mean_return_is_the_exact_value():
    """z-test at a false-alarm rate of 1e-6 each; detects a bias of 0.05 standard deviations."""
    for mdp, policy in (
        (bps.envs.gridworld(), bps.SoftmaxTable.uniform(16, 4)),
        (bps.envs.stochastic_gridworld(), bps.SoftmaxTable.uniform(100, 4)),
        (random_mdp(0, (3, 2, 2), 0.9), bps.SoftmaxTable.uniform(3, 2)),
    ):
        returns = bps.sample(mdp, policy, episodes=10_000, seed=3).returns(mdp.discount)
        truth, variance = bps.oracle.value(mdp, policy), bps.oracle.variance(mdp, policy, policy, "mc")
        assert abs(returns.mean() - truth) < stats.norm.isf(5e-7) * np.sqrt(variance / 10_000)


def test_transitions_follow_the_mdp():
    """Chi-square over successors at a false-alarm rate of 1e-6."""
    mdp = random_mdp(0, (3, 2, 2), 1.0)
    batch = bps.sample(mdp, random_policy(1, mdp), episodes=20_000, seed=1)
    first, action = batch.observations[:, 0], batch.actions[:, 0]
    second = np.where(batch.mask[:, 1], batch.observations[:, 1], batch.final_observations)
    chosen = (first == 0) & (action == 1)
    counts = np.bincount(second[chosen], minlength=3)
    assert stats.chisquare(counts, counts.sum() * mdp.transitions[0, 1]).pvalue > 1e-6


def test_episodes_are_consistent_with_the_environment():
    mdp = bps.envs.gridworld()
    batch = bps.sample(mdp, bps.SoftmaxTable.uniform(16, 4), episodes=200, seed=0)
    assert batch.rewards.dtype == np.float64
    assert batch.log_probs.dtype == np.float64
    np.testing.assert_allclose(batch.log_probs[batch.mask], np.log(0.25))
    ended = batch.lengths < mdp.horizon
    assert (batch.final_observations[ended] == 15).all()
    assert (batch.rewards[ended, batch.lengths[ended] - 1] == 10.0).all()
    following = batch.mask[:, 1:]
    successors = mdp.transitions[batch.observations[:, :-1], batch.actions[:, :-1]].argmax(axis=-1)
    assert (batch.observations[:, 1:][following] == successors[following]).all()


def test_streams():
    mdp, policy = bps.envs.gridworld(), bps.SoftmaxTable.uniform(16, 4)

    def actions(**where):
        return bps.sample(mdp, policy, episodes=20, **where).actions

    np.testing.assert_array_equal(actions(seed=1), actions(seed=1))
    assert (actions(seed=1) != actions(seed=2)).any()
    assert (actions(seed=1, batch=0) != actions(seed=1, batch=1)).any()
    assert (actions(seed=0, batch=1) != actions(seed=1, batch=0)).any()
    batch = bps.sample(mdp, policy, episodes=5, seed=7, batch=3)
    np.testing.assert_array_equal(batch.seed, [7, 3])
    np.testing.assert_array_equal(batch.behavior_parameters, policy.flat)


def test_bad_requests_are_refused_before_the_first_step():
    mdp = bps.envs.gridworld()
    with pytest.raises(SpaceMismatchError, match=r"environment has Discrete\(16\), the policy has Discrete\(9\)"):
        bps.sample(mdp, bps.SoftmaxTable.uniform(9, 4), episodes=1)
    with pytest.raises(InvalidArgumentError, match="episodes must be a whole number of at least 1, got 0"):
        bps.sample(mdp, bps.SoftmaxTable.uniform(16, 4), episodes=0)
    with pytest.raises(InvalidArgumentError, match="seed"):
        bps.sample(mdp, bps.SoftmaxTable.uniform(16, 4), seed=-1)
