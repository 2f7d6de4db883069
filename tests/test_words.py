"""What an estimate says in words, and the digits of its numbers."""

import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest

from bpsearch.inference.confidence_sequence import AsymptoticSequence
from bpsearch.inference.diagnostics import Diagnostics, Episodes, diagnose
from bpsearch.inference.estimate import Estimate
from bpsearch.inference.history import History
from bpsearch.inference.intervals import MeanError, martingale_error
from bpsearch.inference.stopping import Ended
from bpsearch.inference.unseen import farthest, make_room
from bpsearch.report import words
from bpsearch.report.numbers import brackets, count, percent, round_to, significant, spread


def estimate_of(values, *, returns=None, log_weights=None, **changes):
    """An estimate from two batches of values, which are the returns of the policy's own episodes by default."""
    values = np.asarray(values, np.float64)
    returns = values if returns is None else np.asarray(returns, np.float64)
    log_weights = np.zeros_like(values) if log_weights is None else np.asarray(log_weights, np.float64)
    parts = [part for part in np.array_split(np.arange(len(values)), 2) if len(part)]
    batches = [values[part] for part in parts]
    sequence = AsymptoticSequence(len(values))
    for batch in batches:
        sequence = sequence.add(batch)
    error = martingale_error(batches)
    data = Episodes(values, log_weights, returns, np.ones(len(values)))
    estimate = Estimate(
        value=float(values.mean()),
        episodes=len(values),
        method="mc",
        unbiased=True,
        error=error,
        tight_error=error,
        find_sequence=lambda: sequence,
        diagnostics=diagnose(data, batches[-1], error, error),
        history=History.of(batches, [log_weights[part] for part in parts], [1.0] * len(parts)),
        data=data,
    )
    return dataclasses.replace(estimate, **changes)


def plain_returns():
    return np.random.default_rng(0).normal(-26.4, 10.0, 600)


def events(happened, episodes, **changes):
    """An event that happened in so many episodes, evenly among them."""
    seen = np.arange(episodes) * happened % episodes < happened
    given = {"event": "return < -80", "return_range": (0.0, 1.0), "weight_bound": 1.0} | changes
    return estimate_of(seen, **given)


def weighted(**changes):
    rng = np.random.default_rng(1)
    log_weights = rng.normal(-0.005, 0.1, 400)
    returns = rng.uniform(0.0, 2.0, 400)
    return estimate_of(np.exp(log_weights) * returns, returns=returns, log_weights=log_weights, **changes)


@pytest.mark.parametrize(
    ("value", "half_width", "text"),
    [
        (-26.4123, 0.8, "-26.4"),
        (-26.4123, 8.0, "-26"),
        (-26.4123, 0.24, "-26.41"),
        (1234567.0, 8000.0, "1235000"),
        (123456789.0, 8e5, "1.235e+08"),
        (1.2e-5, 9e-6, "1.2e-05"),
        (0.00012, 8e-5, "0.00012"),
        (-0.001, 0.8, "0.0"),
        (-0.0, 0.8, "0"),
        (1e-9, 1e-5, "0"),
        (26.4, 1e-18, "26.400000000"),
        (-26.41234, None, "-26.41"),
        (12345.678, None, "12346"),
        (3.0, math.inf, "3"),
        (None, 0.8, "unknown"),
        (math.nan, 0.8, "unknown"),
        (math.inf, 0.8, "inf"),
    ],
)
def test_a_number_has_as_many_digits_as_its_interval_carries(value, half_width, text):
    assert round_to(value, half_width) == text


def test_rounding_moves_a_number_by_at_most_a_tenth_of_the_half_width_and_needs_every_digit():
    rng = np.random.default_rng(0)
    for value, size in zip(rng.normal(size=2000), rng.uniform(-8.0, 8.0, 2000), strict=True):
        half_width = 10.0**size
        value *= 10.0 ** (size + rng.uniform(0.0, 3.0))
        text = round_to(value, half_width)
        assert abs(float(text) - value) <= 0.1 * half_width * (1.0 + 1e-6)
        mantissa = text.lower().split("e")[0]
        if "." in mantissa:  # with one digit less it could be off by more than a tenth
            exponent = int(text.split("e")[1]) if "e" in text else 0
            last = 10.0 ** (exponent - len(mantissa.split(".")[1]))
            assert 10.0 * last / 2.0 > 0.1 * half_width * (1.0 - 1e-6)


def test_intervals_have_the_digits_of_their_shorter_side():
    assert brackets((-27.2, -25.6), -26.4) == "[-27.2, -25.6]"
    assert brackets((-27.2, -25.6)) == "[-27.2, -25.6]"
    assert brackets((3e-6, 2.1e-5), 1.2e-5) == "[3e-06, 2.1e-05]"
    assert brackets((5.06e-6, 0.00111), 0.0002) == "[0.00001, 0.00111]", "one event in 5000 episodes"
    assert brackets((0.0, 0.00735), 0.0) == "[0, 0.00735]"
    assert brackets(None) == "unknown"
    assert spread(None) is None
    assert spread((0.0, 10.0), 9.99) == 0.5, "never less than a tenth of the half-width"


def test_numbers_of_unknown_precision():
    assert [significant(number) for number in (1390.4, 1.23456, 0.00597, 12345.6, 2.0, 1e-7, 1e9, -0.0, None)] == [
        "1390", "1.23", "0.00597", "12346", "2", "1e-07", "1e+09", "0", "unknown",
    ]  # fmt: skip
    assert [count(number) for number in (1393.4, 255969.0, 99.6, 1.2e9)] == ["1390", "256000", "100", "1.2e+09"]
    assert [percent(share) for share in (0.0123, 0.5, 0.0, 1.0, None)] == ["1.2%", "50%", "0%", "100%", "unknown"]


def test_the_sentence():
    found = estimate_of(plain_returns())
    half = 1.96 * np.std(found.data.returns) / np.sqrt(600)
    ends = f"[{found.value - half:.1f}, {found.value + half:.1f}]"
    assert words.sentence(found) == f"{found.value:.1f}, 95% interval {ends}, from 600 episodes"
    cheaper = dataclasses.replace(found.diagnostics, monte_carlo_variance=2.0 * found.diagnostics.variance)
    assert words.sentence(dataclasses.replace(found, diagnostics=cheaper)).endswith(
        "from 600 episodes, as good as about 1200 episodes of Monte Carlo"
    )
    assert words.sentence(events(54, 1000)).startswith(
        "probability of return < -80: 0.054, 95% interval [0.041, 0.070]"
    )
    assert words.sentence(events(0, 500)) == (
        "return < -80 in none of 500 episodes: its probability is at most 0.00597 (95%, one-sided), 95% interval "
        "[0, 0.00735]"
    )
    assert words.sentence(estimate_of([3.0])) == "3, interval unknown, from 1 episode"


@pytest.mark.parametrize("ended", [Ended.TARGET, Ended.TIME_LIMIT, Ended.INTERRUPTED])
def test_a_study_that_was_stopped_shows_an_interval_that_holds_for_it(ended):
    found = estimate_of(plain_returns(), ended=ended)
    assert f"95% anytime-valid interval {brackets(found.anytime_interval(), found.value)}" in words.sentence(found)
    assert "for a number of episodes fixed in advance, which this one was not: it ended by" in words.interval_kind(
        found
    )
    never = events(0, 500, ended=ended)
    assert f"95% certified interval {brackets(never.certified_interval(), 0.0)}" in words.sentence(never)
    assert "which this one was not" in words.certificate(never)


def test_what_the_interval_promises():
    own = words.interval_kind(estimate_of(plain_returns()))
    assert own.startswith("approximate, for a number of episodes fixed in advance; too narrow if rare episodes")
    assert "weights" not in own
    assert "importance weights" in words.interval_kind(weighted())
    assert words.interval_kind(events(3, 100)) == "exact, for a number of episodes fixed in advance"
    assert "no guarantee" in words.interval_kind(estimate_of(plain_returns(), unbiased=False))
    assert words.interval_kind(estimate_of([1.0, 1.0, 1.0])).startswith("unknown, because")
    unseen = weighted(event="return < -80", return_range=(0.0, 1.0), error=None)
    unseen = dataclasses.replace(unseen, data=dataclasses.replace(unseen.data, returns=np.zeros(400)))
    assert unseen.interval() == unseen.certified_interval()
    assert words.interval_kind(unseen) == words.certified_kind(unseen)


def test_what_the_anytime_valid_interval_promises():
    kind = words.anytime_kind(estimate_of(plain_returns()))
    for part in ("approximate, for many episodes", "however often one looks", "whenever one stops", "of any size"):
        assert part in kind
    assert "returns" not in words.anytime_kind(events(3, 100))
    assert words.anytime_kind(estimate_of([1.0, 1.0, 1.0])).startswith("unknown, because")
    assert "no guarantee" in words.anytime_kind(estimate_of(plain_returns(), unbiased=False))


def test_what_the_certified_interval_promises():
    returns = plain_returns()
    assert words.certified_kind(estimate_of(returns)) == "unknown, because it needs bounded returns (`return_range`)"
    ranged = words.certified_kind(estimate_of(returns, return_range=(-100.0, 50.5)))
    assert ranged.startswith("holds for any number of episodes, however often one looks and whenever one stops")
    assert ranged.endswith("if every return lies in [-100, 50.5]")
    left = estimate_of(returns, return_range=(-20.0, 0.0))
    assert left.certified_interval() is None
    assert "beyond the given range [-20, 0]; give one that holds every return" in words.certified_kind(left)
    assert "importance weights of any size" in words.certified_kind(weighted(return_range=(0.0, 2.0)))
    assert "importance weights of at most 4" in words.certified_kind(
        weighted(return_range=(0.0, 2.0), weight_bound=4.0)
    )
    biased = estimate_of(returns, return_range=(-100.0, 50.0), unbiased=False)
    assert "guarantee" not in words.certified_kind(biased), "it is made of returns and weights alone"


def test_the_certificate_of_an_event():
    assert words.certificate(estimate_of(plain_returns())) == ""
    assert words.certificate(events(0, 500)) == (
        "without assumptions 500 episodes cannot certify a probability below about 0.006 at 95%"
    )
    some = {"event": "return < -80", "return_range": (0.0, 2.0)}
    assert "a defensive mixture" in words.certificate(weighted(**some))
    bounded = words.certificate(weighted(**some, weight_bound=4.0))
    assert "a share of 0.25 of them from the policy itself" in bounded
    assert "below about 0.03 at 95%" in bounded
    assert "sharpens the estimate, not the certificate" in bounded


def test_no_sentence_has_a_measured_number():
    """How often intervals were found to hold stands in the docs, where it is measured again."""
    for found in (estimate_of(plain_returns(), return_range=(-100.0, 50.0)), weighted(), events(3, 100)):
        for kind in (words.interval_kind(found), words.anytime_kind(found), words.certified_kind(found)):
            assert "%" not in kind
            assert "measured" not in kind


def test_reasons_not_to_trust():
    found = estimate_of(plain_returns())
    assert words.unreliable(found) == ()
    assert words.warnings(found) == ()
    bad = Diagnostics(3.2, 0.55, 0.61, 100.0, 120.0, 110.0)
    reasons = words.unreliable(dataclasses.replace(found, diagnostics=bad))
    assert reasons == (
        "the importance weights of 600 episodes are worth only 3.2 equally weighted ones",
        "one episode has 55% of all importance weight",
        "one episode makes 61% of the variance",
    )
    text = words.describe(dataclasses.replace(found, diagnostics=bad, unbiased=False, ended=Ended.INTERRUPTED))
    for part in ("; biased, without guarantee", "; interrupted after 600 episodes", "; unreliable, because the"):
        assert part in text
    assert not words.unreliable(estimate_of([1.0, 2.0])), "of two episodes each has half of the variance"


def test_an_episode_is_no_reason_where_the_room_for_unseen_events_makes_the_error():
    """Control variates leave next to nothing of this variance, and half of that is in one episode."""
    returns = plain_returns()
    values = returns.mean() + 0.01 * (np.arange(600) == 7)
    data = Episodes(values, np.zeros(600), returns, np.ones(600))
    tight, plain = martingale_error([values]), martingale_error([returns])
    with_room = make_room(tight, plain, farthest(returns), 600)
    assert tight.variance < with_room.variance < plain.variance
    assert diagnose(data, values, tight, tight).largest_value_share > 0.99
    share = diagnose(data, values, with_room, tight).largest_value_share
    assert share == pytest.approx(np.max((returns - returns.mean()) ** 2) / np.sum((returns - returns.mean()) ** 2))
    rare = dataclasses.replace(data, returns=np.where(np.arange(600) == 7, -1000.0, -26.4))
    capped = make_room(tight, martingale_error([rare.returns]), farthest(rare.returns), 600)
    assert capped.variance == martingale_error([rare.returns]).variance
    assert diagnose(rare, values, capped, tight).largest_value_share > 0.99, "that of Monte Carlo"


def test_an_unseen_event_is_room_enough_for_any_return_of_which_half_the_variance_hangs():
    """So the share of the returns counts only where the error is Monte Carlo's."""
    drawn = [np.random.default_rng(seed).standard_cauchy(200) for seed in range(20)]
    hanging = [x for x in drawn if np.max((x - x.mean()) ** 2) > 0.5 * np.sum((x - x.mean()) ** 2)]
    assert len(hanging) > 5
    for returns in hanging:
        plain = martingale_error([returns])
        tight = MeanError(1e-9 * plain.variance, 199.0)
        assert make_room(tight, plain, farthest(returns), 200).variance == plain.variance


def test_where_nothing_can_be_saved_it_says_why():
    found = estimate_of(plain_returns(), explained=0.004)
    assert "the policy's action noise explains 0% of the variance" in words.hopeless(found)
    assert "behavior search cannot help here, because the policy's action noise" in words.describe(found)
    assert words.hopeless(estimate_of(plain_returns(), explained=0.2)) == ""
    assert words.hopeless(estimate_of(plain_returns()[:100], explained=0.004)) == "", "too few episodes to judge"
    assert words.hopeless(events(0, 500, explained=0.0)) == "", "nothing is known of what was never seen"
    assert words.hopeless(estimate_of(plain_returns(), no_help="it is deterministic")) == "it is deterministic"


def test_batches_that_are_left_out():
    assert words.left_out(estimate_of(plain_returns())) == ""
    found = estimate_of(plain_returns(), waiting=(3,), abandoned=tuple(range(4, 16)))
    assert words.left_out(found).startswith(
        "requests left out: 1 not told yet (3), 12 abandoned (4, 5, 6, 7, 8, 9, 10, 11, 12, 13, ...); the estimate is "
        "biased if"
    )


def test_what_savings_are():
    assert "by importance weighting" not in words.savings_basis(estimate_of(plain_returns()))
    assert "by importance weighting from the same 400 episodes" in words.savings_basis(weighted())
    assert words.as_good_as(estimate_of([1.0, 1.0])) == ""


def test_the_lines_of_the_command():
    lines = words.describe_lines(events(54, 1000, ended=Ended.INTERRUPTED))
    assert lines[0] == words.sentence(events(54, 1000, ended=Ended.INTERRUPTED))
    assert lines[1] == "method: mc; ended by: interrupted"
    assert [line.split(" interval")[0] for line in lines[2:5]] == ["95%", "95% anytime-valid", "95% certified"]
    assert lines[5].startswith("certificate: at most 0.0673 (95%, one-sided); without assumptions")
    assert lines[6] == "savings 0.999, effective sample size 1000 of 1000"
    assert lines[7] == "Interrupted after 1000 episodes."
    unknown = words.describe_lines(estimate_of(plain_returns()))
    assert "95% certified interval: unknown, because it needs bounded returns (`return_range`)" in unknown


def test_the_table_of_a_notebook_is_escaped():
    text = words.describe_html(events(3, 100, event="<b>", method="a & b", no_help="x < y"))
    assert text.startswith("<table><tr><th>probability of &lt;b&gt;</th><td>0.03")
    assert "a &amp; b" in text
    assert "x &lt; y</p>" in text
    assert text.count("95% ") == 3


def test_the_estimate_speaks_by_these_words():
    found = estimate_of(plain_returns())
    assert str(found) == words.describe(found)
    assert found._repr_html_() == words.describe_html(found)


def test_words_need_neither_figures_nor_templates_nor_jax():
    script = (
        "import sys, bpsearch.report.words, bpsearch.report.numbers, bpsearch.report.json;"
        "print([name for name in ('matplotlib', 'jinja2', 'jax', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_interval_says_what_the_episodes_cannot_have_shown():
    values = np.random.default_rng(2).normal(5.0, 0.1, 300)
    found = estimate_of(values)
    assert words.room(found) == ""
    roomy = dataclasses.replace(found, error=dataclasses.replace(found.error, variance=25.0 * found.error.variance))
    text = words.interval_kind(roomy)
    likely = percent(1.0 - 0.05 ** (1.0 / 300.0))
    assert f"an event that none of 300 episodes showed may have a probability of up to {likely}" in text
    assert f"{brackets(roomy.tight_interval(), roomy.value)} if there are no such events" in text
    assert roomy.tight_interval() == found.interval()
    assert roomy.savings == pytest.approx(roomy.tight_savings / 25.0)
    assert f"({significant(roomy.tight_savings)} if no rare event was missed)" in "\n".join(words.describe_lines(roomy))
    assert "with room for unseen events" in words.savings_basis(roomy)


def test_returns_that_are_all_the_same_say_nothing_of_others():
    found = estimate_of(np.full(600, 3.0), error=None, tight_error=None, explained=0.0)
    assert words.alike(found).endswith("how others vary, of which there may be 0.50% (95% confidence)")
    assert pytest.approx(0.05, rel=0.02) == 0.995**600
    assert words.warnings(found)[0] == words.alike(found)
    assert words.hopeless(found) == "", "there is no variance of which actions could explain a share"
    assert words.alike(estimate_of(plain_returns())) == ""
    assert words.alike(weighted()) == ""
