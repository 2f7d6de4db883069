"""Behavior policy gradient: Algorithm 1 of the paper, over any unbiased estimator."""

import dataclasses
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from bpsearch.checks import check_integer
from bpsearch.errors import BiasedEstimatorError, OnPolicyError
from bpsearch.estimators.base import Estimator
from bpsearch.estimators.importance import importance_sampling
from bpsearch.estimators.score_weights import score_weights
from bpsearch.models.tabular import TabularModel
from bpsearch.numerics import in_64_bit, pytree, replace, to_numpy
from bpsearch.policies.base import Policy
from bpsearch.search.base import Info, Search, check_defensive
from bpsearch.search.step_size import StepSize
from bpsearch.search.valuation import ValuationState
from bpsearch.trajectories import Array, Trajectories


@pytree()
@dataclass(frozen=True, eq=False)
class BPGState:
    """What behavior policy gradient carries from batch to batch.

    Attributes:
        valuation: the evaluation policy and what the estimator's model has learned.
        step_size: the settings of α_i.
        parameters: θ_i, the flat parameters of the behavior policy.
        baseline: b_i, from the previous batch.
        center: the mean value of all batches so far.
        best_second_moment: the lowest E[X²] that any batch has shown.
        best_parameters: the θ of that batch.
        waiting: for how many batches no lower one has been seen.
        stopped: whether early stopping has ended the search.
    """

    valuation: ValuationState
    step_size: StepSize
    parameters: Array
    baseline: Array
    center: Array
    best_second_moment: Array
    best_parameters: Array
    waiting: Array
    stopped: Array


@dataclass(frozen=True)
class BPG(Search):
    """Stochastic gradient descent on the variance of an estimator (the paper's Algorithm 1).

        θ_{i+1} = θ_i − α_i (1/k) Σ_n Σ_t (c_nt − b_i) ∇log π_{θ_i}(A_t|S_t)

    with the score weights c of `score_weights`: importance sampling gives Theorem 1, the doubly robust estimator
    with a model DR-BPG (Corollary 1). The search starts at the evaluation policy. With a fixed model it starts when the
    model is complete.

    Attributes:
        step_size: α: a number for a constant step, or a `StepSize`.
        estimator: an unbiased off-policy estimator.
        baseline: whether to subtract b_i, the mean score weight of the previous batch; for importance sampling it is
            the paper's E[−IS²|θ_{i−1}]. The first batch has none. It does not change the expected gradient.
        center: whether to follow the gradient of E[(X − b)²], b the mean value of the batches so far, in place of
            E[X²]: the same in expectation, and much quieter for per-decision and doubly robust estimators of a value
            far from 0. The first batch, which has nothing to be centered by, moves nothing. The paper does not center.
        model: for estimators with a control variate.
        patience: early stopping (the paper, appendix C): after this many batches in a row whose mean X² is not below
            the lowest so far, the search ends at the θ of the lowest. None never stops.
        defensive: α of the defensive mixture (`Mixture`) that collects the episodes in place of π_θ; 0 is π_θ alone,
            as in the paper. The gradient is that of the mixture's variance.
    """

    step_size: float | StepSize
    estimator: Estimator = importance_sampling
    baseline: bool = True
    center: bool = False
    model: TabularModel | None = None
    patience: int | None = None
    defensive: float = 0.0

    def __post_init__(self) -> None:
        valuation = self.valuation  # checks that estimator and model belong together
        if not isinstance(self.step_size, StepSize):
            object.__setattr__(self, "step_size", StepSize(self.step_size))
        if self.patience is not None:
            check_integer("patience", self.patience)
        check_defensive(self.defensive)
        if valuation.estimator.on_policy:
            raise OnPolicyError(
                f"{self.estimator.name} is unbiased only on-policy, so no other behavior can serve it; "
                "use importance_sampling, per_decision or doubly_robust"
            )
        if not valuation.estimator.unbiased:
            raise BiasedEstimatorError(f"{self.estimator.name} is biased: lowering its variance may raise its error")

    @property
    def _step_size(self) -> StepSize:
        assert isinstance(self.step_size, StepSize)
        return self.step_size

    @property
    def program(self) -> "BPG":
        """The search with an arbitrary step size and schedule of its model: the real ones are in its state."""
        step_size = StepSize(1.0, normalized=self._step_size.normalized)
        return dataclasses.replace(self, step_size=step_size, model=self.valuation.program.model)

    @in_64_bit
    def init(self, policy: Policy, discount: float = 1.0) -> BPGState:
        """Before the first batch: θ_0 = θ_e."""
        policy.check_searchable()
        parameters = to_numpy(policy.flat)
        return BPGState(
            valuation=self.valuation.init(policy, discount),
            step_size=self._step_size,
            parameters=parameters,
            baseline=np.float64(0.0),
            center=np.float64(0.0),
            best_second_moment=np.float64(np.inf),
            best_parameters=parameters,
            waiting=np.int64(0),
            stopped=np.bool_(False),
        )

    @in_64_bit
    def behavior(self, state: BPGState) -> Policy:
        """π_{θ_i}, or its defensive mixture."""
        evaluation = state.valuation.evaluation
        return self.defended(evaluation, evaluation.with_flat(state.parameters))

    def update(self, state: BPGState, trajectories: Trajectories) -> tuple[BPGState, Info]:
        """One iteration of Algorithm 1 (lines 4 to 6)."""
        valuation, arguments = self.valuation.absorb(state.valuation, trajectories)
        values, centred, mean_weight = _weigh(self, state, arguments)
        score = self.behavior(state).score(trajectories.observations, trajectories.actions, centred)
        moved, second_moment, gradient_norm, step_size = _move(self, state, values, score)
        center = state.center
        if self.center:
            center = center + (jnp.mean(values) - center) / (state.valuation.batches + 1)
        baseline = mean_weight if self.baseline else state.baseline
        return replace(moved, valuation=valuation, baseline=baseline, center=center), Info(
            values, arguments[1].sum(axis=-1), second_moment, gradient_norm, step_size
        )


@partial(jax.jit, static_argnums=0)
def _weigh(search: BPG, state: BPGState, arguments: tuple[Array, ...]) -> tuple[Array, Array, Array]:
    """The values X_n, the score weights c_nt − b_i, and the mean score weight."""
    weigh = partial(score_weights, search.estimator, center=state.center)
    values, weights = weigh(*arguments)
    mask = arguments[2]
    mean_weight = jnp.mean(weights.sum(axis=1) / mask.sum(axis=1))
    return values, jnp.where(mask, weights - state.baseline, 0.0), mean_weight


@partial(jax.jit, static_argnums=0)
def _move(search: BPG, state: BPGState, values: Array, score: Array) -> tuple[BPGState, Array, Array, Array]:
    """Step against the gradient, or stop; returns also the mean X², the gradient's norm and α_i."""
    gradient = score / values.shape[0]
    second_moment = jnp.mean((values - state.center) ** 2)
    # Without a batch before it there is nothing to center the first one by.
    warm_up = jnp.maximum(state.valuation.warm_up, int(search.center))
    searching = (state.valuation.batches >= warm_up) & ~state.stopped
    improved = searching & (second_moment < state.best_second_moment)
    waiting = jnp.where(improved, 0, state.waiting + searching)
    best = jnp.where(improved, state.parameters, state.best_parameters)
    stopped = state.stopped
    if search.patience is not None:
        stopped = stopped | (waiting >= search.patience)
    step_size = jnp.where(searching & ~stopped, state.step_size.at(state.valuation.batches, second_moment), 0.0)
    moved = (state.parameters - step_size * gradient).astype(state.parameters.dtype)
    return (
        replace(
            state,
            parameters=jnp.where(stopped, best, jnp.where(searching, moved, state.parameters)),
            best_second_moment=jnp.where(improved, second_moment, state.best_second_moment),
            best_parameters=best,
            waiting=waiting,
            stopped=stopped,
        ),
        second_moment,
        jnp.sqrt(jnp.vdot(gradient, gradient)),
        step_size,
    )
