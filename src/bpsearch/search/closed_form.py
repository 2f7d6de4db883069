"""The closed form: on tables the best behavior follows from a model, without a gradient."""

from dataclasses import dataclass

import numpy as np

from bpsearch._core.arrays import Array
from bpsearch._core.checks import check_discount, check_type
from bpsearch._core.jaxtools import pytree
from bpsearch.control_variates.forecast import ForecastModel, SeenTable
from bpsearch.estimators.base import Estimator
from bpsearch.estimators.doubly_robust import doubly_robust
from bpsearch.policies.base import Policy
from bpsearch.policies.table import SoftmaxTable
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search.base import Info, Search, check_defensive


@pytree()
@dataclass(frozen=True, eq=False)
class ClosedFormState:
    """What the search carries from batch to batch.

    Attributes:
        seen: the evaluation policy, and what all episodes so far have shown.
        logits: (S, A), of the next behavior.
    """

    seen: SeenTable
    logits: Array


@dataclass(frozen=True)
class ClosedForm(Search[ClosedFormState]):
    """μ(a|s) ∝ π(a|s) √M̂(s, a), mixed with π at every step; see `Forecast` for M̂, of a model of all earlier batches.

    It goes where the doubly robust estimator with that model has its noise left, and to actions that were hardly seen
    and may therefore have some. It has no step size, and moves as far as the model says after the first batch.

    Attributes:
        share: of π in every step. It bounds the weight of a step by 1 / share, where the model is wrong.
    """

    share: float = 0.3

    def __post_init__(self) -> None:
        check_defensive(self.share)

    @property
    def estimator(self) -> Estimator:
        """Doubly robust."""
        return doubly_robust

    @property
    def model(self) -> ForecastModel:
        """The same model gives the estimator its q̂ and v̂."""
        return ForecastModel()

    def init(self, policy: Policy, discount: float = 1.0) -> ClosedFormState:
        """Before the first batch: the policy itself."""
        check_type("policy", policy, Policy, "a policy of bpsearch").check_searchable()
        seen = SeenTable.of(policy, check_discount(discount))
        return ClosedFormState(seen, np.asarray(seen.evaluation.logits))

    def weight(self, state: ClosedFormState) -> float:
        """A quarter in the first batch: the policy itself runs it, and it is valued without any model."""
        return 1.0 if np.any(state.seen.dynamics.starts) else 0.25

    def behavior(self, state: ClosedFormState) -> SoftmaxTable:
        """The mixture of μ and π."""
        return SoftmaxTable(state.logits)

    def step(self, state: ClosedFormState, batch: Trajectories) -> tuple[ClosedFormState, Info]:
        """Learn from a batch, and solve the model again."""
        check_type("batch", batch, Trajectories, "Trajectories")
        seen = state.seen.add(batch)
        forecast = seen.forecast
        probabilities = forecast.behavior(self.share)
        expected, plain = forecast.variance(probabilities), forecast.variance_of_return
        with np.errstate(divide="ignore"):
            moved = ClosedFormState(seen, np.log(probabilities))
        explained = 1.0 - expected / plain if plain > 0.0 else np.nan
        return moved, Info(np.zeros(0), np.float64(expected), explained=np.float64(explained))
