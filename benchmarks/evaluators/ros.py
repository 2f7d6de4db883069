"""Robust on-policy sampling (Zhong et al., 2022): the biased rival."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from bpsearch._core.arrays import Array
from bpsearch._core.checks import check_real
from bpsearch._core.jaxtools import in_64_bit, pytree, to_numpy
from bpsearch.control_variates.modeled import ModeledState
from bpsearch.estimators import Estimator, estimator
from bpsearch.estimators.base import discounts
from bpsearch.policies.base import Policy
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search import Info
from bpsearch.search.compiled import CompiledSearch


@estimator(unbiased=False)
def plain_average(rewards: Array, log_ratios: Array, mask: Array, discount: Array) -> Array:
    """g(H), whatever behavior has collected the episode."""
    return (rewards * discounts(discount, rewards)).sum(axis=-1)


@pytree()
@dataclass(frozen=True, eq=False)
class ROSState:
    """What is carried on: Σ ∇log π_e(A_t|S_t) over all steps so far, and how many steps there were."""

    objective: ModeledState
    score: Array
    steps: Array

    @property
    def parameters(self) -> Array:
        """θ_e, from which the behavior is a step away."""
        return self.objective.evaluation.flat


@dataclass(frozen=True)
class ROS(CompiledSearch[ROSState]):
    """Sample what on-policy sampling has missed so far, and average the returns as they come.

        θ_{i+1} = θ_e − lr · mean of ∇log π_e(A_t|S_t) over all steps so far

    Actions that were taken too often become less likely, so that the data approach those that π_e is expected to give.
    The returns are not weighted, so the estimate is biased for every finite number of episodes.

    Attributes:
        rate: lr.
        estimator: always the plain average.
        model: always None.
        defensive: always 0.
    """

    rate: float
    estimator: Estimator = plain_average
    model: None = None
    defensive: float = 0.0

    def __post_init__(self) -> None:
        check_real("rate", self.rate, above=0.0)

    @in_64_bit
    def init(self, policy: Policy, discount: float = 1.0) -> ROSState:
        """Before the first episode the behavior is the evaluation policy."""
        policy.check_searchable()
        score = np.zeros(len(to_numpy(policy.flat)))
        return ROSState(self.objective.init(policy, discount), score, np.float64(0.0))

    @in_64_bit
    def behavior(self, state: ROSState) -> Policy:
        """π at θ_e less the step."""
        evaluation = state.objective.evaluation
        theta = jnp.asarray(evaluation.flat)
        step = self.rate * state.score / jnp.maximum(state.steps, 1.0)
        return evaluation.with_flat((theta - step).astype(theta.dtype))

    def update(self, state: ROSState, batch: Trajectories) -> tuple[ROSState, Info]:
        """Add the scores of the batch."""
        objective, arguments = self.objective.absorb(state.objective, batch)
        values, zero = self.estimator.function(*arguments), jnp.zeros(())
        mask = jnp.asarray(batch.mask, jnp.float64)
        score = state.objective.evaluation.score(batch.observations, batch.actions, mask)
        moved = ROSState(objective, state.score + score, state.steps + mask.sum())
        return moved, Info(values, jnp.mean(values**2), zero, zero, jnp.full((), jnp.nan))
