"""Other libraries' agents, environments and data, one file each; none is imported unless it is used."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bpsearch.errors import MissingDependencyError

if TYPE_CHECKING:
    from bpsearch.integrations.jax_functions import from_jax
    from bpsearch.integrations.minari import load_minari, save_minari
    from bpsearch.integrations.sb3 import from_sb3
    from bpsearch.integrations.sb3_callback import EvaluationCallback
    from bpsearch.integrations.sb3_files import load_sb3
    from bpsearch.integrations.torch import from_torch

# The trackers MLflow, TensorBoard and WandB are found here too; they are not listed, since few have all their packages.
__all__ = [
    "EvaluationCallback",
    "from_jax",
    "from_sb3",
    "from_torch",
    "load_minari",
    "load_sb3",
    "save_minari",
]

_HOMES = {
    "EvaluationCallback": "sb3_callback",
    "MLflow": "mlflow",
    "TensorBoard": "tensorboard",
    "WandB": "wandb",
    "from_jax": "jax_functions",
    "from_sb3": "sb3",
    "from_torch": "torch",
    "load_sb3": "sb3_files",
    "load_minari": "minari",
    "save_minari": "minari",
}
# Packages that an integration may miss, and the extra that installs them.
_EXTRAS = {
    "torch": "sb3",
    "stable_baselines3": "sb3",
    "sb3_contrib": "sb3-contrib",
    "gymnax": "jax-envs",
    "brax": "jax-envs",
    "mujoco_playground": "playground",
    "huggingface_hub": "hub",
    "mlflow": "trackers",
    "tensorboard": "trackers",
    "wandb": "trackers",
    "tensordict": "torchrl",
    "torchrl": "torchrl",
}


@dataclass(frozen=True)
class Entry:
    """A kind of thing that people give, and which function of which file makes it one of ours.

    Attributes:
        knows: whether a thing is of this kind; it imports nothing.
        file: the integration.
        function: of (thing, spaces or None, adapt) for a policy, of the thing for an environment.
    """

    knows: Callable[[Any], bool]
    file: str
    function: str


def _is_a(module: str, name: str) -> Callable[[Any], bool]:
    """Whether a thing is an instance of a class; a package that nobody has imported has no instances."""
    return lambda thing: module in sys.modules and isinstance(thing, getattr(sys.modules[module], name, ()))


def _begins(prefix: str) -> Callable[[Any], bool]:
    return lambda thing: isinstance(thing, str) and thing.startswith(prefix)


def _is_module_with(*names: str) -> Callable[[Any], bool]:
    is_module = _is_a("torch.nn", "Module")
    return lambda thing: is_module(thing) and all(hasattr(thing, name) for name in names)


def _is_pair_of(module: str, name: str) -> Callable[[Any], bool]:
    first = _is_a(module, name)
    return lambda thing: isinstance(thing, tuple) and len(thing) == 2 and first(thing[0])


# Asked in this order, after the entry points of other packages; Stable-Baselines3 has options of its own, and is
# resolved by `policies.resolve`.
POLICIES = (
    Entry(_is_a("tensordict.nn", "TensorDictModuleBase"), "torchrl", "of_actor"),
    Entry(_is_module_with("get_action_and_value"), "cleanrl", "of_agent"),
    Entry(_is_module_with("action_scale", "action_bias"), "cleanrl", "of_agent"),
    Entry(_is_a("torch.nn", "Module"), "torch", "of_module"),
    Entry(_is_pair_of("flax.linen", "Module"), "flax", "of_linen"),
    Entry(_is_a("flax.nnx", "Module"), "flax", "of_nnx"),
    Entry(_is_a("equinox", "Module"), "equinox", "of_module"),
)
ENVIRONMENTS = (
    Entry(_is_a("stable_baselines3.common.vec_env", "VecEnv"), "sb3_envs", "as_vector_env"),
    Entry(_is_a("gymnax.environments.environment", "Environment"), "gymnax", "as_compiled"),
    Entry(_is_pair_of("gymnax.environments.environment", "Environment"), "gymnax", "as_compiled"),
    Entry(_begins("gymnax:"), "gymnax", "as_compiled"),
    Entry(_is_a("brax.envs", "Env"), "brax", "as_compiled"),
    Entry(_begins("brax:"), "brax", "as_compiled"),
    Entry(_is_a("mujoco_playground", "MjxEnv"), "playground", "as_compiled"),
    Entry(_begins("playground:"), "playground", "as_compiled"),
    Entry(_is_a("envpool.python.envpool", "EnvPoolMixin"), "envpool", "as_vector_env"),
)


def find_policy(source: Any, spaces: Callable[[], Any], adapt: str | None) -> Any:
    """Our policy for another library's agent; None for what is none of the table's."""
    for entry in POLICIES:
        if entry.knows(source):
            return _load(entry.file, entry.function)(source, *spaces(), adapt=adapt)
    return None


def find_file(source: str | Path) -> Path:
    """The policy's file that a repository of the Hugging Face Hub, "hf://owner/name", or a folder of rl_zoo3 holds."""
    if str(source).startswith("hf://"):
        return Path(_load("hub", "fetch")(str(source)))
    return Path(_load("rl_zoo", "model_in")(Path(source)))


def find_environment(env: Any) -> Any:
    """Our environment, or a Gymnasium one, for another library's; None for what is none of the table's."""
    for entry in ENVIRONMENTS:
        if entry.knows(env):
            return _load(entry.file, entry.function)(env)
    return None


def _load(file: str, name: str) -> Any:
    try:
        return getattr(import_module(f"{__name__}.{file}"), name)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        raise MissingDependencyError(
            f"{name} needs the package {error.name}; install it with: pip install 'bpsearch[{_EXTRAS[error.name]}]'"
        ) from error


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _load(_HOMES[name], name)
