"""Gymnasium ids of the environments: known after `import bpsearch`, or as `gymnasium.make("bpsearch:<id>")`."""

from typing import Any

import gymnasium

from bpsearch.envs import gridworlds
from bpsearch.envs.adapter import GymnasiumEnv

FACTORIES = {
    "bpsearch/Gridworld-v0": gridworlds.gridworld,
    "bpsearch/StochasticGridworld-v0": gridworlds.stochastic_gridworld,
    "bpsearch/RareEventGridworld-v0": gridworlds.rare_event_gridworld,
}


def register() -> None:
    """Register every id that is not registered yet."""
    for env_id in FACTORIES:
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point="bpsearch.envs.registration:make", kwargs={"env_id": env_id})


def make(env_id: str, **_: Any) -> GymnasiumEnv:
    """The Gymnasium environment of a registered id."""
    return GymnasiumEnv(FACTORIES[env_id]())
