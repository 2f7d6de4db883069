"""Failures of tables: levels, until the closed form takes over."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from bpsearch._core.arrays import Array
from bpsearch._core.checks import check_type
from bpsearch._core.jaxtools import pytree
from bpsearch.control_variates.handover import Handover, HandoverModel
from bpsearch.estimators.base import Estimator
from bpsearch.estimators.doubly_robust import doubly_robust
from bpsearch.policies.base import Policy
from bpsearch.policies.table import SoftmaxTable
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search.base import Info, Search
from bpsearch.search.levels import Levels, LevelsState

CAREFUL = 0.5  # the policy's own share of the episodes of levels, where they count


@pytree()
@dataclass(frozen=True, eq=False)
class TableFailuresState:
    """What was told and decided, what levels carry, and (S, A), the logits of the closed form."""

    handover: Handover
    levels: LevelsState
    logits: Array


@dataclass(frozen=True)
class TableFailures(Search[TableFailuresState]):
    """`Levels` for rare failures, `ClosedForm` for common ones; see `Handover` for who acts.

    Levels learn from every batch, so that they can go on where the closed form is of no use. Half of their episodes
    that count are the policy's own: a failure that the search does not know counts two episodes' worth at most.

    Attributes:
        levels: the search through levels.
    """

    for_events: ClassVar[bool] = True

    levels: Levels = field(default_factory=lambda: Levels(careful=CAREFUL))

    @property
    def estimator(self) -> Estimator:
        """Doubly robust: without a model, in the batches of levels, that is importance sampling."""
        return doubly_robust

    @property
    def model(self) -> HandoverModel:
        """Decides as the search does, and gives the estimator its q̂ and v̂."""
        return HandoverModel()

    def init(self, policy: Policy, discount: float = 1.0) -> TableFailuresState:
        """Before the first batch: levels, which look around."""
        levels = self.levels.init(policy, discount)
        handover = Handover.of(policy, discount)
        return TableFailuresState(handover, levels, np.array(handover.seen.evaluation.logits))

    def behavior(self, state: TableFailuresState) -> Policy:
        """Of whoever acts."""
        return SoftmaxTable(state.logits) if state.handover.closed else self.levels.behavior(state.levels)

    def shift(self, state: TableFailuresState) -> float:
        """That of levels; the closed form has none."""
        return 0.0 if state.handover.closed else self.levels.shift(state.levels)

    def weight_bound(self, state: TableFailuresState) -> float:
        """That of levels; none where the closed form acts or has acted."""
        handover = state.handover
        return math.inf if handover.closed or handover.tried > 0 else self.levels.weight_bound(state.levels)

    def weight(self, state: TableFailuresState) -> float:
        """As levels say; every batch of the closed form counts."""
        return 1.0 if state.handover.closed else self.levels.weight(state.levels)

    def step(self, state: TableFailuresState, batch: Trajectories) -> tuple[TableFailuresState, Info]:
        """Learn from a batch, and decide who acts next."""
        check_type("batch", batch, Trajectories, "Trajectories")
        handover = state.handover.add(batch)
        levels, info = self.levels.step(state.levels, batch)
        if not handover.closed:
            return TableFailuresState(handover, levels, state.logits), info
        return TableFailuresState(handover, levels, handover.behavior()), Info(info.values, info.second_moment)
