"""On-policy evaluation: the search that never moves."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bpsearch.estimators.base import Estimator
from bpsearch.estimators.on_policy import monte_carlo
from bpsearch.policies.base import Policy
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search.base import Info, Search


@dataclass(frozen=True)
class OnPolicy(Search[Policy]):
    """The evaluation policy runs every episode; its state is the policy."""

    moves: ClassVar[bool] = False

    @property
    def estimator(self) -> Estimator:
        """Monte Carlo."""
        return monte_carlo

    def init(self, policy: Policy, discount: float = 1.0) -> Policy:
        """The policy."""
        return policy

    def behavior(self, state: Policy) -> Policy:
        """The policy."""
        return state

    def step(self, state: Policy, batch: Trajectories) -> tuple[Policy, Info]:
        """Nothing is learned, since nothing is chosen."""
        return state, Info(np.zeros(0), np.float64(0.0))
