"""Estimators at the edges: long episodes, overflow, a user's own estimator, wrong use."""

import jax.numpy as jnp
import numpy as np
import pytest

import bpsearch as bps
from bpsearch.control_variates import TabularModel
from bpsearch.errors import (
    BiasedEstimatorError,
    DeterministicPolicyError,
    InvalidArgumentError,
    ModelRequiredError,
    OnPolicyError,
    WeightOverflowError,
)
from bpsearch.estimators import importance_sampling, log_ratios, score_weights, weighted_importance_sampling
from enumeration import enumerate_trajectories, random_mdp, random_policy


def long_episode(ratio, steps):
    """One episode in a one-state world, whose evaluation policy is `ratio` times as likely as its behavior."""
    evaluation = bps.SoftmaxTable.from_probabilities([[0.55, 0.45]])
    shape = (1, steps)
    batch = bps.Trajectories(
        observations=np.zeros(shape, np.int32),
        actions=np.zeros(shape, np.int32),
        rewards=np.ones(shape),
        log_probs=np.full(shape, np.log(0.55 / ratio)),
        mask=np.ones(shape, bool),
    )
    return evaluation, batch


def test_a_long_episode_has_the_right_log_weight_and_a_clear_overflow_error():
    evaluation, batch = long_episode(1.1, 10_000)
    log_weight = log_ratios(evaluation, batch).sum()
    assert log_weight == pytest.approx(10_000 * np.log(1.1), rel=1e-12)
    search = bps.BPG(1e-3)
    with pytest.raises(WeightOverflowError, match=r"largest log-weight is 953\.102, at step 9999"):
        search.step(search.init(evaluation), batch)


def test_a_value_that_fits_but_whose_square_does_not_is_named_too():
    evaluation, batch = long_episode(1.1, 5_000)
    search = bps.BPG(1e-3)
    with pytest.raises(WeightOverflowError, match="squared importance_sampling value of episode 0"):
        search.step(search.init(evaluation), batch)


def test_small_weights_do_not_underflow_into_errors():
    evaluation, batch = long_episode(1 / 1.1, 10_000)
    search, valuation = bps.BPG(1e-3), bps.Valuation(importance_sampling)
    _, info = search.step(search.init(evaluation), batch)
    assert info.values[0] == 0.0
    valued = valuation.value(valuation.init(evaluation), batch)
    assert valued.values[0] == 0.0
    assert valued.log_weights[0] == pytest.approx(-953.1018, abs=1e-3)


def test_an_action_that_the_evaluation_policy_never_takes_has_weight_zero():
    evaluation = bps.SoftmaxTable([[0.0, -np.inf]])
    shape = (1, 2)
    batch = bps.Trajectories(
        np.zeros(shape, int), np.array([[0, 1]]), np.ones(shape), np.full(shape, np.log(0.5)), np.ones(shape, bool)
    )
    ratios = log_ratios(evaluation, batch)
    for estimator, expected in ((importance_sampling, 0.0), (bps.estimators.per_decision, 2.0)):
        values, weights = score_weights(estimator, batch.rewards, ratios, batch.mask, 1.0)
        assert values[0] == pytest.approx(expected)
        assert np.isfinite(weights).all()


@bps.estimator
def half_and_half(rewards, log_ratios, mask, discount):
    """The mean of trajectory and per-decision importance sampling."""
    rho = jnp.exp(jnp.cumsum(log_ratios, axis=-1))
    powers = discount ** jnp.arange(rewards.shape[-1])
    return 0.5 * ((rho + rho[..., -1:]) * powers * rewards).sum(axis=-1)


def test_a_users_own_estimator_gets_its_gradient():
    mdp = random_mdp(0, (3, 2, 2), 0.9)
    evaluation, behavior = random_policy(1, mdp), random_policy(2, mdp)
    everything = enumerate_trajectories(mdp)

    def second_moment(policy):
        batch = everything.under(policy)
        values = half_and_half(batch.rewards, log_ratios(evaluation, batch), batch.mask, mdp.discount)
        return everything.probabilities(policy.probabilities) @ values**2

    batch = everything.under(behavior)
    _, weights = score_weights(half_and_half, batch.rewards, log_ratios(evaluation, batch), batch.mask, mdp.discount)
    probs = everything.probabilities(behavior.probabilities)
    gradient = behavior.score(batch.observations, batch.actions, probs[:, None] * weights)
    for index in range(gradient.size):
        step = 1e-5 * np.eye(gradient.size)[index]
        difference = (
            second_moment(behavior.with_flat(behavior.flat + step))
            - second_moment(behavior.with_flat(behavior.flat - step))
        ) / 2e-5
        assert gradient[index] == pytest.approx(difference, rel=1e-6, abs=1e-7)
    assert half_and_half.__doc__.startswith("The mean")


def test_an_estimator_with_other_arguments_is_refused():
    with pytest.raises(InvalidArgumentError, match="must take the arguments"):
        bps.estimator(lambda returns, weights: returns * weights)


def test_wrong_combinations_are_refused_by_name():
    mdp = bps.envs.gridworld()
    model = TabularModel.like(mdp)
    with pytest.raises(OnPolicyError, match="monte_carlo is unbiased only on-policy"):
        bps.BPG(0.1, estimator=bps.estimators.monte_carlo)
    with pytest.raises(BiasedEstimatorError, match="weighted_importance_sampling is biased"):
        bps.BPG(0.1, estimator=weighted_importance_sampling)
    with pytest.raises(ModelRequiredError, match="doubly_robust needs a model"):
        bps.BPG(0.1, estimator=bps.estimators.doubly_robust)
    with pytest.raises(ModelRequiredError, match="importance_sampling uses no model"):
        bps.BPG(0.1, model=model)
    with pytest.raises(InvalidArgumentError, match="estimator must be an Estimator"):
        bps.BPG(0.1, estimator=lambda rewards: rewards)
    with pytest.raises(InvalidArgumentError, match="use must be one of"):
        TabularModel.like(mdp, "sometimes")
    deterministic = bps.SoftmaxTable(np.where(np.eye(16, 4, dtype=bool), 0.0, -np.inf)[[0] * 16])
    with pytest.raises(DeterministicPolicyError, match="Monte Carlo"):
        bps.BPG(0.1).init(deterministic)


def test_on_policy_estimators_refuse_off_policy_episodes():
    mdp = bps.envs.gridworld()
    evaluation = bps.SoftmaxTable.uniform(16, 4)
    valuation = bps.Valuation()
    batch = bps.sample(mdp, random_policy(1, mdp), episodes=3, seed=0)
    with pytest.raises(OnPolicyError, match="episode 0, step 0"):
        valuation.value(valuation.init(evaluation), batch)


def test_weighted_importance_sampling_averages_to_its_ratio():
    mdp = bps.envs.gridworld()
    evaluation, behavior = bps.SoftmaxTable.uniform(16, 4), random_policy(1, mdp, scale=0.1)
    batch = bps.sample(mdp, behavior, episodes=50, seed=0)
    ratios = log_ratios(evaluation, batch)
    weights = np.exp(ratios.sum(axis=1))
    values = weighted_importance_sampling(batch.rewards, ratios, batch.mask, 1.0)
    assert values.mean() == pytest.approx(weights @ batch.returns() / weights.sum())
