"""On tables: the policy itself, until the closed form promises far more."""

from dataclasses import dataclass

import numpy as np

from bpsearch._core.arrays import Array
from bpsearch._core.checks import check_discount, check_type
from bpsearch._core.jaxtools import pytree
from bpsearch.control_variates.choice import SHARE, Course
from bpsearch.policies.base import Policy
from bpsearch.policies.table import SoftmaxTable
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search.base import Info, Search


@pytree()
@dataclass(frozen=True, eq=False)
class MayMoveState:
    """What was told and decided, and (S, A), the logits of the next behavior."""

    course: Course
    logits: Array


@dataclass(frozen=True)
class MayMove(Search[MayMoveState]):
    """The policy itself runs the first batches. A few of them decide whether the closed form runs the later ones.

    See `choice.decide` for what decides and `ClosedForm` for where it goes. Once it has moved it goes on.
    """

    def init(self, policy: Policy, discount: float = 1.0) -> MayMoveState:
        """Before the first batch: the policy itself."""
        check_type("policy", policy, Policy, "a policy of bpsearch").check_searchable()
        course = Course.of(policy, check_discount(discount))
        return MayMoveState(course, np.asarray(course.seen.evaluation.logits))

    def behavior(self, state: MayMoveState) -> Policy:
        """The policy, or the closed form mixed with it."""
        return SoftmaxTable(state.logits) if state.course.moved else state.course.seen.evaluation

    def step(self, state: MayMoveState, batch: Trajectories) -> tuple[MayMoveState, Info]:
        """Learn from a batch, and decide if it is time."""
        course = state.course.add(check_type("batch", batch, Trajectories, "Trajectories"))
        if not course.moved:
            return MayMoveState(course, state.logits), Info(np.zeros(0), np.float64(0.0))
        forecast = course.seen.forecast
        probabilities = forecast.behavior(SHARE)
        expected, plain = forecast.variance(probabilities), course.spread.variance
        with np.errstate(divide="ignore"):
            moved = MayMoveState(course, np.log(probabilities))
        return moved, Info(np.zeros(0), np.float64(expected), explained=np.float64(max(1.0 - expected / plain, 0.0)))
