"""Study and estimate: ask, tell, the interval, and when not to trust it."""

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.errors import InvalidArgumentError, InvalidTrajectoriesError, RequestError, SupportError
from bpsearch.estimators import advantage_sum
from bpsearch.intervals import martingale_error
from bpsearch.models import TabularModel
from bpsearch.search import normalized
from bpsearch.search.base import Valued
from bpsearch.trials import Trials

MDP = bps.envs.gridworld()
POLICY = bps.shipped_policy("gridworld-early")


def test_run_equals_ask_and_tell():
    search = bps.BPG(1e-5)
    by_run = bps.Study(POLICY, search, seed=4).run(MDP, episodes=250, batch_size=100)
    study = bps.Study(POLICY, search)
    for size in (100, 100, 50):
        request = study.ask()
        study.tell(request.number, bps.sample(MDP, request.behavior, size, seed=4, batch=request.number))
    assert study.estimate().value == by_run.value
    assert by_run.episodes == study.episodes == 250
    assert by_run.std_error == study.estimate().std_error


def test_the_estimate_is_the_mean_over_all_episodes():
    study = bps.Study(POLICY, bps.BPG(1e-5), seed=1)
    values = []
    estimate = study.run(MDP, episodes=300, batch_size=100, on_batch=lambda _, info: values.append(info.values))
    assert estimate.value == pytest.approx(np.concatenate(values).mean())
    expected = np.sqrt(sum(100 * np.var(batch, ddof=1) for batch in values)) / 300
    assert estimate.std_error == pytest.approx(expected)
    np.testing.assert_allclose(estimate.history.values[-1], estimate.value)
    np.testing.assert_allclose(estimate.history.std_errors[-1], estimate.std_error)
    low, high = estimate.interval(0.95)
    assert low < estimate.value < high
    wider = estimate.interval(0.99)
    assert wider[0] < low
    assert wider[1] > high


def test_wrong_tells_are_refused_and_change_nothing():
    study = bps.Study(POLICY, bps.BPG(1e-5))
    batch = bps.sample(MDP, POLICY, 20, seed=0)
    with pytest.raises(RequestError, match="request 0 was never asked"):
        study.tell(0, batch)
    study.tell(study.ask().number, batch)
    with pytest.raises(RequestError, match="request 0 is told already, since 20"):
        study.tell(0, batch)
    before = study.estimate().value
    request = study.ask()
    with pytest.raises(InvalidTrajectoriesError, match="not collected by the behavior of request 1"):
        study.tell(1, batch)
    own = bps.sample(MDP, request.behavior, 20, seed=0, batch=1)
    with pytest.raises(InvalidTrajectoriesError, match=f"has the identity {request.identity}, got another"):
        study.tell(1, own, request="another")
    assert study.estimate().value == before
    assert study.episodes == 20
    study.tell(1, own, request=request.identity)
    assert study.episodes == 40


def test_episodes_from_outside_must_be_of_the_policys_spaces_and_of_the_behavior():
    study = bps.Study(POLICY, bps.OnPolicy())
    request = study.ask()
    good = bps.sample(MDP, POLICY, 5, seed=0)
    fields = ("observations", "actions", "rewards", "log_probs", "mask", "final_observations")

    def changed(**arrays):
        return bps.Trajectories(**{name: getattr(good, name) for name in fields} | arrays)

    actions, log_probs = good.actions.copy(), good.log_probs.copy()
    actions[2, 0], log_probs[3, 0] = 4, log_probs[3, 0] - 0.1
    wide = good.observations[..., None]
    for trajectories, message in (
        (changed(actions=actions), r"the action of episode 2, step 0 must be one of Discrete\(4\), got .*4"),
        (changed(observations=wide, final_observations=wide[:, 0]), r"each observation must have the shape \(\)"),
        (changed(observations=good.observations + 0.5), "the observation of episode 0, step 0 must be one of"),
        (changed(log_probs=log_probs), "the log-probability of episode 3, step 0 is"),
    ):
        with pytest.raises(InvalidTrajectoriesError, match=message):
            study.tell(0, trajectories, request=request.identity)
    study.tell(0, changed(), request=request.identity)


def test_requests_are_told_in_any_order_and_the_estimate_says_what_is_left_out():
    study = bps.Study(POLICY, bps.BPG(normalized(0.05)))
    requests = [study.ask() for _ in range(4)]
    assert len({request.identity for request in requests}) == 4
    batches = [bps.sample(MDP, r.behavior, 50, seed=0, batch=r.number) for r in requests]
    for number in (2, 0):
        study.tell(number, batches[number])
    study.abandon(1, "the robot broke")
    with pytest.raises(RequestError, match="request 1 is abandoned already"):
        study.tell(1, batches[1])
    with pytest.raises(RequestError, match="request 7 was never asked"):
        study.abandon(7)
    estimate = study.estimate()
    assert [request.number for request in study.outstanding] == [3]
    assert (estimate.waiting, estimate.abandoned) == ((3,), (1,))
    assert "requests left out: 1 not told yet (3), 1 abandoned (1); the estimate is biased if" in str(estimate)
    in_order = bps.Study(POLICY, bps.OnPolicy(bps.estimators.importance_sampling))
    for _ in range(3):
        in_order.ask()
    for number in (0, 2):
        in_order.tell(number, batches[number])
    assert estimate.value == pytest.approx(in_order.estimate().value, abs=1e-12)
    np.testing.assert_array_equal(estimate.data.returns, in_order.estimate().data.returns)


def test_a_diverged_search_is_stopped_before_sampling_and_what_was_told_stays():
    study = bps.Study(POLICY, bps.BPG(10.0), seed=0)
    with pytest.raises(SupportError, match="probability 0"):
        study.run(MDP, episodes=1000, batch_size=100)
    assert study.episodes >= 100
    assert np.isfinite(study.estimate().value)


def test_run_goes_on_by_so_many_or_to_a_total():
    study = bps.Study(POLICY, bps.OnPolicy(), seed=1)
    study.run(MDP, episodes=150)
    assert study.run(MDP, total=400).episodes == 400
    assert study.run(MDP, total=400).episodes == 400
    assert study.run(MDP, episodes=10).episodes == 410
    for wrong in ({}, {"episodes": 1, "total": 1}):
        with pytest.raises(InvalidArgumentError, match="give either episodes or total"):
            study.run(MDP, **wrong)


def test_no_interval_without_information():
    study = bps.Study(POLICY, bps.OnPolicy())
    with pytest.raises(InvalidArgumentError, match="without episodes"):
        study.estimate()
    study.tell(study.ask().number, bps.sample(MDP, POLICY, 1, seed=0))
    estimate = study.estimate()
    assert estimate.interval() is None
    assert estimate.std_error is None
    assert estimate.savings is None
    assert "interval unknown" in str(estimate)
    assert martingale_error([np.ones(10), np.ones(10)]) is None


def test_batches_of_one_episode_have_an_interval():
    values = np.random.default_rng(0).normal(size=50)
    singles = martingale_error([values[i : i + 1] for i in range(50)])
    assert singles.variance == pytest.approx(np.var(values, ddof=1) / 50)
    assert singles.degrees_of_freedom == pytest.approx(49)


def test_the_interval_accounts_for_batches_of_different_variance():
    rng = np.random.default_rng(0)
    noisy, quiet = rng.normal(scale=10, size=100), rng.normal(scale=0.1, size=900)
    error = martingale_error([noisy, quiet])
    assert error.variance == pytest.approx(100 * np.var(noisy, ddof=1) / 1000**2, rel=1e-3)
    assert error.degrees_of_freedom == pytest.approx(99, rel=1e-2)


def test_batches_that_count_differently_are_combined_without_bias():
    """Weights fixed in advance: the mean, its error by simulation, and a study whose first batch counts half."""
    rng = np.random.default_rng(0)
    draws = [(rng.normal(scale=3.0, size=(4000, 20)), 0.5), (rng.normal(size=(4000, 30)), 1.0)]
    studies = [Valued.of([values[i] for values, _ in draws], None, [0.5, 1.0]) for i in range(4000)]
    means = np.array([valued.mean for valued in studies])
    np.testing.assert_allclose(means, sum(weight * values.sum(axis=1) for values, weight in draws) / 40.0)
    expected = (0.25 * 20 * 9.0 + 30 * 1.0) / 40.0**2
    assert np.var(means) == pytest.approx(expected, rel=0.1)
    assert np.mean([valued.error.variance for valued in studies]) == pytest.approx(expected, rel=0.05)

    study = bps.Study(POLICY, bps.AdaptiveBPG(), seed=4)
    told = []
    estimate = study.run(MDP, episodes=300, batch_size=100, on_batch=lambda _, info: told.append(info.values))
    assert estimate.value == pytest.approx((0.5 * told[0].sum() + told[1].sum() + told[2].sum()) / 250)
    assert estimate.value == pytest.approx(estimate.history.values[-1])
    assert estimate.std_error == pytest.approx(estimate.history.std_errors[-1])


def test_savings_agree_with_the_oracle():
    """Monte Carlo's variance is estimated from the episodes of the search: within 25% of the exact one here."""
    estimate = bps.Study(POLICY, bps.BPG(normalized(0.05)), seed=2).run(MDP, episodes=10_000, batch_size=100)
    exact = bps.oracle.variance(MDP, POLICY, None, "mc")
    assert estimate.diagnostics.monte_carlo_variance == pytest.approx(exact, rel=0.25)
    assert estimate.savings > 2.0
    assert "10000 episodes" in estimate.savings_basis
    assert estimate.diagnostics.final_variance < estimate.diagnostics.monte_carlo_variance
    assert "as good as" in str(estimate)


def test_monte_carlo_saves_nothing():
    estimate = bps.Study(POLICY, bps.OnPolicy(), seed=2).run(MDP, episodes=500)
    assert estimate.savings == pytest.approx(1.0, abs=0.02)
    assert estimate.diagnostics.effective_sample_size == pytest.approx(500)
    assert not estimate.unreliable


def test_an_estimate_that_hangs_on_one_episode_says_so():
    rare = bps.envs.rare_event_gridworld()
    policy = bps.SoftmaxTable.uniform(16, 4)
    greedy = policy.with_probability(0, 0, 0.999)
    study = bps.Study(policy, bps.OnPolicy(bps.estimators.per_decision))
    batch = bps.sample(rare, greedy, 3000, seed=0)
    study.ask()
    study.tell(0, bps.Trajectories(batch.observations, batch.actions, batch.rewards, batch.log_probs, batch.mask))
    estimate = study.estimate()
    assert estimate.unreliable
    assert "unreliable, because" in str(estimate)


def test_the_updated_model_is_labelled_and_revalues_all_batches():
    search = bps.OnPolicy(advantage_sum, TabularModel.like(MDP, "update"))
    study = bps.Study(POLICY, search, seed=0)
    estimate = study.run(MDP, episodes=300, batch_size=100)
    assert not estimate.unbiased
    assert "no guarantee" in estimate.interval_kind
    running = search.valuation.running_value(study.state.valuation)
    assert estimate.value == pytest.approx(float(running), abs=1e-9)
    predictable = bps.Study(POLICY, bps.OnPolicy(advantage_sum, TabularModel.like(MDP)), seed=0)
    assert predictable.run(MDP, episodes=300, batch_size=100).unbiased


def _mean_and_variance(search, state, info, batch):
    return info.values.mean(), info.values.var(ddof=1)


@pytest.mark.parametrize("search", [bps.OnPolicy(), bps.BPG(normalized(0.05))], ids=["mc", "bpg"])
def test_coverage_of_the_interval(search):
    """200 studies of 30 batches: a 95% interval may miss at most 24 (binomial tail 1e-4), bias is a z-test at 1e-6."""
    trials = Trials(search, iterations=30, batch_size=100, seed=11, record=_mean_and_variance)
    _, (means, variances) = trials.run(MDP, POLICY, 200)
    z = (means.mean(axis=1) - bps.oracle.value(MDP, POLICY)) / np.sqrt(variances.mean(axis=1) / 3000)
    assert (np.abs(z) > 1.96).sum() <= 24
    assert abs(z.mean()) * np.sqrt(200) < 4.9


def test_evaluate_every_method_agrees_with_the_truth():
    """z-tests at a false-alarm rate of 1e-6 each."""
    truth = bps.oracle.value(MDP, POLICY)
    for method in ("mc", "bpg", "pdis-bpg", "as", "dr-bpg"):
        result = bps.evaluate(POLICY, MDP, episodes=1500, method=method, seed=1)
        assert abs(result.value - truth) < 4.9 * result.std_error, method
        assert result.episodes == 1500


def test_evaluate_takes_horizon_and_discount():
    result = bps.evaluate(POLICY, MDP, episodes=200, method="mc", horizon=1, discount=0.5)
    assert result.value == pytest.approx(-1.0)
    for arguments, message in (
        ({"method": "magic"}, "method must be one of"),
        ({"horizon": 0}, "horizon"),
        ({"discount": 1.5}, "discount"),
        ({"episodes": 0}, "episodes"),
        ({"batch_size": 0}, "batch_size"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            bps.evaluate(POLICY, MDP, **arguments)


def test_a_study_refuses_an_environment_of_another_discount():
    discounted = bps.TabularMDP(MDP.transitions, MDP.rewards, MDP.initial, MDP.terminal, 10, 0.9)
    with pytest.raises(InvalidArgumentError, match=r"discount must be the environment's 0.9"):
        bps.Study(POLICY, bps.OnPolicy()).run(discounted, episodes=10)
