"""Rare failures: margins, weights that a search fixes with its behavior, and the search through levels."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import bpsearch as bps
from benchmarks import rare_levels
from benchmarks.closed_form import failure as slips
from bpsearch.control_variates import handover
from bpsearch.control_variates.handover import Handover
from bpsearch.errors import InvalidArgumentError, InvalidTrajectoriesError
from bpsearch.inference.confidence_sequence import CertifiedSequence, anytime_bounds, lower_bounds
from bpsearch.inference.counting import count_episodes
from bpsearch.report.words import certificate
from bpsearch.search import Info, TableFailures
from bpsearch.search.imitation import ByCounts
from bpsearch.testing import check_search, enumerate_trajectories
from whole_studies import expectation

MDP = bps.envs.gridworld()
POLICY = bps.shipped_policy("gridworld-early")


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("return < -50", lambda batch: -50.0 - batch.returns()),
        ("return >= -50", lambda batch: batch.returns() + 50.0),
        ("length > 15", lambda batch: batch.lengths - 15.0),
        ("length <= 15", lambda batch: 15.0 - batch.lengths),
        ("length == 15", lambda batch: -np.abs(batch.lengths - 15.0)),
    ],
)
def test_a_comparison_tells_how_near_each_episode_came(condition, expected):
    batch = bps.sample(MDP, POLICY, 40, seed=0)
    paid = bps.Failure(condition).pay(batch)
    np.testing.assert_array_equal(paid.margins, expected(batch))
    failed = paid.returns() == 1.0
    assert 0 < failed.sum() < 40
    assert paid.margins[failed].min() > paid.margins[~failed].max(), "failures are the nearest"
    assert batch.margins is None


def test_a_level_of_the_user_takes_the_place_of_the_margin():
    batch = bps.sample(MDP, POLICY, 10, seed=0)
    plain, graded = (bps.Failure(lambda b: b.lengths > 7, 1.0, level) for level in (None, lambda b: -b.lengths))
    assert (plain.graded, graded.graded, bps.Return().graded) == (False, True, False)
    assert plain.pay(batch).margins is None
    paid = graded.pay(batch)
    np.testing.assert_array_equal(paid.margins, -batch.lengths)
    np.testing.assert_array_equal(paid.take(np.array([3, 1])).margins, paid.margins[[3, 1]])
    np.testing.assert_array_equal(bps.Trajectories.concatenate([paid, paid]).margins, np.tile(paid.margins, 2))


def test_what_cannot_be_a_level_is_refused():
    with pytest.raises(InvalidArgumentError, match="level must be a function"):
        bps.Failure("return < 0", 1.0, 3.0)
    with pytest.raises(InvalidArgumentError, match="give failure, too"):
        bps.evaluate(POLICY, MDP, 10, level=lambda b: b.lengths)
    with pytest.raises(InvalidArgumentError, match="'level <lambda>' must give 10 numbers"):
        bps.evaluate(POLICY, MDP, 10, failure="return < 0", level=lambda b: b.lengths[:3])
    with pytest.raises(InvalidTrajectoriesError, match="of episode 2 is nan"):
        bps.evaluate(POLICY, MDP, 4, failure="return < 0", level=lambda b: np.array([0.0, 1.0, np.nan, 2.0]))


def chain(levels, p=0.1, noise=0.0):
    """Down one level with probability p each time, by an action of the policy, or the episode ends."""
    task = rare_levels.chain(levels, p, noise)
    return task.env, task.policy


@dataclass(frozen=True)
class Switching(bps.Search[np.ndarray]):
    """Explores with a policy of its own until a failure was seen, then counts; the weight may then still change."""

    def init(self, policy, discount=1.0):
        return np.concatenate([np.zeros(2), np.asarray(policy.logits).ravel()])

    def behavior(self, state):
        logits = state[2:].reshape(-1, 2)
        return bps.SoftmaxTable(logits + np.array([0.0, 1.5 if state[1] else 0.5]))

    def weight(self, state):
        return (0.0, 1.0, 0.4)[int(state[1])]

    def step(self, state, batch):
        failures = int((batch.returns() > 0.0).sum())
        state = state.copy()
        state[1] = min(2.0, state[1] + failures)
        return state, Info(np.zeros(len(batch)), np.float64(0.0))


def test_weights_that_depend_on_earlier_batches_do_not_bias_and_their_ratio_does():
    """By enumeration of whole studies; some never count a batch, some give later batches less."""
    mdp, policy = chain(1, 0.3)
    sizes = (2, 1, 2, 1)
    unbiased, ratio = expectation(Switching(), mdp, policy, bps.Failure("return >= 1"), sizes)
    assert unbiased == pytest.approx(0.3, abs=1e-12)
    assert abs(ratio - 0.3) > 0.005, "the negative control"


def test_an_episode_counts_what_was_fixed_times_what_later_ones_count():
    assert count_episodes([0.5, 1.0, 1.0], [3, 4, 5]) == [0.5, 1.0, 1.0]
    assert count_episodes([0.0, 0.0, 1.0, 1.0], [2, 2, 2, 1]) == [0.0, 0.0, 1.0, 1.0]
    assert count_episodes([0.0, 0.0], [2, 2]) == [0.0, 1.0]
    weights, sizes = [0.3, 2.0, 0.0, 0.7, 0.1], [2, 3, 1, 4, 2]
    left, shares = 1.0, []
    for k in range(5):  # the rule as its module has it
        counted, later = weights[k] * sizes[k], sum(sizes[k + 1 :])
        shares.append(left * (counted / (counted + later) if later else 1.0))
        left -= shares[-1]
    counts = np.array(count_episodes(weights, sizes)) * sizes
    np.testing.assert_allclose(counts / counts.sum(), shares)


@pytest.mark.slow
def test_whole_studies_by_levels_are_unbiased():
    """Every batch enumerated, with the looking around, the levels, the switch, the shift and the refined behaviors."""
    mdp, policy = chain(2, 0.3, noise=0.2)
    found, _ = expectation(bps.Levels(), mdp, policy, bps.Failure("return >= 2"), (2, 1, 1))
    assert found == pytest.approx((0.3 * 0.8) ** 2, abs=1e-12)


@pytest.mark.parametrize("common", [0.01, 0.5], ids=["at once", "sometimes"])
def test_whole_studies_that_may_be_handed_over_are_unbiased(common, monkeypatch):
    """Every batch enumerated, with thresholds so low that one failure hands over; also back, after one bad batch."""
    monkeypatch.setattr(handover, "FEW", 1)
    monkeypatch.setattr(handover, "COMMON", common)
    monkeypatch.setattr(handover, "TRIAL", 1)
    monkeypatch.setattr(handover, "GAIN", 5.0)
    mdp, policy = chain(1, 0.3, noise=0.2)
    found, _ = expectation(TableFailures(), mdp, policy, bps.Failure("return >= 1"), (1, 1, 1))
    assert found == pytest.approx(0.3 * 0.8, abs=1e-12)


def test_where_failures_are_common_the_closed_form_takes_over():
    """A slip at one of five steps fails half of the time, one in a hundred in all: three seeds, 1,000 episodes."""
    task = slips()
    truth = bps.oracle.value(*task)
    errors = []
    for seed in range(3):
        study = bps.Study(task.policy, "failures", estimand=bps.Failure("return >= 1"), seed=seed)
        found = study.run(task.mdp, total=1000)
        assert bool(study.state.handover.closed)
        assert found.weight_bound == np.inf
        errors.append((found.value - truth) ** 2)
        low, high = found.interval(0.9999)
        assert low < truth < high
        assert found.std_error < 0.6 * np.sqrt(truth / 1000)
    assert np.mean(errors) < 0.5 * truth / 1000


def test_rare_failures_are_left_to_levels_and_a_bad_closed_form_is_left_again():
    mdp, policy = chain(6)
    study = bps.Study(policy, "failures", estimand=bps.Failure("return >= 6"), seed=0)
    found = study.run(mdp, total=1200)
    assert found.value == pytest.approx(1e-6, rel=0.3)
    assert not study.state.handover.closed
    assert found.weight_bound == 5.0, "of all batches, those that count nothing included"
    assert np.exp(found.data.log_weights[found.data.counts > 0.0]).max() <= 5.0 + 1e-9
    bad = replace(
        Handover.of(policy, 1.0),
        episodes=np.int64(500),
        failures=np.int64(9),
        total=np.float64(5.0),
        tried=np.int64(200),
        squares=np.float64(200 * 0.02),
        closed=np.bool_(True),
    )
    calm = replace(bad, squares=np.float64(200 * 0.005))
    batch = bps.Failure("return >= 6").pay(bps.sample(mdp, policy, 10, seed=0))
    assert (bool(bad.add(batch).closed), bool(bad.add(batch).refused)) == (False, True)
    assert (bool(calm.add(batch).closed), bool(calm.add(batch).refused)) == (True, False)


def test_the_default_for_failures_of_tables_is_known_by_name():
    mdp, policy = chain(2)
    assert bps.evaluate(policy, mdp, 100, failure="return >= 2", seed=0).settings["method"] == "failures"


def test_a_failure_of_one_in_a_million_is_found_through_levels():
    """Six levels of 0.1, where Monte Carlo's relative error is 18; three seeds, each within a quarter of the truth."""
    mdp, policy = chain(6)
    for seed in range(3):
        found = bps.evaluate(policy, mdp, 2000, "levels", failure="return >= 6", seed=seed)
        assert found.value == pytest.approx(1e-6, rel=0.25)
        low, high = found.interval(0.9999)
        assert low < 1e-6 < high
        assert found.std_error < 0.1e-6
        assert 0.0 < np.mean(found.data.counts == 0.0) < 0.5
        assert found.data.counts[0] == 0.0
        assert found.value == pytest.approx(found.history.values[-1])
        assert found.std_error == pytest.approx(found.history.std_errors[-1])
        assert found.savings > 1e5
        assert found.certified_interval()[0] < 1e-6 < found.upper_bound()
    assert "episodes only looked for failures, and the estimate rests on" in certificate(found)
    assert bps.evaluate(policy, mdp, 2000, "bpg", failure="return >= 6", seed=0).events == 0


def test_a_failure_by_one_rare_action_has_no_levels_and_is_found_by_looking_around():
    mdp, policy = chain(1, 1e-4)
    graded, plain = "return >= 1", lambda batch: batch.returns() >= 1.0
    for failure in (graded, plain):
        found = bps.evaluate(policy, mdp, 1000, "levels", failure=failure, seed=1)
        assert found.value == pytest.approx(1e-4, rel=0.2)


def test_with_nothing_to_gain_the_behavior_stays_near_the_policy():
    """The environment alone decides about the failure: the values vary hardly more than Monte Carlo's."""
    mdp, _ = chain(1, 0.5, noise=0.9)
    stuck = bps.TabularMDP(mdp.transitions[:, [1, 1]], mdp.rewards[:, [1, 1]], mdp.initial, mdp.terminal, 1)
    policy = bps.SoftmaxTable.from_probabilities(np.tile([0.7, 0.3], (3, 1)))
    found = bps.evaluate(policy, stuck, 1000, "levels", failure="return >= 1", seed=0)
    assert found.value == pytest.approx(0.1, abs=4 * 0.01)
    assert found.std_error < 1.15 * np.sqrt(0.09 / 1000)
    assert np.exp(found.data.log_weights).max() <= 5.0 + 1e-9


def test_a_second_way_to_fail_is_not_starved():
    """Found or not, no behavior makes an episode rarer than a fifth of what the policy does."""
    mdp, policy = chain(3)
    weights = np.exp(bps.evaluate(policy, mdp, 1500, "levels", failure="return >= 3", seed=0).data.log_weights)
    assert weights.max() <= 5.0 + 1e-9


def test_the_first_way_to_fail_does_not_hide_the_others():
    """Twenty doors, behind each two actions of 0.03: the search knows some; noise shows the others."""
    task = rare_levels.TASKS["doors, actions"]()

    def errors(search):
        found = (
            bps.evaluate(task.policy, task.env, 1000, search, estimand=task.asked, seed=seed) for seed in range(10)
        )
        return np.sqrt(np.mean([(estimate.value / task.truth - 1.0) ** 2 for estimate in found]))

    assert errors(bps.Levels(careful=0.5)) < 0.6
    assert errors(bps.Levels(careful=0.5, exploring=0.0)) > 0.8, "as Monte Carlo, whose error is 1.05"


def test_an_event_that_cannot_happen_has_a_bound_from_all_episodes():
    mdp, policy = chain(2)
    found = bps.evaluate(policy, mdp, 500, "levels", failure="return >= 7", seed=0)
    assert (found.value, found.events) == (0.0, 0)
    assert found.anytime_interval() is None
    assert found.data.counts.reshape(5, 100).sum(axis=1).tolist() == [0.0, 0.0, 0.0, 0.0, 100.0], "the last alone"
    low, high = found.interval()
    assert low == 0.0
    assert found.upper_bound() < high < 0.15


def test_a_stored_study_by_levels_goes_on_to_the_last_bit(tmp_path):
    mdp, policy = chain(3)
    asked = bps.Failure("return >= 3")
    whole = bps.Study(policy, "levels", estimand=asked, seed=5).run(mdp, total=600)
    with bps.Study(policy, "levels", estimand=asked, seed=5, store=tmp_path / "a.db") as study:
        study.run(mdp, total=300)
    with bps.Study(policy, "levels", estimand=asked, store=tmp_path / "a.db") as study:
        again = study.run(mdp, total=600)
        assert study.verify() == []
    assert (again.value, again.std_error) == (whole.value, whole.std_error)
    np.testing.assert_array_equal(again.data.counts, whole.data.counts)


def test_certified_bounds_rest_on_what_counts_from_below_and_on_all_from_above():
    rng = np.random.default_rng(0)
    log_weights, returns = 0.3 * rng.normal(size=300), (rng.random(300) < 0.2).astype(float)
    counted, looks = np.arange(300) >= 100, np.array([50, 100, 200, 300])
    low, high = anytime_bounds(log_weights, returns, (0.0, 1.0), looks, 0.9, counted)
    assert low[:2].tolist() == [0.0, 0.0]
    values = np.exp(log_weights) * returns
    np.testing.assert_allclose(low[2:], lower_bounds(values[100:], 0.05, np.array([100, 200])))
    np.testing.assert_array_equal(high, anytime_bounds(log_weights, returns, (0.0, 1.0), looks, 0.9)[1])
    sequence = CertifiedSequence((0.0, 1.0), 0.9)
    for first, last in zip([0, *looks[:-1]], looks, strict=True):
        sequence = sequence.add(log_weights[first:last], returns[first:last], counts=bool(counted[first]))
    assert sequence.interval == pytest.approx((low[-1], high[-1]))


def test_counts_give_the_minimum_of_the_cross_entropy():
    """With every trajectory, weighted by its probability: π(a|s) of the failing episodes, as the oracle has it."""
    mdp, policy = chain(2, 0.3)
    everything = enumerate_trajectories(mdp)
    batch = everything.under(policy)
    failing = np.asarray(batch.returns()) == 1.0  # one step down, then out
    weights = 1e6 * everything.probabilities(policy.probabilities)
    fit = ByCounts()
    known = fit.add(fit.init(policy), policy, batch, failing, weights, weights, (1.0, 1.0))
    known["number"] = 1e9 * np.ones(8)
    found = policy.with_flat(fit.fit(known, policy, policy)[0]).probabilities
    np.testing.assert_allclose(found[:2], [[0.0, 1.0], [1.0, 0.0]], atol=1e-6)


def test_levels_keep_the_promises_of_a_search_for_networks_too():
    box = bps.envs.cartpole_swingup()
    policy = bps.GaussianMLP.init(0, box.observation_space, box.action_space, (3,))
    batches = [bps.Failure("return < -5").pay(bps.sample(box, policy, 30, seed=0, batch=n)) for n in range(3)]
    check_search(bps.Levels(), policy, batches)
