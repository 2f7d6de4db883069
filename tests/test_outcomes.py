"""Outcomes and failure probabilities: what is estimated, and what is said when nothing was seen."""

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.errors import InvalidArgumentError, InvalidTrajectoriesError
from bpsearch.intervals import clopper_pearson
from bpsearch.outcomes import Outcome
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
    outcome = Outcome.failure("return < -0.3", mdp.discount)
    happened = everything.batch.returns(0.9) < -0.3
    truth = everything.probabilities(evaluation.probabilities) @ happened
    assert 0.05 < truth < 0.95
    paid = outcome.paid(everything.under(behavior))
    np.testing.assert_array_equal(paid.returns(1.0), happened)
    ratios = bps.estimators.log_ratios(evaluation, paid)
    for estimator in (bps.estimators.importance_sampling, bps.estimators.per_decision):
        values = estimator(paid.rewards, ratios, paid.mask, 1.0)
        assert abs(everything.probabilities(behavior.probabilities) @ values - truth) < TOLERANCE


def test_every_method_estimates_the_same_probability():
    """z-tests at a false-alarm rate of 1e-6 each, against 20,000 episodes with another seed."""
    many = bps.sample(MDP, POLICY, 20_000, seed=9).returns() < -80
    for method in ("mc", "bpg"):
        found = bps.evaluate(POLICY, MDP, 1000, method, failure="return < -80")
        error = np.hypot(found.std_error, many.std() / np.sqrt(20_000))
        assert abs(found.value - many.mean()) < 4.9 * error, method
        assert found.event == "return < -80"
        assert "probability of return < -80" in str(found)
        low, high = found.interval()
        assert 0.0 <= low < high <= 1.0
        assert found.anytime_interval() is not None


def test_the_discount_belongs_to_the_return_not_to_the_outcome():
    short = bps.TabularMDP(np.ones((1, 1, 1)), np.ones((1, 1, 1)), np.ones(1), np.zeros(1, bool), 3, 0.5)
    only = bps.SoftmaxTable.uniform(1, 1)
    assert bps.evaluate(only, short, 20, "mc", failure="return >= 1.75").value == 1.0
    assert bps.evaluate(only, short, 20, "mc", failure="return > 1.75").value == 0.0
    assert bps.evaluate(only, short, 20, "mc", outcome=lambda batch: 3 * batch.lengths).value == 9.0


def test_a_failure_that_was_never_seen_has_a_bound():
    for method in ("mc", "bpg"):
        found = bps.evaluate(POLICY, MDP, 500, method, failure="return < -400")
        assert found.value == 0.0
        assert found.events == 0
        assert found.interval() == clopper_pearson(0, 500, 0.95)
        assert found.upper_bound() == pytest.approx(1.0 - 0.05 ** (1.0 / 500))
        assert "in none of 500 episodes: its probability is at most 0.00597 (95%, one-sided)" in str(found)
        assert "cannot help" not in str(found)
        assert "exact" in found.interval_kind
        assert "cannot certify a probability below about log(1/0.05)/n = 0.006" in found.certificate
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
    study = bps.Study(POLICY, bps.BPG(normalized(0.3), defensive=0.25), outcome=Outcome.failure("return < -80"), seed=3)
    study.run(MDP, episodes=300)
    never = bps.Study(POLICY, study.search, outcome=Outcome.failure("return < -540"))
    never._progress.state = study.state  # a behavior that has left the policy
    found = never.run(MDP, episodes=300)
    assert found.events == 0
    assert found.std_error is None
    low, high = found.interval()
    assert low == 0.0
    assert 0.01 < found.upper_bound() <= high < 0.5
    assert found.interval_kind == found.anytime_kind
    assert "importance weights of at most 4" in found.anytime_kind
    assert "sharpens the estimate, not the certificate" in found.certificate


def test_the_page_shows_a_probability(tmp_path):
    found = bps.evaluate(POLICY, MDP, 300, "mc", failure="return < -80")
    page = found.report(tmp_path / "page.html").read_text()
    assert "Probability of return &lt; -80 under the policy" in page
    assert "anytime-valid" in page
    assert "certificate" in page


def test_lengths_and_functions():
    batch = bps.sample(MDP, POLICY, 200, seed=0)
    for text, expected in (
        ("length>=20", batch.lengths >= 20),
        (" length  ==  12 ", batch.lengths == 12),
        ("return <= -1e2", batch.returns() <= -100),
    ):
        np.testing.assert_array_equal(Outcome.failure(text)(batch), expected)
    named = Outcome.failure(lambda b: b.observations[:, 0] == 0)
    assert named(batch).dtype == np.float64


@pytest.mark.parametrize(
    "text",
    ["", "return", "reward < 1", "return < much", "return < nan", "return < 1 or 1", "__import__('os')", "1 < return"],
)
def test_conditions_that_are_none(text):
    with pytest.raises(InvalidArgumentError, match="failure must compare"):
        Outcome.failure(text)


def test_bad_outcomes_are_named_and_the_batch_is_not_counted():
    batch = bps.sample(MDP, POLICY, 20, seed=0)
    for function, error, message in (
        (lambda b: b.rewards, InvalidArgumentError, "must give 20 numbers"),
        (lambda b: "all", InvalidArgumentError, "must give 20 numbers"),
        (lambda b: b.returns(), InvalidTrajectoriesError, "must be True or False"),
    ):
        study = bps.Study(POLICY, bps.OnPolicy(), outcome=Outcome.failure(function))
        with pytest.raises(error, match=message):
            study.tell(study.ask().number, batch)
        assert study.episodes == 0
    with pytest.raises(InvalidTrajectoriesError, match="a finite number"):
        Outcome(lambda b: b.returns() * np.nan, "broken")(batch)
    with pytest.raises(InvalidArgumentError, match="failure or outcome, not both"):
        bps.evaluate(POLICY, MDP, 10, failure="length > 1", outcome=lambda b: b.lengths)
    with pytest.raises(InvalidArgumentError, match="failure must be a comparison"):
        bps.evaluate(POLICY, MDP, 10, failure=7)
