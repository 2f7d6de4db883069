"""Observations as arrays: what a space's observations are recorded as, and how they are given back to functions.

Tuples are recorded as dicts with the keys "0", "1", ..., and texts as arrays of the numbers of their characters. So
samplers, files and estimators know arrays and dicts of arrays only.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from bpsearch._core.arrays import NumpyArray, Observations
from bpsearch.errors import InvalidArgumentError

TEXT = np.dtype(np.uint32)  # of the numbers of characters
LONGEST_TEXT = 256  # characters of a text whose space has no limit of its own
_PLAIN = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def empty_observations(space: gymnasium.Space[Any], *leading: int) -> Observations:
    """Zeros for observations of `space`: an array, or a dict of arrays for a `Dict` or a `Tuple` space."""
    parts = split_space(space)
    if parts is not None:
        return {key: empty_observations(part, *leading) for key, part in parts.items()}
    if is_text(space):
        return np.zeros((*leading, int(getattr(space, "max_length", LONGEST_TEXT))), TEXT)
    if not isinstance(space, _PLAIN):
        raise InvalidArgumentError(
            f"observations must be of a Box, Discrete, MultiDiscrete, MultiBinary or Text space, or of a Dict or Tuple "
            f"of them, got {space}"
        )
    return np.zeros((*leading, *(space.shape or ())), space.dtype)


def write(arrays: Observations, index: Any, values: Any) -> None:
    """`arrays[index] = values`, through dicts and tuples."""
    if isinstance(arrays, dict):
        for position, (key, array) in enumerate(arrays.items()):
            write(array, index, values[position if isinstance(values, tuple) else key])
    elif isinstance(values, str):
        arrays[index] = _numbers(values, arrays.shape[-1])
    elif isinstance(values, tuple | list) and values and isinstance(values[0], str):
        arrays[index] = [_numbers(text, arrays.shape[-1]) for text in values]
    else:
        arrays[index] = values


def take(arrays: Observations, index: Any) -> Observations:
    """`arrays[index]`, through dicts."""
    if isinstance(arrays, dict):
        return {key: take(array, index) for key, array in arrays.items()}
    return arrays[index]


def restore(space: gymnasium.Space[Any], observations: Observations) -> Any:
    """A batch of recorded observations with tuples and texts as the environment gave them."""
    parts = split_space(space)
    if parts is not None:
        recorded: Any = observations
        restored = {key: restore(part, recorded[key]) for key, part in parts.items()}
        return tuple(restored.values()) if isinstance(space, spaces.Tuple) else restored
    if is_text(space):
        return np.array(["".join(map(chr, row[row > 0])) for row in np.asarray(observations)], dtype=object)
    return observations


def split_space(space: gymnasium.Space[Any]) -> dict[str, gymnasium.Space[Any]] | None:
    """The parts of a `Dict` or `Tuple` space by the keys of what is recorded; None for another space."""
    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    if isinstance(space, spaces.Tuple):
        return {str(position): part for position, part in enumerate(space.spaces)}
    return None


def is_text(space: gymnasium.Space[Any]) -> bool:
    """Whether the space has texts."""
    # MiniGrid's space of missions is a space of texts without being a `Text`.
    return isinstance(space, spaces.Text) or (space.dtype is not None and np.dtype(space.dtype).kind == "U")


def _numbers(text: str, length: int) -> NumpyArray:
    if len(text) > length:
        raise InvalidArgumentError(f"a text must have at most {length} characters, got {text!r}")
    return np.array([*map(ord, text), *[0] * (length - len(text))], TEXT)
