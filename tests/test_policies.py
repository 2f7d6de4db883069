"""Softmax tables: probabilities, sampling, score, and what they refuse."""

import jax
import numpy as np
import pytest
from scipy import stats

import bpsearch as bps
from bpsearch.errors import InvalidArgumentError, SupportError
from bpsearch.policies import Policy


def table(seed=0, states=3, actions=4):
    return bps.SoftmaxTable(np.random.default_rng(seed).normal(size=(states, actions)))


def test_flat_parameters_round_trip():
    policy = table()
    np.testing.assert_array_equal(policy.with_flat(policy.flat).logits, policy.logits)
    assert policy.flat.dtype == np.float64
    assert isinstance(policy.flat, np.ndarray)


def test_log_prob_is_the_log_of_the_probabilities():
    policy = table()
    states, actions = np.meshgrid(np.arange(3), np.arange(4), indexing="ij")
    log_probs = policy.log_prob(states, actions)
    assert log_probs.dtype == np.float64
    np.testing.assert_allclose(np.exp(log_probs), policy.probabilities, rtol=1e-14)


def test_sampling_follows_the_probabilities():
    """Chi-square test per state at a false-alarm rate of 1e-6; 100,000 draws detect deviations of about 1%."""
    policy = table()
    states = np.repeat(np.arange(3), 100_000)
    actions, log_probs = policy.sample(jax.random.key(0), states)
    np.testing.assert_allclose(log_probs, policy.log_prob(states, actions))
    for state in range(3):
        counts = np.bincount(actions[states == state], minlength=4)
        assert stats.chisquare(counts, 100_000 * policy.probabilities[state]).pvalue > 1e-6


def test_an_action_of_probability_zero_is_never_drawn():
    policy = bps.SoftmaxTable([[0.1, -np.inf, 0.3, -np.inf]])
    actions, _ = policy.sample(jax.random.key(1), np.zeros(100_000, np.int32))
    assert set(np.unique(actions)) == {0, 2}


def test_the_closed_form_score_equals_the_derived_one():
    policy, rng = table(), np.random.default_rng(1)
    observations, actions = rng.integers(3, size=(5, 6)), rng.integers(4, size=(5, 6))
    weights = rng.normal(size=(5, 6))
    with jax.enable_x64(True):
        derived = np.asarray(Policy.score(policy, observations, actions, weights))
    np.testing.assert_allclose(policy.score(observations, actions, weights), derived, atol=1e-12)


def test_with_probability_keeps_the_other_proportions():
    policy = table()
    changed = policy.with_probability(1, 2, 0.005)
    assert changed.probabilities[1, 2] == pytest.approx(0.005)
    others = [0, 1, 3]
    np.testing.assert_allclose(
        changed.probabilities[1, others] / 0.995, policy.probabilities[1, others] / (1 - policy.probabilities[1, 2])
    )
    np.testing.assert_allclose(changed.probabilities[[0, 2]], policy.probabilities[[0, 2]])
    certain = policy.with_probability(0, 0, 1.0)
    assert certain.probabilities[0, 0] == 1.0
    with pytest.raises(InvalidArgumentError, match="no other action"):
        certain.with_probability(0, 0, 0.5)


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        ([1.0, 2.0], "shape"),
        ([[np.nan, 0.0]], "state 0, action 0"),
        ([[np.inf, 0.0]], "state 0, action 0"),
        ([[-np.inf, -np.inf]], "state 0 has none"),
    ],
)
def test_bad_logits_are_named(logits, message):
    with pytest.raises(InvalidArgumentError, match=message):
        bps.SoftmaxTable(logits)


def test_a_behavior_without_the_support_of_the_evaluation_policy_is_refused():
    policy = table()
    with pytest.raises(SupportError, match="probability 0 to action 2 in state 1"):
        policy.with_probability(1, 2, 0.0).check_support(policy)
    policy.check_support(policy.with_probability(1, 2, 0.0))


def test_deterministic():
    assert bps.SoftmaxTable([[0.0, -np.inf], [-np.inf, 1.0]]).deterministic
    assert not table().deterministic


def test_a_table_is_immutable():
    with pytest.raises(ValueError, match="read-only"):
        table().logits[0, 0] = 1.0
