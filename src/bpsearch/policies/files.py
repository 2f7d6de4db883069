"""Policies on disk: NumPy's npz, which holds arrays and strings and can run no code when it is read."""

import zipfile
import zlib
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bpsearch.errors import InvalidArgumentError, PolicyFileError
from bpsearch.policies.mlp import MLP, CategoricalMLP, GaussianMLP

FORMAT = "bpsearch policy 1"
_CLASSES: dict[str, type[MLP]] = {cls.__name__: cls for cls in (GaussianMLP, CategoricalMLP)}
SHIPPED = {"cartpole_swingup": "cartpole_swingup_trpo10.npz", "acrobot": "acrobot_trpo60.npz"}


def save_policy(policy: MLP, path: str | Path) -> None:
    """Write `policy` to `path`; the file has the arrays of each layer and the policy's kind."""
    arrays: dict[str, Any] = {"format": FORMAT, "kind": type(policy).__name__, "adapt": policy.adapt}
    for layer, (weight, bias) in enumerate(zip(policy.weights, policy.biases, strict=True)):
        arrays[f"weight_{layer}"], arrays[f"bias_{layer}"] = np.asarray(weight), np.asarray(bias)
    if isinstance(policy, GaussianMLP):
        arrays["log_std"] = np.asarray(policy.log_std)
    with Path(path).open("wb") as file:
        np.savez(file, **arrays)


def load_policy(path: str | Path) -> GaussianMLP | CategoricalMLP:
    """The policy that `save` wrote to `path`.

    Raises:
        PolicyFileError: the file is missing, damaged, or not one of bpsearch's.
    """
    try:
        with Path(path).open("rb") as file:
            return _read(file, str(path))
    except OSError as error:
        raise PolicyFileError(f"cannot read the policy file {path}: {error.strerror or error}") from error


def load_shipped_policy(name: str) -> GaussianMLP | CategoricalMLP:
    """An evaluation policy that comes with the package, by the name of its environment.

    "cartpole_swingup" was trained by 10 iterations of TRPO from a random network, "acrobot" by 60;
    `bpsearch.training.continuous` made them.
    """
    if name not in SHIPPED:
        raise InvalidArgumentError(f"name must be one of {', '.join(map(repr, SHIPPED))}, got {name!r}")
    with (resources.files("bpsearch") / "data" / SHIPPED[name]).open("rb") as file:
        return _read(file, SHIPPED[name])  # type: ignore[arg-type]


def _read(file: BinaryIO, name: str) -> GaussianMLP | CategoricalMLP:
    try:
        loaded = np.load(file, allow_pickle=False)
        arrays = dict(loaded) if isinstance(loaded, np.lib.npyio.NpzFile) else {}
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise PolicyFileError(f"{name} is damaged or no npz file: {error}") from error
    found = str(arrays.get("format", "no format"))
    if found != FORMAT:
        raise PolicyFileError(f"{name} is not a policy of this version: expected the format {FORMAT!r}, got {found!r}")
    try:
        layers = range(sum(key.startswith("weight_") for key in arrays))
        layer_arrays = (tuple(arrays[f"weight_{i}"] for i in layers), tuple(arrays[f"bias_{i}"] for i in layers))
        head = (arrays["log_std"],) if str(arrays["kind"]) == "GaussianMLP" else ()
        policy: Any = _CLASSES[str(arrays["kind"])](*layer_arrays, *head, adapt=str(arrays["adapt"]))  # type: ignore[arg-type]
    except (KeyError, InvalidArgumentError) as error:
        raise PolicyFileError(f"{name} does not hold a policy: {error}") from error
    checked: GaussianMLP | CategoricalMLP = policy
    return checked
