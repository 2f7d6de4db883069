"""Environments of gymnax as compiled environments."""

from dataclasses import dataclass, field
from typing import Any

import gymnasium
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments.environment import Environment

from bpsearch._core.arrays import Array
from bpsearch._core.jaxtools import pytree
from bpsearch.envs.base import CompiledEnv
from bpsearch.errors import InvalidArgumentError

PREFIX = "gymnax:"


def as_compiled(env: str | Environment | tuple[Environment, Any]) -> "GymnaxEnv":
    """From "gymnax:CartPole-v1", an environment, or an environment and its parameters as `gymnax.make` gives them."""
    if isinstance(env, str):
        try:
            env = gymnax.make(env.removeprefix(PREFIX))
        except ValueError as error:
            raise InvalidArgumentError(f"gymnax has no environment {env!r}: {error}") from error
    inner, params = env if isinstance(env, tuple) else (env, env.default_params)
    horizon = getattr(params, "max_steps_in_episode", None)
    if horizon is None:
        raise InvalidArgumentError(
            f"{inner.name} has no max_steps_in_episode; make it compiled with a limit: "
            "bpsearch.integrations.gymnax.GymnaxEnv(env, params, horizon=...)"
        )
    return GymnaxEnv(inner, jax.tree_util.tree_map(_narrow, params), int(horizon))


@pytree(static=("inner", "horizon", "discount"))
@dataclass(frozen=True, eq=False)
class GymnaxEnv(CompiledEnv):
    """One episode at a time of a gymnax environment, without its autoreset; in 32 bit, for which it is written.

    Attributes:
        inner: gymnax's environment.
        params: its parameters; their limit of steps counts, and may end an episode before the horizon.
        horizon: see `CompiledEnv`; `max_steps_in_episode` by default.
        discount: see `CompiledEnv`.
    """

    inner: Environment
    params: Any
    horizon: int = field(default=0)
    discount: float = 1.0

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """As Gymnasium has it."""
        return _space(self.inner.observation_space(self._concrete))

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """As Gymnasium has it."""
        return _space(self.inner.action_space(self._concrete))

    @property
    def _concrete(self) -> Any:
        return self.inner.default_params if _is_traced(self.params) else self.params

    def reset(self, key: Array) -> Any:
        """The state, and what is seen of it: observations of gymnax may be random."""
        with jax.enable_x64(False):
            observation, state = self.inner.reset_env(key, self.params)
            return jax.tree_util.tree_map(jnp.asarray, (state, observation))

    def observe(self, state: Any) -> Array:
        """What was seen of the state when it was reached."""
        return state[1]  # type: ignore[no-any-return]

    def step(self, key: Array, state: Any, action: Array) -> tuple[Any, Array, Array]:
        """One step, with all types as they were before it."""
        with jax.enable_x64(False):
            space = self.action_space
            if isinstance(space, gymnasium.spaces.Box):
                action = jnp.clip(jnp.asarray(action, jnp.float32), space.low, space.high)
            else:
                action = jnp.asarray(action, jnp.int32)
            observation, after, reward, ended, _ = self.inner.step_env(key, state[0], action, self.params)
            moved = _like((after, observation), state)
            return moved, jnp.asarray(reward), jnp.asarray(ended, bool)


def _is_traced(tree: Any) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(tree))


def _narrow(leaf: Any) -> Any:
    array = np.asarray(leaf)
    return array.astype({"f": np.float32, "i": np.int32}.get(array.dtype.kind, array.dtype))


def _like(tree: Any, example: Any) -> Any:
    """A loop needs the same types before and after a step."""
    return jax.tree_util.tree_map(lambda new, old: jnp.asarray(new, jnp.asarray(old).dtype), tree, example)


def _space(space: Any) -> gymnasium.Space[Any]:
    kind = type(space).__name__
    if kind == "Discrete":
        return gymnasium.spaces.Discrete(int(space.n))
    if kind == "Box":
        dtype = np.dtype(space.dtype)
        low, high = (np.broadcast_to(np.asarray(end, dtype), space.shape) for end in (space.low, space.high))
        return gymnasium.spaces.Box(low, high, space.shape, dtype.type)
    raise InvalidArgumentError(f"spaces of gymnax must be Box or Discrete, got {kind}")
