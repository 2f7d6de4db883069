"""Environments of brax, and of others with its interface, as compiled environments."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from brax import envs
from brax.envs.base import Env, Wrapper

from bpsearch._core.arrays import Array
from bpsearch._core.jaxtools import pytree
from bpsearch.envs.base import CompiledEnv
from bpsearch.errors import InvalidArgumentError

PREFIX = "brax:"
HORIZON = 1000  # brax's own episode_length


def as_compiled(env: str | Env) -> "BraxEnv":
    """From "brax:ant" or an environment; wrappers that reset or batch by themselves are taken off.

    An `EpisodeWrapper` gives the limit of steps, 1,000 without one. `bps.environment(env, horizon=...)` changes it.
    """
    horizon = HORIZON
    if isinstance(env, str):
        name = env.removeprefix(PREFIX)
        try:
            return BraxEnv(envs.get_environment(name), horizon)
        except KeyError as error:
            raise InvalidArgumentError(f"brax has no environment {name!r}") from error
    while isinstance(env, Wrapper):
        kind = type(env).__name__
        if kind == "EpisodeWrapper":
            if int(env.action_repeat) != 1:
                raise InvalidArgumentError(f"an EpisodeWrapper must not repeat actions, got {env.action_repeat} times")
            horizon = int(env.episode_length)
        elif kind not in ("AutoResetWrapper", "VmapWrapper"):
            break
        env = env.env
    return BraxEnv(env, horizon)


@pytree(static=("inner", "horizon", "discount"))
@dataclass(frozen=True, eq=False)
class BraxEnv(CompiledEnv):
    """One episode at a time of an environment with brax's interface; its physics runs in 32 bit, as in brax.

    Attributes:
        inner: the environment: `reset(key)` and `step(state, action)` give states with `obs`, `reward` and `done`.
        horizon: see `CompiledEnv`.
        discount: see `CompiledEnv`.
    """

    inner: Any
    horizon: int = HORIZON
    discount: float = 1.0

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Vectors, by name if there are several."""
        return _space(self.inner)

    @property
    def action_space(self) -> gymnasium.spaces.Box:
        """Brax scales actions from −1 to 1 itself."""
        return gymnasium.spaces.Box(-1.0, 1.0, (self.inner.action_size,), np.float32)

    def reset(self, key: Array) -> Any:
        """Draw a state; brax takes keys as words."""
        with jax.enable_x64(False):
            return self.inner.reset(_words(key))

    def observe(self, state: Any) -> Array:
        """The observation, 32 bit."""
        seen: Array = jax.tree_util.tree_map(lambda part: jnp.asarray(part, jnp.float32), state.obs)
        return seen

    def step(self, key: Array, state: Any, action: Array) -> tuple[Any, Array, Array]:
        """One step: brax draws no random numbers in it."""
        with jax.enable_x64(False):
            after = self.inner.step(state, jnp.clip(jnp.asarray(action, jnp.float32), -1.0, 1.0))
            after = jax.tree_util.tree_map(lambda new, old: jnp.asarray(new, jnp.asarray(old).dtype), after, state)
            return after, after.reward, after.done > 0.5


@cache
def _space(inner: Any) -> gymnasium.Space[Any]:
    size: Any = inner.observation_size  # traced by some environments: asked once
    if isinstance(size, Mapping):
        return gymnasium.spaces.Dict({name: _box(shape) for name, shape in size.items()})
    return _box(size)


def _box(shape: Any) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-np.inf, np.inf, (int(shape),) if np.ndim(shape) == 0 else tuple(shape), np.float32)


def _words(key: Array) -> Array:
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(key) if typed else key
