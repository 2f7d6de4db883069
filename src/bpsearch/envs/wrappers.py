"""Wrappers that are right in training and wrong in an evaluation: they change what a return or an episode is."""

import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
from gymnasium.vector import VectorRewardWrapper

# Of Gymnasium, for one environment and for many; it keeps statistics, so it is not among Gymnasium's reward wrappers.
_NORMALIZE = ("NormalizeReward",)
# Of Stable-Baselines3, whose `AtariWrapper` contains it, and the option of Gymnasium's `AtariPreprocessing`.
_LIVES, _ENDS = ("EpisodicLifeEnv",), "terminal_on_life_loss"


def warn_of_wrappers(env: Any) -> None:
    """Warn if the value would be that of other rewards or other episodes than the environment's own."""
    for layer in _layers(env):
        name = type(layer).__name__
        if isinstance(layer, gymnasium.RewardWrapper | VectorRewardWrapper) or name in _NORMALIZE:
            history = ", which depend on earlier episodes" if name in _NORMALIZE else ""
            warnings.warn(
                f"the environment is in the wrapper {name}: the value is that of the rewards that it gives{history}, "
                f"not of the environment's own. If it served training only, give the environment without it",
                UserWarning,
                stacklevel=3,
            )
        if name in _LIVES or vars(layer).get(_ENDS):
            warnings.warn(
                f"the environment is in the wrapper {name}, which ends an episode when a life is lost: the value is "
                f"that of one life, and where the next begins may depend on the last. If it served training only, give "
                f"the environment without it",
                UserWarning,
                stacklevel=3,
            )


def _layers(env: Any) -> Iterator[Any]:
    """The wrappers from the outside, through vector environments: the first of several environments stands for all.

    Only what an object itself holds is followed: many wrappers pass on the attributes of what they wrap.
    """
    while env is not None:
        if isinstance(env, list | tuple):
            env = env[0] if env else None
            continue
        yield env
        own = getattr(env, "__dict__", {})
        env = next((own[name] for name in ("env", "venv", "envs") if own.get(name) is not None), None)
