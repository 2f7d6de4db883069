"""The interface of compiled environments."""

from abc import ABC, abstractmethod
from typing import Any

import gymnasium
import numpy as np
from jaxtyping import PyTree

from bpsearch._core.arrays import Array


class CompiledEnv(ABC):
    """An environment written as pure JAX functions, so that whole searches compile to one program.

    `reset`, `observe` and `step` are written for one episode; the sampler maps them over a batch. An instance is a
    JAX pytree: its arrays are leaves, its horizon and discount are constants.

    Attributes:
        horizon: the number of steps L after which every episode ends; the return up to L is what is estimated.
        discount: γ in [0, 1].
    """

    horizon: int
    discount: float

    @property
    @abstractmethod
    def observation_space(self) -> gymnasium.Space[Any]:
        """The observations that `observe` gives."""

    @property
    @abstractmethod
    def action_space(self) -> gymnasium.Space[Any]:
        """The actions that `step` accepts."""

    @property
    def return_range(self) -> tuple[float, float] | None:
        """Numbers between which every return lies, whatever the policy; None if they are not known."""
        return None

    @property
    def varied_starts(self) -> bool:
        """Whether episodes may start in different states."""
        return True

    @abstractmethod
    def reset(self, key: Array) -> PyTree[Array]:
        """Draw the state in which an episode starts."""

    @abstractmethod
    def observe(self, state: PyTree[Array]) -> Array:
        """What the policy sees of a state."""

    @abstractmethod
    def step(self, key: Array, state: PyTree[Array], action: Array) -> tuple[PyTree[Array], Array, Array]:
        """Take one step; return the next state, the reward and whether the episode has ended."""


class Drawable(ABC):
    """A compiled environment whose states can be shown as pictures."""

    @abstractmethod
    def draw(self, state: PyTree[Array]) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """(height, width, 3), an RGB picture of one state."""
