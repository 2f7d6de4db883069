"""Policies on disk: NumPy's npz, which holds arrays and strings and can run no code when it is read."""

import zipfile
import zlib
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bpsearch.errors import InvalidArgumentError, PolicyFileError
from bpsearch.policies.mlp import MLP, CategoricalMLP, GaussianMLP
from bpsearch.policies.table import SoftmaxTable

FORMAT = "bpsearch policy 1"
SHIPPED = ("gridworld-early", "gridworld-converged", "stochastic-gridworld", "cartpole-swingup", "acrobot")
_NETWORKS: dict[str, type[MLP]] = {cls.__name__: cls for cls in (GaussianMLP, CategoricalMLP)}


def save_policy(policy: SoftmaxTable | MLP, path: str | Path) -> None:
    """Write `policy` to `path`: its kind and its arrays."""
    kind: dict[str, Any] = {"format": FORMAT, "kind": type(policy).__name__}
    arrays = {"logits": policy.logits} if isinstance(policy, SoftmaxTable) else _network_arrays(policy)
    with Path(path).open("wb") as file:
        np.savez(file, **kind, **arrays)


def _network_arrays(policy: MLP) -> dict[str, Any]:
    arrays: dict[str, Any] = {"adapt": policy.adapt}
    for layer, (weight, bias) in enumerate(zip(policy.weights, policy.biases, strict=True)):
        arrays[f"weight_{layer}"], arrays[f"bias_{layer}"] = np.asarray(weight), np.asarray(bias)
    if isinstance(policy, GaussianMLP):
        arrays["log_std"] = np.asarray(policy.log_std)
    return arrays


def load_policy(path: str | Path) -> SoftmaxTable | GaussianMLP | CategoricalMLP:
    """The policy that `save` wrote to `path`.

    Raises:
        PolicyFileError: the file is missing, damaged, or not one of bpsearch's.
    """
    try:
        with Path(path).open("rb") as file:
            return _read(file, str(path))
    except OSError as error:
        raise PolicyFileError(f"cannot read the policy file {path}: {error.strerror or error}") from error


def shipped_policy(name: str) -> Any:
    """An evaluation policy of the experiments, by name; `bpsearch train NAME` makes it anew.

    - "gridworld-early", "gridworld-converged": π_1 and π_2 of the 4x4 gridworld, early in REINFORCE and after it.
    - "stochastic-gridworld": of the 10x10 gridworld.
    - "cartpole-swingup", "acrobot": Gaussian networks after 10 and 60 iterations of TRPO.
    """
    if name not in SHIPPED:
        raise InvalidArgumentError(f"policy must be one of {', '.join(SHIPPED)}, got {name!r}")
    with (resources.files("bpsearch") / "data" / f"{name}.npz").open("rb") as file:
        return _read(file, name)  # type: ignore[arg-type]


def _read(file: BinaryIO, name: str) -> SoftmaxTable | GaussianMLP | CategoricalMLP:
    try:
        loaded = np.load(file, allow_pickle=False)
        arrays = dict(loaded) if isinstance(loaded, np.lib.npyio.NpzFile) else {}
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise PolicyFileError(f"{name} is damaged or no npz file: {error}") from error
    found = str(arrays.get("format", "no format"))
    if found != FORMAT:
        raise PolicyFileError(f"{name} is not a policy of this version: expected the format {FORMAT!r}, got {found!r}")
    try:
        return _policy(str(arrays["kind"]), arrays)
    except (KeyError, InvalidArgumentError) as error:
        raise PolicyFileError(f"{name} does not hold a policy: {error}") from error


def _policy(kind: str, arrays: dict[str, Any]) -> SoftmaxTable | GaussianMLP | CategoricalMLP:
    if kind == SoftmaxTable.__name__:
        return SoftmaxTable(arrays["logits"])
    layers = range(sum(key.startswith("weight_") for key in arrays))
    layer_arrays = (tuple(arrays[f"weight_{i}"] for i in layers), tuple(arrays[f"bias_{i}"] for i in layers))
    head = (arrays["log_std"],) if kind == GaussianMLP.__name__ else ()
    network: Any = _NETWORKS[kind](*layer_arrays, *head, adapt=str(arrays["adapt"]))  # type: ignore[arg-type]
    checked: GaussianMLP | CategoricalMLP = network
    return checked
