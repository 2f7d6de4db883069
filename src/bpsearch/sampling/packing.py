"""A batch as named arrays without padding: what files and stores hold of it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch._core.checks import quote
from bpsearch._core.foreign import own_array
from bpsearch._core.texts import show
from bpsearch.errors import InvalidTrajectoriesError
from bpsearch.sampling.trajectories import Trajectories

SEPARATOR = "."  # between the name of a field and the keys of dict observations
_PER_STEP = ("observations", "actions", "rewards", "log_probs")
_ORIGIN = ("behavior_parameters", "seed")
_KNOWN = ("lengths", "steps", *_PER_STEP, "final_observations", "resets", *_ORIGIN)
# Bytes that a padded batch may take: so many, and so many times those of the steps that it holds.
PADDING_BYTES, LARGEST_PADDING = 2**28, 64


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
        arrays |= {key: array[mask] for key, array in name_arrays(name, getattr(trajectories, name)).items()}
    if trajectories.final_observations is not None:
        arrays |= name_arrays("final_observations", trajectories.final_observations)
    if trajectories.resets is not None:
        arrays |= name_arrays("resets", trajectories.resets)
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
            raise InvalidTrajectoriesError(
                f"the array {name!r} is missing; there are {show(', '.join(sorted(arrays)))}"
            )
    known = [key for name in _KNOWN for key in _keys(name, arrays)]
    arrays = {name: own_array(name, arrays[name], error=InvalidTrajectoriesError) for name in known}
    lengths = arrays["lengths"]
    if lengths.ndim != 1 or not len(lengths) or lengths.dtype.kind not in "iu" or lengths.min() < 1:
        raise InvalidTrajectoriesError(
            f"lengths must be a vector of whole numbers of at least 1, one for each episode, got {quote(lengths)}"
        )
    total = sum(map(int, lengths))  # as Python's: a sum of 64 bits may wrap around
    steps = _steps(arrays, int(lengths.max()))
    per_step = [key for name in _PER_STEP for key in _keys(name, arrays)]
    for name in per_step:
        if arrays[name].ndim == 0 or len(arrays[name]) != total:
            raise InvalidTrajectoriesError(
                f"{name} must have one row for each of the {total} steps that lengths add up to, got the shape "
                f"{arrays[name].shape}"
            )
    packed = sum(arrays[name].nbytes for name in per_step)
    size, allowed = packed // total * len(lengths) * steps, PADDING_BYTES + LARGEST_PADDING * packed
    if size > allowed:
        raise InvalidTrajectoriesError(
            f"{len(lengths)} episodes padded to {steps} steps would take {size} bytes of memory, at most {allowed} are "
            f"allowed for their {total} steps; tell them in smaller batches"
        )
    mask = np.arange(steps) < lengths[:, None]

    def pad(rows: NumpyArray) -> NumpyArray:
        result = np.zeros((*mask.shape, *rows.shape[1:]), rows.dtype)
        result[mask] = rows
        return result

    fields = {name: pad(arrays[name]) for name in ("actions", "rewards", "log_probs")}
    observations = _tree("observations", {key: pad(arrays[key]) for key in _keys("observations", arrays)})
    finals = _tree("final_observations", {key: arrays[key] for key in _keys("final_observations", arrays)})
    if observations is None:
        raise InvalidTrajectoriesError(
            f"the array 'observations' is missing; there are {show(', '.join(sorted(arrays)))}"
        )
    resets = _tree("resets", {key: arrays[key] for key in _keys("resets", arrays)})
    origin = {name: arrays[name] for name in _ORIGIN if name in arrays}
    return Trajectories(observations, **fields, mask=mask, final_observations=finals, resets=resets, **origin)


def _steps(arrays: Mapping[str, NumpyArray], longest: int) -> int:
    """The T to which the batch is padded."""
    given = arrays.get("steps")
    if given is None:
        return longest
    if given.ndim or given.dtype.kind not in "iu":
        raise InvalidTrajectoriesError(f"steps must be one whole number, got {quote(given)}")
    if int(given) < longest:
        raise InvalidTrajectoriesError(f"steps must be at least the longest episode's {longest}, got {given}")
    return int(given)


def name_arrays(name: str, tree: Any) -> dict[str, NumpyArray]:
    """The arrays of a nested dict by their path, as `pack` names them; `name` itself for a single array."""
    if not isinstance(tree, dict):
        return {name: np.asarray(tree)}
    found: dict[str, NumpyArray] = {}
    for key, value in tree.items():
        if SEPARATOR in key:
            raise InvalidTrajectoriesError(f"a key of dict observations must not have a {SEPARATOR!r}, got {key!r}")
        found |= name_arrays(f"{name}{SEPARATOR}{key}", value)
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
            if not isinstance(inner, dict):
                break
        if not isinstance(inner, dict) or last in inner:
            raise InvalidTrajectoriesError(f"{show(key)} cannot be both an array and a dict of arrays")
        inner[last] = array
    return tree or None
