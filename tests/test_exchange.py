"""Episodes in files: npz and Minari."""

import gymnasium
import numpy as np
import pytest

import bpsearch as bps
from bpsearch.errors import InvalidTrajectoriesError
from bpsearch.integrations import load_minari, save_minari
from bpsearch.sampling.npz import load_npz, save_npz
from bpsearch.sampling.packing import pack

RNG = np.random.default_rng(0)
LENGTHS = np.array([3, 1, 5])
MASK = np.arange(8) < LENGTHS[:, None]


def batch(observations, finals, actions=None, **origin):
    """Three episodes of 3, 1 and 5 steps, padded to 8; padding is 0."""
    padded = {key: np.where(MASK.reshape(3, 8, *(1,) * (o.ndim - 2)), o, 0) for key, o in observations.items()}
    return bps.Trajectories(
        observations=padded if len(padded) > 1 else padded["all"],
        actions=np.where(MASK, RNG.integers(0, 2, (3, 8)), 0) if actions is None else actions,
        rewards=np.where(MASK, RNG.normal(size=(3, 8)), 0.0),
        log_probs=np.where(MASK, -RNG.exponential(size=(3, 8)), 0.0),
        mask=MASK,
        final_observations=finals,
        **origin,
    )


BOX = batch(
    {"all": RNG.normal(size=(3, 8, 4)).astype(np.float32)},
    RNG.normal(size=(3, 4)).astype(np.float32),
    behavior_parameters=RNG.normal(size=6).astype(np.float32),
    seed=np.array([3, 5]),
)
STATES = batch({"all": RNG.integers(0, 9, (3, 8))}, RNG.integers(0, 9, 3))
DICT = batch({"camera": RNG.integers(0, 255, (3, 8, 2, 2), np.uint8), "speed": RNG.normal(size=(3, 8, 1))}, None)


def assert_same(one, other, *, steps=True):
    if not steps:  # Minari does not know to how many steps a batch was padded
        one = bps.Trajectories(
            one.observations[:, :5], one.actions[:, :5], one.rewards[:, :5], one.log_probs[:, :5], one.mask[:, :5],
            one.final_observations, one.behavior_parameters, one.seed,
        )  # fmt: skip
    found, expected = pack(other), pack(one)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert np.asarray(array).dtype == np.asarray(found[name]).dtype, name
        np.testing.assert_array_equal(array, found[name])


@pytest.mark.parametrize("trajectories", [BOX, STATES, DICT], ids=["box", "states", "dict"])
def test_npz_gives_back_what_was_written(trajectories, tmp_path):
    found = load_npz(save_npz(tmp_path / "a.npz", trajectories, request="abc"))
    assert found.request == "abc"
    assert_same(trajectories, found.trajectories)


def test_another_program_needs_six_arrays(tmp_path):
    names = ("observations", "actions", "rewards", "log_probs")
    np.savez(
        tmp_path / "robot.npz",
        format="bpsearch trajectories 1",
        lengths=LENGTHS,
        **{name: getattr(STATES, name)[MASK] for name in names},
    )
    found = load_npz(tmp_path / "robot.npz")
    assert found.request == ""
    assert found.trajectories.mask.shape == (3, 5)
    np.testing.assert_array_equal(found.trajectories.lengths, LENGTHS)
    np.testing.assert_array_equal(found.trajectories.rewards[MASK[:, :5]], STATES.rewards[MASK])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "something else"}, "expected the format 'bpsearch trajectories 1', got 'something else'"),
        ({"lengths": np.array([3, 1, 4])}, "one row for each of the 8 steps"),
        ({"lengths": np.array([3.0, 1.0, 5.0])}, "lengths must be a vector of whole numbers"),
        ({"steps": np.int64(2)}, "at least the longest episode's 5, got 2"),
        ({"rewards": None}, "the array 'rewards' is missing"),
        ({"observations": None}, "the array 'observations' is missing"),
        ({"log_probs": np.full(9, np.nan)}, "log-probability of episode 0, step 0 is nan"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(change, message, tmp_path):
    arrays = {"format": "bpsearch trajectories 1", **pack(STATES)} | change
    path = tmp_path / "wrong.npz"
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(InvalidTrajectoriesError, match=message):
        load_npz(path)


def test_a_missing_a_damaged_and_a_pickled_file_are_refused(tmp_path):
    with pytest.raises(InvalidTrajectoriesError, match="No such file"):
        load_npz(tmp_path / "nowhere.npz")
    path = save_npz(tmp_path / "a.npz", STATES)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InvalidTrajectoriesError, match="cannot read episodes"):
        load_npz(path)
    np.savez(path, format="bpsearch trajectories 1", lengths=np.array([print], object))
    with pytest.raises(InvalidTrajectoriesError, match="cannot read episodes"):
        load_npz(path)


def test_minari_gives_back_what_was_written(tmp_path):
    minari = pytest.importorskip("minari")
    pytest.importorskip("h5py")
    two = gymnasium.spaces.Discrete(2)
    box = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    for name, trajectories, space in (("box", BOX, box), ("states", STATES, gymnasium.spaces.Discrete(9))):
        found = load_minari(save_minari(tmp_path / name, trajectories, space, two, request="abc"))
        assert found.request == "abc"
        assert_same(trajectories, found.trajectories, steps=False)
    dataset = minari.MinariDataset(tmp_path / "box")
    assert dataset.total_episodes == 3
    episode = dataset[2]
    assert len(episode.observations) == 6
    np.testing.assert_array_equal(episode.infos["log_prob"], np.append(BOX.log_probs[2, :5], 0.0))
    with pytest.raises(InvalidTrajectoriesError, match="is not empty"):
        save_minari(tmp_path / "box", BOX, box, two)
    with pytest.raises(InvalidTrajectoriesError, match="has no final_observations"):
        save_minari(tmp_path / "dict", DICT, box, two)
    with pytest.raises(InvalidTrajectoriesError, match="cannot read a Minari dataset"):
        load_minari(tmp_path / "nowhere")
