"""Study and estimate: ask, tell, the interval, and when not to trust it."""

import sys
import time

import numpy as np
import pytest

import bpsearch as bps
from bpsearch._core.jaxtools import in_64_bit
from bpsearch.control_variates import TabularModel
from bpsearch.envs.adapter import GymnasiumEnv
from bpsearch.errors import InvalidArgumentError, InvalidTrajectoriesError, RequestError, SupportError
from bpsearch.estimators import (
    advantage_sum,
    doubly_robust,
    importance_sampling,
    per_decision,
    weighted_importance_sampling,
)
from bpsearch.inference.history import History
from bpsearch.inference.intervals import martingale_error
from bpsearch.inference.valuation import ValuedBatch
from bpsearch.methods import find_method
from bpsearch.paper.on_policy import OnPolicyCurve
from bpsearch.paper.trials import Trials
from bpsearch.report import words
from bpsearch.runners import InProcess
from bpsearch.search import normalized
from bpsearch.search.adaptive import FIRST_WEIGHT

MDP = bps.envs.gridworld()
POLICY = bps.shipped_policy("gridworld-early")


def test_run_equals_ask_and_tell():
    search = bps.BPG(1e-5)
    by_run = bps.Study(POLICY, search, seed=4).run(MDP, episodes=250)
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
    estimate = study.run(MDP, episodes=300, on_batch=lambda _, info: values.append(info.values))
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
    in_order = bps.Study(POLICY, bps.Method(bps.OnPolicy(), bps.Valuation(importance_sampling)))
    for _ in range(3):
        in_order.ask()
    for number in (0, 2):
        in_order.tell(number, batches[number])
    assert estimate.value == pytest.approx(in_order.estimate().value, abs=1e-12)
    np.testing.assert_array_equal(estimate.data.returns, in_order.estimate().data.returns)


def test_a_diverged_search_is_stopped_before_sampling_and_what_was_told_stays():
    study = bps.Study(POLICY, bps.BPG(10.0), seed=0)
    with pytest.raises(SupportError, match="probability 0"):
        study.run(MDP, episodes=1000)
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


def one_by_one(batches, weights):
    """Variance and degrees of freedom of `martingale_error`, by its docstring: groups of at least two values."""
    groups = []
    for values, weight in zip(batches, weights, strict=True):
        pairs = [(value, weight) for value in values]
        if groups and min(len(groups[-1]), len(pairs)) < 2:
            groups[-1] += pairs
        else:
            groups.append(pairs)
    parts = [sum(w**2 for _, w in group) * np.var([value for value, _ in group], ddof=1) for group in groups]
    freedom = sum(parts) ** 2 / sum(p**2 / (len(group) - 1) for p, group in zip(parts, groups, strict=True))
    return sum(parts) / sum(w for group in groups for _, w in group) ** 2, freedom


def test_the_error_is_the_same_batch_by_batch():
    rng = np.random.default_rng(1)
    for _ in range(200):
        batches = [rng.normal(size=rng.integers(1, 5)) * rng.exponential() for _ in range(rng.integers(2, 12))]
        weights = rng.choice([0.5, 1.0, 2.0], size=len(batches)).tolist()
        error = martingale_error(batches, weights)
        assert (error.variance, error.degrees_of_freedom) == pytest.approx(one_by_one(batches, weights), rel=1e-12)


@pytest.mark.parametrize("size", [1, 3])
def test_the_error_of_a_hundred_thousand_batches_takes_no_time(size):
    """It took two minutes when every batch copied the list of those before it."""
    batches = list(np.random.default_rng(2).normal(size=(100_000, size)))
    start = time.process_time()
    error = martingale_error(batches)
    assert time.process_time() - start < 2.0
    assert error.variance == pytest.approx(1.0 / (100_000 * size), rel=0.02)


def test_values_that_are_all_the_same_have_no_error_whatever_their_binary_digits():
    assert martingale_error([np.full(3, 0.1), np.full(7, 0.1)]) is None
    assert martingale_error([np.ones(1)]) is None


def test_batches_that_count_differently_are_combined_without_bias():
    """Weights fixed in advance: the mean, its error by simulation, and a study whose first batch counts less."""
    rng = np.random.default_rng(0)
    draws = [(rng.normal(scale=3.0, size=(4000, 20)), 0.5), (rng.normal(size=(4000, 30)), 1.0)]
    valuation = bps.Valuation(importance_sampling)
    state = valuation.init(POLICY)
    studies = [
        valuation.conclude(state, [ValuedBatch(*[values[i]] * 3, weight=weight) for values, weight in draws])
        for i in range(4000)
    ]
    means = np.array([valued.mean for valued in studies])
    np.testing.assert_allclose(means, sum(weight * values.sum(axis=1) for values, weight in draws) / 40.0)
    expected = (0.25 * 20 * 9.0 + 30 * 1.0) / 40.0**2
    assert np.var(means) == pytest.approx(expected, rel=0.1)
    assert np.mean([valued.error.variance for valued in studies]) == pytest.approx(expected, rel=0.05)

    study = bps.Study(POLICY, bps.AdaptiveBPG(), seed=4)
    told = []
    estimate = study.run(MDP, episodes=300, on_batch=lambda _, info: told.append(info.values))
    means = [values.mean() for values in told]
    assert estimate.value == pytest.approx(np.average(means, weights=[FIRST_WEIGHT, 1.0, 1.0]))
    assert estimate.value == pytest.approx(estimate.history.values[-1])
    assert estimate.std_error == pytest.approx(estimate.history.std_errors[-1])


def test_what_a_batch_counts_is_fixed_when_it_is_asked_whichever_batches_come_back():
    """Three requests before any episode: the policy itself runs them, so each counts less than what is to come."""

    def told(*numbers):
        study = bps.Study(POLICY, bps.AdaptiveBPG(), seed=4)
        requests = [study.ask() for _ in range(3)]
        for number in numbers:
            study.tell(number, bps.sample(MDP, requests[number].behavior, 40, seed=4, batch=number))
        assert all(told.weight == FIRST_WEIGHT for told in study.turns().values())
        return study.estimate()

    whole = told(2, 0, 1)
    values = whole.data.values.reshape(3, 40).mean(axis=1)
    second = FIRST_WEIGHT
    first = FIRST_WEIGHT * (second + 1.0) / 2.0
    assert whole.value == pytest.approx(np.average(values, weights=[first, second, 1.0]))
    assert whole.sequence.mean == pytest.approx(values.mean())
    later = told(2, 1)
    assert later.value == pytest.approx(np.average(values[1:], weights=[second, 1.0]))
    assert later.sequence.mean == pytest.approx(values[1:].mean())


def test_the_history_is_what_there_was_after_each_batch():
    """By loops over batches of one to five episodes that count differently."""
    rng = np.random.default_rng(3)
    batches = [rng.normal(size=rng.integers(1, 6)) for _ in range(30)]
    log_weights = [0.3 * rng.normal(size=len(batch)) for batch in batches]
    weights = [0.5] + [1.0] * 29
    history = History.of(batches, log_weights, weights)
    for k in range(30):
        so_far = list(zip(batches[: k + 1], weights, strict=False))
        total = sum(weight * len(batch) for batch, weight in so_far)
        assert history.episodes[k] == sum(len(batch) for batch, _ in so_far)
        assert history.values[k] == pytest.approx(sum(weight * batch.sum() for batch, weight in so_far) / total)
        assert history.divergences[k] == pytest.approx(np.mean(np.exp(log_weights[k]) - 1.0 - log_weights[k]))
        single = len(batches[k]) == 1
        assert np.isnan(history.batch_variances[k]) == single
        assert single or history.batch_variances[k] == pytest.approx(np.var(batches[k], ddof=1))
        if all(len(batch) > 1 for batch, _ in so_far):
            parts = sum(weight**2 * len(batch) * np.var(batch, ddof=1) for batch, weight in so_far)
            assert history.std_errors[k] == pytest.approx(np.sqrt(parts) / total)


def test_savings_agree_with_the_oracle():
    """Monte Carlo's variance is estimated from the episodes of the search: within 25% of the exact one here."""
    estimate = bps.Study(POLICY, bps.BPG(normalized(0.05)), seed=2).run(MDP, episodes=10_000)
    exact = bps.oracle.variance(MDP, POLICY, None, "mc")
    assert estimate.diagnostics.monte_carlo_variance == pytest.approx(exact, rel=0.25)
    assert estimate.savings > 2.0
    assert "10000 episodes" in words.savings_basis(estimate)
    assert estimate.diagnostics.final_variance < estimate.diagnostics.monte_carlo_variance
    assert "as good as" in str(estimate)


def test_monte_carlo_saves_nothing():
    estimate = bps.Study(POLICY, bps.OnPolicy(), seed=2).run(MDP, episodes=500)
    assert estimate.savings == pytest.approx(1.0, abs=0.02)
    assert estimate.diagnostics.effective_sample_size == pytest.approx(500)
    assert not words.unreliable(estimate)


def test_an_estimate_that_hangs_on_one_episode_says_so():
    rare = bps.envs.rare_event_gridworld()
    policy = bps.SoftmaxTable.uniform(16, 4)
    greedy = policy.with_probability(0, 0, 0.999)
    study = bps.Study(policy, bps.Method(bps.OnPolicy(), bps.Valuation(per_decision)))
    batch = bps.sample(rare, greedy, 3000, seed=0)
    study.ask()
    study.tell(0, bps.Trajectories(batch.observations, batch.actions, batch.rewards, batch.log_probs, batch.mask))
    estimate = study.estimate()
    assert words.unreliable(estimate)
    assert "unreliable, because" in str(estimate)


def test_a_model_that_values_the_episodes_it_learned_from_has_no_place_in_a_study():
    """Its estimate is biased: only the paper's curves have it, where all batches are valued by the last model."""
    model = TabularModel.like(MDP, "update")
    for make in (
        lambda: bps.Valuation(advantage_sum, model),
        lambda: bps.Study(POLICY, bps.BPG(1e-6, doubly_robust, model=model)),
    ):
        with pytest.raises(InvalidArgumentError, match="use='update' values all batches by what they taught it"):
            make()
    curve = OnPolicyCurve(advantage_sum, model)
    state, batches = curve.init(POLICY), [bps.sample(MDP, POLICY, 100, seed=0, batch=number) for number in range(3)]
    for batch in batches:
        state, _ = curve.step(state, batch)
    arguments = in_64_bit(curve.objective.arguments)
    values = [advantage_sum(*arguments(state.objective, batch)) for batch in batches]
    assert float(curve.objective.running_value(state.objective)) == pytest.approx(np.mean(values), abs=1e-9)
    for use in ("predictable", "fixed"):
        method = bps.Method(bps.OnPolicy(), bps.Valuation(advantage_sum, TabularModel.like(MDP, use, 2)))
        assert bps.Study(POLICY, method, seed=0).run(MDP, episodes=300).unbiased


def test_a_biased_estimator_is_labelled():
    method = bps.Method(bps.AdaptiveBPG(), bps.Valuation(weighted_importance_sampling))
    estimate = bps.Study(POLICY, method, seed=0).run(MDP, episodes=300)
    assert not estimate.unbiased
    assert "no guarantee" in words.interval_kind(estimate)
    assert "no guarantee" in words.anytime_kind(estimate)
    assert "biased, without guarantee" in str(estimate)


def _mean_and_variance(search, state, info, batch):
    return info.values.mean(), info.values.var(ddof=1)


@pytest.mark.slow
@pytest.mark.parametrize("search", [OnPolicyCurve(), bps.BPG(normalized(0.05))], ids=["mc", "bpg"])
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


def test_evaluate_takes_an_environment_with_another_horizon_and_discount():
    env = bps.environment(MDP, horizon=1, discount=0.5)
    assert bps.evaluate(POLICY, env, episodes=200, method="mc").value == pytest.approx(-1.0)
    for make, message in (
        (lambda: bps.evaluate(POLICY, MDP, method="magic"), "method must be one of"),
        (lambda: bps.environment(MDP, horizon=0), "horizon"),
        (lambda: bps.environment(MDP, discount=1.5), "discount"),
        (lambda: bps.evaluate(POLICY, MDP, estimand=bps.Return(1.5)), "discount"),
        (lambda: bps.evaluate(POLICY, MDP, episodes=0), "episodes"),
        (lambda: bps.Method(bps.OnPolicy(), bps.Valuation(), batch_size=0), "batch_size"),
        (lambda: bps.Study(POLICY, seed=-1), "seed"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            make()


def test_a_study_refuses_an_environment_of_another_discount():
    discounted = bps.environment(MDP, horizon=10, discount=0.9)
    for estimand, given in ((None, 1.0), (bps.Return(0.5), 0.5), (bps.Failure("return < -10"), 1.0)):
        study = bps.Study(POLICY, bps.OnPolicy(), estimand=estimand)
        with pytest.raises(
            InvalidArgumentError, match=f"discount must be the environment's 0.9, but the study was made with {given}"
        ):
            study.run(discounted, episodes=10)
    for estimand in (bps.Return(0.9), bps.Failure("return < -10", 0.9), bps.Failure("length > 3"), bps.Outcome(len_of)):
        assert bps.Study(POLICY, bps.OnPolicy(), estimand=estimand).run(discounted, episodes=10).episodes == 10


def len_of(batch):
    return batch.lengths


def test_a_study_runs_wherever_evaluate_does():
    """The same table by its id, as an object, through a runner; the same Gymnasium environments in four ways."""
    named, runner = "bpsearch/Gridworld-v0", InProcess(MDP)
    values = [bps.Study(POLICY, "mc", seed=3).run(env, episodes=40).value for env in (MDP, named, runner)]
    assert len(set(values)) == 1
    assert bps.evaluate(POLICY, MDP, 40, "mc", seed=3).value == values[0]
    with bps.GymnasiumSampler(lambda: GymnasiumEnv(MDP)) as sampler:
        envs = (lambda: GymnasiumEnv(MDP), GymnasiumEnv(MDP), sampler, InProcess(sampler), sampler)
        values = [bps.Study(POLICY, "mc", seed=3).run(env, episodes=20).value for env in envs]
    assert len(set(values)) == 1, "and the sampler stays open from run to run"


def test_a_drawn_seed_is_recorded_and_repeats_the_study():
    studies = [bps.Study(POLICY, "mc") for _ in range(2)]
    found = [study.run(MDP, episodes=50).value for study in studies]
    assert studies[0].seed != studies[1].seed
    assert found[0] != found[1]
    assert bps.Study(POLICY, "mc", seed=studies[0].seed).run(MDP, episodes=50).value == found[0]
    drawn = bps.evaluate(POLICY, MDP, 50, "mc")
    assert bps.evaluate(POLICY, MDP, 50, "mc", seed=drawn.settings["seed"]).value == drawn.value


def test_a_study_without_a_store_encodes_nothing(monkeypatch, tmp_path):
    """Every function of the codec, of the snapshots and of the settings is one that must not be called."""
    encoding = [sys.modules[f"bpsearch.study.{name}"] for name in ("codec", "settings", "snapshots", "policies")]
    kept = [find_method("auto"), find_method("bpg")]
    called = []

    def forbid(name):
        def forbidden(*_, **__):
            called.append(name)
            raise AssertionError(name)

        return forbidden

    for module in [module for name, module in sys.modules.items() if name.startswith("bpsearch.study")]:
        for name, value in list(vars(module).items()):
            if getattr(value, "__module__", "") in [part.__name__ for part in encoding] and callable(value):
                monkeypatch.setattr(module, name, forbid(name))
    for method in kept:
        study = bps.Study(POLICY, method, seed=0)
        study.run(MDP, episodes=200, target=bps.Target(relative=1e-6))
        study.tell(study.ask().number, bps.sample(MDP, study.ask().behavior, 5))
        study.abandon(3)
        study.estimate()
    assert called == []
    with pytest.raises(AssertionError):
        bps.Study(POLICY, "mc", store=tmp_path / "s.db")
    assert called
