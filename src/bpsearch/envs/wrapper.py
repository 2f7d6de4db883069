"""What a compiled environment that changes another one takes over from it."""

from typing import Any

import gymnasium
from jaxtyping import PyTree

from bpsearch._core.arrays import Array
from bpsearch.envs.base import CompiledEnv


class CompiledWrapper(CompiledEnv):
    """Does everything as `env` does it; what is to differ is overridden.

    Attributes:
        env: the other one.
    """

    env: CompiledEnv

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """The environment's."""
        return self.env.observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The environment's."""
        return self.env.action_space

    @property
    def return_range(self) -> tuple[float, float] | None:
        """The environment's."""
        return self.env.return_range

    @property
    def varied_starts(self) -> bool:
        """As the environment."""
        return self.env.varied_starts

    def reset(self, key: Array) -> PyTree[Array]:
        """As the environment."""
        return self.env.reset(key)

    def observe(self, state: PyTree[Array]) -> Array:
        """As the environment."""
        return self.env.observe(state)

    def step(self, key: Array, state: PyTree[Array], action: Array) -> tuple[PyTree[Array], Array, Array]:
        """As the environment."""
        return self.env.step(key, state, action)
