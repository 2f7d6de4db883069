"""Our random numbers are those of `jax.random`, bit for bit."""

import jax
import numpy as np
import pytest

from bpsearch._core import threefry
from bpsearch._core.jaxtools import in_64_bit

KEYS = [0, 1, 2**31 + 5]


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("seed", KEYS)
@pytest.mark.parametrize("shape", [(), (7,), (3, 50)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["uniform", "normal"])
def test_numbers_are_those_of_jax(name, seed, shape, dtype):
    key = jax.random.key(seed, impl="threefry2x32")
    ours = jax.jit(lambda key: getattr(threefry, name)(key, shape, dtype))(key)
    theirs = jax.jit(lambda key: getattr(jax.random, name)(key, shape, dtype))(key)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("seed", KEYS)
def test_keys_are_those_of_jax(seed):
    key = jax.random.key(seed, impl="threefry2x32")
    np.testing.assert_array_equal(
        jax.random.key_data(threefry.split(key, 9)), jax.random.key_data(jax.random.split(key, 9))
    )


@in_64_bit
def test_the_words_of_one_key_do_not_repeat():
    numbers = np.asarray(threefry.uniform(jax.random.key(0, impl="threefry2x32"), (100_000,)))
    assert len(np.unique(numbers)) == len(numbers)
