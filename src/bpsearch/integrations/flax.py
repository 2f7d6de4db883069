"""Modules of Flax as policies: a linen module with its variables, or an nnx module."""

from typing import Any

import gymnasium
from flax import nnx

from bpsearch.integrations.jax_functions import JaxPolicy, from_jax


def of_linen(
    pair: tuple[Any, Any],
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    *,
    adapt: str | None = None,
) -> JaxPolicy:
    """From (module, variables): `module.apply(variables, observation)` gives what `from_jax` wants."""
    module, variables = pair
    return from_jax(module.apply, variables, observation_space, action_space, adapt=adapt)


def of_nnx(
    module: Any,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    *,
    adapt: str | None = None,
) -> JaxPolicy:
    """From a module that is called with an observation."""
    graph, state = nnx.split(module)

    def apply(parameters: Any, observation: Any) -> Any:
        return nnx.merge(graph, nnx.State(parameters))(observation)

    return from_jax(apply, nnx.to_pure_dict(state), observation_space, action_space, adapt=adapt)
