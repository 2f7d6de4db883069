"""Changes of arrays and of bytes."""

import io
import random
from collections.abc import Callable
from typing import Any

import numpy as np

Arrays = dict[str, Any]
TYPES = (
    "?",
    "i1",
    ">i2",
    ">i4",
    "<i8",
    ">i8",
    "u1",
    ">u8",
    "f2",
    ">f4",
    "<f8",
    ">f8",
    "g",
    "F",
    ">D",
    "U3",
    "S2",
    "M8[s]",
)
NUMBERS = (np.nan, np.inf, -np.inf, 0, -1, 1, 99, 2**31, -(2**63), 2**63, 1e300, 1e-320, 0.5, 10**7)


def flip_bytes(data: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, cut, doubled, or put elsewhere."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 50))):
        at, length = rng.randrange(max(len(changed), 1)), rng.choice((1, 2, 4, 64))
        match rng.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del changed[at : at + length]
            case 2:
                changed[at:at] = changed[at : at + length]
            case 3:
                changed[at : at + length] = rng.randbytes(length)
            case _:
                if rng.random() < 0.2:
                    del changed[at:]
    return bytes(changed)


def _type(array: Any, rng: random.Random) -> Any:
    with np.errstate(all="ignore"):
        return np.asarray(array).astype(rng.choice(TYPES))


def _number(array: Any, rng: random.Random) -> Any:
    array = np.array(array)
    if not array.size:
        return array
    if array.dtype.kind in "biu" and rng.random() < 0.5:
        array = array.astype(float)
    with np.errstate(all="ignore"):
        try:
            array.reshape(-1)[rng.randrange(array.size)] = rng.choice(NUMBERS)
        except (OverflowError, ValueError):
            return array.astype(object).astype(str)
    return array


def _shape(array: Any, rng: random.Random) -> Any:
    array = np.asarray(array)
    choices: list[Callable[[], Any]] = [
        lambda: array[None],
        lambda: array[..., None],
        lambda: array.reshape(-1),
        lambda: array[:-1] if array.ndim else array,
        lambda: np.concatenate([array, array]) if array.ndim else np.array([array, array]),
        lambda: array[..., :0],
        lambda: np.zeros((0, *array.shape)),
        lambda: array.T,
        lambda: np.asfortranarray(array),
        lambda: np.zeros((1,) * 40),
        lambda: array.reshape(-1)[0] if array.size else array,
    ]
    return rng.choice(choices)()


def _order(array: Any, rng: random.Random) -> Any:
    array = np.asarray(array)
    return array.astype(array.dtype.newbyteorder())


def _text(array: Any, rng: random.Random) -> Any:
    return rng.choice(["", "\x1b[31m", "x" * 20_000, "bpsearch trajectories 1", "0", "None"])


def mutate(arrays: Arrays, rng: random.Random) -> tuple[Arrays, str]:
    """One or several arrays changed, missing, doubled or added; and what was done, in words."""
    arrays, did = dict(arrays), []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not arrays:
            break
        name = rng.choice(sorted(arrays))
        change = rng.choice(
            (_type, _type, _number, _number, _shape, _shape, _order, _order, _text, None, "add", "move")
        )
        if change is None:
            del arrays[name]
        elif change == "add":
            arrays[rng.choice(["steps", "seed", "x", f"{name}.a", "\x1b[2J", "observations.a.b", name])] = rng.choice(
                [np.int64(rng.choice([1, 4, 64, 10**7, 2**62])), np.zeros(3), "text", np.array([[1.0]])]
            )
        elif change == "move":
            arrays[name] = arrays[rng.choice(sorted(arrays))]
        else:
            try:
                arrays[name] = change(arrays[name], rng)
            except (TypeError, ValueError, IndexError, OverflowError):  # what NumPy itself cannot make
                arrays[name] = np.zeros(3, complex)
        did.append(f"{getattr(change, '__name__', change)} {name}")
    return arrays, ", ".join(did)


def npz(arrays: Arrays, rng: random.Random) -> bytes:
    """The arrays as a file, compressed or not."""
    out = io.BytesIO()
    (np.savez_compressed if rng.random() < 0.5 else np.savez)(out, **arrays)
    return out.getvalue()
