"""Tabular MDPs, the gridworlds' conventions, and the same through Gymnasium."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import bpsearch as bps
from bpsearch.envs import GymnasiumEnv, gridworlds
from bpsearch.errors import InvalidArgumentError

UP, DOWN, LEFT, RIGHT = gridworlds.UP, gridworlds.DOWN, gridworlds.LEFT, gridworlds.RIGHT


def cell(row, column, size=4):
    return row * size + column


def outcome(mdp, state, action):
    """The single successor and reward of a deterministic transition."""
    (successor,) = np.flatnonzero(mdp.transitions[state, action])
    return successor, mdp.rewards[state, action, successor]


def test_the_reward_is_that_of_the_cell_after_the_step():
    mdp = bps.envs.gridworld()
    assert outcome(mdp, cell(0, 0), RIGHT) == (cell(0, 1), -1.0)
    assert outcome(mdp, cell(0, 1), DOWN) == (cell(1, 1), -10.0)
    assert outcome(mdp, cell(3, 2), RIGHT) == (cell(3, 3), 10.0)
    assert mdp.terminal[cell(3, 3)]
    assert mdp.terminal.sum() == 1
    assert mdp.initial[cell(0, 0)] == 1.0


def test_a_bump_stays_and_pays_again():
    mdp = bps.envs.gridworld()
    assert outcome(mdp, cell(1, 3), RIGHT) == (cell(1, 3), 1.0)
    assert outcome(mdp, cell(0, 0), UP) == (cell(0, 0), -1.0)


def test_the_stochastic_gridworld_slips_to_both_sides():
    mdp = bps.envs.stochastic_gridworld()
    row = mdp.transitions[cell(5, 5, 10), UP]
    assert row[cell(4, 5, 10)] == pytest.approx(0.9)
    assert row[cell(5, 4, 10)] == pytest.approx(0.05)
    assert row[cell(5, 6, 10)] == pytest.approx(0.05)
    assert mdp.rewards[cell(1, 8, 10), RIGHT, cell(1, 9, 10)] == 1.0
    assert mdp.terminal[cell(9, 9, 10)]


def test_the_rare_event_ends_the_episode_with_fifty():
    mdp = bps.envs.rare_event_gridworld()
    successor, reward = outcome(mdp, 0, UP)
    assert mdp.terminal[successor]
    assert reward == 50.0
    certain = bps.SoftmaxTable.uniform(16, 4).with_probability(0, UP, 1.0)
    assert bps.oracle.value(mdp, certain) == pytest.approx(50.0)


def valid(**changes):
    base = {
        "transitions": np.full((2, 2, 2), 0.5),
        "rewards": np.zeros((2, 2, 2)),
        "initial": [1.0, 0.0],
        "terminal": [False, True],
        "horizon": 3,
        "discount": 1.0,
    }
    return base | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"transitions": np.full((2, 2, 2), 0.4)},
            "transitions of state 0, action 0 must be non-negative and sum to 1",
        ),
        ({"transitions": np.ones((2, 2))}, "transitions must be an array with 3 axes"),
        ({"rewards": np.full((2, 2, 2), np.nan)}, r"rewards must be finite, got nan at \(0, 0, 0\)"),
        ({"rewards": np.zeros((2, 2, 1))}, r"rewards must have the shape \(2, 2, 2\)"),
        ({"initial": [0.5, 0.4]}, "initial must be non-negative and sum to 1"),
        ({"initial": [0.0, 1.0]}, "terminal state 1"),
        ({"horizon": 0}, "horizon must be a whole number of at least 1, got 0"),
        ({"horizon": 2.5}, "horizon"),
        ({"discount": 1.1}, r"discount must be a finite number in \[0, 1\], got 1.1"),
        ({"discount": -0.1}, "discount"),
        ({"discount": float("nan")}, "discount"),
    ],
)
def test_bad_mdps_are_named(changes, message):
    bps.TabularMDP(**valid())
    with pytest.raises(InvalidArgumentError, match=message):
        bps.TabularMDP(**valid(**changes))


@pytest.mark.parametrize("name", ["Gridworld", "StochasticGridworld", "RareEventGridworld"])
def test_registered_ids_pass_gymnasiums_own_check(name):
    env = gymnasium.make(f"bpsearch/{name}-v0")
    check_env(env.unwrapped, skip_render_check=True)


@pytest.mark.slow
def test_gymnasium_finds_the_ids_by_the_name_of_their_module():
    program = (
        "import gymnasium; env = gymnasium.make('bpsearch.envs:bpsearch/Gridworld-v0'); print(env.reset(seed=1)[0])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def test_an_episode_through_gymnasium_follows_the_same_rules():
    env = GymnasiumEnv(bps.envs.gridworld())
    env.reset(seed=0)
    path = [RIGHT, RIGHT, RIGHT, DOWN, DOWN, DOWN]
    steps = [env.step(action) for action in path]
    assert [reward for _, reward, *_ in steps] == [-1, -1, -1, 1, -1, 10]
    assert [terminated for _, _, terminated, *_ in steps] == [False] * 5 + [True]
    env.reset(seed=0)
    truncations = [env.step(LEFT)[3] for _ in range(100)]
    assert truncations == [False] * 99 + [True]
    with pytest.raises(InvalidArgumentError, match="action must be in Discrete"):
        env.step(4)


def test_gymnasium_episodes_are_reproducible_and_random():
    env = GymnasiumEnv(bps.envs.stochastic_gridworld())

    def walk(seed):
        env.reset(seed=seed)
        return [int(env.step(RIGHT)[0]) for _ in range(30)]

    assert walk(1) == walk(1)
    assert walk(1) != walk(2)
