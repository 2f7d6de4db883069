"""Modules of Equinox as policies."""

from typing import Any

import equinox
import gymnasium

from bpsearch.integrations.jax_functions import JaxPolicy, from_jax


def of_module(
    module: Any,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    *,
    adapt: str | None = None,
) -> JaxPolicy:
    """From a module that is called with an observation: its arrays are the parameters."""
    parameters, rest = equinox.partition(module, equinox.is_inexact_array)

    def apply(own: Any, observation: Any) -> Any:
        return equinox.combine(own, rest)(observation)

    return from_jax(apply, parameters, observation_space, action_space, adapt=adapt)
