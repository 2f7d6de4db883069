"""The statistics of SB3's `VecNormalize`: part of a policy that was trained with them, and kept in another file.

A policy that was trained on normalised observations means nothing without them, and its own file tells that they
existed. They are looked for where SB3, its callbacks and rl_zoo3 put them. The file is a pickle. It is read here with
a reader that knows arrays only: every class that it names becomes an object that does nothing.
"""

import base64
import io
import math
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import gymnasium
import numpy as np
from stable_baselines3.common.vec_env import VecNormalize

from bpsearch._core.arrays import NumpyArray
from bpsearch.errors import MissingStatisticsError, PolicyFileError, SpaceMismatchError, UntrustedFileError

# What people give: statistics, the path of their file, False for "there were none", None for "look for them".
Normalize = VecNormalize | str | Path | Literal[False] | None
_NAMES = ("vecnormalize.pkl", "vec_normalize.pkl")
# What is said where a file does not tell, and nothing lies beside it.
UNKNOWN = (
    "Stable-Baselines3 does not write down whether this policy was trained on normalised observations, and no "
    "statistics were found: taken as not; if it was, give normalize='vecnormalize.pkl' (--normalize vecnormalize.pkl)"
)
_DAMAGE = (pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, MemoryError, TypeError, ValueError)


@dataclass(frozen=True)
class Statistics:
    """(x − mean) / scale, clipped to ±`clip`, for the parts of an observation; frozen.

    Attributes:
        parts: mean and scale by the key of a Dict observation, or under None for all of it.
        clip: the largest size of a normalised number.
    """

    parts: dict[str | None, tuple[NumpyArray, NumpyArray]]
    clip: float

    @classmethod
    def of(cls, normalize: VecNormalize) -> Self | None:
        """Those of a `VecNormalize` as it is now; None if it normalises rewards only."""
        return cls.of_state(vars(normalize)) if normalize.norm_obs else None

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Self:
        """Those in the attributes of a `VecNormalize`: scale = √(variance + ε), as it computes."""
        moments = state["obs_rms"]
        by_key: dict[str | None, Any] = dict(moments) if isinstance(moments, dict) else {None: moments}
        parts = {}
        for key, moment in by_key.items():
            mean, variance = np.asarray(moment.mean, np.float64), np.asarray(moment.var, np.float64)
            parts[key] = (mean, np.sqrt(variance + float(state["epsilon"])))
        return cls(parts, float(state["clip_obs"]))

    def check(self, space: gymnasium.Space[Any], name: str) -> None:
        """Refuse statistics of other observations than the environment's."""
        for key, (mean, _) in self.parts.items():
            known: Any = space
            if key is not None:
                known = space.spaces.get(key) if isinstance(space, gymnasium.spaces.Dict) else None
            if known is None or known.shape != mean.shape:
                part = "" if key is None else f" of {key!r}"
                raise SpaceMismatchError(
                    f"the statistics {name}{part} have the shape {mean.shape}, the environment's observations are "
                    f"{space}"
                )


def was_normalized(seen: Any, raw: Any, *, off_policy: bool) -> bool | None:
    """Whether a model was trained on normalised observations; None if SB3 has left nothing that tells.

    SB3 keeps the last observation that the model has seen, and a raw one. Algorithms such as PPO keep a raw one only if
    there were others. Those with a replay buffer always do. But `VecNormalize` makes 32-bit floats: other numbers were
    not normalised, and 32-bit floats beside raw numbers of another type were.

    Args:
        seen: the last observation that the model has seen.
        raw: the raw one; None if there is none.
        off_policy: whether the algorithm has a replay buffer.
    """
    if raw is None or not off_policy:
        return raw is not None
    parts = [(seen[key], raw[key]) for key in seen] if isinstance(seen, dict) else [(seen, raw)]
    types = [tuple(str(getattr(array, "dtype", "")) for array in pair) for pair in parts]
    floats = [other for one, other in types if one == "float32"]
    if any(other not in ("", "float32") for other in floats):
        return True
    return None if floats or any("" in pair for pair in types) else False


def find_statistics(
    file: Path, data: Mapping[str, Any], normalize: Normalize, *, trust: bool
) -> tuple[Statistics | None, str]:
    """The statistics that belong to the policy in `file`, and a note where they come from; empty if they were given.

    Args:
        file: the policy's .zip.
        data: the plain JSON of its `data`.
        normalize: as people gave it.
        trust: whether code in a pickle may run.

    Raises:
        MissingStatisticsError: the policy was trained with statistics, and there are none to be found.
    """
    if normalize is False or normalize == "none":
        return None, ""
    if isinstance(normalize, VecNormalize):
        return Statistics.of(normalize), ""
    if normalize is not None:
        return read_statistics(Path(normalize), trust=trust), ""
    pair = [_read_observation(data.get(name)) for name in ("_last_obs", "_last_original_obs")]
    told = was_normalized(*pair, off_policy="buffer_size" in data)
    if told is False:
        return None, ""
    found = _beside(file)
    if len(found) == 1:
        statistics = read_statistics(found[0], trust=trust)
        note = f"observations were normalised by the statistics in {found[0]}"
        return statistics, "" if statistics is None else note
    if told is None and not found:
        return None, UNKNOWN
    reason = (
        f"there are several files of them: {', '.join(map(str, found))}"
        if found
        else f"there is no {' or '.join(_NAMES)} beside it, nor in a folder {file.stem!r} beside it as rl_zoo3 has it"
    )
    raise MissingStatisticsError(
        f"the policy in {str(file)!r} was trained on observations that VecNormalize normalised, and without its "
        f"statistics it would be another policy; {reason}. Give their file, normalize='vecnormalize.pkl' (--normalize "
        f"vecnormalize.pkl), or say that observations were not normalised, normalize=False (--normalize none)"
    )


def _read_observation(entry: Any) -> Any:
    """An observation in the JSON of a file: arrays, without running code; something without a type if unreadable."""
    try:
        return None if entry is None else _Reader(io.BytesIO(base64.b64decode(entry[":serialized:"]))).load()
    except _DAMAGE:
        return entry


def _beside(file: Path) -> list[Path]:
    """The files of statistics that may belong to a policy, best first; more than one only if nothing tells which."""
    checkpoint = re.fullmatch(r"(.*)_(\d+)_steps", file.stem)
    names = [f"{file.stem}_vecnormalize.pkl", *_NAMES, *(f"{file.stem}/{name}" for name in _NAMES)]
    if checkpoint:  # as SB3's CheckpointCallback has it
        names.insert(0, f"{checkpoint[1]}_vecnormalize_{checkpoint[2]}_steps.pkl")
    for name in names:
        if (file.parent / name).is_file():
            return [file.parent / name]
    return sorted(path for name in _NAMES for path in file.parent.glob(f"*/{name}"))


def read_statistics(path: Path, *, trust: bool = False) -> Statistics | None:
    """The statistics in a pickled `VecNormalize`; None if it normalises rewards only.

    Raises:
        PolicyFileError: the file is missing, damaged, or holds no `VecNormalize`.
        UntrustedFileError: it holds one of another class, whose code would have to run.
    """
    try:
        content = path.read_bytes()
        found = _Reader(io.BytesIO(content)).load()
    except (OSError, *_DAMAGE) as error:
        raise PolicyFileError(f"cannot read the statistics {str(path)!r}: {error}") from error
    if isinstance(found, _Inert) and found.is_a("vec_normalize", "VecNormalize"):
        try:
            return Statistics.of_state(found.state) if found.state["norm_obs"] else None
        except _DAMAGE as error:
            raise PolicyFileError(f"the statistics {str(path)!r} are not those of a VecNormalize: {error!r}") from error
    kind = f"{found.module}.{found.name}" if isinstance(found, _Inert) else type(found).__name__
    if not trust:
        raise UntrustedFileError(
            f"{str(path)!r} is a pickle of {kind}, not of SB3's own VecNormalize: reading it runs code that its author "
            f"put into it. If you trust it, say trust=True (--trust)"
        )
    loaded = pickle.loads(content)
    if not isinstance(loaded, VecNormalize):
        raise PolicyFileError(f"{str(path)!r} holds no VecNormalize, got {type(loaded).__name__}")
    return Statistics.of(loaded)


class _Inert:
    """Stands for an object of any class of a pickle: it keeps its state and does nothing."""

    module, name = "", ""

    def __init__(self, *_: object, **__: object) -> None:
        self.state: dict[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        self.state = state if isinstance(state, dict) else {}

    def is_a(self, module: str, name: str) -> bool:
        return self.module.rpartition(".")[2] == module and self.name == name

    def __getattr__(self, name: str) -> Any:
        # `mean` and `var` of moments; never called for what is defined here.
        state = self.__dict__.get("state", {})
        if name in ("mean", "var") and name in state:
            return state[name]
        raise AttributeError(name)

    def append(self, _: object) -> None:
        """Parts of a list that nobody asks for."""

    def __setitem__(self, _: object, __: object) -> None:
        """Parts of a dict that nobody asks for."""


class _Reader(pickle.Unpickler):
    """Reads arrays, numbers, text, lists and dicts; whatever else is named is made inert, so no code runs."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("numpy") and name in _NUMPY:
            return _NUMPY[name]
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        return type("Inert", (_Inert,), {"module": module, "name": name})


class _Array:
    """The name of NumPy's array, which a pickle may give as an argument and must not call."""

    def __init__(self, *_: object) -> None:
        raise ValueError("an array that is made otherwise than NumPy pickles it")


def _empty_array(kind: Any, shape: Any, _: Any) -> NumpyArray:
    if kind is not _Array or tuple(shape) != (0,):
        raise ValueError(f"no plain array: {kind}, {shape}")
    return np.empty(0, np.int8)


def _array_of(buffer: Any, dtype: Any, shape: Any, order: Any) -> NumpyArray:
    array = np.frombuffer(buffer, dtype=dtype)
    if math.prod(shape) != array.size:
        raise ValueError(f"{array.size} numbers cannot have the shape {shape}")
    return array.reshape(shape, order=order)


def _scalar(dtype: Any, content: Any = None) -> Any:
    return np.frombuffer(content, dtype=dtype)[0]


_NUMPY = {
    "_reconstruct": _empty_array,
    "_frombuffer": _array_of,
    "scalar": _scalar,
    "ndarray": _Array,
    "dtype": np.dtype,
}
