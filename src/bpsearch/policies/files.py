"""Policies on disk: NumPy's npz, which holds arrays and strings and can run no code when it is read."""

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO, Literal, overload

import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch._core.checks import check_choice, check_path, check_type
from bpsearch._core.npz import open_file, read_npz
from bpsearch._core.texts import show
from bpsearch.errors import InvalidArgumentError, PolicyFileError
from bpsearch.policies.base import Policy
from bpsearch.policies.mixture import Mixture
from bpsearch.policies.mlp import MLP, CategoricalMLP, GaussianMLP
from bpsearch.policies.table import SoftmaxTable

FORMAT = "bpsearch policy 1"
SHIPPED = ("gridworld-early", "gridworld-converged", "stochastic-gridworld", "cartpole-swingup", "acrobot")
_NETWORKS: dict[str, type[MLP]] = {cls.__name__: cls for cls in (GaussianMLP, CategoricalMLP)}
MAX_POLICY_BYTES = 2**31  # of all arrays of a policy
LARGEST_EXPANSION = 64  # how many times larger than its file, and the first MiB, they may be: ours are not compressed
MAX_DEPTH = 4  # of mixtures within mixtures
# Of a mixture; the names of their parts begin with these and a dot. Some have the third.
_MIXED, _THIRD = ("evaluation", "component"), "explorer"

Kept = SoftmaxTable | GaussianMLP | CategoricalMLP | Mixture


def save_policy(policy: Policy, path: str | Path, *, request: str = "", how: str = "") -> None:
    """Write `policy` to `path`: its kind and its arrays.

    Of a policy that is no table, no network of bpsearch and no mixture of two, a torch module for instance, only the
    flat parameters are written (`parameters`): load the policy with its own library and give it those by `with_flat`.

    Args:
        policy: the policy.
        path: of the file.
        request: the identity of the request of a study whose behavior the policy is.
        how: for a policy of which only the parameters are written, how to load it.
    """
    check_type("policy", policy, Policy, "a policy of bpsearch")
    path = check_path("path", path)
    texts, arrays = parts_of(policy)
    extra = {name: text for name, text in (("request", request), ("how", how)) if text}
    contents: dict[str, Any] = {"format": FORMAT, **texts, **extra, **arrays}
    with path.open("wb") as file:
        np.savez(file, **contents)


def parts_of(policy: Policy) -> tuple[dict[str, str], dict[str, NumpyArray]]:
    """The texts and the arrays that make a policy; see `of_parts`."""
    kind = {"kind": type(policy).__name__}
    if isinstance(policy, SoftmaxTable):
        return kind, {"logits": np.asarray(policy.logits)}
    if isinstance(policy, MLP):
        return kind | {"adapt": policy.adapt}, _network_arrays(policy)
    if isinstance(policy, Mixture):
        arrays = {"share": np.asarray(policy.share)}
        if policy.explorer is not None:
            arrays["explored"] = np.asarray(policy.explored)
        for name in _MIXED if policy.explorer is None else (*_MIXED, _THIRD):
            texts, parts = parts_of(getattr(policy, name))
            kind |= {f"{name}.{key}": text for key, text in texts.items()}
            arrays |= {f"{name}.{key}": part for key, part in parts.items()}
        return kind, arrays
    return kind, {"parameters": np.asarray(policy.flat)}


def is_complete(kind: str) -> bool:
    """Whether files and stores hold all of a policy of this kind, and not its parameters alone."""
    return kind == SoftmaxTable.__name__ or kind in _NETWORKS


def of_parts(texts: Mapping[str, str], arrays: Mapping[str, NumpyArray], depth: int = 0) -> Kept:
    """The table, network or mixture of two of them that `parts_of` took apart.

    Raises:
        PolicyFileError: the parts are of another kind of policy, or incomplete.
    """
    if "kind" not in texts:
        raise PolicyFileError("the text 'kind' is missing, which says what policy it is")
    kind = texts["kind"]
    if kind == Mixture.__name__:
        return _mixture(texts, arrays, depth)
    if not is_complete(kind):
        raise PolicyFileError(
            f"only the parameters of a {show(kind)} are kept; load the policy itself with its own library, and give it "
            f"these parameters by policy.with_flat(parameters). {show(texts.get('how', ''), 1000)}".strip()
        )
    try:
        if kind == SoftmaxTable.__name__:
            return SoftmaxTable(arrays["logits"])
        layers = range(sum(key.startswith("weight_") for key in arrays))
        layer_arrays = (tuple(arrays[f"weight_{i}"] for i in layers), tuple(arrays[f"bias_{i}"] for i in layers))
        head = (arrays["log_std"],) if kind == GaussianMLP.__name__ else ()
        if not layers:
            raise KeyError("weight_0")
        network: Any = _NETWORKS[kind](*layer_arrays, *head, adapt=texts["adapt"])  # type: ignore[arg-type]
    except KeyError as error:
        raise PolicyFileError(f"there is no policy in these arrays: {error} is missing") from error
    except InvalidArgumentError as error:
        raise PolicyFileError(f"there is no policy in these arrays: {error}") from error
    checked: GaussianMLP | CategoricalMLP = network
    return checked


def _mixture(texts: Mapping[str, str], arrays: Mapping[str, NumpyArray], depth: int) -> Mixture:
    if depth >= MAX_DEPTH:
        raise PolicyFileError(f"mixtures may be nested {MAX_DEPTH} times at most")
    how = {"how": texts.get("how", "")}
    share, three = _share(arrays.get("share"), 1.0), "explored" in arrays
    names = (*_MIXED, _THIRD) if three else _MIXED
    mixed = [of_parts(how | _within(name, texts), _within(name, arrays), depth + 1) for name in names]
    first, *others = ((type(p), p.observation_space, p.action_space, p.flat.shape) for p in mixed)
    if any(other != first for other in others):
        raise PolicyFileError("the policies of a mixture must be of one kind, of the same spaces and the same size")
    if not three:
        return Mixture(mixed[0], mixed[1], share)
    return Mixture(mixed[0], mixed[1], share, mixed[2], _share(arrays["explored"], 1.0 - float(share)))


def _share(found: NumpyArray | None, high: float) -> NumpyArray:
    """The share of one of a mixture's policies."""
    if found is None or found.shape != () or found.dtype.kind != "f" or not 0.0 < found < high:
        raise PolicyFileError(f"the share of a mixture must be one number between 0 and {high:g}, got {found!r:.80}")
    return found


def _within(name: str, parts: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix(f"{name}."): part for key, part in parts.items() if key.startswith(f"{name}.")}


def request_of(path: str | Path) -> str:
    """The identity of the request for which the policy in `path` was written; empty if it was for none."""
    try:
        with open_file(path) as file:
            return str(_arrays(file, str(path), only=("request",)).get("request", ""))
    except OSError as error:
        raise PolicyFileError(f"cannot read the policy file {path}: {error.strerror or error}") from error


def _network_arrays(policy: MLP) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    for layer, (weight, bias) in enumerate(zip(policy.weights, policy.biases, strict=True)):
        arrays[f"weight_{layer}"], arrays[f"bias_{layer}"] = np.asarray(weight), np.asarray(bias)
    if isinstance(policy, GaussianMLP):
        arrays["log_std"] = np.asarray(policy.log_std)
    return arrays


def load_policy(path: str | Path) -> Kept:
    """The policy that `save` wrote to `path`.

    Raises:
        PolicyFileError: the file is missing, damaged, or not one of bpsearch's.
    """
    path = check_path("path", path)
    try:
        with open_file(path) as file:
            return _read(file, str(path))
    except OSError as error:
        raise PolicyFileError(f"cannot read the policy file {path}: {error.strerror or error}") from error


@overload
def shipped_policy(name: Literal["gridworld-early", "gridworld-converged", "stochastic-gridworld"]) -> SoftmaxTable: ...
@overload
def shipped_policy(name: Literal["cartpole-swingup", "acrobot"]) -> GaussianMLP: ...
@overload
def shipped_policy(name: str) -> SoftmaxTable | GaussianMLP: ...
def shipped_policy(name: str) -> SoftmaxTable | GaussianMLP:
    """An evaluation policy of the experiments, by name; `bpsearch train NAME` makes it again.

    - "gridworld-early", "gridworld-converged": π_1 and π_2 of the 4x4 gridworld, early in REINFORCE and after it.
    - "stochastic-gridworld": of the 10x10 gridworld.
    - "cartpole-swingup", "acrobot": Gaussian networks after 10 and 60 iterations of TRPO.
    """
    check_choice("policy", name, SHIPPED)
    with (resources.files("bpsearch") / "data" / f"{name}.npz").open("rb") as file:
        policy = _read(file, name)  # type: ignore[arg-type]
    assert isinstance(policy, SoftmaxTable | GaussianMLP)
    return policy


def _read(file: BinaryIO, name: str) -> Kept:
    arrays = _arrays(file, name)
    texts = {key: str(arrays.pop(key)) for key in list(arrays) if arrays[key].dtype.kind == "U"}
    try:
        return of_parts(texts, arrays)
    except (KeyError, PolicyFileError) as error:
        raise PolicyFileError(f"{name} does not hold a policy: {show(error, 1000)}") from error


def _arrays(file: BinaryIO, name: str, only: tuple[str, ...] | None = None) -> dict[str, Any]:
    try:
        found, arrays = read_npz(file, limit=MAX_POLICY_BYTES, expansion=LARGEST_EXPANSION, only=only)
    except ValueError as error:
        raise PolicyFileError(f"{name} is damaged or no npz file: {error}") from error
    if found != FORMAT:
        raise PolicyFileError(
            f"{name} is not a policy of this version: expected the format {FORMAT!r}, got {show(found)!r}"
        )
    return arrays
