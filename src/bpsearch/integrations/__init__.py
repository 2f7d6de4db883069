"""Other libraries' agents and data, one file each; none is imported unless it is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bpsearch.errors import MissingDependencyError

if TYPE_CHECKING:
    from bpsearch.integrations.minari import load_minari, save_minari
    from bpsearch.integrations.sb3 import from_sb3
    from bpsearch.integrations.sb3_callback import EvaluationCallback
    from bpsearch.integrations.sb3_files import load_sb3
    from bpsearch.integrations.torch import from_torch

__all__ = ["EvaluationCallback", "from_sb3", "from_torch", "load_minari", "load_sb3", "save_minari"]

_HOMES = {
    "EvaluationCallback": "sb3_callback",
    "from_sb3": "sb3",
    "from_torch": "torch",
    "load_sb3": "sb3_files",
    "load_minari": "minari",
    "save_minari": "minari",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "stable_baselines3"):
            raise
        raise MissingDependencyError(
            f"{name} needs the package {error.name}; install it with: pip install 'bpsearch[sb3]'"
        ) from error
