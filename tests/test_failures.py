"""Failures by default: what the first batch counts, who searches, and policies that nothing can be fitted to."""

import runpy
from pathlib import Path

import numpy as np
import pytest

import bpsearch as bps
from benchmarks.rare_levels import chain
from bpsearch.estimators import importance_sampling
from bpsearch.inference import failures
from bpsearch.inference.failures import FailureValuation
from bpsearch.inference.intervals import martingale_error
from bpsearch.inference.valuation import ValuedBatch
from bpsearch.methods import Method
from bpsearch.search import Levels
from whole_studies import expectation

LANE = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "lane_keeping.py"))


def method(search=None):
    return Method(search or Levels(careful=0.5), FailureValuation(importance_sampling), name="failures")


def valued(values, log_weights, weight):
    returns = (np.asarray(values) > 0.0).astype(float)
    return ValuedBatch(np.asarray(values, float), np.asarray(log_weights, float), returns, (), weight)


@pytest.mark.parametrize("several", [1.0, 2.0], ids=["one failure", "never"])
def test_whole_studies_whose_first_batch_may_count_are_unbiased(several, monkeypatch):
    """Every batch enumerated; one failure in a half makes the other half count, or nothing does."""
    monkeypatch.setattr(failures, "SEVERAL", several)
    task = chain(1, 0.3, noise=0.2)
    found, _ = expectation(method(), task.env, task.policy, task.asked, (2, 1, 1))
    assert found == pytest.approx(task.truth, abs=1e-12)


def test_a_half_that_decides_about_itself_would_bias(monkeypatch):
    """The negative control of the test above."""
    monkeypatch.setattr(failures, "SEVERAL", 1.0)
    judge = failures._is_common
    monkeypatch.setattr(failures, "_is_common", lambda batch, rows: judge(batch, 1 - rows))
    task = chain(1, 0.3, noise=0.2)
    found, _ = expectation(method(), task.env, task.policy, task.asked, (2, 1, 1))
    assert abs(found - task.truth) > 0.005


def test_what_the_first_batch_leaves_is_dealt_out_to_the_others():
    first = valued([1.0] * 4 + [0.0] * 4, np.zeros(8), 0.0)  # four failures in one half, none in the other
    later = [valued([0.0, 1.0], np.zeros(2), 0.0), valued([1.0, 0.0, 1.0], np.zeros(3), 1.0)]
    valuation = FailureValuation(importance_sampling)
    state = valuation.init(chain(1).policy)
    found = valuation.conclude(state, [first, *later])
    assert found.weights == [0.0, 1.0, 0.0, 3.0]  # 4 of 13 are counted, the last 3 stand for the other 9
    assert found.mean == pytest.approx((0.0 * 4 + 9.0 * 2 / 3) / 13)
    alone = valuation.conclude(state, [first])
    assert (alone.weights, alone.mean) == ([1.0], 0.5)


def test_a_rare_failure_that_noise_made_common_counts_nothing():
    """Many failures, each of a weight of 1e-4: the policy itself shows none."""
    first = valued([1e-4] * 8, np.full(8, np.log(1e-4)), 0.0)
    later = valued([1e-4] * 8, np.full(8, np.log(1e-4)), 1.0)
    valuation = FailureValuation(importance_sampling)
    assert valuation.conclude(valuation.init(chain(1).policy), [first, later]).weights == [0.0, 0.0, 2.0]


def test_where_failures_are_common_all_episodes_count():
    """Nothing is gained by a search there, and nothing lost: the first batches count, the second is the policy's."""
    task = chain(1, 0.5, 0.4)
    study = bps.Study(task.policy, method(), estimand=task.asked, seed=0)
    found = study.run(task.env, total=300)
    assert found.data.counts.tolist() == [1.0] * 300
    assert np.all(found.data.log_weights[100:200] == 0.0)
    assert np.exp(found.data.log_weights).max() <= 2.0 + 1e-9
    low, high = found.interval(0.9999)
    assert low < task.truth < high


def test_networks_search_through_levels_by_default():
    """A network that touches the barrier once in 10,000 episodes, where Monte Carlo's relative error is 2.2."""
    offsets = LANE["offsets"]
    env, policy = LANE["Lane"](gusts=0.0, barrier=0.83), LANE["driver"]((16,))
    asked = {"failure": lambda batch: offsets(batch) > 0.83, "level": offsets}
    found = bps.evaluate(policy, env, 2000, seed=0, **asked)
    assert found.settings["method"] == "failures"
    assert found.value == pytest.approx(1.1e-4, rel=0.5)
    counted = found.data.counts > 0.0
    assert counted.any()
    assert np.exp(found.data.log_weights[counted]).max() <= 2.0 + 1e-6
    by_name = bps.evaluate(policy, env, 200, "failures", seed=0, **asked)
    np.testing.assert_array_equal(by_name.data.returns, found.data.returns[:200])
    ungraded = bps.evaluate(policy, env, 200, seed=0, failure=asked["failure"])
    assert ungraded.settings["method"] == "bpg"


def test_a_network_that_is_too_large_is_evaluated_and_says_so():
    rng, env = np.random.default_rng(0), bps.envs.classic_cartpole()
    parameters = {"hidden": rng.normal(size=(1100, 4)), "last": rng.normal(size=(2, 1100)) / 30.0}

    def apply(parameters, seen):
        return parameters["last"] @ (parameters["hidden"] @ seen)

    policy = bps.from_jax(apply, parameters, env.observation_space, env.action_space, adapt="last")
    assert len(policy.flat) == 2200, "the last layer, although nothing groups parameters by layers"
    found = bps.evaluate(policy, env, 40, seed=0, failure="length < 20")
    assert 0.0 < found.value < 1.0
    assert found.settings["method"] == "auto"
    assert "at most 2000 parameters" in str(found)


def test_few_failures_have_few_degrees_of_freedom():
    """By the moments of a Bernoulli variable: the relative variance of its variance estimate is about 1/(n p)."""
    values = [np.repeat([1.0, 0.0], [3, 97])]
    plain, heavy = (martingale_error(values, heavy_tails=heavy) for heavy in (False, True))
    assert heavy.variance == plain.variance
    p, n = 0.03, 100
    kurtosis = (p * (1 - p) ** 4 + (1 - p) * p**4) / (p * (1 - p)) ** 2
    assert heavy.degrees_of_freedom == pytest.approx(2.0 * n / (kurtosis - 1.0))
    assert heavy.degrees_of_freedom == pytest.approx(2.0 * 3.0, rel=0.1)
    assert plain.degrees_of_freedom == pytest.approx(99.0)
    rng = np.random.default_rng(0)
    calm = [rng.normal(size=100), 2.0 * rng.normal(size=200)]
    plain, heavy = (martingale_error(calm, heavy_tails=heavy) for heavy in (False, True))
    assert heavy.degrees_of_freedom == pytest.approx(plain.degrees_of_freedom, rel=0.25)
    certain = [np.repeat([1.0, 0.0], [50, 50])]  # deviations all alike: their square is known
    assert martingale_error(certain, heavy_tails=True).degrees_of_freedom == pytest.approx(99.0)
