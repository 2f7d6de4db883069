"""Confidence sequences: against a slow loop, against the supermartingale they rest on, and by coverage."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from bpsearch.errors import InvalidArgumentError
from bpsearch.inference import confidence_sequence
from bpsearch.inference.confidence_sequence import (
    BETS,
    OPEN_ENDED,
    SHARES,
    AsymptoticSequence,
    CertifiedSequence,
    anytime_bounds,
    lower_bounds,
    out_of_range,
    upper_bound_of_event,
)
from bpsearch.inference.intervals import binomial_upper_bound, clopper_pearson


def capital(values, mean):
    """What the bets have made of 1, bet by bet and value by value."""
    total = 0.0
    for bet, share in zip(BETS, SHARES, strict=True):
        fraction = bet * mean / (1.0 + bet * mean)
        for value in values:
            share *= 1.0 + fraction * (value / mean - 1.0)
        total += share
    return total


def test_it_is_where_the_bets_have_made_enough():
    rng = np.random.default_rng(0)
    values = np.exp(rng.normal(-0.5, 1.0, size=(3, 60))) * rng.uniform(size=(3, 60))
    looks = np.array([1, 7, 8, 60])
    sparse = lower_bounds(values, 0.05, looks)
    for row, bounds in zip(values, sparse, strict=True):
        found = []
        for look, bound in zip(looks, bounds, strict=True):
            found.append(bound)
            if bound > max([0.0, *found[:-1]]):  # else the look before it was better
                assert capital(row[:look], bound) == pytest.approx(1.0 / 0.05, rel=1e-6)
            elif bound == 0.0:
                assert capital(row[:look], 1e-9) < 1.0 / 0.05
    assert (sparse[:, -1] > 0.0).all()
    every = lower_bounds(values, 0.05, np.arange(1, 61))
    assert (sparse <= every[:, looks - 1] + 1e-12).all(), "fewer looks, less to choose from"
    # What is claimed does not depend on what comes later.
    np.testing.assert_array_equal(sparse[:, :3], lower_bounds(values[:, :8], 0.05, looks[:3]))


@pytest.mark.parametrize(("outcomes", "chances"), [((0.0, 1.0), (0.7, 0.3)), ((0.0, 0.4, 8.0), (0.6, 0.35, 0.05))])
def test_the_capital_is_a_martingale(outcomes, chances):
    """E[K_n(μ)] = 1 for n up to 6, exactly, over all sequences; against a smaller mean it grows."""
    mean = float(np.dot(outcomes, chances))
    assert mean <= 1.0
    assert SHARES.sum() == pytest.approx(1.0)
    for n in range(1, 7):
        sequences = list(itertools.product(range(len(outcomes)), repeat=n))
        weights = [math.prod(chances[at] for at in sequence) for sequence in sequences]
        made = [capital([outcomes[at] for at in sequence], mean) for sequence in sequences]
        assert min(made) >= 0.0
        assert np.dot(weights, made) == pytest.approx(1.0, abs=1e-12)
    wrong = [capital([outcomes[at] for at in sequence], 0.5 * mean) for sequence in sequences]
    assert np.dot(weights, wrong) > 1.1


def empirical_bernstein(values, delta):
    """The bound that the bets have replaced."""
    k = np.arange(28.0)
    rates = 0.75 * 0.5**k
    means = np.clip((0.5 + np.cumsum(values) - values) / np.arange(1, len(values) + 1), 0.0, 1.0)
    costs = (-np.log1p(-rates) - rates) * np.sum((values - means) ** 2) + np.log((k + 1) * (k + 2) / delta)
    return (values.sum() - costs / rates).max() / len(values)


@pytest.mark.parametrize(("deviation", "narrower"), [(0.5, 1.0), (0.1, 1.3), (1 / 17, 1.4), (1 / 27, 1.65)])
def test_bets_are_narrower_the_more_so_the_smaller_the_spread_in_the_range(deviation, narrower):
    """1,000 values of mean 1/2 in [0, 1]."""
    rng = np.random.default_rng(1)
    values = 1.0 * (rng.random(1000) < 0.5)
    if deviation < 0.5:
        a = (0.25 / deviation**2 - 1.0) / 2.0
        values = rng.beta(a, a, 1000)
    widths = [
        1.0 - bound(1.0 - values) - bound(values)
        for bound in (
            lambda x: empirical_bernstein(x, 0.025),
            lambda x: float(lower_bounds(x, 0.025, np.array([1000]))[0]),
        )
    ]
    assert widths[0] > narrower * widths[1]


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


@pytest.mark.parametrize("name", [*CASES, "wrong"])
def test_batch_by_batch_it_is_the_same_sequence(name):
    """Batches of one to thirty episodes; every look is that of all the episodes so far at once."""
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 30, size=40)
    looks = np.cumsum(sizes)
    log_weights, returns = np.full(looks[-1], np.log(3.0)), np.full(looks[-1], 0.5)  # bounds that contradict each other
    if name in CASES:
        log_weights, returns = CASES[name][1](rng, looks[-1])
    for level, low, high in ((0.95, 0.0, 1.0), (0.8, -20.0, 5.0)):
        given = low + (high - low) * np.asarray(returns, np.float64)
        expected = np.stack(anytime_bounds(log_weights, given, (low, high), looks, level), axis=1)
        sequence, found = CertifiedSequence((low, high), level), []
        for stop, size in zip(looks, sizes, strict=True):
            before = sequence
            sequence = sequence.add(log_weights[stop - size : stop], given[stop - size : stop])
            found.append(sequence.interval)
            again = before.add(log_weights[stop - size : stop], given[stop - size : stop])
            assert again.interval == sequence.interval, "to add changes nothing of what was before"
        np.testing.assert_allclose(found, expected, atol=1e-12 * (high - low))
    assert CertifiedSequence((2.0, 3.0)).interval == (2.0, 3.0)


def test_a_range_is_left_by_more_than_rounding():
    within, beyond = np.array([-1.0 - 1e-12, 3.0 + 1e-12]), np.array([0.0, 3.001])
    assert not out_of_range(within, (-1.0, 3.0))
    assert out_of_range(beyond, (-1.0, 3.0))
    assert out_of_range(-beyond, (-3.0, 3.0))


def by_the_formula(values, delta, tightest):
    """m_t ± s_t sqrt(2 (t ρ² + 1) / (t² ρ²) · log(sqrt(t ρ² + 1) / δ)), with s² the variance of all values."""
    t, rho2 = len(values), (-2 * math.log(delta) + math.log(1 - 2 * math.log(delta))) / tightest
    s = math.sqrt(sum((v - sum(values) / t) ** 2 for v in values) / (t - 1))
    half = s * math.sqrt(2 * (t * rho2 + 1) / (t**2 * rho2) * math.log(math.sqrt(t * rho2 + 1) / delta))
    return sum(values) / t - half, sum(values) / t + half


@pytest.mark.parametrize("tightest", [50, 1000, 100_000])
@pytest.mark.parametrize("level", [0.8, 0.95, 0.999])
def test_the_asymptotic_sequence_is_its_formula(level, tightest):
    values = np.random.default_rng(4).exponential(size=700)
    assert AsymptoticSequence(tightest).add(values).interval(level) == pytest.approx(
        by_the_formula(values.tolist(), 1.0 - level, tightest), rel=1e-12
    )


def test_of_many_batches_it_takes_the_mean_of_their_variances_and_what_their_episodes_count():
    """V = Σ ω² n Var, by loops over unequal batches; the mean is Σ ω X / Σ ω."""
    rng = np.random.default_rng(5)
    batches = [rng.normal(loc=3.0, scale=scale, size=size) for scale, size in ((1.0, 20), (4.0, 7), (0.1, 300))]
    weights = [0.5, 1.0, 2.0]
    sequence = AsymptoticSequence(500)
    for batch, weight in zip(batches, weights, strict=True):
        sequence = sequence.add(batch, weight)
    total = sum(w * len(b) for b, w in zip(batches, weights, strict=True))
    variance = sum(w**2 * len(b) * np.var(b, ddof=1) for b, w in zip(batches, weights, strict=True))
    n, delta = 327, 0.05
    rho2 = (-2 * math.log(delta) + math.log(1 - 2 * math.log(delta))) / 500
    factor = 2 * (n * rho2 + 1) / (n * rho2) * math.log(math.sqrt(n * rho2 + 1) / delta)
    assert sequence.mean == pytest.approx(sum(w * b.sum() for b, w in zip(batches, weights, strict=True)) / total)
    assert sequence.half_width(0.95) == pytest.approx(math.sqrt(variance * factor) / total, rel=1e-12)
    assert sequence.episodes == n


def test_room_for_the_unseen_stays_with_the_policys_own_batches_when_others_follow():
    """V of the weighted batch is added to what the policy's own batch has with its room."""
    rng = np.random.default_rng(8)
    returns = rng.normal(size=100)
    own = AsymptoticSequence(500).add(0.1 * returns, 1.0, returns)
    both = own.add(rng.normal(size=100))
    assert own.variance == pytest.approx(own.reduced + min(3.0 * own.distance**2, own.plain - own.reduced))
    assert own.variance > 2.0 * own.reduced
    assert both.variance - both.reduced == pytest.approx(own.variance - own.reduced)
    assert math.isinf(both.plain)


def test_it_is_tightest_where_it_is_told_to_be_and_about_half_as_wide_again_as_for_fixed_n():
    values = np.random.default_rng(6).normal(size=3000)

    def relative(episodes, tightest):
        """To the interval that holds for this number of episodes only."""
        half = AsymptoticSequence(tightest).add(values[:episodes]).half_width(0.95)
        return half / (1.96 * values[:episodes].std(ddof=1) / math.sqrt(episodes))

    assert relative(1000, 1000) == pytest.approx(1.55, abs=0.05)
    for episodes in (100, 300, 1000, 3000):
        widths = {tightest: relative(episodes, tightest) for tightest in (100, 300, 1000, 3000)}
        assert min(widths, key=widths.get) == episodes


def test_where_a_study_may_end_early_it_is_narrow_for_few_and_not_much_wider_for_many():
    def beside(episodes, tightest):
        """The width, as a multiple of that which is made for this number of episodes."""
        widths = (
            replace(AsymptoticSequence(t), episodes=episodes, weight=episodes, reduced=1.0).half_width()
            for t in (tightest, episodes)
        )
        return next(widths) / next(widths)

    assert OPEN_ENDED == 300
    assert max(beside(episodes, OPEN_ENDED) for episodes in range(100, 3001, 50)) < 1.07
    assert beside(100_000, OPEN_ENDED) == pytest.approx(1.23, abs=0.005)
    assert beside(100, 100_000) == pytest.approx(9.1, abs=0.05)


def test_single_episodes_and_values_without_spread():
    sequence = AsymptoticSequence(100)
    assert sequence.add(np.full(30, 2.5)).interval() is None
    assert sequence.add(np.ones(1)).interval() is None
    values = np.random.default_rng(7).normal(size=2000)
    for value in values:
        sequence = sequence.add(np.array([value]))
    means = np.cumsum(values) / np.arange(1, 2001)
    assert sequence.variance == pytest.approx(np.sum((values[1:] - means[:-1]) ** 2))
    assert sequence.half_width() == pytest.approx(AsymptoticSequence(100).add(values).half_width(), rel=0.05)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("draw", ["normal", "exponential"])
def test_small_batches_claim_nothing_before_there_are_thirty_episodes(draw, size, monkeypatch):
    """400 studies of 50 episodes that look after each batch: a 95% sequence may miss at most 35 (tail 1e-3).

    Without the rule it misses far more: the spread of two or three values is often far too small.
    """
    draws = getattr(np.random.default_rng(10), draw)(size=(400, 50 // size, size))
    truth = float(draw == "exponential")

    def missed():
        found = 0
        for study in draws:
            sequence, held = AsymptoticSequence(50), True
            for batch in study:
                sequence = sequence.add(batch)
                held &= abs(sequence.mean - truth) <= sequence.half_width(0.95)
            found += not held
        return found

    assert math.isinf(AsymptoticSequence(50).add(draws[:29, 0, 0]).half_width())
    assert math.isfinite(AsymptoticSequence(50).add(draws[:30, 0, 0]).half_width())
    assert missed() <= 35
    monkeypatch.setattr(confidence_sequence, "FEWEST", 2)
    if size < 5 or draw == "exponential":
        assert missed() > 50


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [lambda rng, shape: rng.normal(size=shape), lambda rng, shape: rng.exponential(size=shape) - 1.0],
    ids=["normal", "skewed"],
)
def test_the_asymptotic_sequence_holds_at_all_looks_at_once(draw):
    """1,000 studies that look after each of 60 batches of 50: a 90% sequence may miss at most 140 (tail 3e-5)."""
    draws = draw(np.random.default_rng(8), (1000, 60, 50))
    missed = narrow = 0
    for study in draws:
        sequence, held = AsymptoticSequence(1000), True
        for batch in study:
            sequence = sequence.add(batch)
            low, high = sequence.interval(0.9)
            held &= low <= 0.0 <= high
        missed += not held
        narrow += high - low < 0.2
    assert missed <= 140
    assert narrow == 1000


@pytest.mark.parametrize("level", [0.0, 1.0, float("nan")])
def test_bad_levels_are_named(level):
    for make in (
        lambda: anytime_bounds(np.zeros(3), np.zeros(3), (0.0, 1.0), np.array([3]), level),
        lambda: CertifiedSequence((0.0, 1.0), level),
        lambda: AsymptoticSequence(10).add(np.arange(3.0)).interval(level),
    ):
        with pytest.raises(InvalidArgumentError, match="level must be"):
            make()
