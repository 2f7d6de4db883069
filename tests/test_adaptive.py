"""The default search: what it gains, when it stays, and what it never does."""

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.control_variates import TabularModel
from bpsearch.control_variates.scores import MAX_PARAMETERS
from bpsearch.errors import BiasedEstimatorError, DeterministicPolicyError, InvalidArgumentError, OnPolicyError
from bpsearch.estimators import doubly_robust, monte_carlo, weighted_importance_sampling
from bpsearch.paper.trials import Trials
from bpsearch.policies import Policy
from bpsearch.search.adaptive import LARGEST_LOG_WEIGHT, SMALLEST_LOG_WEIGHT

MDP = bps.envs.gridworld()
POLICY = bps.shipped_policy("gridworld-early")


def _mean_and_variance(search, state, info, batch):
    return info.values.mean(), info.values.var(ddof=1)


@pytest.mark.slow
def test_it_saves_clearly_where_action_noise_makes_the_variance():
    """40 studies of 1000 episodes: MSE below a fifth of Monte Carlo's; bias and interval by z-tests at 1e-6."""
    trials = Trials(bps.AdaptiveBPG(), iterations=10, batch_size=100, seed=3, record=_mean_and_variance)
    _, (means, variances) = trials.run(MDP, POLICY, 40)
    errors = means.mean(axis=1) - bps.oracle.value(MDP, POLICY)
    monte_carlo = bps.oracle.variance(MDP, POLICY, None, "mc")
    assert np.mean(errors**2) < 0.2 * monte_carlo / 1000
    z = errors / np.sqrt(variances.mean(axis=1) / 1000)
    assert abs(z.mean()) * np.sqrt(len(z)) < 4.9
    assert (np.abs(z) > 1.96).sum() <= 10  # binomial tail 2e-5


def test_three_batches_find_more_than_the_best_behavior_of_plain_importance_sampling():
    """By the exact oracle; the returns' shift makes more possible. `benchmarks/search_alone.py` shows 20 studies."""
    plain = bps.oracle.variance(MDP, POLICY, None, "mc")
    _, best = bps.oracle.optimum(MDP, POLICY, "is")
    for seed in range(2):
        search = bps.AdaptiveBPG()
        state = search.init(POLICY)
        for batch in range(3):
            state, _ = search.step(state, bps.sample(MDP, search.behavior(state), 100, seed=seed, batch=batch))
        exact = bps.oracle.variance(MDP, POLICY, search.behavior(state), "is", shift=float(state.shift))
        assert (plain - exact) / (plain - best) > 1.1


@pytest.mark.slow
def test_it_stays_at_monte_carlo_where_nothing_can_be_gained():
    """All variance comes from the environment: a coin decides the reward, whatever the action."""
    transitions = np.zeros((3, 2, 3))
    transitions[0, :, 1:] = 0.5
    rewards = np.zeros((3, 2, 3))
    rewards[0, :, 1] = 1.0
    mdp = bps.TabularMDP(transitions, rewards, [1.0, 0, 0], [False, True, True], horizon=1)
    policy = bps.SoftmaxTable([[0.3, -0.2], [0, 0], [0, 0]])
    for seed in range(3):
        result = bps.Study(policy, bps.AdaptiveBPG(), seed=seed).run(mdp, episodes=2000)
        assert result.diagnostics.variance == pytest.approx(0.25, rel=0.02)


def test_weights_stay_in_the_trust_region():
    batches = np.split(bps.evaluate(POLICY, MDP, 1000, bps.AdaptiveBPG(), seed=1).data.log_weights, 10)
    assert np.abs(batches[0]).max() < 1e-9
    assert 0.01 < np.max(batches) < 4 * LARGEST_LOG_WEIGHT
    assert np.min(batches) > 4 * SMALLEST_LOG_WEIGHT


def test_the_unit_of_the_rewards_does_not_matter():
    cents = bps.TabularMDP(MDP.transitions, 1000 * MDP.rewards, MDP.initial, MDP.terminal, MDP.horizon)
    one, other = (bps.Study(POLICY, bps.AdaptiveBPG(), seed=4).run(env, episodes=600).value for env in (MDP, cents))
    assert other == pytest.approx(1000 * one, rel=1e-6)


def _networks():
    space = bps.envs.cartpole_swingup().observation_space
    discrete, box = MDP.action_space, bps.envs.cartpole_swingup().action_space
    rng = np.random.default_rng(0)
    yield bps.CategoricalMLP.init(0, space, discrete, (4,)), rng.integers(4, size=(50, 3))
    yield bps.GaussianMLP.init(0, space, box, (4,)), rng.normal(size=(50, 3, *box.shape)).astype(np.float32)


@pytest.mark.parametrize(("policy", "actions"), list(_networks()), ids=["categorical", "gaussian"])
def test_the_scores_of_episodes_sum_to_the_score(policy, actions):
    observations = np.random.default_rng(1).normal(size=(50, 3, *policy.observation_space.shape)).astype(np.float32)
    mask = np.arange(3) < np.random.default_rng(2).integers(1, 4, size=(50, 1))
    scores = policy.episode_scores(observations, actions, mask)
    total = np.asarray(policy.score(observations, actions, mask.astype(np.float64)))
    np.testing.assert_allclose(scores.sum(axis=0), total, rtol=1e-4, atol=1e-4)


def test_the_covariance_of_scores_is_that_of_enumerated_actions():
    policy = bps.SoftmaxTable(np.random.default_rng(0).normal(size=(3, 4)))
    observations = np.array([[0, 1, 0], [2, 2, 1]])
    mask = np.array([[True, True, True], [True, False, False]])
    weights = np.array([0.7, 1.9])
    expected = np.zeros((12, 12))
    for n, t in np.argwhere(mask):
        state = observations[n, t]
        for action, probability in enumerate(policy.probabilities[state]):
            score = policy.score(np.array([[state]]), np.array([[action]]), np.ones((1, 1)))
            expected += weights[n] * probability * np.outer(score, score)
    visits = weights @ policy.visits(observations, mask)
    np.testing.assert_allclose(policy.score_covariance(visits), expected, atol=1e-12)
    assert Policy.visits(policy, observations, mask) is None


def test_what_it_refuses():
    with pytest.raises(OnPolicyError, match="monte_carlo is unbiased only on-policy"):
        bps.AdaptiveBPG(monte_carlo)
    with pytest.raises(BiasedEstimatorError):
        bps.AdaptiveBPG(weighted_importance_sampling)
    with pytest.raises(BiasedEstimatorError, match="with this model"):
        bps.AdaptiveBPG(doubly_robust, TabularModel.like(MDP, "update"))
    with pytest.raises(DeterministicPolicyError):
        bps.AdaptiveBPG().init(bps.SoftmaxTable([[0.0, -np.inf]]))
    with pytest.raises(
        InvalidArgumentError, match=f"at most {MAX_PARAMETERS} parameters can be learned at once, got 4000"
    ):
        bps.AdaptiveBPG().init(bps.SoftmaxTable.uniform(1000, 4))
