"""Confidence sequences: against a slow loop, against the supermartingale they rest on, and by coverage."""

import itertools

import numpy as np
import pytest
from scipy import stats

from bpsearch.confidence_sequence import COUNT, LARGEST, anytime_bounds, lower_bounds, upper_bound_of_event
from bpsearch.errors import InvalidArgumentError
from bpsearch.intervals import binomial_upper_bound, clopper_pearson


def slowly(values, delta):
    """The formula, number by number, with all that it says about the past."""
    bounds, best, total, squares = [], -np.inf, 0.0, 0.0
    for n, value in enumerate(values, start=1):
        mean = min(max((0.5 + total) / n, 0.0), 1.0)
        total += value
        squares += (value - mean) ** 2
        for k in range(COUNT):
            rate = LARGEST / 2**k
            penalty = -np.log(1.0 - rate) - rate
            cost = np.log((k + 1) * (k + 2) / delta)
            best = max(best, (total - (penalty * squares + cost) / rate) / n)
        bounds.append(best)
    return np.array(bounds)


def test_it_is_the_formula():
    rng = np.random.default_rng(0)
    values = np.exp(rng.normal(-0.5, 1.0, size=(3, 60))) * rng.uniform(size=(3, 60))
    looks = np.array([1, 7, 8, 60])
    found = lower_bounds(values, 0.05, np.arange(1, 61))
    np.testing.assert_allclose(found, [slowly(row, 0.05) for row in values], rtol=1e-12)
    sparse = lower_bounds(values, 0.05, looks)
    assert (sparse <= found[:, looks - 1] + 1e-12).all(), "fewer looks, less to choose from"
    # What is claimed does not depend on what comes later.
    np.testing.assert_array_equal(sparse[:, :3], lower_bounds(values[:, :8], 0.05, looks[:3]))


@pytest.mark.parametrize("rate", [LARGEST / 2**k for k in (0, 1, 3)])
@pytest.mark.parametrize(("outcomes", "chances"), [((0.0, 1.0), (0.7, 0.3)), ((0.0, 0.4, 8.0), (0.6, 0.35, 0.05))])
def test_the_supermartingale_is_one(rate, outcomes, chances):
    """E[exp(λ(S_n − nμ) − ψ(λ) V_n)] ≤ 1 for n up to 6, exactly, over all sequences; a tilt of the mean breaks it."""
    mean = float(np.dot(outcomes, chances))
    assert mean <= 1.0
    penalty = -np.log1p(-rate) - rate
    for n in range(1, 7):
        sequences = np.array(list(itertools.product(range(len(outcomes)), repeat=n)))
        values, probability = np.asarray(outcomes)[sequences], np.asarray(chances)[sequences].prod(axis=1)
        sums = np.cumsum(values, axis=1)
        means = np.clip((0.5 + sums - values) / np.arange(1, n + 1), 0.0, 1.0)
        squares = ((values - means) ** 2).sum(axis=1)
        process = np.exp(rate * (sums[:, -1] - n * mean) - penalty * squares)
        assert probability @ process <= 1.0 + 1e-12
    wrong = np.exp(rate * (sums[:, -1] - n * (mean - 1.0)) - penalty * squares)
    assert probability @ wrong > 1.0


CASES = {
    "coin": (0.5, lambda rng, shape: (np.zeros(shape), rng.binomial(1, 0.5, shape))),
    "rare": (0.01, lambda rng, shape: (np.zeros(shape), rng.binomial(1, 0.01, shape))),
    # Weights of a mixture: 10 with chance 0.05, else 0.526; the return is 1 only where the weight is large.
    "heavy": (
        0.5,
        lambda rng, shape: (lambda rare: (np.where(rare, np.log(10.0), np.log(0.5 / 0.95)), rare * 1.0))(
            rng.binomial(1, 0.05, shape)
        ),
    ),
    # Unbounded weights, lognormal with σ = 1.5.
    "unbounded": (0.3, lambda rng, shape: (rng.normal(-1.125, 1.5, shape), rng.binomial(1, 0.3, shape))),
}


@pytest.mark.parametrize("name", CASES)
def test_it_holds_at_all_looks_at_once(name):
    """1,000 sequences of 600: a 90% sequence may miss at most 140 (binomial tail 3e-5); all-looks, not one."""
    truth, draw = CASES[name]
    log_weights, returns = draw(np.random.default_rng(1), (1000, 600))
    looks = np.arange(10, 601, 10)
    low, high = anytime_bounds(log_weights, returns, (0.0, 1.0), looks, 0.9)
    missed = ((low > truth) | (truth > high)).any(axis=1)
    assert stats.binom.sf(140, 1000, 0.1) < 1e-4
    assert missed.sum() <= 140
    assert (np.diff(low, axis=1) >= 0.0).all() or missed.any()
    assert (high - low)[:, -1].mean() < 0.8 * (high - low)[:, 5].mean(), "it learns"


def test_it_knows_the_unit_of_the_returns():
    rng = np.random.default_rng(2)
    log_weights, shares = np.zeros(500), rng.uniform(size=500)
    looks = np.array([500])
    (low,), (high,) = anytime_bounds(log_weights, shares, (0.0, 1.0), looks)
    (scaled_low,), (scaled_high,) = anytime_bounds(log_weights, 300.0 * shares - 100.0, (-100.0, 200.0), looks)
    assert scaled_low == pytest.approx(300.0 * low - 100.0)
    assert scaled_high == pytest.approx(300.0 * high - 100.0)
    assert low < 0.5 < high


def test_bounds_that_contradict_each_other_claim_nothing_but_the_range():
    looks = np.array([2000])
    low, high = anytime_bounds(np.full(2000, np.log(3.0)), np.full(2000, 0.5), (0.0, 1.0), looks)
    assert (low[0], high[0]) == (0.0, 1.0)


def test_an_event_that_was_never_seen():
    looks = np.array([1000])
    bound = upper_bound_of_event(np.zeros(1000), np.zeros(1000), looks)[0]
    exact = binomial_upper_bound(0, 1000, 0.95)
    assert exact == pytest.approx(1.0 - 0.05 ** (1.0 / 1000))
    assert exact < bound < 3.0 * exact
    # Weights that sum to half of the episodes: what was not sampled may well have failed.
    assert upper_bound_of_event(np.full(1000, np.log(0.5)), np.zeros(1000), looks)[0] > 0.5


def test_the_binomial_interval_is_exact():
    """Its coverage, by summing over all counts, is at least its level for every probability."""
    n = 40
    intervals = np.array([clopper_pearson(k, n, 0.9) for k in range(n + 1)])
    uppers = np.array([binomial_upper_bound(k, n, 0.9) for k in range(n + 1)])
    for p in np.linspace(0.001, 0.999, 97):
        chances = stats.binom.pmf(np.arange(n + 1), n, p)
        assert chances @ ((intervals[:, 0] <= p) & (p <= intervals[:, 1])) >= 0.9 - 1e-12
        assert chances @ (p <= uppers) >= 0.9 - 1e-12
    assert intervals[0, 0] == 0.0
    assert intervals[n, 1] == uppers[n] == 1.0


@pytest.mark.parametrize("level", [0.0, 1.0, float("nan")])
def test_bad_levels_are_named(level):
    with pytest.raises(InvalidArgumentError, match="level must be"):
        anytime_bounds(np.zeros(3), np.zeros(3), (0.0, 1.0), np.array([3]), level)
