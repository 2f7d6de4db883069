"""Outcomes and failure probabilities: what is estimated, and what is said when nothing was seen."""

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.errors import InvalidArgumentError, InvalidTrajectoriesError
from bpsearch.inference.intervals import clopper_pearson
from bpsearch.methods import find_method
from bpsearch.report import words
from bpsearch.search import normalized
from enumeration import enumerate_trajectories, random_mdp, random_policy
from test_unbiased import TOLERANCE

MDP = bps.envs.gridworld()
POLICY = bps.shipped_policy("gridworld-early")


def test_an_outcome_is_the_undiscounted_return_of_what_is_paid():
    """By enumeration: the expectation of each estimator is the outcome's, whatever the discount of the rewards."""
    mdp = random_mdp(0, (3, 2, 2), 0.9)
    evaluation, behavior = random_policy(1, mdp), random_policy(2, mdp)
    everything = enumerate_trajectories(mdp)
    outcome = bps.Failure("return < -0.3", mdp.discount)
    happened = everything.batch.returns(0.9) < -0.3
    truth = everything.probabilities(evaluation.probabilities) @ happened
    assert 0.05 < truth < 0.95
    paid = outcome.pay(everything.under(behavior))
    np.testing.assert_array_equal(paid.returns(1.0), happened)
    ratios = bps.estimators.log_ratios(evaluation, paid)
    for estimator in (bps.estimators.importance_sampling, bps.estimators.per_decision):
        values = estimator(paid.rewards, ratios, paid.mask, 1.0)
        assert abs(everything.probabilities(behavior.probabilities) @ values - truth) < TOLERANCE


def test_every_method_estimates_the_same_probability():
    """z-tests at a false-alarm rate of 1e-6 each, against 20,000 episodes with another seed."""
    many = bps.sample(MDP, POLICY, 20_000, seed=9).returns() < -80
    for method in ("mc", "bpg"):
        found = bps.evaluate(POLICY, MDP, 1000, method, failure="return < -80", seed=0)
        error = np.hypot(found.std_error, many.std() / np.sqrt(20_000))
        assert abs(found.value - many.mean()) < 4.9 * error, method
        assert found.event == "return < -80"
        assert "probability of return < -80" in str(found)
        low, high = found.interval()
        assert 0.0 <= low < high <= 1.0
        assert found.certified_interval() is not None
        assert found.anytime_interval() is not None


def test_the_discount_belongs_to_the_return_not_to_the_outcome():
    short = bps.TabularMDP(np.ones((1, 1, 1)), np.ones((1, 1, 1)), np.ones(1), np.zeros(1, bool), 3, 0.5)
    only = bps.SoftmaxTable.uniform(1, 1)
    assert bps.evaluate(only, short, 20, "mc", failure="return >= 1.75").value == 1.0
    assert bps.evaluate(only, short, 20, "mc", failure="return > 1.75").value == 0.0
    lengths = bps.Outcome(lambda batch: 3 * batch.lengths)
    assert bps.evaluate(only, short, 20, "mc", estimand=lengths).value == 9.0


def test_a_failure_that_was_never_seen_has_a_bound():
    for method in ("mc", "bpg"):
        found = bps.evaluate(POLICY, MDP, 500, method, failure="return < -400")
        assert found.value == 0.0
        assert found.events == 0
        assert found.interval() == clopper_pearson(0, 500, 0.95)
        assert found.upper_bound() == pytest.approx(1.0 - 0.05 ** (1.0 / 500))
        assert "in none of 500 episodes: its probability is at most 0.00597 (95%, one-sided)" in str(found)
        assert "cannot help" not in str(found)
        assert "exact" in words.interval_kind(found)
        assert "cannot certify a probability below about 0.006" in words.certificate(found)
        result = found.to_json()
        assert result["event"] == "return < -400"
        assert result["upper_bound"] == found.upper_bound()


def test_a_failure_that_always_happens():
    found = bps.evaluate(POLICY, MDP, 200, "mc", failure="return < 1000")
    assert found.value == 1.0
    assert found.interval() == clopper_pearson(200, 200, 0.95)
    assert found.interval()[1] == 1.0


def test_weighted_episodes_without_a_failure_are_bounded_too():
    """Off-policy and nothing seen: no 0 ± 0, and the bound says how large the weights may be."""
    search = bps.BPG(normalized(0.3), defensive=0.25)
    study = bps.Study(POLICY, search, estimand=bps.Failure("return < -80"), seed=3)
    study.run(MDP, episodes=300)
    never = bps.Study(POLICY, search, estimand=bps.Failure("return < -540"), seed=0)
    never._progress.states = study._progress.states  # a behavior that has left the policy
    found = never.run(MDP, episodes=300)
    assert found.events == 0
    assert found.std_error is None
    low, high = found.interval()
    assert low == 0.0
    assert 0.01 < found.upper_bound() <= high < 0.5
    assert found.interval() == found.certified_interval()
    assert words.interval_kind(found) == words.certified_kind(found)
    assert "importance weights of at most 4" in words.certified_kind(found)
    assert "sharpens the estimate, not the certificate" in words.certificate(found)


def test_the_page_shows_a_probability(tmp_path):
    found = bps.evaluate(POLICY, MDP, 300, "mc", failure="return < -80")
    page = found.report(tmp_path / "page.html").read_text()
    assert "Probability of return &lt; -80 under the policy" in page
    assert "anytime-valid" in page
    assert "certified" in page
    assert "certificate" in page


def test_lengths_and_functions():
    batch = bps.sample(MDP, POLICY, 200, seed=0)
    for text, expected in (
        ("length>=20", batch.lengths >= 20),
        (" length  ==  12 ", batch.lengths == 12),
        ("return <= -1e2", batch.returns() <= -100),
    ):
        np.testing.assert_array_equal(bps.Failure(text).pay(batch).returns(), expected)
        np.testing.assert_array_equal(bps.Failure(text).pay(batch).returns(0.0), expected & (batch.lengths == 1))
    started = bps.Failure(lambda b: b.observations[:, 0] == 0)
    np.testing.assert_array_equal(started.pay(batch).returns(), batch.observations[:, 0] == 0)
    assert started.pay(batch).rewards.dtype == np.float64
    assert bps.Failure(" length  ==  12 ").name == "length == 12"


@pytest.mark.parametrize(
    "text",
    ["", "return", "reward < 1", "return < much", "return < nan", "return < 1 or 1", "__import__('os')", "1 < return"],
)
def test_conditions_that_are_none(text):
    with pytest.raises(InvalidArgumentError, match="failure must compare"):
        bps.Failure(text)


def test_bad_outcomes_are_named_and_the_batch_is_not_counted():
    batch = bps.sample(MDP, POLICY, 20, seed=0)
    for function, error, message in (
        (lambda b: b.rewards, InvalidArgumentError, "must give 20 numbers"),
        (lambda b: "all", InvalidArgumentError, "must give 20 numbers"),
        (lambda b: b.returns(), InvalidTrajectoriesError, "must be True or False"),
    ):
        study = bps.Study(POLICY, bps.OnPolicy(), estimand=bps.Failure(function))
        with pytest.raises(error, match=message):
            study.tell(study.ask().number, batch)
        assert study.episodes == 0
    with pytest.raises(InvalidTrajectoriesError, match="a finite number"):
        bps.Outcome(lambda b: b.returns() * np.nan).pay(batch)
    with pytest.raises(InvalidArgumentError, match="failure or estimand, not both"):
        bps.evaluate(POLICY, MDP, 10, failure="length > 1", estimand=bps.Outcome(lambda b: b.lengths))
    with pytest.raises(InvalidArgumentError, match="failure must be a comparison"):
        bps.evaluate(POLICY, MDP, 10, failure=7)
    with pytest.raises(InvalidArgumentError, match="an outcome must be a function"):
        bps.Outcome("length")


def test_episodes_are_kept_as_they_came_and_paid_when_they_are_valued(tmp_path):
    """What is asked is no part of what happened: the file has the environment's own rewards."""
    with bps.Study(POLICY, "mc", estimand=bps.Failure("return < -20"), seed=1, store=tmp_path / "s.db") as study:
        found = study.run(MDP, episodes=100)
        batch, _ = study._progress.recorder.episodes(study._progress._told_at[0])
    expected = bps.sample(MDP, POLICY, 100, seed=1, batch=0)
    np.testing.assert_array_equal(batch.rewards, expected.rewards)
    np.testing.assert_array_equal(found.data.returns, expected.returns() < -20)


def test_the_default_looks_for_a_failure_by_a_search_of_behaviors():
    assert bps.evaluate(POLICY, MDP, 100, failure="return < -80").method == find_method("failures").name
    ungraded = bps.evaluate(POLICY, MDP, 100, failure=lambda batch: batch.returns() < -80.0)
    assert ungraded.method == find_method("bpg").name
    assert bps.evaluate(POLICY, MDP, 100).method == find_method("auto").name
