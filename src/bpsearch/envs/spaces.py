"""Whether numbers are of a declared space: what samplers ask of environments, and studies of those who tell episodes.

Bounds of a Box are not asked for: most environments leave theirs now and then, and no policy looks anything up by them.
"""

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from bpsearch._core.arrays import Array, NumpyArray
from bpsearch.envs.observations import is_text, split_space


class MisfitError(Exception):
    """Values are not of the shape, or not of the kind, that a space declares; `str` says how."""


def parts_of(space: gymnasium.Space[Any], values: Any, name: str) -> Iterator[tuple[str, gymnasium.Space[Any], Any]]:
    """Name, space and values of each part of a `Dict` space; of another space itself.

    Raises:
        MisfitError: the keys are not those of the space.
    """
    parts = split_space(space)
    if parts is None:
        if not is_text(space):  # of texts every recorded number may be
            yield name, space, values
        return
    keys = sorted(map(str, values)) if isinstance(values, dict) else type(values).__name__
    if keys != sorted(parts):
        raise MisfitError(f"the {name}s must have the keys {sorted(parts)}, got {keys}")
    for key, part in parts.items():
        yield from parts_of(part, values[key], f"{name} {key!r}")


def outside(space: gymnasium.Space[Any], values: NumpyArray, leading: int) -> NumpyArray | None:
    """Which of the values are none of the space's: True there, over the first `leading` axes; None if all are.

    Args:
        space: no `Dict`.
        values: (..., *shape of the space).
        leading: how many axes come before the space's own.

    Raises:
        MisfitError: the shape is not the space's.
    """
    if space.shape is not None and values.shape[leading:] != space.shape:
        raise MisfitError(f"must have the shape {space.shape} of {space}, got {values.shape[leading:]}")
    low, high = limits(space)
    if low is None:
        if values.dtype.kind != "f" or np.isfinite(values).all():
            return None
        bad: Any = ~np.isfinite(values)
    elif values.dtype.kind in "biu" and np.ndim(low) == 0 and low <= values.min() and values.max() <= high:
        return None
    else:
        bad = ~((values >= low) & (values <= high) & (values.dtype.kind in "biu"))
    rows: NumpyArray = np.any(bad.reshape(*values.shape[:leading], -1), axis=-1)
    return rows if rows.any() else None


def limits(space: gymnasium.Space[Any]) -> tuple[Any, Any]:
    """The smallest and the largest value of a countable space; None for one that is not."""
    if isinstance(space, spaces.Discrete):
        return int(space.start), int(space.start + space.n) - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    return None, None


def first(bad: Array, within: Array | None = None) -> tuple[int, ...] | None:
    """The index of the first True, among those of `within`; None if there is none."""
    found = np.argwhere(bad if within is None else bad & within)
    return tuple(int(i) for i in found[0]) if len(found) else None
