"""What a policy that stands for another one takes over from it."""

from typing import Any

import gymnasium
from jaxtyping import PyTree

from bpsearch._core.arrays import Array
from bpsearch.policies.base import Policy


class Wrapper(Policy):
    """Sees what `policy` sees, and acts where `policy` acts.

    Attributes:
        policy: the other one.
    """

    policy: Policy

    @property
    def traceable(self) -> bool:  # type: ignore[override]
        """As the policy."""
        return self.policy.traceable

    @property
    def sees_masks(self) -> bool:  # type: ignore[override]
        """As the policy."""
        return self.policy.sees_masks

    @property
    def row_multiple(self) -> int:  # type: ignore[override]
        """As the policy."""
        return self.policy.row_multiple

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        """As the policy."""
        return self.policy.remembers

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """The policy's."""
        return self.policy.observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The policy's."""
        return self.policy.action_space

    def begin(self, uniforms: Array) -> PyTree[Array]:
        """As the policy."""
        return self.policy.begin(uniforms)
