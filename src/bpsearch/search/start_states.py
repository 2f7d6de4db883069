"""Which starts to run where starts are states that can be counted."""

from dataclasses import dataclass

import numpy as np
from gymnasium import spaces
from jaxtyping import Bool, Float

from bpsearch._core.arrays import Array, NumpyArray, Observations
from bpsearch._core.jaxtools import pytree
from bpsearch.policies.base import Policy
from bpsearch.policies.chosen_starts import StartWeights
from bpsearch.sampling.trajectories import Trajectories

SHRINKAGE = 2.0  # how many episodes "this start is like the others" is worth
MEMORY = 0.7  # what earlier episodes count after the level has been lowered


@dataclass(frozen=True, eq=False)
class LikelyStates(StartWeights):
    """Prefers states from which the target is likely: u(s) = sqrt(P(target|s)).

    Attributes:
        roots: (S,), u of each state.
    """

    roots: NumpyArray
    candidates: int
    uniform_share: float

    def weigh(self, observations: Observations) -> Float[NumpyArray, " starts"]:
        """The u of each start."""
        found: NumpyArray = self.roots[np.asarray(observations, int)]
        return found

    @property
    def parameters(self) -> NumpyArray:
        """The u of each state."""
        return self.roots


@pytree()
@dataclass(frozen=True, eq=False)
class CountedStates:
    """What was counted, by state in which episodes started: (S,) each.

    Attributes:
        visits: episodes.
        hits: those of the target among them.
        weights: the sum of π_e/μ of the actions of those.
    """

    visits: Array
    hits: Array
    weights: Array

    @classmethod
    def of(cls, policy: Policy) -> "CountedStates":
        """Nothing counted."""
        space = policy.observation_space
        count = int(space.n) if isinstance(space, spaces.Discrete) else 1
        return cls(*(np.zeros(count) for _ in range(3)))

    def add(
        self,
        batch: Trajectories,
        target: Bool[NumpyArray, " episodes"],
        weights: Float[NumpyArray, " episodes"],
        risen: int,
    ) -> "CountedStates":
        """After another batch.

        Args:
            batch: its episodes.
            target: which of them are the target's.
            weights: π_e/μ of each one's actions, without the chance of its start.
            risen: the sign of the change of the target's level. If it rose, who did not reach the old one did not reach
                the new one either; of those who did it is not known.
        """
        before = [np.asarray(part) for part in (self.visits, self.hits, self.weights)]
        if risen > 0:
            before = [before[0] - before[1], 0.0 * before[1], 0.0 * before[2]]
        elif risen < 0:
            before = [MEMORY * part for part in before]
        first, size = np.asarray(batch.observations)[:, 0].astype(int), len(self.visits)
        new = (np.ones(len(batch)), target.astype(np.float64), weights * target)
        return CountedStates(
            *(old + np.bincount(first, by, minlength=size) for old, by in zip(before, new, strict=True))
        )

    def choose(self, candidates: int, uniform_share: float) -> LikelyStates | None:
        """Who chooses starts by it; None as long as no episode of the target was seen.

        P(target|s) = (Σ_s w 1{target} + κ p) / (n_s + κ), with p the share of all.
        """
        visits, weights = np.asarray(self.visits), np.asarray(self.weights)
        if not weights.any():
            return None
        share = weights.sum() / visits.sum()
        return LikelyStates(np.sqrt((weights + SHRINKAGE * share) / (visits + SHRINKAGE)), candidates, uniform_share)
