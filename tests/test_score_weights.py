"""Lemma 1 by autodiff against the paper's closed forms, the oracle's gradient and finite differences."""

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.errors import BiasedEstimatorError
from bpsearch.estimators import (
    doubly_robust,
    importance_sampling,
    log_ratios,
    per_decision,
    score_weights,
    weighted_importance_sampling,
)
from enumeration import CASES, case_id, enumerate_trajectories, on_trajectories, random_mdp, random_model, random_policy

ORACLE_NAMES = {"importance_sampling": "is", "per_decision": "pdis", "doubly_robust": "dr"}


def closed_form(estimator, rewards, ratios, mask, gamma, q_hat, v_hat):
    """Theorem 1 for IS; Corollary 1, corrected, for DR; PDIS is DR with q̂ = v̂ = 0. By plain loops."""
    n, horizon = rewards.shape
    weights = np.zeros((n, horizon))
    values = np.zeros(n)
    for i in range(n):
        length = int(mask[i].sum())
        rho = np.exp(np.cumsum(ratios[i]))
        if estimator is importance_sampling:
            values[i] = rho[length - 1] * sum(gamma**t * rewards[i, t] for t in range(length))
            weights[i, :length] = -(values[i] ** 2)
            continue
        delta = [rewards[i, t] - q_hat[i, t] + gamma * v_hat[i, t + 1] for t in range(length)]
        terms = np.array([gamma**t * rho[t] * delta[t] for t in range(length)])
        values[i] = v_hat[i, 0] + terms.sum()
        for t in range(length):
            weights[i, t] = values[i] ** 2 - 2 * values[i] * terms[t:].sum()
    return values, weights


@pytest.mark.parametrize("case", CASES, ids=case_id)
@pytest.mark.parametrize("estimator", [importance_sampling, per_decision, doubly_robust], ids=lambda e: e.name)
def test_score_weights(case, estimator):
    mdp = random_mdp(*case)
    evaluation, behavior = random_policy(1, mdp), random_policy(2, mdp)
    everything = enumerate_trajectories(mdp)
    batch = everything.under(behavior)
    model = random_model(3, mdp, evaluation)
    q_hat, v_hat = on_trajectories(model, batch)
    ratios = log_ratios(evaluation, batch)
    if estimator is per_decision:
        q_hat, v_hat = np.zeros_like(q_hat), np.zeros_like(v_hat)
    arguments = (batch.rewards, ratios, batch.mask, mdp.discount, q_hat, v_hat)

    values, weights = score_weights(estimator, *arguments)
    expected_values, expected_weights = closed_form(estimator, *arguments)
    np.testing.assert_allclose(values, expected_values, atol=1e-10)
    np.testing.assert_allclose(weights, expected_weights, atol=1e-8)
    assert not weights[~batch.mask].any()

    probs = everything.probabilities(behavior.probabilities)
    gradient = behavior.score(batch.observations, batch.actions, probs[:, None] * weights)
    oracle_model = model if estimator is doubly_robust else None

    def variance(policy):
        return bps.oracle.variance(mdp, evaluation, policy, ORACLE_NAMES[estimator.name], model=oracle_model)

    exact = bps.oracle.gradient(mdp, evaluation, behavior, ORACLE_NAMES[estimator.name], model=oracle_model)
    np.testing.assert_allclose(gradient, exact.ravel(), rtol=1e-8, atol=1e-8)
    step = 1e-5
    for index in range(min(4, gradient.size)):
        direction = np.zeros(gradient.size)
        direction[index] = step
        above, below = (behavior.with_flat(behavior.flat + sign * direction) for sign in (1, -1))
        difference = (variance(above) - variance(below)) / (2 * step)
        assert difference == pytest.approx(gradient[index], rel=1e-6, abs=1e-7)


def test_a_biased_estimator_has_no_score_weights():
    one = np.ones((2, 3))
    with pytest.raises(BiasedEstimatorError, match="weighted_importance_sampling is biased"):
        score_weights(weighted_importance_sampling, one, one, one.astype(bool), 1.0)
