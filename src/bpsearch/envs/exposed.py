"""Environments whose declared noise comes from outside, as a part of the action."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bpsearch._core.arrays import Array, NumpyArray
from bpsearch._core.jaxtools import pytree
from bpsearch.envs.noise import DeclaresNoise, NoisyEnv
from bpsearch.envs.resolve import Factory
from bpsearch.envs.wrapper import CompiledWrapper
from bpsearch.errors import InvalidArgumentError


@dataclass(frozen=True)
class Joint:
    """Actions of several parts as one: an index if all parts are Discrete, else a vector of 64 bit.

    Attributes:
        parts: the space of each.
    """

    parts: tuple[gymnasium.Space[Any], ...]

    def __post_init__(self) -> None:
        for part in self.parts:
            box = isinstance(part, gymnasium.spaces.Box) and np.issubdtype(part.dtype, np.floating)
            if not box and not (isinstance(part, gymnasium.spaces.Discrete) and part.start == 0):
                raise InvalidArgumentError(
                    f"actions and noise must be of a Box of real numbers, or Discrete from 0 on, got {part}"
                )

    @property
    def space(self) -> gymnasium.Space[Any]:
        """Of the whole."""
        if self._counted:
            return gymnasium.spaces.Discrete(int(np.prod(self._sizes)))
        lows, highs = zip(*map(_bounds, self.parts), strict=True)
        return gymnasium.spaces.Box(np.concatenate(lows), np.concatenate(highs), dtype=np.float64)

    def join(self, parts: Sequence[Array]) -> Array:
        """(..., D), or (...) if all are Discrete, of the parts (..., *shape)."""
        numpy: Any = np if all(isinstance(part, np.ndarray | np.generic | int) for part in parts) else jnp
        if self._counted:
            whole: Array = numpy.asarray(parts[0])
            for size, part in zip(self._sizes[1:], parts[1:], strict=True):
                whole = whole * size + numpy.asarray(part)
            return whole.astype(np.int32)
        columns = []
        for space, part in zip(self.parts, parts, strict=True):
            array = numpy.asarray(part, np.float64)
            leading = array.shape[: array.ndim - len(space.shape or ())]
            columns.append(array.reshape((*leading, -1)))
        joined: Array = numpy.concatenate(columns, axis=-1)
        return joined

    def split(self, actions: Array) -> list[Array]:
        """The parts, each of its own type and shape."""
        if self._counted:
            found: list[Array] = []
            for size in self._sizes[:0:-1]:
                found.append(actions % size)
                actions = actions // size
            return [actions, *found[::-1]]
        ends = np.cumsum([_width(space) for space in self.parts])
        return [
            actions[..., end - _width(space) : end]
            .astype(_type(space))
            .reshape(actions.shape[:-1] + (space.shape or ()))
            for end, space in zip(ends, self.parts, strict=True)
        ]

    @property
    def _counted(self) -> bool:
        return all(isinstance(part, gymnasium.spaces.Discrete) for part in self.parts)

    @property
    def _sizes(self) -> list[int]:
        return [int(part.n) for part in self.parts if isinstance(part, gymnasium.spaces.Discrete)]


def _width(space: Any) -> int:
    return int(np.prod(space.shape, dtype=int))


def _type(space: Any) -> Any:
    return np.int32 if isinstance(space, gymnasium.spaces.Discrete) else space.dtype


def _bounds(space: Any) -> tuple[NumpyArray, NumpyArray]:
    if isinstance(space, gymnasium.spaces.Discrete):
        return np.zeros(1), np.full(1, float(space.n - 1))
    return np.asarray(space.low, np.float64).ravel(), np.asarray(space.high, np.float64).ravel()


def joint_of(env: Any, names: Sequence[str]) -> Joint:
    """The agent's action, then the noise of these names."""
    missing = [name for name in names if name not in env.noise]
    if missing or not names:
        raise InvalidArgumentError(f"names must be of the declared noise, {', '.join(env.noise)}, got {list(names)}")
    return Joint((env.action_space, *(env.noise[name].space for name in names)))


@pytree(static=("names", "horizon", "discount"))
@dataclass(frozen=True, eq=False)
class ExposedNoise(CompiledWrapper):
    """A compiled environment that is given some of its noise with the action.

    Attributes:
        env: the environment.
        names: of the noise that is given; the rest it draws itself.
        horizon: the environment's.
        discount: the environment's.
    """

    env: NoisyEnv
    names: tuple[str, ...]
    horizon: int
    discount: float

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The agent's action and the noise."""
        return joint_of(self.env, self.names).space

    def step(self, key: Array, state: PyTree[Array], action: Array) -> tuple[PyTree[Array], Array, Array]:
        """One step with the given noise."""
        own, *given = joint_of(self.env, self.names).split(jnp.asarray(action))
        rest, noise = self.env.draw_noise(key)
        return self.env.step_with(rest, state, own, noise | dict(zip(self.names, given, strict=True)))


class GivenNoise(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment of Gymnasium that is given some of its noise with the action; see `DeclaresNoise`.

    Args:
        env: the environment, in whatever wrappers.
        names: of the noise that is given.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], names: Sequence[str]) -> None:
        super().__init__(env)
        self.names = tuple(names)
        self._joint = Joint((env.action_space, *joint_of(declaring(env), names).parts[1:]))
        self.action_space = self._joint.space

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step with the given noise."""
        own, *given = self._joint.split(np.asarray(action))
        discrete = isinstance(self.env.action_space, gymnasium.spaces.Discrete)
        declaring(self.env).use_noise(dict(zip(self.names, given, strict=True)))
        return self.env.step(int(own) if discrete else own)


@dataclass(frozen=True)
class MakeGiven:
    """A factory of environments with given noise; it goes where the factory of the environments can go."""

    factory: Factory
    names: tuple[str, ...]

    def __call__(self) -> GivenNoise:
        """Make one environment."""
        return GivenNoise(self.factory(), self.names)


def declaring(env: gymnasium.Env[Any, Any]) -> DeclaresNoise:
    """The environment within its wrappers, which declares the noise.

    Raises:
        InvalidArgumentError: it declares none.
    """
    inner = env.unwrapped
    if not isinstance(inner, DeclaresNoise) or not isinstance(inner.noise, Mapping) or not inner.noise:
        raise InvalidArgumentError(
            f"{env} declares no noise: it needs `noise`, a dict of bps.envs.Normal or bps.envs.Categorical by name, "
            f"and `use_noise(values)`"
        )
    return inner
