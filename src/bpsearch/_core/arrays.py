"""What the package calls an array.

Signatures say shapes and types of elements in jaxtyping's notation: `Float[Array, "episodes steps"]`. A type checker
reads the `Array` in it; the rest is for people, and for `isinstance` in the tests.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    import jax

    NumpyArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]
    # NumPy's outside of `jit`, JAX's or a tracer inside.
    Array: TypeAlias = NumpyArray | jax.Array
    # What is carried on as one number: NumPy's at first, an array without axes after a compiled step.
    Scalar: TypeAlias = Array | np.floating[Any] | np.integer[Any]
    Flag: TypeAlias = Array | np.bool
    # Arrays with the same leading axes: an array, or, of a dict space, a dict of them.
    Observations: TypeAlias = Array | dict[str, "Observations"]
else:

    @runtime_checkable
    class Array(Protocol):
        """Anything with a shape and a type of elements: importing JAX to name its class would take a second."""

        shape: tuple[int, ...]
        dtype: object

    NumpyArray = np.ndarray
    Scalar = Flag = Array
    Observations = Array | dict

# A function of many starts, a batch of observations, that gives a number (n,) for each.
Proxy = Callable[[Observations], NumpyArray]
