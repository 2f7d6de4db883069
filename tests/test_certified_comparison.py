"""Certified verdicts: their errors by exact calculation, the capital by enumeration, and how people ask for them."""

import itertools
import math

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.errors import InvalidArgumentError
from bpsearch.inference.certified_difference import CertifiedDifference
from bpsearch.inference.confidence_sequence import BETS, SHARES, CertifiedSequence
from bpsearch.inference.difference import Decision, Turn
from bpsearch.inference.standing import Design, Standing
from bpsearch.inference.stopping import Target
from bpsearch.runners import InProcess

MDP = bps.envs.gridworld()
EARLY = bps.shipped_policy("gridworld-early")
BETTER = bps.SoftmaxTable(1.3 * EARLY.logits)
UNIT = ((0.0, 1.0), (0.0, 1.0))


def turn(returns, log_weights=None):
    returns = np.asarray(returns, float)
    return Turn(returns, returns, log_weights=log_weights)


def capital(growth, pairs, mean):
    """What the bets have made of 1 if `mean` is the expectation."""
    return float(SHARES @ np.exp(growth - pairs * np.log1p(BETS * mean)))


@pytest.mark.parametrize(("p", "q"), [(0.3, 0.3), (0.7, 0.2)])
def test_the_capital_is_a_martingale_whatever_earlier_pairs_and_weights_choose(p, q):
    """E[K_n] = 1 exactly, for both ends, over all courses of four pairs.

    Earlier pairs choose whether the two go together or against each other, and with which behavior the first is run.
    """
    made, other_end, wrong, total = 0.0, 0.0, 0.0, 0.0
    for course in itertools.product(itertools.product((0, 1), repeat=2), repeat=4):
        found, chance = CertifiedDifference(UNIT), 1.0
        for at, (x, y) in enumerate(course):
            ahead = sum(a - b for a, b in course[:at])
            behavior = p if ahead <= 0 else 0.5 * (p + 0.5)  # who acts depends on what came before
            joint = max(behavior + q - 1.0, 0.0) if ahead % 2 else min(behavior, q)
            table = {(1, 1): joint, (1, 0): behavior - joint, (0, 1): q - joint, (0, 0): 1.0 - behavior - q + joint}
            weight = p / behavior if x else (1.0 - p) / (1.0 - behavior)
            chance *= table[x, y]
            found = found.add(turn([x], np.log([weight])), turn([y]))
        mean = (1.0 + p - q) / 2.0
        total += chance
        made += chance * capital(found.growth[0], 4, mean)
        other_end += chance * capital(found.growth[1], 4, 1.0 - mean)
        wrong += chance * capital(found.growth[0], 4, mean / 2.0)
    assert total == pytest.approx(1.0, abs=1e-12)
    assert made == pytest.approx(1.0, abs=1e-12)
    assert other_end == pytest.approx(1.0, abs=1e-12)
    assert wrong > 1.1, "against a mean that is too small it grows"


def chance_of_verdicts(table, level, pairs, margin=None):
    """The exact chance of each verdict of two coins when one looks after every pair; `table` has the joint chances.

    What is known after n pairs depends on how often only the first won and how often only the second.
    """
    chances = np.zeros((pairs + 1, pairs + 1))
    chances[0, 0] = 1.0
    ended = dict.fromkeys(Decision, 0.0)
    steps = [CertifiedDifference(UNIT).add(turn([x]), turn([y])).growth for x, y in ((1, 0), (0, 1), (0, 0))]
    for n in range(1, pairs + 1):
        after = chances * (table[1, 1] + table[0, 0])
        after[1:] += chances[:-1] * table[1, 0]
        after[:, 1:] += chances[:, :-1] * table[0, 1]
        chances = after
        for one, other in np.argwhere(chances > 0.0):
            growth = one * steps[0] + other * steps[1] + (n - one - other) * steps[2]
            decision = CertifiedDifference(UNIT, n, growth).decide(level, margin)
            if decision is not Decision.UNDECIDED:
                ended[decision] += chances[one, other]
                chances[one, other] = 0.0
    return ended


def apart(p, q):
    return {(x, y): (p if x else 1 - p) * (q if y else 1 - q) for x in (0, 1) for y in (0, 1)}


def test_false_verdicts_have_at_most_their_chance_exactly():
    """No sampling: two equal coins, a look after each of 25 pairs, at a level at which errors can be seen."""
    for p in (0.5, 0.9):
        same = chance_of_verdicts(apart(p, p), 0.7, 25)
        assert same[Decision.BETTER] == pytest.approx(same[Decision.WORSE], abs=1e-12)
        assert 0.001 < same[Decision.BETTER] + same[Decision.WORSE] <= 0.3
    differ = chance_of_verdicts(apart(0.9, 0.2), 0.95, 30)
    assert differ[Decision.BETTER] > 0.8
    assert differ[Decision.WORSE] < 1e-6
    # Equivalent within a margin that the true difference just misses: wrong, and as rare.
    beyond = chance_of_verdicts(apart(0.95, 0.4), 0.7, 25, margin=0.5)
    assert beyond[Decision.EQUIVALENT] + beyond[Decision.WORSE] <= 0.3


def test_it_is_never_wider_than_two_evaluations_side_by_side():
    """Its second route: the certified intervals of both, each with half of the errors, subtracted."""
    rng = np.random.default_rng(0)
    common = rng.uniform(size=400)
    g, h = np.clip(common + 0.1 * rng.uniform(size=400), 0.0, 1.0), common * 0.8
    one, other = (CertifiedSequence((0.0, 1.0), 0.975).add(np.zeros(400), x).interval for x in (g, h))
    low, high = CertifiedDifference(UNIT).add(turn(g), turn(h)).interval(0.95)
    assert other[0] < other[1]
    assert low <= g.mean() - h.mean() <= high
    assert high - low < 0.7 * ((one[1] - one[0]) + (other[1] - other[0])), "what both have in common cancels"
    parts = CertifiedDifference(UNIT).add(turn(g[:100]), turn(h[:100])).add(turn(g[100:]), turn(h[100:]))
    np.testing.assert_allclose(parts.interval(0.95), (low, high), rtol=1e-12)


def test_before_the_first_pair_everything_is_possible_and_a_return_beyond_the_range_is_refused():
    ranges = ((0.0, 2.0), (-1.0, 1.0))
    nothing = CertifiedDifference(ranges)
    assert nothing.interval() == (-1.0, 3.0)
    assert nothing.middle() == 1.0
    assert nothing.half_width() == 2.0
    with pytest.raises(InvalidArgumentError, match=r"from 0 to 3 were seen, beyond the given range \[0, 2\]"):
        nothing.add(turn([0.0, 3.0]), turn([0.0, 0.0]))


def test_policies_that_never_vary_are_told_apart():
    """An asymptotic verdict needs a spread; a certified one has the range."""
    one, other = {0: turn(np.ones(100))}, {1: turn(np.zeros(100))}
    design = Design(("a", "b"), kind="certified")
    standing = Standing.begin(design, [(0.0, 1.0), (0.0, 1.0)]).add(one | other)
    assert standing.contests[0].decision is Decision.BETTER
    assert Standing.begin(Design(("a", "b"))).add(one | other).contests[0].decision is Decision.UNDECIDED


@pytest.mark.parametrize("method", ["auto", "bpg"])
def test_compare_with_certified_verdicts(method):
    truth = bps.oracle.value(MDP, BETTER) - bps.oracle.value(MDP, EARLY)
    found = bps.compare({"new": BETTER, "old": EARLY}, MDP, 600, method, seed=1, kind="certified", stop_early=False)
    low, high = found.interval(0.95)
    assert low < truth < high
    difference = found.differences[0]
    one, other = (found.estimates[name].data for name in ("new", "old"))
    ranges = (MDP.return_range, MDP.return_range)
    again = CertifiedDifference(ranges).add(
        Turn(one.values, one.returns, log_weights=one.log_weights),
        Turn(other.values, other.returns, log_weights=other.log_weights),
    )
    np.testing.assert_allclose((low, high), again.interval(0.95), rtol=1e-9)
    assert [point.pairs for point in difference.course] == [100, 200, 300, 400, 500, 600]
    last = difference.course[-1]
    assert (last.mean - last.half_width, last.mean + last.half_width) == pytest.approx((low, high))
    assert found.to_json()["kind"] == "certified"
    assert "holds for any number of episodes" in found.to_json()["interval_kind"]
    assert found.settings["kind"] == "certified"


def test_several_hold_at_once_and_a_target_is_of_the_same_kind():
    policies = {"a": BETTER, "b": EARLY, "c": bps.SoftmaxTable(0.5 * EARLY.logits)}
    found = bps.compare(policies, MDP, 300, seed=2, kind="certified", target=200.0, failure="return > 0")
    assert found.ended == "target"
    assert found.episodes == 300, "half the width of a difference of probabilities is at most 1"
    wide, narrow = found.between("a", "b").interval(0.95), found.between("a", "b").certified.interval(0.95)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    with pytest.raises(InvalidArgumentError, match="of the comparison's own kind 'certified'"):
        bps.compare(policies, MDP, 300, kind="certified", target=Target(halfwidth=1.0))
    limited = bps.compare(policies, MDP, 100, seed=2, kind="certified", target=Target(seconds=600.0))
    assert limited.design.kind == "certified"


def test_without_a_range_nothing_is_certified():
    walk = {"a": EARLY, "b": BETTER}
    with pytest.raises(InvalidArgumentError, match="certified verdicts need return_range"):
        bps.ComparisonStudy(walk, kind="certified")
    asked = bps.Return(return_range=(-1e4, 1e4))
    found = bps.compare(walk, InProcess(MDP), 100, seed=0, kind="certified", estimand=asked)
    assert found.interval()[0] > -2e4 - 1e-9
    assert math.isfinite(found.difference)


def test_a_stored_comparison_keeps_its_kind(tmp_path):
    arguments = {"seed": 3, "stop_early": False, "store": tmp_path / "kept"}
    whole = bps.compare({"a": EARLY, "b": BETTER}, MDP, 200, "bpg", kind="certified", **arguments)
    again = bps.compare({"a": EARLY, "b": BETTER}, MDP, 200, "bpg", kind="certified", **arguments)
    assert again.interval() == whole.interval()
    with pytest.raises(bps.errors.SettingsMismatchError):
        bps.compare({"a": EARLY, "b": BETTER}, MDP, 200, "bpg", **arguments)
