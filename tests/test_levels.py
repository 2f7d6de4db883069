"""Rare failures: margins, weights that a search fixes with its behavior, and the search through levels."""

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.errors import InvalidArgumentError, InvalidTrajectoriesError

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
