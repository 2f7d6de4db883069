"""Gymnasium ids of the environments.

Importing `bpsearch.envs` registers them. A program that does not import it writes the module before the id, as
Gymnasium's `make` and `make_vec` allow: "bpsearch.envs:bpsearch/CartPoleSwingUp-v0".
"""

from collections.abc import Callable
from typing import Any

import gymnasium

from bpsearch.envs import gridworlds
from bpsearch.envs.acrobot import acrobot
from bpsearch.envs.adapter import GymnasiumEnv, GymnasiumVectorEnv
from bpsearch.envs.base import CompiledEnv
from bpsearch.envs.cartpole_swingup import cartpole_swingup
from bpsearch.errors import InvalidArgumentError

FACTORIES: dict[str, Callable[..., CompiledEnv]] = {
    "bpsearch/Gridworld-v0": gridworlds.gridworld,
    "bpsearch/StochasticGridworld-v0": gridworlds.stochastic_gridworld,
    "bpsearch/RareEventGridworld-v0": gridworlds.rare_event_gridworld,
    "bpsearch/CartPoleSwingUp-v0": cartpole_swingup,
    "bpsearch/Acrobot-v0": acrobot,
}


def register() -> None:
    """Register every id that is not registered yet."""
    for env_id in FACTORIES:
        if env_id not in gymnasium.registry:
            gymnasium.register(
                env_id,
                entry_point="bpsearch.envs.registration:make",
                vector_entry_point="bpsearch.envs.registration:make_vector",
                kwargs={"env_id": env_id},
            )


def make_compiled(env_id: str, **settings: Any) -> CompiledEnv:
    """The compiled environment of one of bpsearch's own ids; `settings` are those of its factory."""
    try:
        return FACTORIES[env_id](**settings)
    except TypeError as error:
        raise InvalidArgumentError(f"env_kwargs do not fit {env_id}: {error}") from error


def make(env_id: str, render_mode: str | None = None, **settings: Any) -> GymnasiumEnv:
    """The Gymnasium environment of a registered id; `settings` are those of its factory."""
    return GymnasiumEnv(FACTORIES[env_id](**settings), render_mode)


def make_vector(env_id: str, num_envs: int = 1, render_mode: str | None = None, **settings: Any) -> GymnasiumVectorEnv:
    """The Gymnasium vector environment of a registered id; `settings` are those of its factory."""
    return GymnasiumVectorEnv(FACTORIES[env_id](**settings), num_envs, render_mode)
