"""The oracle against enumeration, and what it knows about the paper's gridworlds."""

import numpy as np
import pytest

import bpsearch as bps
from bpsearch import oracle
from bpsearch.errors import InvalidArgumentError, ModelRequiredError, SpaceMismatchError, SupportError
from bpsearch.estimators import advantage_sum, doubly_robust, importance_sampling, log_ratios, monte_carlo, per_decision
from enumeration import CASES, case_id, enumerate_trajectories, on_trajectories, random_mdp, random_model, random_policy

ESTIMATORS = {
    "mc": monte_carlo,
    "as": advantage_sum,
    "is": importance_sampling,
    "pdis": per_decision,
    "dr": doubly_robust,
}


@pytest.mark.parametrize("case", CASES, ids=case_id)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_variance_equals_enumeration(case, name):
    mdp = random_mdp(*case)
    estimator = ESTIMATORS[name]
    evaluation = random_policy(1, mdp)
    behavior = evaluation if estimator.on_policy else random_policy(2, mdp)
    everything = enumerate_trajectories(mdp)
    batch = everything.under(behavior)
    model = random_model(3, mdp, evaluation) if estimator.needs_model else None
    extra = on_trajectories(model, batch) if model else ()
    values = estimator(batch.rewards, log_ratios(evaluation, batch), batch.mask, mdp.discount, *extra)
    probs = everything.probabilities(behavior.probabilities)
    expected = probs @ values**2 - (probs @ values) ** 2
    assert oracle.variance(mdp, evaluation, behavior, name, model=model) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("case", CASES[::3], ids=case_id)
def test_variance_with_a_return_shift_equals_enumeration(case):
    mdp = random_mdp(*case)
    evaluation, behavior = random_policy(1, mdp), random_policy(2, mdp)
    everything = enumerate_trajectories(mdp)
    batch = everything.under(behavior)
    weights = np.exp(log_ratios(evaluation, batch).sum(axis=1))
    shift = 1.7
    values = shift + weights * (batch.returns(mdp.discount) - shift)
    probs = everything.probabilities(behavior.probabilities)
    expected = probs @ values**2 - (probs @ values) ** 2
    assert oracle.variance(mdp, evaluation, behavior, "is", shift=shift) == pytest.approx(expected, abs=1e-10)
    step = np.zeros((mdp.states, mdp.actions))
    step[0, 0] = 1e-5
    above, below = (bps.SoftmaxTable(behavior.logits + sign * step) for sign in (1, -1))
    difference = oracle.variance(mdp, evaluation, above, shift=shift) - oracle.variance(
        mdp, evaluation, below, shift=shift
    )
    gradient = oracle.gradient(mdp, evaluation, behavior, shift=shift)
    assert gradient[0, 0] == pytest.approx(difference / 2e-5, rel=1e-6, abs=1e-7)


def test_the_uniform_policy_on_the_4x4_gridworld():
    mdp = bps.envs.gridworld()
    uniform = bps.SoftmaxTable.uniform(16, 4)
    assert oracle.value(mdp, uniform) == pytest.approx(-72.413, abs=5e-4)
    assert oracle.variance(mdp, uniform, uniform, "mc") == pytest.approx(3389.1, abs=0.05)


@pytest.mark.parametrize("estimator", ["is", "pdis", "dr"])
def test_the_optimum_is_a_minimum(estimator):
    mdp = bps.envs.gridworld()
    policy = bps.SoftmaxTable.uniform(16, 4)
    model = random_model(0, mdp, policy) if estimator == "dr" else None
    best, lowest = oracle.optimum(mdp, policy, estimator, model=model)
    assert lowest < oracle.variance(mdp, policy, policy, estimator, model=model)
    second_moment = lowest + oracle.value(mdp, policy) ** 2
    gradient = oracle.gradient(mdp, policy, best, estimator, model=model) / second_moment
    assert np.abs(gradient).max() < 1e-5
    rng = np.random.default_rng(0)
    for _ in range(5):
        other = bps.SoftmaxTable(best.logits + rng.normal(scale=0.1, size=best.logits.shape))
        assert oracle.variance(mdp, policy, other, estimator, model=model) > lowest


def test_the_optimum_for_importance_sampling_is_global():
    """E[IS²] is convex in the logits: starting elsewhere ends at the same variance."""
    mdp = random_mdp(1, (3, 2, 2), 1.0)
    evaluation = random_policy(1, mdp)
    _, lowest = oracle.optimum(mdp, evaluation)
    rng = np.random.default_rng(1)
    for _ in range(200):
        other = bps.SoftmaxTable(rng.normal(scale=2.0, size=(3, 2)))
        assert oracle.variance(mdp, evaluation, other) >= lowest - 1e-9


@pytest.mark.parametrize("discount", [0.9, 1.0])
def test_section_3_1_every_trajectory_of_the_optimal_behavior_gives_the_same_estimate(discount):
    rng = np.random.default_rng(4)
    states, actions, horizon = 4, 3, 4
    transitions = np.eye(states)[rng.integers(states, size=(states, actions))]
    rewards = rng.uniform(0.1, 2.0, size=transitions.shape)
    mdp = bps.TabularMDP(transitions, rewards, np.eye(states)[0], np.zeros(states, bool), horizon, discount)
    evaluation = random_policy(1, mdp)
    behavior, lowest = oracle.optimal_behavior(mdp, evaluation)
    assert abs(lowest) < 1e-9
    everything = enumerate_trajectories(mdp)
    batch = everything.under(behavior)
    values = per_decision(batch.rewards, log_ratios(evaluation, batch), batch.mask, discount)
    np.testing.assert_allclose(values, oracle.value(mdp, evaluation), atol=1e-9)


@pytest.mark.parametrize("case", CASES[::4], ids=case_id)
@pytest.mark.parametrize("estimator", ["pdis", "dr"])
def test_the_optimal_behavior_reaches_its_variance_and_nothing_is_below(case, estimator):
    mdp = random_mdp(*case)
    evaluation = random_policy(1, mdp)
    model = random_model(3, mdp, evaluation) if estimator == "dr" else None
    behavior, lowest = oracle.optimal_behavior(mdp, evaluation, estimator, model)
    assert oracle.variance(mdp, evaluation, behavior, estimator, model=model) == pytest.approx(lowest, abs=1e-10)
    assert oracle.optimum(mdp, evaluation, estimator, model=model)[1] >= lowest - 1e-10


def test_with_the_true_q_and_a_deterministic_environment_doubly_robust_has_no_variance():
    mdp = bps.envs.gridworld()
    policy = bps.SoftmaxTable.uniform(16, 4)
    model = oracle.q_function(mdp, policy)
    assert oracle.variance(mdp, policy, random_policy(1, mdp), "dr", model=model) == pytest.approx(0.0, abs=1e-6)


def test_bad_arguments_are_named():
    mdp = bps.envs.gridworld()
    policy = bps.SoftmaxTable.uniform(16, 4)
    with pytest.raises(InvalidArgumentError, match="estimator must be one of"):
        oracle.variance(mdp, policy, policy, "wis")
    with pytest.raises(ModelRequiredError, match="'dr' needs a model"):
        oracle.variance(mdp, policy, policy, "dr")
    with pytest.raises(SpaceMismatchError, match="16 states and 4 actions"):
        oracle.value(mdp, bps.SoftmaxTable.uniform(3, 4))
    with pytest.raises(InvalidArgumentError, match="shift"):
        oracle.variance(mdp, policy, policy, "pdis", shift=1.0)
    with pytest.raises(InvalidArgumentError, match="optimal_behavior"):
        oracle.optimal_behavior(mdp, policy, "is")
    never_up = policy.with_probability(0, 0, 0.0)
    with pytest.raises(SupportError, match="probability 0"):
        oracle.variance(mdp, policy, never_up, "is")


def test_many_variances_are_those_of_each():
    mdp = random_mdp(1, (3, 2, 4), 0.9)
    evaluation = random_policy(1, mdp)
    behaviors = [random_policy(seed, mdp) for seed in range(2, 7)]
    found = oracle.variances(mdp, evaluation, np.array([behavior.probabilities for behavior in behaviors]))
    each = [oracle.variance(mdp, evaluation, behavior) for behavior in behaviors]
    np.testing.assert_allclose(found, each, rtol=1e-12)
    never = behaviors[0].with_probability(0, 0, 0.0).probabilities
    assert oracle.variances(mdp, evaluation, np.array([never, behaviors[0].probabilities])).tolist() == [
        np.inf,
        found[0],
    ]
    with pytest.raises(SpaceMismatchError, match=r"\(N, 3, 2\), got \(3, 2\)"):
        oracle.variances(mdp, evaluation, never)
