"""Who acts: the contract of searches."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, Self, TypeVar

import numpy as np
from jaxtyping import Float

from bpsearch._core.arrays import Array, Scalar
from bpsearch._core.checks import check_real
from bpsearch._core.jaxtools import pytree
from bpsearch.estimators.base import Estimator
from bpsearch.estimators.importance import importance_sampling
from bpsearch.policies.base import Policy
from bpsearch.policies.mixture import Mixture
from bpsearch.sampling.trajectories import Trajectories

State = TypeVar("State")
_ZERO, _UNKNOWN = np.float64(0.0), np.float64(np.nan)


@pytree()
@dataclass(frozen=True, eq=False)
class Info:
    """What one step of a search tells besides its new state: diagnostics, nothing that is carried on.

    Attributes:
        values: (N,), what the search's own estimator says of each episode: what it learns from.
        second_moment: the mean of the squared values (less the center that a search subtracts), which is to fall.
        gradient_norm: Euclidean norm of the estimated gradient; 0 for a search without one.
        step_size: α_i; 0 where the search did not move.
        explained: the share of the variance that the search expects its next behavior to remove; NaN if unknown.
    """

    values: Float[Array, " episodes"]
    second_moment: Float[Scalar, ""]
    gradient_norm: Float[Scalar, ""] = _ZERO
    step_size: Float[Scalar, ""] = _ZERO
    explained: Float[Scalar, ""] = _UNKNOWN


class Search(ABC, Generic[State]):
    """Chooses the behavior policy of the next batch from the batches so far, and does nothing else.

    A search holds settings only. Its state is a pytree of arrays that can be saved and carried on:
    `state = init(policy)`, then again and again `behavior(state)` and `state, info = step(state, batch)`.

    What every search promises, and `bpsearch.testing.check_search` checks:

    - `behavior(state)` is a function of the state alone: it never looks at the batch that it will collect.
    - Every action that the evaluation policy may take has a positive probability under the behavior.
    - `shift(state)` is a finite number, fixed with the behavior; so is `weight(state)`, which is not negative.
    - `step` changes neither the state that it is given nor the batch, and keeps the structure of the state: the same
      leaves, shapes and types. The same state and batch give the same new state, to the last bit.

    A search never values an episode for the estimate: that is the task of a `Valuation`.
    """

    # Whether the behavior may change from batch to batch. If not, later batches need not wait for earlier ones.
    moves: ClassVar[bool] = True
    # Whether it looks for an event: what it has not found may be there all the same (`inference.missing`).
    for_events: ClassVar[bool] = False

    @property
    def estimator(self) -> Estimator:
        """The estimator whose variance the behaviors are to lower."""
        return importance_sampling

    @abstractmethod
    def init(self, policy: Policy, discount: float = 1.0) -> State:
        """The state before the first batch."""

    @abstractmethod
    def behavior(self, state: State) -> Policy:
        """The policy that is to collect the next batch."""

    @abstractmethod
    def step(self, state: State, batch: Trajectories) -> tuple[State, Info]:
        """Learn from a batch of the present behavior's episodes."""

    def shift(self, state: State) -> float:
        """The constant b for which the behavior was chosen: an episode of weight w gets the value X + b (1 − w).

        E[w] = 1, so every b that is fixed before the batch leaves the expectation as it is.
        """
        return 0.0

    def without_resets(self) -> Self:
        """The same search for an environment that must not be reset without need: itself, if it resets nothing.

        Raises:
            InvalidArgumentError: it can do nothing without.
        """
        return self

    def weight_bound(self, state: State) -> float:
        """What no importance weight of an episode can exceed, by whichever behavior."""
        return self.behavior(state).weight_bound

    def unused(self, state: State) -> tuple[str, ...]:
        """What could have helped and was not used, each with the reason."""
        return ()

    def weight(self, state: State) -> float:
        """What an episode of the next batch counts in the estimate, relative to later ones; 0 if it only explores.

        It is fixed before the batch like the behavior, and may depend on all earlier batches: `inference.counting`
        combines batches so that it biases nothing.
        """
        return 1.0


def check_defensive(share: float) -> float:
    """Return the share α of a defensive mixture as a float; 0 means none."""
    return check_real("defensive", share, low=0.0, high=0.99)


def defend(evaluation: Policy, component: Policy, share: float) -> Policy:
    """The behavior for a searched π_θ: π_θ itself, or its defensive mixture with the evaluation policy."""
    return Mixture(evaluation, component, np.float64(share)) if share else component
