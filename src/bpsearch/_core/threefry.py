"""JAX's threefry random numbers, bit for bit, in a form that compiles into the loop that uses them.

On CPUs `jax.random` keeps the rounds of its generator in a loop of their own: fast to compile, but for the short arrays
of one step of many episodes the draws then take most of a roll-out's time. Written out, the rounds become part of the
surrounding vector code.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from bpsearch._core.arrays import Array

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def split(key: Array, count: int) -> jax.Array:
    """`jax.random.split`: (count,) new keys."""
    keys: jax.Array = jax.random.wrap_key_data(jnp.stack(_words(key, (count,)), axis=-1), impl="threefry2x32")
    return keys


def uniform(key: Array, shape: tuple[int, ...] = (), dtype: DTypeLike = np.float64) -> jax.Array:
    """`jax.random.uniform`: numbers of [0, 1) in 32 or 64 bit."""
    high, low = _words(key, shape)
    one = np.ones((), dtype)
    if one.dtype == np.float32:
        bits = ((high ^ low) >> np.uint32(9)) | one.view(np.uint32)
    else:
        wide = (high.astype(jnp.uint64) << np.uint64(32)) | low.astype(jnp.uint64)
        bits = (wide >> np.uint64(12)) | one.view(np.uint64)
    return jax.lax.bitcast_convert_type(bits, one.dtype) - one


def normal(key: Array, shape: tuple[int, ...] = (), dtype: DTypeLike = np.float64) -> jax.Array:
    """`jax.random.normal`: standard normal numbers in 32 or 64 bit."""
    low = np.nextafter(np.asarray(-1.0, dtype), np.asarray(0.0, dtype))
    span = np.asarray(1.0, dtype) - low
    between = jnp.maximum(low, uniform(key, shape, dtype) * span + low)
    return jnp.multiply(np.asarray(math.sqrt(2.0), dtype), jax.lax.erf_inv(between))


def _words(key: Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Two 32-bit words for each number of `shape`: threefry-2x32 with 20 rounds of the numbers' positions."""
    data = jax.random.key_data(key)
    keys = (data[0], data[1], data[0] ^ data[1] ^ _PARITY)
    position = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    high, low = jnp.zeros_like(position) + keys[0], position + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            high = high + low
            low = high ^ ((low << np.uint32(rotation)) | (low >> np.uint32(32 - rotation)))
        high = high + keys[(group + 1) % 3]
        low = low + keys[(group + 2) % 3] + np.uint32(group + 1)
    # Without a barrier the compiler repeats the rounds in every computation that uses the numbers.
    words: tuple[jax.Array, jax.Array] = jax.lax.optimization_barrier((high, low))  # type: ignore[no-untyped-call]
    return words
