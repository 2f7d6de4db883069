"""Any compiled environment as a Gymnasium environment, one or many at a time."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from bpsearch._core.arrays import Array, Scalar
from bpsearch._core.checks import check_integer
from bpsearch._core.jaxtools import in_64_bit
from bpsearch.envs.base import CompiledEnv, Drawable
from bpsearch.errors import InvalidArgumentError

RENDER_MODE = "rgb_array"
_FRAMES_PER_SECOND = 20


class GymnasiumEnv(gymnasium.Env[Any, Any]):
    """One episode at a time of a compiled environment, through Gymnasium's interface.

    The episode ends by termination as the environment says, and by truncation at its horizon. Continuous actions may
    lie outside the action space, as Gymnasium's own environments allow: the environment clips them.
    """

    def __init__(self, env: CompiledEnv, render_mode: str | None = None) -> None:
        self.env = env
        self.metadata = _metadata(env)
        self.render_mode = _checked_render_mode(env, render_mode)
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self._state: Any = None
        self._key: Any = None
        self._steps = 0

    @in_64_bit
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; with the same seed, the same episode for the same actions."""
        super().reset(seed=seed)
        self._key, self._state, observation = _start(self.env, _draw_seed(self.np_random))
        self._steps = 0
        return _to_gymnasium(observation), {}

    @in_64_bit
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        _check_actions("action", self.action_space, action)
        self._state, observation, reward, ended = _step(self.env, self._key, self._steps, self._state, action)
        terminated = bool(ended)
        self._steps += 1
        truncated = not terminated and self._steps >= self.env.horizon
        return _to_gymnasium(observation), float(reward), terminated, truncated, {}

    def render(self) -> Any:
        """The present state as an RGB array, if the environment was made with `render_mode="rgb_array"`."""
        return _picture(self.env, self._state) if self.render_mode is not None else None


class GymnasiumVectorEnv(VectorEnv[Any, Any, Any]):
    """Many episodes of a compiled environment in step, through Gymnasium's vector interface.

    Sub-environment i with seed s gives the episodes of a `GymnasiumEnv` with seed s. Autoreset is NEXT_STEP: the step
    after an episode's end ignores its action, pays 0 and gives the first observation of the next episode.
    """

    def __init__(self, env: CompiledEnv, num_envs: int = 1, render_mode: str | None = None) -> None:
        self.env = env
        self.num_envs = check_integer("num_envs", num_envs)
        self.metadata = _metadata(env) | {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = _checked_render_mode(env, render_mode)
        self.single_observation_space = env.observation_space
        self.single_action_space = env.action_space
        self.observation_space = batch_space(env.observation_space, num_envs)
        self.action_space = batch_space(env.action_space, num_envs)
        self._generators = [np.random.default_rng() for _ in range(num_envs)]
        self._episodes: tuple[Any, Any, Any] | None = None  # keys, states, observations
        self._steps = np.zeros(num_envs, np.int64)
        self._ended = np.zeros(num_envs, bool)

    @in_64_bit
    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every sub-environment, or in those of `options["reset_mask"]`.

        A seed s gives the sub-environments s, s + 1, …; a sequence gives each its own.
        """
        if seed is None:
            seeds: list[int | None] = [None] * self.num_envs
        else:
            seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int | np.integer) else list(seed)
        if len(seeds) != self.num_envs:
            raise InvalidArgumentError(f"seed must be one number or {self.num_envs} of them, got {len(seeds)}")
        mask = np.array((options or {}).get("reset_mask", np.ones(self.num_envs, bool)))
        if mask.shape != (self.num_envs,) or mask.dtype != bool or not mask.any():
            raise InvalidArgumentError(f"reset_mask must be {self.num_envs} bools with at least one True, got {mask}")
        for i in np.flatnonzero(mask):
            if seeds[i] is not None:
                self._generators[i], _ = gymnasium.utils.seeding.np_random(seeds[i])
        self._restart(mask)
        return self._observations(), {}

    @in_64_bit
    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take one step in every sub-environment."""
        if self._episodes is None:
            raise gymnasium.error.ResetNeeded("call reset before the first step")
        _check_actions("actions", self.action_space, actions)
        restarting = self._ended
        keys, states, _ = self._episodes
        states, observations, rewards, ended = _step_all(self.env, keys, self._steps, states, actions)
        self._episodes = (keys, states, observations)
        self._steps = self._steps + 1
        terminated = np.asarray(ended) & ~restarting
        truncated = (self._steps >= self.env.horizon) & ~terminated & ~restarting
        if restarting.any():
            self._restart(restarting)
        self._ended = terminated | truncated
        rewards = np.where(restarting, 0.0, np.asarray(rewards, np.float64))
        return self._observations(), rewards, terminated, truncated, {}

    def render(self) -> tuple[Any, ...] | None:
        """The present states as RGB arrays, if the environment was made with `render_mode="rgb_array"`."""
        if self.render_mode is None or self._episodes is None:
            return None
        states = [jax.tree_util.tree_map(lambda x, i=i: x[i], self._episodes[1]) for i in range(self.num_envs)]
        return tuple(_picture(self.env, state) for state in states)

    def _restart(self, mask: Array) -> None:
        seeds = np.array([_draw_seed(g) if m else 0 for g, m in zip(self._generators, mask, strict=True)], np.int64)
        started = _start_all(self.env, seeds)
        self._episodes = started if self._episodes is None else _select(mask, started, self._episodes)
        self._steps = np.where(mask, 0, self._steps)
        self._ended = self._ended & ~mask

    def _observations(self) -> Any:
        assert self._episodes is not None
        return np.array(self._episodes[2], dtype=self.observation_space.dtype)


def _start(env: CompiledEnv, seed: Scalar | int) -> tuple[Array, Any, Array]:
    key, start = jax.random.split(jax.random.key(seed))
    state = env.reset(start)
    return key, state, env.observe(state)


def _step(
    env: CompiledEnv, key: Array, steps: Scalar | int, state: Any, action: Array
) -> tuple[Any, Array, Array, Array]:
    state, reward, ended = env.step(jax.random.fold_in(key, steps), state, action)
    return state, env.observe(state), reward, ended


def _select(mask: Array, new: Any, old: Any) -> Any:
    def choose(a: Array, b: Array) -> Array:
        return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - 1)), a, b)

    return jax.tree_util.tree_map(choose, new, old)


# Compiled once per kind of environment, however many are made.
_start_all = jax.jit(jax.vmap(_start, in_axes=(None, 0)))
_step_all = jax.jit(jax.vmap(_step, in_axes=(None, 0, 0, 0, 0)))
_start = jax.jit(_start)
_step = jax.jit(_step)
_select = jax.jit(_select)


def _draw_seed(generator: np.random.Generator) -> int:
    return int(generator.integers(2**63))


def _to_gymnasium(observation: Array) -> Any:
    value = np.asarray(observation)
    return np.int64(value) if value.ndim == 0 else value


def _check_actions(name: str, space: gymnasium.Space[Any], actions: Any) -> None:
    if isinstance(space, gymnasium.spaces.Box):
        if np.shape(actions) == space.shape and np.isfinite(actions).all():
            return
    elif space.contains(actions):
        return
    raise InvalidArgumentError(f"{name} must be in {space}, got {actions!r}")


def _metadata(env: CompiledEnv) -> dict[str, Any]:
    return {
        "render_modes": [RENDER_MODE] if isinstance(env, Drawable) else [],
        "render_fps": _FRAMES_PER_SECOND,
    }


def _checked_render_mode(env: CompiledEnv, render_mode: str | None) -> str | None:
    modes = _metadata(env)["render_modes"]
    if render_mode is not None and render_mode not in modes:
        raise InvalidArgumentError(f"render_mode must be None or one of {modes}, got {render_mode!r}")
    return render_mode


def _picture(env: CompiledEnv, state: Any) -> Any:
    if state is None:
        raise gymnasium.error.ResetNeeded("call reset before render")
    assert isinstance(env, Drawable)
    return env.draw(state)
