"""Where foreign arrays become ours: whatever a file, another program or a caller gives passes through here.

What comes out is a plain NumPy array of bools, integers or floats of at most 64 bit, in the byte order of this machine.
Compiled programs read memory as it lies: an array of another byte order would become other numbers.
"""

from typing import Any

import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch._core.texts import show
from bpsearch.errors import BPSearchError, InvalidArgumentError

MAX_BYTES = 2**33  # of all arrays of a file or a record, once they are in memory
KINDS = "biuf"  # bool, integers, floats; no complex numbers, dates, texts, objects or structures
_NAMES = {"b": "bools", "i": "integers", "u": "integers", "f": "floats"}


def own_array(
    name: str, value: Any, *, kinds: str = KINDS, error: type[BPSearchError] = InvalidArgumentError
) -> NumpyArray:
    """`value` as an array of ours; the same array if it is one already.

    Args:
        name: what the message calls it.
        value: whatever was given.
        kinds: which of NumPy's kinds of elements are allowed, some of "biuf".
        error: what is raised.
    """
    if type(value) is not np.ndarray:
        if isinstance(value, np.ma.MaskedArray) and np.ma.getmaskarray(value).any():
            raise error(f"{name} must have every one of its values, got a masked array")
        try:
            value = np.asarray(value)
        except Exception as fault:
            raise error(f"{name} must be an array of numbers, got {type(value).__name__}: {fault}") from fault
    kind = value.dtype.kind
    if kind not in kinds or value.dtype.itemsize > 8:
        wanted = " or ".join(dict.fromkeys(_NAMES[kind] for kind in kinds))
        raise error(f"{name} must be an array of {wanted} of at most 64 bit, got the type {show(value.dtype)}")
    array: NumpyArray = value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))
    if array.dtype != np.uint64:
        return array
    if array.size and array.max() > np.iinfo(np.int64).max:
        raise error(f"{name} must be below 2^63, got {array.max()}")
    return array.astype(np.int64)  # with signed numbers, unsigned ones of 64 bit become floats
