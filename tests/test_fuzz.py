"""Short runs of the fuzzers of `benchmarks/fuzz`, with Hypothesis choosing what is changed."""

import io
import random
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bpsearch as bps
from benchmarks.fuzz import environments, misuse
from benchmarks.fuzz.mutations import flip_bytes, mutate, npz
from benchmarks.fuzz.store import alter
from benchmarks.fuzz.tally import Tally
from benchmarks.fuzz.tell import mean_return, problem
from bpsearch.errors import BPSearchError
from bpsearch.policies.files import FORMAT, parts_of
from bpsearch.sampling.npz import load_npz
from bpsearch.sampling.packing import pack
from bpsearch.study.settings import build, describe

SEEDS = st.integers(0, 2**32)
few = settings(max_examples=60, deadline=None, derandomize=True)


@pytest.fixture(scope="module")
def episodes():
    mdp, policy = problem()
    return {"format": "bpsearch trajectories 1", "request": "abc", **pack(bps.sample(mdp, policy, 8, seed=1))}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "x.npz"


def given_or_refused(call):
    """What it gives; None if it is refused, in one line."""
    try:
        return call()
    except BPSearchError as error:
        said = str(error)
    assert said.isprintable()
    return None


def write(file, arrays, rng):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        changed, _ = mutate(arrays, rng)
        data = npz(changed, rng)
    data = flip_bytes(data, rng) if rng.random() < 0.3 else data
    file.write_bytes(data)
    return data


@given(seed=SEEDS)
@few
def test_changed_episodes_are_refused_in_one_line_or_have_the_right_returns(episodes, file, seed):
    data = write(file, episodes, random.Random(seed))
    read = given_or_refused(lambda: load_npz(file))
    if read is None:
        return
    found = read.trajectories
    np.testing.assert_allclose(found.returns().mean(), mean_return(data), rtol=1e-12)
    assert all(array.dtype.isnative for array in (found.observations, found.actions, found.rewards))


@given(seed=SEEDS)
@few
def test_changed_policies_are_refused_in_one_line_or_are_policies(file, seed):
    texts, arrays = parts_of(bps.shipped_policy("gridworld-early"))
    write(file, {"format": FORMAT, **texts, **arrays}, random.Random(seed))
    policy = given_or_refused(lambda: bps.load_policy(file))
    if policy is None:
        return
    np.testing.assert_allclose(policy.probabilities.sum(axis=1), 1.0)


@given(seed=SEEDS)
@few
def test_changed_settings_are_refused_or_are_settings(seed):
    method = bps.Method(bps.BPG(0.1), bps.Valuation(bps.estimators.importance_sampling))
    given_or_refused(lambda: build(alter(describe(method, "method"), random.Random(seed))))


def test_environments_that_lie_are_refused_or_harmless(tmp_path):
    tally = Tally()
    with warnings.catch_warnings():
        environments.run(150, 7, tmp_path, tally)
    assert not tally.wrong, tally
    assert tally.counts["refused"] > 50


def test_wrong_arguments_are_errors_of_bpsearch(tmp_path):
    tally = Tally()
    with warnings.catch_warnings():
        misuse.run(40, 7, tmp_path, tally)
    assert not tally.wrong, tally
    assert tally.counts["refused"] > 20


def test_bytes_are_changed_the_same_way_for_the_same_seed():
    data = io.BytesIO(b"0123456789" * 20).getvalue()
    assert flip_bytes(data, random.Random(3)) == flip_bytes(data, random.Random(3)) != data
