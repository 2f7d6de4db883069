"""On-policy evaluation: the search that never moves."""

import dataclasses
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from bpsearch.estimators.base import Estimator
from bpsearch.estimators.on_policy import monte_carlo
from bpsearch.models.tabular import TabularModel
from bpsearch.numerics import pytree
from bpsearch.policies.base import Policy
from bpsearch.search.base import Info, Search
from bpsearch.search.valuation import ValuationState
from bpsearch.trajectories import Array, Trajectories


@pytree()
@dataclass(frozen=True, eq=False)
class OnPolicyState:
    """The state of on-policy evaluation: what its estimator's model has learned."""

    valuation: ValuationState


@dataclass(frozen=True)
class OnPolicy(Search):
    """Run the evaluation policy itself: Monte Carlo, or the advantage sum with a model.

    Attributes:
        estimator: `monte_carlo` by default.
        model: for estimators with a control variate.
    """

    estimator: Estimator = monte_carlo
    model: TabularModel | None = None

    def __post_init__(self) -> None:
        _ = self.valuation  # checks that estimator and model belong together

    @property
    def program(self) -> "OnPolicy":
        """The search with an arbitrary schedule of its model: the real one is in its state."""
        return dataclasses.replace(self, model=self.valuation.program.model)

    def init(self, policy: Policy, discount: float = 1.0) -> OnPolicyState:
        """Before the first batch."""
        return OnPolicyState(self.valuation.init(policy, discount))

    def behavior(self, state: OnPolicyState) -> Policy:
        """Always the evaluation policy."""
        return state.valuation.evaluation

    def update(self, state: OnPolicyState, trajectories: Trajectories) -> tuple[OnPolicyState, Info]:
        """Value the batch and let the model learn from it."""
        valuation, arguments = self.valuation.absorb(state.valuation, trajectories)
        return OnPolicyState(valuation), _info(self.estimator, arguments)


@partial(jax.jit, static_argnums=0)
def _info(estimator: Estimator, arguments: tuple[Array, ...]) -> Info:
    values = estimator.function(*arguments)
    zero = jnp.zeros(())
    return Info(values, arguments[1].sum(axis=-1), jnp.mean(values**2), gradient_norm=zero, step_size=zero)
