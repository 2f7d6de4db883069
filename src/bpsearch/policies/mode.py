"""The mode of a policy: its most likely action in every state."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax
import numpy as np
from jaxtyping import PyTree

from bpsearch._core.arrays import Array, NumpyArray, Observations
from bpsearch._core.jaxtools import in_64_bit, pytree, to_numpy
from bpsearch.policies.base import Policy, clip_to
from bpsearch.policies.wrapper import Wrapper


@pytree()
@dataclass(frozen=True, eq=False)
class Mode(Wrapper):
    """π(a|s) = 1 for a = argmax π_e(·|s): what many evaluate when they evaluate π_e without its action noise.

    Attributes:
        policy: π_e.
    """

    policy: Policy
    opaque: ClassVar[bool] = True  # all its log-probabilities are 0, those of other actions too

    @property
    def parameters(self) -> NumpyArray:
        """None that could be changed: an empty vector."""
        return np.zeros(0)

    def with_parameters(self, parameters: PyTree[Array]) -> Self:
        """The policy itself."""
        return self

    @property
    def deterministic(self) -> bool:
        """It has no action noise."""
        return True

    @property
    def constants(self) -> dict[str, Array]:
        """The policy's."""
        return self.policy.constants

    @property
    def name(self) -> str:
        """What errors call it."""
        return f"the mode of {self.policy.name}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What the policy says of its mode."""
        return self.policy.mode_notes

    def critic(self, observations: Observations) -> NumpyArray | None:
        """The policy's."""
        return self.policy.critic(observations)

    @in_64_bit
    def sample(self, key: Array, observations: Observations) -> tuple[Array, Array]:
        """The most likely actions, each with log-probability 0."""
        actions = self.policy.most_likely(observations)
        shape = np.shape(actions)
        return actions, np.zeros(shape[: len(shape) - len(self.action_space.shape or ())])

    def act(self, uniforms: NumpyArray, observations: Observations) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
        """The most likely actions, whatever the numbers."""
        return self.act_next(uniforms, observations, self.begin(np.zeros(len(uniforms))))[:3]

    @in_64_bit
    def act_next(
        self, uniforms: NumpyArray, observations: Observations, memory: PyTree[Array]
    ) -> tuple[NumpyArray, NumpyArray, NumpyArray, PyTree[Array]]:
        """The most likely actions within episodes."""
        choose = _take_mode if self.traceable else type(self.policy).act_most_likely
        actions, executed, memory = choose(self.policy, observations, memory)
        return np.asarray(actions), np.zeros(len(uniforms)), np.asarray(executed), to_numpy(memory)

    def log_prob(self, observations: Observations, actions: Array) -> NumpyArray:
        """0, as recorded: the ratio of the policy to itself is 1."""
        return np.zeros(np.shape(actions)[: np.ndim(actions) - len(self.action_space.shape or ())])


def _take_mode(policy: Policy, observations: Observations, memory: Any) -> tuple[NumpyArray, NumpyArray, Any]:
    actions = np.asarray(_most_likely(policy, observations))
    return actions, clip_to(policy.action_space, actions), memory


@jax.jit
def _most_likely(policy: Policy, observations: Observations) -> Array:
    return policy.most_likely(observations)
