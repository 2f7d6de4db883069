"""Policies: immutable, with a flat vector of parameters; a behavior policy is one with other parameters."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bpsearch.errors import MissingDependencyError
from bpsearch.policies.base import Policy
from bpsearch.policies.files import load_policy, shipped_policy
from bpsearch.policies.function import FunctionPolicy
from bpsearch.policies.mixture import Mixture
from bpsearch.policies.mlp import CategoricalMLP, GaussianMLP
from bpsearch.policies.table import SoftmaxTable

if TYPE_CHECKING:
    from bpsearch.policies.sb3 import from_sb3
    from bpsearch.policies.sb3_files import load_sb3
    from bpsearch.policies.torch import from_torch

__all__ = [
    "CategoricalMLP",
    "FunctionPolicy",
    "GaussianMLP",
    "Mixture",
    "Policy",
    "SoftmaxTable",
    "from_sb3",
    "from_torch",
    "load_policy",
    "load_sb3",
    "shipped_policy",
]

_LATE = {"from_sb3": "sb3", "from_torch": "torch", "load_sb3": "sb3_files"}


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is first used: most users have no need of it."""
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "stable_baselines3"):
            raise
        raise MissingDependencyError(
            f"{name} needs the package {error.name}; install it with: pip install 'bpsearch[sb3]'"
        ) from error
