"""Noise that an environment declares: named distributions, drawn at every step, that a behavior may tilt."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, runtime_checkable

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bpsearch._core.arrays import Array, NumpyArray
from bpsearch._core.checks import check_integer
from bpsearch._core.foreign import own_array
from bpsearch.envs.base import CompiledEnv
from bpsearch.errors import InvalidArgumentError


class Noise(ABC):
    """A distribution from which an environment draws at every step, independently of everything else."""

    @property
    @abstractmethod
    def space(self) -> gymnasium.Space[Any]:
        """What is drawn: a Box of vectors, or Discrete."""

    @abstractmethod
    def sample(self, key: Array) -> Array:
        """One draw, by JAX: for compiled environments."""

    @abstractmethod
    def draw(self, generator: np.random.Generator) -> NumpyArray | int:
        """One draw, by NumPy: for environments of Gymnasium."""

    @abstractmethod
    def log_prob(self, values: Array) -> Array:
        """The log-density, or log-probability, of each of the draws (..., *shape of one)."""


@dataclass(frozen=True)
class Normal(Noise):
    """Independent standard normal numbers, (size,); the environment scales them.

    Attributes:
        size: how many.
    """

    size: int = 1

    def __post_init__(self) -> None:
        check_integer("size", self.size)

    @property
    def space(self) -> gymnasium.spaces.Box:
        """All vectors."""
        return gymnasium.spaces.Box(-np.inf, np.inf, (self.size,), np.float64)

    def sample(self, key: Array) -> Array:
        """(size,)."""
        return jax.random.normal(key, (self.size,), jnp.float64)

    def draw(self, generator: np.random.Generator) -> NumpyArray:
        """(size,)."""
        return generator.standard_normal(self.size)

    def log_prob(self, values: Array) -> Array:
        """−|x|²/2 − (size/2) log 2π."""
        squares = jnp.sum(jnp.asarray(values) ** 2, axis=-1)
        density: Array = -0.5 * squares - 0.5 * self.size * np.log(2.0 * np.pi)
        return density


@dataclass(frozen=True)
class Categorical(Noise):
    """One of K outcomes.

    Attributes:
        probabilities: of the outcomes 0 to K − 1.
    """

    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        given = np.asarray(own_array("probabilities", self.probabilities), np.float64)
        if given.ndim != 1 or len(given) < 2 or (given < 0.0).any() or abs(given.sum() - 1.0) > 1e-9:
            raise InvalidArgumentError(
                f"probabilities must be two or more numbers, none of them negative, with the sum 1, got {given}"
            )
        object.__setattr__(self, "probabilities", tuple(given.tolist()))

    @property
    def space(self) -> gymnasium.spaces.Discrete:
        """0 to K − 1."""
        return gymnasium.spaces.Discrete(len(self.probabilities))

    @property
    def logits(self) -> NumpyArray:
        """(K,), log-probabilities."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.probabilities))

    def sample(self, key: Array) -> Array:
        """The number of the outcome."""
        return jax.random.categorical(key, jnp.asarray(self.logits)).astype(jnp.int32)

    def draw(self, generator: np.random.Generator) -> int:
        """The number of the outcome."""
        return int(generator.choice(len(self.probabilities), p=self.probabilities))

    def log_prob(self, values: Array) -> Array:
        """Of each outcome."""
        return jnp.asarray(self.logits)[jnp.asarray(values)]


class NoisyEnv(CompiledEnv):
    """A compiled environment that declares noise: write `noise` and `step_with` in place of `step`.

    What is declared must be all that `step_with` does with these numbers: independent of the state and of each other,
    drawn once at every step. `step_with` gets a key for whatever else is random, which no behavior will tilt.
    """

    noise: ClassVar[Mapping[str, Noise]]

    @abstractmethod
    def step_with(
        self, key: Array, state: PyTree[Array], action: Array, noise: Mapping[str, Array]
    ) -> tuple[PyTree[Array], Array, Array]:
        """`step` with given noise, by its names."""

    def step(self, key: Array, state: PyTree[Array], action: Array) -> tuple[PyTree[Array], Array, Array]:
        """Take one step, with noise as it is declared."""
        rest, noise = self.draw_noise(key)
        return self.step_with(rest, state, action, noise)

    def draw_noise(self, key: Array) -> tuple[Array, dict[str, Array]]:
        """A key for the rest of the step, and one draw of each noise."""
        rest, *keys = jax.random.split(key, 1 + len(self.noise))
        return rest, {name: noise.sample(own) for (name, noise), own in zip(self.noise.items(), keys, strict=True)}


@runtime_checkable
class DeclaresNoise(Protocol):
    """An environment of Gymnasium that declares noise; `NoiseMixin` writes the second half."""

    noise: Mapping[str, Noise]

    def use_noise(self, values: Mapping[str, Any]) -> None:
        """The next step, and that one alone, takes these values in place of draws."""
        ...


class NoiseMixin:
    """For an environment of Gymnasium: declare `noise`, and take what `next_noise()` gives in every `step`."""

    noise: Mapping[str, Noise]
    np_random: np.random.Generator
    _given: Mapping[str, Any] = MappingProxyType({})

    def use_noise(self, values: Mapping[str, Any]) -> None:
        """The next step, and that one alone, takes these values in place of draws."""
        self._given = dict(values)

    def next_noise(self) -> dict[str, Any]:
        """The noise of this step: drawn, but for what was given."""
        given, self._given = self._given, MappingProxyType({})
        return {name: noise.draw(self.np_random) for name, noise in self.noise.items()} | dict(given)
