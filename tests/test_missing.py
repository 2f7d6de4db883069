"""Failures that a search has not found: what tells of them, and the room that intervals have for them."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

import bpsearch as bps
from benchmarks import rare_levels
from bpsearch.inference.confidence_sequence import AsymptoticSequence
from bpsearch.inference.difference import DifferenceSequence, Side, Turn, paired_error
from bpsearch.inference.failures import EventValuation
from bpsearch.inference.missing import distance_of_missing, tail_shape
from bpsearch.inference.unseen import PSEUDO_EPISODES
from bpsearch.inference.valuation import ValuedBatch
from bpsearch.methods import Method, find_method
from bpsearch.report import words
from bpsearch.search import Levels, TableFailures

POLICY, ENV = bps.shipped_policy("gridworld-early"), bps.envs.gridworld()
RARE = "return < -200"  # of probability 1.5e-4: of a million episodes of the policy, 151


@pytest.mark.parametrize("shape", [-0.5, 0.2, 1.0, 2.0])
def test_the_shape_of_a_tail_is_found_again(shape: float) -> None:
    found = [tail_shape(stats.genpareto.rvs(shape, size=4000, random_state=seed)) for seed in range(40)]
    assert np.mean(found) == pytest.approx(shape, abs=0.15)


def test_the_shape_is_that_of_the_likelihood() -> None:
    """Second route: SciPy's maximum likelihood of the same largest values, with the same little pull."""
    values = stats.genpareto.rvs(0.7, size=4000, random_state=3)
    above = np.sort(values)[-189:] - np.sort(values)[-190]
    likely, *_ = stats.genpareto.fit(above, 0.7, floc=0.0)
    assert tail_shape(values) == pytest.approx((189 * likely + 5.0) / 199, abs=0.03)


def test_few_values_and_equal_ones_have_no_tail() -> None:
    assert math.isnan(tail_shape(np.arange(1.0, 20.0)))
    assert tail_shape(np.ones(200)) == 0.0


def distance(log_weights: np.ndarray, returns: np.ndarray) -> float:
    """Of values by importance sampling."""
    return distance_of_missing(log_weights, returns, np.exp(log_weights) * returns)


def test_what_failures_tell_of_those_that_were_not_found() -> None:
    rng = np.random.default_rng(0)
    logs, failed = np.where(np.arange(1000) < 400, -8.0, math.log(2.0)), (np.arange(1000) < 400).astype(float)
    assert distance(logs, failed) == 0.0, "400 of one weight speak for themselves"
    wild = np.where(failed > 0.0, -20.0 + 4.0 * rng.normal(size=1000), math.log(2.0))
    assert distance(wild, failed) == pytest.approx(2.0 - np.exp(wild[:400].max()))
    some = (np.arange(1000) < 4).astype(float)
    assert distance(np.full(1000, math.log(2.0)), some) == 0.0, "none can be larger than these"
    assert distance(logs, 0.0 * failed) == 0.0, "nothing was found: the one-sided bound says that"
    assert distance(logs, failed - 1.0) == 0.0, "returns, and no event"


def test_a_model_may_be_wrong_as_long_as_no_failure_counts() -> None:
    rng = np.random.default_rng(4)
    logs, none = rng.normal(size=100), np.zeros(100)
    assert distance_of_missing(logs, none, 0.004 + 1e-6 * rng.normal(size=100)) == pytest.approx(np.exp(logs.max()))
    assert distance_of_missing(logs, none, np.full(100, 0.004)) == 0.0, "values that do not vary claim nothing"


def test_an_interval_of_the_closed_form_is_no_narrower_than_what_it_has_seen() -> None:
    """The model is sure to a thousandth of the probability before any failure counts."""
    task = rare_levels.TASKS["one action of 0.004"]()
    for seed in (5, 8):
        study = bps.Study(task.policy, "failures", estimand=task.asked, seed=seed)
        for size in range(100, 1001, 100):
            interval = study.run(task.env, total=size).anytime_interval()
            assert interval is None or interval[0] <= task.truth <= interval[1], (seed, size)


def test_weights_may_be_as_small_as_they_like() -> None:
    """Of failures that no episode of the policy will ever show, sums and squares of weights are 0 in 64 bit."""
    failed = (np.arange(1000) < 400).astype(float)
    for size in (300.0, 800.0):
        tiny = np.where(failed > 0.0, -size, math.log(2.0))
        assert distance(tiny, failed) == 0.0
        wild = np.where(failed > 0.0, -size * (1.0 + np.arange(1000) / 400), math.log(2.0))
        assert distance(wild, failed) == pytest.approx(2.0)


def test_the_sequence_has_room_for_three_and_a_difference_for_three_of_each() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.exponential(size=(2, 200))
    bare, roomy = (AsymptoticSequence(1000).add(x, missing=missing) for missing in (0.0, 1.5))
    assert roomy.variance == pytest.approx(bare.variance + 3.0 * 1.5**2)
    assert roomy.mean == bare.mean
    turns = [Turn(values, values, False, missing=missing) for values, missing in ((x, 1.5), (y, 2.0))]
    difference = DifferenceSequence.begin(1000).add(*turns, shared=False)
    tight = DifferenceSequence.begin(1000).add(*(dataclasses.replace(t, missing=0.0) for t in turns), shared=False)
    assert difference.variance == pytest.approx(tight.variance + 3.0 * (1.5**2 + 2.0**2))
    assert difference.half_width() / tight.half_width() == pytest.approx(
        math.sqrt(difference.variance / tight.variance)
    )
    sides = [Side([values], [values], False, room) for values, room in ((x, 0.25), (y, 0.5))]
    error, reduced = paired_error(*sides, [1.0])
    assert error.variance == pytest.approx(reduced.variance + 0.75)


def test_the_error_has_room_for_three_of_the_largest_weight_among_what_counts() -> None:
    rng = np.random.default_rng(2)
    failed = rng.random(500) < 0.4
    logs = np.where(failed, -20.0 + 4.0 * rng.normal(size=500), math.log(2.0))
    values = np.exp(logs) * failed
    batches = [
        ValuedBatch(np.full(100, 0.5), np.zeros(100), np.ones(100), weight=0.0),  # looks around
        ValuedBatch(values, logs, failed.astype(float)),
    ]
    found = EventValuation(bps.estimators.importance_sampling).conclude(None, batches)
    room = PSEUDO_EPISODES * ((2.0 - values.max()) / 500) ** 2
    assert found.error.variance == pytest.approx(found.tight_error.variance + room)


def test_searches_for_events_are_valued_with_that_room() -> None:
    for name in ("levels", "levels-starts", "failures"):
        assert isinstance(find_method(name).valuation, EventValuation)
    for search in (Levels(), TableFailures()):
        assert isinstance(Method.of_search(search).valuation, EventValuation)
    assert not isinstance(find_method("bpg").valuation, EventValuation)


def test_an_interval_holds_what_the_search_has_not_found() -> None:
    """A search that never looks elsewhere knows how to fail, and not how the policy fails."""
    found = bps.evaluate(POLICY, ENV, 2000, Levels(careful=0.5, exploring=0.0), failure=RARE, seed=2)
    assert found.value < 1.5e-5
    assert found.tight_interval()[1] < 1.5e-4 < found.interval()[1]
    assert found.anytime_interval()[1] > 1.5e-4
    assert "which the search has not found" in words.interval_kind(found)


def test_what_the_search_knows_needs_no_room() -> None:
    def fall(level: int) -> np.ndarray:
        return np.eye(6)[level]

    transitions = np.array([[fall(5), fall(min(s + 1, 5))] for s in range(6)])
    rewards = np.zeros((6, 2, 6))
    rewards[range(4), 1, range(1, 5)] = 1.0
    mdp = bps.TabularMDP(transitions, rewards, fall(0), np.arange(6) >= 4, horizon=4)
    policy = bps.SoftmaxTable.from_probabilities(np.tile([0.9, 0.1], (6, 1)))
    found = bps.evaluate(policy, mdp, 2000, failure="return >= 4", seed=0)
    assert found.error.variance == found.tight_error.variance
    assert found.value == pytest.approx(1e-4, rel=0.2)


def test_policies_are_compared_by_levels_in_rounds_of_which_the_first_count_nothing() -> None:
    policies = {"early": POLICY, "late": bps.SoftmaxTable(1.3 * POLICY.logits)}
    found = bps.compare(policies, ENV, 800, "failures", failure=RARE, seed=2, stop_early=False)
    (difference,) = found.differences
    assert [point.pairs for point in difference.course] == [100 * (n + 1) for n in range(8)]
    assert math.isinf(difference.course[0].half_width), "the first round looks around"
    values = [found.estimates[name].data for name in policies]
    assert len(difference.pairs) == len(values[0].values) == 800
    np.testing.assert_array_equal(difference.pairs[:, 0], values[0].returns)
    low, high = difference.fixed_interval()
    assert low < 1.5e-4 - 2.1e-5 < high
    assert found.decision == "undecided"
