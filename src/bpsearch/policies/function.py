"""A plain Python function as a policy: for Monte Carlo only."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import gymnasium
import numpy as np
from jaxtyping import PyTree
from numpy.typing import ArrayLike

from bpsearch._core.arrays import Array, NumpyArray, Observations
from bpsearch._core.jaxtools import pytree
from bpsearch.errors import UnknownProbabilitiesError
from bpsearch.policies.base import Policy, clipped


@pytree(static=("function", "spaces", "vectorized", "is_deterministic", "notes"))
@dataclass(frozen=True, eq=False)
class FunctionPolicy(Policy):
    """A function from observation to action, whose action probabilities are unknown.

    It can be evaluated by Monte Carlo; a search refuses it, since no importance weight can be computed. If the function
    draws random numbers of its own, the episodes are not reproducible.

    Attributes:
        function: observation -> action, or, if `vectorized`, (N, ...) observations -> (N, ...) actions.
        spaces: the observation space and the action space.
        vectorized: whether the function takes a batch of observations.
        is_deterministic: whether the function is known to draw no random numbers.
        notes: what a reader of the policy's value should know.
    """

    function: Callable[[Any], ArrayLike]
    spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
    vectorized: bool = False
    is_deterministic: bool = False
    notes: tuple[str, ...] = ()  # type: ignore[assignment]
    traceable: ClassVar[bool] = False

    @property
    def row_multiple(self) -> int:  # type: ignore[override]
        """A function of single observations is not called for padding."""
        return Policy.row_multiple if self.vectorized else 1

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """The observations that the function accepts."""
        return self.spaces[0]

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The actions that the function gives."""
        return self.spaces[1]

    @property
    def parameters(self) -> NumpyArray:
        """None that could be changed: an empty vector."""
        return np.zeros(0)

    def with_parameters(self, parameters: PyTree[Array]) -> Self:
        """The policy itself."""
        return self

    @property
    def deterministic(self) -> bool:
        """Whether the function is known to draw no random numbers."""
        return self.is_deterministic

    def check_searchable(self) -> None:
        """Refuse a search: without action probabilities there are no importance weights."""
        super().check_searchable()
        raise UnknownProbabilitiesError(
            f"the action probabilities of the function {self.function!r} are unknown, so no other behavior can be "
            "weighted to evaluate it; evaluate it by Monte Carlo (method='mc', or OnPolicy()), or give a policy with "
            "probabilities (from_torch, from_sb3)"
        )

    def sample(self, key: Array | None, observations: Observations) -> tuple[NumpyArray, NumpyArray]:
        """The function's actions; their log-probabilities are recorded as 0."""
        actions = np.asarray(
            self.function(observations)
            if self.vectorized
            else [self.function(_row(observations, i)) for i in range(_rows(observations))]
        )
        return actions, np.zeros(len(actions))

    def act(self, uniforms: NumpyArray, observations: Observations) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
        """The function's actions, whatever the numbers."""
        actions, log_probs = self.sample(None, observations)
        return actions, log_probs, clipped(self.action_space, actions)

    def log_prob(self, observations: Observations, actions: Array) -> NumpyArray:
        """0, as recorded: the ratio of the policy to itself is 1."""
        return np.zeros(np.shape(actions)[: np.ndim(actions) - len(self.action_space.shape or ())])


def _rows(observations: Observations) -> int:
    first = next(iter(observations.values())) if isinstance(observations, dict) else observations
    return _rows(first) if isinstance(first, dict) else len(first)


def _row(observations: Observations, row: int) -> Observations:
    if isinstance(observations, dict):
        return {key: _row(value, row) for key, value in observations.items()}
    return observations[row]
