"""A batch of episodes refuses what no episode can be, and names it."""

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.errors import InvalidTrajectoriesError, SupportError


def arrays(**changes):
    base = {
        "observations": np.zeros((2, 3), np.int32),
        "actions": np.array([[0, 1, 0], [1, 0, 0]], np.int32),
        "rewards": np.array([[1.0, 2.0, 3.0], [4.0, 0.0, 0.0]]),
        "log_probs": np.full((2, 3), -0.5),
        "mask": np.array([[True, True, True], [True, False, False]]),
    }
    return base | changes


def test_returns_lengths_and_padding():
    batch = bps.Trajectories(**arrays())
    assert len(batch) == 2
    np.testing.assert_array_equal(batch.lengths, [3, 1])
    np.testing.assert_allclose(batch.returns(), [6.0, 4.0])
    np.testing.assert_allclose(batch.returns(0.5), [1 + 1 + 0.75, 4.0])
    np.testing.assert_allclose(batch.returns(0.0), [1.0, 4.0])
    assert (batch.log_probs[~batch.mask] == 0).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_reward_that_is_not_finite_is_named(value):
    rewards = arrays()["rewards"]
    rewards[0, 2] = value
    with pytest.raises(InvalidTrajectoriesError, match=rf"reward of episode 0, step 2 is {value}"):
        bps.Trajectories(**arrays(rewards=rewards))


def test_an_observation_or_log_probability_that_is_not_finite_is_named():
    observations = np.zeros((2, 3, 4))
    observations[1, 0, 2] = np.nan
    with pytest.raises(InvalidTrajectoriesError, match="observation of episode 1, step 0"):
        bps.Trajectories(**arrays(observations=observations))
    log_probs = np.full((2, 3), -0.5)
    log_probs[0, 1] = np.nan
    with pytest.raises(InvalidTrajectoriesError, match="log-probability of episode 0, step 1 is nan"):
        bps.Trajectories(**arrays(log_probs=log_probs))


def test_padding_may_hold_anything():
    rewards = arrays()["rewards"]
    rewards[1, 2] = np.nan
    assert bps.Trajectories(**arrays(rewards=rewards)).rewards[1, 2] == 0.0


def test_probability_zero_of_a_recorded_action_is_a_support_error():
    log_probs = np.full((2, 3), -0.5)
    log_probs[0, 1] = -np.inf
    with pytest.raises(SupportError, match="probability 0 to action 1 of episode 0, step 1"):
        bps.Trajectories(**arrays(log_probs=log_probs))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": np.array([[True, False, True], [True, False, False]])}, "episode 0 resumes after its end"),
        ({"mask": np.array([[False, False, False], [True, False, False]])}, "episode 0 has no step"),
        ({"rewards": np.zeros((2, 4))}, r"rewards must have the leading shape \(2, 3\)"),
        ({"mask": np.ones(3, bool)}, "mask must have the shape"),
        ({"final_observations": np.zeros(3)}, r"final_observations must have the shape \(2,\)"),
    ],
)
def test_shapes_are_checked(changes, message):
    with pytest.raises(InvalidTrajectoriesError, match=message):
        bps.Trajectories(**arrays(**changes))


def test_concatenate_pads_to_the_longest():
    short = bps.Trajectories(**{name: value[:, :1] for name, value in arrays().items()})
    joined = bps.Trajectories.concatenate([bps.Trajectories(**arrays()), short])
    np.testing.assert_array_equal(joined.lengths, [3, 1, 1, 1])
    with pytest.raises(InvalidTrajectoriesError, match="empty"):
        bps.Trajectories.concatenate([])
