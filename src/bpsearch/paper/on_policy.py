"""On-policy curves of the paper: the policy itself acts, and an estimator with its model values the batches."""

from dataclasses import dataclass

import jax.numpy as jnp

from bpsearch._core.arrays import Array
from bpsearch._core.jaxtools import pytree
from bpsearch.control_variates.modeled import ModeledState
from bpsearch.control_variates.tabular_model import TabularModel
from bpsearch.estimators.base import Estimator
from bpsearch.estimators.on_policy import monte_carlo
from bpsearch.policies.base import Policy
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search.base import Info
from bpsearch.search.compiled import CompiledSearch


@pytree()
@dataclass(frozen=True, eq=False)
class OnPolicyState:
    """What the estimator's model has learned."""

    objective: ModeledState

    @property
    def parameters(self) -> Array:
        """Those of the evaluation policy, which stay."""
        return self.objective.evaluation.flat


@dataclass(frozen=True)
class OnPolicyCurve(CompiledSearch[OnPolicyState], numbers=("model",)):
    """Monte Carlo, or the advantage sum with a model, as a program for many trials at once.

    Attributes:
        estimator: `monte_carlo` by default.
        model: for estimators with a control variate.
        defensive: always 0.
    """

    estimator: Estimator = monte_carlo
    model: TabularModel | None = None
    defensive: float = 0.0

    def __post_init__(self) -> None:
        _ = self.objective  # checks that estimator and model belong together

    def init(self, policy: Policy, discount: float = 1.0) -> OnPolicyState:
        """Before the first batch."""
        return OnPolicyState(self.objective.init(policy, discount))

    def behavior(self, state: OnPolicyState) -> Policy:
        """The evaluation policy."""
        return state.objective.evaluation

    def update(self, state: OnPolicyState, batch: Trajectories) -> tuple[OnPolicyState, Info]:
        """Value the batch and let the model learn from it."""
        objective, arguments = self.objective.absorb(state.objective, batch)
        values, zero = self.estimator.function(*arguments), jnp.zeros(())
        return OnPolicyState(objective), Info(values, jnp.mean(values**2), zero, zero, jnp.full((), jnp.nan))
