"""A batch as named arrays without padding: what files and stores hold of it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch.errors import InvalidTrajectoriesError
from bpsearch.sampling.trajectories import Trajectories

SEPARATOR = "."  # between the name of a field and the keys of dict observations
_PER_STEP = ("observations", "actions", "rewards", "log_probs")
_ORIGIN = ("behavior_parameters", "seed")


def pack(trajectories: Trajectories) -> dict[str, NumpyArray]:
    """The batch by names, the steps of all episodes one after the other.

    - `lengths`: (N,), the number of steps of each episode, and `steps`, the T to which the batch was padded.
    - `observations`, `actions`, `rewards`, `log_probs`: (Σ lengths, ...). Dict observations have one array per key,
      named `observations.key`.
    - `final_observations`: (N, ...), `behavior_parameters`: (P,), and `seed`, where they are known.
    """
    mask = trajectories.mask
    arrays = {"lengths": np.asarray(trajectories.lengths), "steps": np.asarray(np.int64(mask.shape[1]))}
    for name in _PER_STEP:
        arrays |= {key: array[mask] for key, array in _named(name, getattr(trajectories, name)).items()}
    if trajectories.final_observations is not None:
        arrays |= _named("final_observations", trajectories.final_observations)
    if trajectories.resets is not None:
        arrays |= _named("resets", trajectories.resets)
    for name in _ORIGIN:
        value = getattr(trajectories, name)
        if value is not None:
            arrays[name] = np.asarray(value)
    return arrays


def unpack(arrays: Mapping[str, NumpyArray]) -> Trajectories:
    """The batch that `pack` took apart, checked; padding is 0.

    Raises:
        InvalidTrajectoriesError: an array is missing, or its length is not what `lengths` say.
    """
    for name in ("lengths", "actions", "rewards", "log_probs"):
        if name not in arrays:
            raise InvalidTrajectoriesError(f"the array {name!r} is missing; there are {', '.join(sorted(arrays))}")
    lengths = np.asarray(arrays["lengths"])
    if lengths.ndim != 1 or not len(lengths) or not np.issubdtype(lengths.dtype, np.integer) or lengths.min() < 1:
        raise InvalidTrajectoriesError(
            f"lengths must be a vector of whole numbers of at least 1, one for each episode, got {lengths!r}"
        )
    steps = int(arrays.get("steps", lengths.max()))
    if steps < lengths.max():
        raise InvalidTrajectoriesError(f"steps must be at least the longest episode's {lengths.max()}, got {steps}")
    mask = np.arange(steps) < lengths[:, None]

    def padded(array: NumpyArray, name: str) -> NumpyArray:
        rows = np.asarray(array)
        if rows.ndim == 0 or len(rows) != lengths.sum():
            raise InvalidTrajectoriesError(
                f"{name} must have one row for each of the {lengths.sum()} steps that lengths add up to, got the shape "
                f"{rows.shape}"
            )
        result = np.zeros((*mask.shape, *rows.shape[1:]), rows.dtype)
        result[mask] = rows
        return result

    fields = {name: padded(arrays[name], name) for name in ("actions", "rewards", "log_probs")}
    observations = _tree("observations", {key: padded(arrays[key], key) for key in _keys("observations", arrays)})
    finals = _tree("final_observations", {key: np.asarray(arrays[key]) for key in _keys("final_observations", arrays)})
    if observations is None:
        raise InvalidTrajectoriesError(f"the array 'observations' is missing; there are {', '.join(sorted(arrays))}")
    resets = _tree("resets", {key: np.asarray(arrays[key]) for key in _keys("resets", arrays)})
    origin = {name: np.asarray(arrays[name]) for name in _ORIGIN if name in arrays}
    return Trajectories(observations, **fields, mask=mask, final_observations=finals, resets=resets, **origin)


def _named(name: str, tree: Any) -> dict[str, NumpyArray]:
    """The arrays of a nested dict by their path; `name` itself for a single array."""
    if not isinstance(tree, dict):
        return {name: np.asarray(tree)}
    found: dict[str, NumpyArray] = {}
    for key, value in tree.items():
        if SEPARATOR in key:
            raise InvalidTrajectoriesError(f"a key of dict observations must not have a {SEPARATOR!r}, got {key!r}")
        found |= _named(f"{name}{SEPARATOR}{key}", value)
    return found


def _keys(name: str, arrays: Mapping[str, NumpyArray]) -> list[str]:
    return [key for key in arrays if key == name or key.startswith(name + SEPARATOR)]


def _tree(name: str, arrays: dict[str, NumpyArray]) -> Any:
    """The nested dict whose paths are the names; None without arrays."""
    if name in arrays:
        return arrays[name]
    tree: dict[str, Any] = {}
    for key, array in arrays.items():
        *parents, last = key.split(SEPARATOR)[1:]
        inner = tree
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = array
    return tree or None
