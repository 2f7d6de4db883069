"""Behavior policy gradient: Algorithm 1 of the paper, over any unbiased estimator."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from bpsearch._core.arrays import Array, Flag, Scalar
from bpsearch._core.checks import check_integer, check_type
from bpsearch._core.jaxtools import in_64_bit, pytree, replace, to_numpy
from bpsearch.control_variates.modeled import Arguments, ModeledState
from bpsearch.control_variates.tabular_model import TabularModel
from bpsearch.errors import BiasedEstimatorError
from bpsearch.estimators.base import Estimator
from bpsearch.estimators.importance import importance_sampling
from bpsearch.estimators.score_weights import score_weights
from bpsearch.policies.base import Policy
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search.base import Info
from bpsearch.search.compiled import CompiledSearch
from bpsearch.search.step_size import StepSize


@pytree()
@dataclass(frozen=True, eq=False)
class BPGState:
    """What behavior policy gradient carries from batch to batch.

    Attributes:
        objective: the evaluation policy and what the estimator's model has learned.
        parameters: θ_i, the flat parameters of the behavior policy.
        baseline: b_i, from the previous batch.
        center: the mean value of all batches so far.
        best_second_moment: the lowest E[X²] that any batch has shown.
        best_parameters: the θ of that batch.
        waiting: for how many batches no lower one has been seen.
        stopped: whether early stopping has ended the search.
    """

    objective: ModeledState
    parameters: Array
    baseline: Scalar
    center: Scalar
    best_second_moment: Scalar
    best_parameters: Array
    waiting: Scalar
    stopped: Flag


@dataclass(frozen=True)
class BPG(CompiledSearch[BPGState], numbers=("step_size", "model")):
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
        self.check()
        if not isinstance(self.step_size, StepSize):
            object.__setattr__(self, "step_size", StepSize(self.step_size))
        if self.patience is not None:
            check_integer("patience", self.patience)
        if not self.estimator.unbiased:
            raise BiasedEstimatorError(f"{self.estimator.name} is biased: lowering its variance may raise its error")

    @property
    def _step_size(self) -> StepSize:
        step_size: StepSize = self.step_size  # type: ignore[assignment]
        return step_size

    @in_64_bit
    def init(self, policy: Policy, discount: float = 1.0) -> BPGState:
        """Before the first batch: θ_0 = θ_e."""
        check_type("policy", policy, Policy, "a policy of bpsearch").check_searchable()
        parameters = to_numpy(policy.flat)
        return BPGState(
            objective=self.objective.init(policy, discount),
            parameters=parameters,
            baseline=np.float64(0.0),
            center=np.float64(0.0),
            best_second_moment=np.float64(np.inf),
            best_parameters=parameters,
            waiting=np.int64(0),
            stopped=np.bool_(False),
        )

    def update(self, state: BPGState, batch: Trajectories) -> tuple[BPGState, Info]:
        """One iteration of Algorithm 1 (lines 4 to 6)."""
        objective, arguments = self.objective.absorb(state.objective, batch)
        values, centred, mean_weight = _weigh(self, state, arguments)
        score = self.behavior(state).score(batch.observations, batch.actions, centred)
        moved, second_moment, gradient_norm, step_size = _move(self, state, values, score)
        center = state.center
        if self.center:
            center = center + (jnp.mean(values) - center) / (state.objective.batches + 1)
        baseline = mean_weight if self.baseline else state.baseline
        info = Info(values, second_moment, gradient_norm, step_size, explained=jnp.full((), jnp.nan))
        return replace(moved, objective=objective, baseline=baseline, center=center), info


@jax.jit
def _weigh(search: BPG, state: BPGState, arguments: Arguments) -> tuple[Array, Array, Array]:
    """The values X_n, the score weights c_nt − b_i, and the mean score weight."""
    weigh = partial(score_weights, search.estimator, center=state.center)
    values, weights = weigh(*arguments)
    mask = arguments[2]
    mean_weight = jnp.mean(weights.sum(axis=1) / mask.sum(axis=1))
    return values, jnp.where(mask, weights - state.baseline, 0.0), mean_weight


@jax.jit
def _move(search: BPG, state: BPGState, values: Array, score: Array) -> tuple[BPGState, Array, Array, Array]:
    """Step against the gradient, or stop; returns also the mean X², the gradient's norm and α_i."""
    gradient = score / values.shape[0]
    second_moment = jnp.mean((values - state.center) ** 2)
    # Without a batch before it there is nothing to center the first one by.
    warm_up = jnp.maximum(search.objective.warm_up, int(search.center))
    searching = (state.objective.batches >= warm_up) & ~state.stopped
    improved = searching & (second_moment < state.best_second_moment)
    waiting = jnp.where(improved, 0, state.waiting + searching)
    best = jnp.where(improved, state.parameters, state.best_parameters)
    stopped = state.stopped
    if search.patience is not None:
        stopped = stopped | (waiting >= search.patience)
    step_size = jnp.where(searching & ~stopped, search._step_size.at(state.objective.batches, second_moment), 0.0)
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
