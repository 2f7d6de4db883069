"""The ways in which people name a policy, and what becomes of each."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard

from numpy.typing import ArrayLike

from bpsearch._core.checks import quote
from bpsearch._core.plugins import ask_plugins
from bpsearch.envs.resolve import GymnasiumSource, HasSpaces, adapt, spaces_of
from bpsearch.errors import InvalidArgumentError, PolicyFileError
from bpsearch.policies.base import Policy
from bpsearch.policies.callables import of_callable
from bpsearch.policies.files import SHIPPED, load_policy, shipped_policy
from bpsearch.policies.mlp import MLP

if TYPE_CHECKING:
    import torch
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.vec_env import VecNormalize

    # A policy, a shipped name or a path, a function from observation to action, or another library's policy.
    PolicySource: TypeAlias = Policy | str | Path | Callable[[Any], ArrayLike] | torch.nn.Module | BaseAlgorithm
else:  # importing other libraries for their names would take seconds
    PolicySource: TypeAlias = Policy | str | Path | Callable[..., ArrayLike]
LAST = "last"


def load(
    source: PolicySource,
    env: GymnasiumSource | HasSpaces,
    *,
    env_kwargs: dict[str, Any] | None = None,
    normalize: "VecNormalize | str | Path | Literal[False] | None" = None,
    trust: bool = False,
) -> Policy:
    """The policy that `source` stands for; of a network, a search adapts the last layer.

    Fewer parameters are learned from fewer episodes, and the weights of long episodes stay closer to 1. Other packages
    add kinds of policies by entry points of the group "bpsearch.policies": functions of `source` and `env` that give a
    policy, or None for what they do not know.

    Args:
        source: a policy of bpsearch, a Stable-Baselines3 model, a torch module that gives distributions, a function
            from observation to action, the path of a .zip of SB3 or of an .npz of bpsearch, a folder of rl_zoo3,
            "hf://owner/name" of the Hugging Face Hub, or a shipped policy's name.
        env: where it is to run: a module, a function and a file do not know their spaces.
        env_kwargs: what `gymnasium.make` is given besides an id.
        normalize: the frozen statistics of SB3's `VecNormalize`, or the path of their pickle; those beside an SB3 file
            by default, False for none.
        trust: whether code in a file may run.
    """
    plugged = None if isinstance(source, Policy) else ask_plugins("bpsearch.policies", (Policy,), source, env)
    if plugged is not None:
        return _last_layer(plugged)
    if normalize is None and getattr(adapt(getattr(env, "source", env)), "normalizes_observations", False):
        normalize = False  # the environment does it already
    from_sb3_only = {"normalize": bool(normalize), "trust": trust}
    if isinstance(source, str | Path) and not (isinstance(source, str) and source in SHIPPED):
        path = Path(source)
        if str(source).startswith("hf://") or path.is_dir():
            from bpsearch.integrations import find_file

            path = find_file(source)
        if path.suffix != ".npz":
            from bpsearch.integrations import load_sb3

            return load_sb3(path, env, env_kwargs=env_kwargs, normalize=normalize, adapt=LAST, trust=trust)
        return _last_layer(load_policy(path))
    if _is_sb3(source):
        from bpsearch.integrations import from_sb3

        if isinstance(normalize, str | Path):
            raise InvalidArgumentError(
                f"normalize must be the VecNormalize itself for a model that is loaded already, got {normalize!r}"
            )
        return from_sb3(source, normalize=normalize, adapt=LAST, observation_space=spaces_of(env, env_kwargs)[0])
    for name, given in from_sb3_only.items():
        if given:
            raise InvalidArgumentError(f"{name} has a meaning only for Stable-Baselines3, but the policy is {source!r}")
    if isinstance(source, str):
        return _last_layer(shipped_policy(source))
    if isinstance(source, Policy):
        return _last_layer(source)
    from bpsearch.integrations import find_policy

    found: Policy | None = find_policy(source, lambda: spaces_of(env, env_kwargs), LAST)
    if found is not None:
        return found
    if callable(source) or hasattr(source, "predict") or hasattr(source, "act"):
        return of_callable(source, spaces_of(env, env_kwargs))
    raise PolicyFileError(
        f"policy must be a bpsearch policy, a Stable-Baselines3 model, a torch module, a function, or the path of a "
        f".zip or .npz file, got {quote(source)}"
    )


def _last_layer(policy: Policy) -> Policy:
    return policy.adapting("last") if isinstance(policy, MLP) else policy


def _is_sb3(source: object) -> "TypeGuard[BaseAlgorithm]":
    return _is_a(source, "stable_baselines3.common.base_class", "BaseAlgorithm")


def _is_a(source: object, module: str, name: str) -> bool:
    """Whether `source` is an instance of a class of a package that bpsearch does not import by itself."""
    return module in sys.modules and isinstance(source, getattr(sys.modules[module], name))
