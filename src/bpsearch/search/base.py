"""The interface of searches: `init`, `behavior`, `step`."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import jax
import numpy as np

from bpsearch.checks import check_real
from bpsearch.estimators.base import (
    ON_POLICY_TOLERANCE,
    Estimator,
    check_on_policy,
    check_values,
    log_ratios,
)
from bpsearch.intervals import MeanError, martingale_error
from bpsearch.models.tabular import TabularModel
from bpsearch.numerics import in_64_bit, pytree, to_numpy
from bpsearch.policies.base import Policy
from bpsearch.policies.mixture import Mixture
from bpsearch.search.valuation import Valuation
from bpsearch.trajectories import Array, Trajectories


@pytree()
@dataclass(frozen=True, eq=False)
class Info:
    """What one step of a search tells besides its new state.

    Attributes:
        values: (N,), the estimator's value of each episode.
        log_weights: (N,), log ρ_{0:L} of each episode.
        second_moment: the mean of the squared values (less the center that a search subtracts), which is to fall.
        gradient_norm: Euclidean norm of the estimated gradient; 0 for a search without one.
        step_size: α_i; 0 where the search did not move.
    """

    values: Array
    log_weights: Array
    second_moment: Array
    gradient_norm: Array
    step_size: Array


@dataclass(frozen=True, eq=False)
class Valued:
    """All batches of a study, as the latest state of its search sees them.

    Attributes:
        batches: the values of each.
        weights: what an episode of each batch counts in the mean.
        error: of the mean of all values; None if it cannot be known.
        explained: the share of Monte Carlo's variance that is thought removed; None if the search does not know.
    """

    batches: list[Array]
    weights: list[float]
    error: MeanError | None
    explained: float | None

    @classmethod
    def of(cls, batches: list[Array], explained: float | None, weights: list[float] | None = None) -> "Valued":
        """With the error of martingale differences; all episodes count the same unless the weights say otherwise."""
        counts = weights or [1.0] * len(batches)
        return cls(batches, counts, martingale_error(batches, counts), explained)

    @property
    def mean(self) -> float:
        """The estimate."""
        total = sum(weight * len(batch) for weight, batch in zip(self.weights, self.batches, strict=True))
        return float(sum(w * batch.sum() for w, batch in zip(self.weights, self.batches, strict=True)) / total)


class Search(ABC):
    """A behavior policy search.

    A search holds settings only. Its state is a pytree of arrays that can be saved and carried on:
    `state = init(policy)`, then again and again `behavior(state)`, which never looks at the future, and
    `state, info = step(state, trajectories)` with episodes of that behavior.

    Subclasses write `update`, a pure JAX function; `step` is `update` compiled and checked. For a policy that cannot be
    traced `update` runs uncompiled: its parts that work on arrays only should be compiled functions of their own.
    """

    estimator: Estimator
    model: TabularModel | None
    # The share α of episodes that the evaluation policy runs; a search that moves has it as a setting.
    defensive: float = 0.0

    @property
    def weight_bound(self) -> float:
        """What no importance weight of an episode can exceed: 1/α of the defensive mixture, or infinity."""
        return 1.0 / self.defensive if self.defensive else math.inf

    def defended(self, evaluation: Policy, component: Policy) -> Policy:
        """The behavior for a searched π_θ: π_θ itself, or its defensive mixture with the evaluation policy."""
        return Mixture(evaluation, component, np.float64(self.defensive)) if self.defensive else component

    @property
    def valuation(self) -> Valuation:
        """How the search values its episodes."""
        return Valuation(self.estimator, self.model)

    @property
    def program(self) -> Self:
        """The search without those settings that its state holds as numbers.

        Searches of the same program share their compiled code: a sweep over step sizes compiles once.
        """
        return self

    @abstractmethod
    def init(self, policy: Policy, discount: float = 1.0) -> Any:
        """The state before the first batch, whose behavior is the evaluation policy `policy`."""

    @abstractmethod
    def behavior(self, state: Any) -> Policy:
        """The policy that is to collect the next batch."""

    @abstractmethod
    def update(self, state: Any, trajectories: Trajectories) -> tuple[Any, Info]:
        """`step` as a pure JAX function, without checks."""

    @property
    def label(self) -> str:
        """What results call the search with its estimator."""
        return f"{type(self).__name__}, {self.estimator.name}"

    @property
    def unbiased(self) -> bool:
        """Whether the estimate that follows from the values is unbiased."""
        return self.estimator.unbiased and not self.valuation.revalues

    @property
    def revalues(self) -> bool:
        """Whether a new batch changes the values of the earlier ones."""
        return self.valuation.revalues

    def revalue(self, state: Any, batches: Sequence[Trajectories]) -> Valued:
        """All batches as `state` sees them."""
        return Valued.of([self.valuation.values(state.valuation, batch) for batch in batches], self.explained(state))

    def counts(self, number: int) -> float:
        """What an episode of the batch with this number, from 0, counts in the estimate: fixed before the study.

        So the estimate stays unbiased; weights that look at the batches would not be so innocent.
        """
        return 1.0

    def explained(self, state: Any) -> float | None:
        """The share of the variance that the search expects its behaviors to remove; None if it does not know."""
        return None

    @in_64_bit
    def step(self, state: Any, trajectories: Trajectories) -> tuple[Any, Info]:
        """Learn from a batch of the present behavior's episodes.

        Raises:
            WeightOverflowError: a value or its square does not fit a 64-bit float.
            OnPolicyError: the estimator is on-policy and the episodes are not.
        """
        evaluation = state.valuation.evaluation
        update = _jitted_update if evaluation.traceable else _update
        state, info = to_numpy(update(self.program, state, trajectories))
        self._check(info, evaluation, trajectories)
        return state, info

    def _check(self, info: Info, evaluation: Policy, trajectories: Trajectories) -> None:
        with np.errstate(over="ignore"):
            squares = info.values**2
        off_policy = self.estimator.on_policy and np.abs(info.log_weights).max() > ON_POLICY_TOLERANCE
        if not off_policy and np.isfinite(squares).all():
            return
        # The log-ratios of all steps are worth computing again only to name what is wrong.
        ratios = np.asarray(log_ratios(evaluation, trajectories))
        check_on_policy(self.estimator, ratios)
        check_values(f"the {self.estimator.name} value", info.values, ratios)
        check_values(f"the squared {self.estimator.name} value", squares, ratios)


def check_defensive(share: float) -> float:
    """Return the share α of a defensive mixture as a float; 0 means none."""
    return check_real("defensive", share, low=0.0, high=0.99)


def _update(search: Search, state: Any, trajectories: Trajectories) -> tuple[Any, Info]:
    return search.update(state, trajectories)


_jitted_update = jax.jit(_update, static_argnums=0)
