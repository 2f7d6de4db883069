"""The default search: behavior policy search whose step never needs tuning."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from bpsearch._core.arrays import Array, Flag, Scalar
from bpsearch._core.checks import check_real, check_type
from bpsearch._core.jaxtools import in_64_bit, in_turn, pytree, replace, to_numpy
from bpsearch.control_variates.modeled import Arguments, ModeledState
from bpsearch.control_variates.scores import check_size
from bpsearch.control_variates.tabular_model import TabularModel
from bpsearch.errors import BiasedEstimatorError
from bpsearch.estimators.base import Estimator, log_ratios
from bpsearch.estimators.importance import importance_sampling
from bpsearch.policies.base import Policy
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search.base import Info
from bpsearch.search.compiled import CompiledSearch

# What no episode seen so far may exceed under the next behavior: a large weight harms more than a small one.
LARGEST_LOG_WEIGHT, SMALLEST_LOG_WEIGHT = 0.2, -1.0
SMALLEST_EFFECTIVE_SHARE = 0.8  # of the effective sample size that is predicted for the next behavior
CANDIDATES = (1.0, 10.0, 100.0, 1000.0)  # strengths of the prior "this parameter explains nothing", in episodes
LARGEST_RATIO = 0.97  # predicted variance relative to Monte Carlo's; above it there is nothing to gain
MEMORY = 0.95  # weight of a batch's held-out errors against the next batch's
FIRST_WEIGHT = 0.6  # of an episode of the first batch, relative to later ones


@pytree()
@dataclass(frozen=True, eq=False)
class AdaptiveState:
    """What the search carries from batch to batch; sums run over all episodes so far, weighted to π_e.

    Attributes:
        objective: the evaluation policy and what the estimator's model has learned.
        parameters: θ_i, the flat parameters of the behavior policy.
        shift: b_i of the next batch; 0 where the behavior is the evaluation policy.
        moved: whether the next batch has another behavior than the evaluation policy.
        ratio: the variance expected of the proposed step, relative to Monte Carlo's.
        weight: Σ w.
        value: Σ w Y, with Y the value of an episode without its importance weights.
        products: (P, P), Σ w Z Zᵀ, with the scores Z = Σ_t ∇log π_e(A_t|S_t).
        correlation: (P,), Σ w Z Y.
        mean_score: (P,), Σ w Z.
        prior: (P, P), what the ridge shrinks by: Σ w Σ_t Cov_{a~π_e} ∇log π_e(a|S_t) where the policy tells it, else
            the diagonal of the products.
        largest: (2, C), the largest vᵀZ and −vᵀZ of any episode, for each candidate of v.
        held_out: (5, C), fading sums of 1, D², DŶ, Ŷ² and D²Ŷ², with D = Y − Ȳ and predictions Ŷ of left-out episodes.
        third_moment: Σ w (Y − Ȳ)³: on which side the long tail of the values lies.
        observed: (2,), fading sums of squares of the values of searched batches: as they came, and as Monte Carlo's.
        trust: in (0, 1], how much of the proposed step is taken.
    """

    objective: ModeledState
    parameters: Array
    shift: Scalar
    moved: Flag
    ratio: Scalar
    weight: Scalar
    value: Scalar
    products: Array
    correlation: Array
    mean_score: Array
    prior: Array
    largest: Array
    held_out: Array
    third_moment: Scalar
    observed: Array
    trust: Scalar


@dataclass(frozen=True)
class AdaptiveBPG(CompiledSearch[AdaptiveState], numbers=("model",)):
    """Gauss-Newton steps on the variance of the shifted estimator, in a trust region, gated by held-out episodes.

    Values are X_b = X + b (1 − w), w = ρ_{0:L}; for importance sampling that is b + w (g − b). Since E[w] = 1 they
    are unbiased for every b and θ that are fixed before the batch, and without weights (θ = θ_e) they are Monte
    Carlo's. To first order in δ = θ − θ_e the variance is that of

        Y + (b − ρ) δᵀZ,    Z = Σ_t ∇log π_e(A_t|S_t),

    a quadratic whose minimum v = (b − ρ) δ = −E[ZZᵀ]⁻¹ E[ZY] does not depend on b, nor on the unit of the rewards.
    So the search estimates v from all earlier episodes by ridge regression, and takes a step δ = s v / (b − ρ):

    - b is chosen so far from ρ that no episode seen so far would have a log-weight outside of
      [`SMALLEST_LOG_WEIGHT`, `LARGEST_LOG_WEIGHT`], which bounds the divergence from π_e and the distance between
      successive behaviors; the step is shortened, or refused, if the log-weights that the candidate gives to the last
      batch, or their effective sample size, say otherwise. b lies opposite to the long tail of the values: what makes
      the variance is then sampled more often, never less.
    - the ridge is chosen, and s in [0, 1] is fitted, by predictions of left-out episodes. With nothing to gain the
      behavior stays the evaluation policy.
    - s is halved whenever the values of later batches vary more than Monte Carlo's would have, and recovers slowly.

    Attributes:
        estimator: an unbiased off-policy estimator.
        model: for estimators with a control variate; learned predictably, or fixed.
        caution: how many standard errors are taken off what the predictions of left-out episodes seem to explain, so
            that luck does not count as gain.
        defensive: α of the defensive mixture (`Mixture`) that collects the episodes in place of π_θ; 0 is π_θ alone.
    """

    estimator: Estimator = importance_sampling
    model: TabularModel | None = None
    caution: float = 0.5
    defensive: float = 0.0

    def __post_init__(self) -> None:
        self.check()
        check_real("caution", self.caution, low=0.0)
        if not self.estimator.unbiased or self.objective.revalues:
            raise BiasedEstimatorError(
                f"{self.estimator.name} with this model is biased: lowering its variance may raise its error"
            )

    @in_64_bit
    def init(self, policy: Policy, discount: float = 1.0) -> AdaptiveState:
        """Before the first batch: θ_0 = θ_e."""
        check_type("policy", policy, Policy, "a policy of bpsearch").check_searchable()
        parameters = to_numpy(policy.flat)
        size = check_size(policy)
        zero, vector, candidates = np.float64(0.0), np.zeros(size), len(CANDIDATES)
        return AdaptiveState(
            objective=self.objective.init(policy, discount),
            parameters=parameters,
            shift=zero,
            moved=np.bool_(False),
            ratio=np.float64(1.0),
            weight=zero,
            value=zero,
            products=np.zeros((size, size)),
            correlation=vector,
            mean_score=vector,
            prior=np.zeros((size, size)),
            largest=np.zeros((2, candidates)),
            held_out=np.zeros((5, candidates)),
            third_moment=zero,
            observed=np.zeros(2),
            trust=np.float64(1.0),
        )

    def shift(self, state: AdaptiveState) -> float:
        """b_i."""
        return float(state.shift)

    def weight(self, state: AdaptiveState) -> float:
        """Less in the first batch, `FIRST_WEIGHT`.

        Where the search helps, later batches are worth far more than the first, which the policy itself runs. Where it
        does not, K batches of one size lose (ω² + K − 1) K / (ω + K − 1)² − 1 of the variance: 1.6% for K = 10.
        """
        return 1.0 if state.objective.batches else FIRST_WEIGHT

    def update(self, state: AdaptiveState, batch: Trajectories) -> tuple[AdaptiveState, Info]:
        """Value the batch with the b_i that was fixed before it, then choose b_{i+1} and θ_{i+1}."""
        objective, arguments = self.objective.absorb(state.objective, batch)
        evaluation = objective.evaluation
        scores = evaluation.episode_scores(batch.observations, batch.actions, batch.mask)
        values, weights, plain = _value(self, state.shift, arguments)
        visits = evaluation.visits(batch.observations, batch.mask)
        spread = None if visits is None else evaluation.score_covariance(weights @ visits)
        # Without the policy: what is compiled for one serves every other of its size, torch modules too.
        bare = replace(state, objective=None)
        learned, step, shift = _propose(self, bare, values, weights, plain, scores, spread)
        theta = jnp.asarray(evaluation.flat)
        candidate = evaluation.with_flat((theta + step).astype(theta.dtype))
        proposed = arguments[1] - log_ratios(candidate, batch)  # log π_e − log π of the candidate
        moved, norms = _limit(learned, weights, proposed.sum(axis=-1), theta, step, shift)
        return replace(moved, objective=objective), Info(
            values, jnp.mean(values**2), gradient_norm=norms[0], step_size=norms[1], explained=1.0 - moved.ratio
        )


@jax.jit
def _value(search: AdaptiveBPG, shift: Scalar, arguments: Arguments) -> tuple[Array, Array, Array]:
    """(N,): the shifted values X + b (1 − w), the weights w, and the values Y without weights."""
    rewards, ratios, *rest = arguments
    weights = jnp.exp(ratios.sum(axis=-1))
    values = search.estimator.function(rewards, ratios, *rest) + shift * (1.0 - weights)
    return values, weights, search.estimator.function(rewards, jnp.zeros_like(ratios), *rest)


@in_turn
@jax.jit
def _propose(
    search: AdaptiveBPG,
    state: AdaptiveState,
    values: Array,
    weights: Array,
    plain: Array,
    scores: Array,
    spread: Array | None,
) -> tuple[AdaptiveState, Array, Array]:
    """Take the batch into the sums; propose δ, 0 where nothing can be gained, and b."""
    state, deviation = _add(search, state, weights, plain, scores, spread)
    fits, left_out = _fits(state, weights, deviation, scores)
    state = replace(state, held_out=MEMORY * state.held_out + _held_out_sums(weights, deviation, left_out))
    shares, ratios = _gains(state, fits, search.caution, known_spread=spread is not None)
    best = jnp.argmin(ratios)

    squares = jnp.stack([jnp.sum((values - values.mean()) ** 2), weights @ deviation**2])
    observed = MEMORY * state.observed + jnp.where(state.moved, squares, 0.0)
    grew = state.moved & (observed[0] > observed[1])
    trust = jnp.where(grew, state.trust / 2.0, jnp.minimum(1.0, 1.2 * state.trust))
    predictions = fits @ scores.T
    largest = jnp.maximum(state.largest, jnp.stack([predictions.max(axis=1), -predictions.min(axis=1)]))

    taken = shares[best] * trust
    variances = jnp.stack([fits[best] @ matrix @ fits[best] for matrix in (state.products, state.prior)]) / state.weight
    above = state.third_moment <= 0.0  # b lies opposite to the long tail
    up, down = jnp.where(above, largest[:, best], largest[::-1, best])
    typical = 4.0 * jnp.sqrt(variances.max())
    distance = taken * jnp.maximum(jnp.maximum(up, typical) / LARGEST_LOG_WEIGHT, down / -SMALLEST_LOG_WEIGHT)
    moves = (ratios[best] <= LARGEST_RATIO) & (distance > 0.0)
    mean = state.value / state.weight
    if search.estimator is not importance_sampling:
        # Estimators that weigh rewards one by one follow the first-order form only if b is far from 0, too.
        distance = jnp.maximum(distance, 10.0 * jnp.abs(mean))
    signed = jnp.where(above, distance, -distance)
    step = jnp.where(moves, -taken * fits[best] / jnp.where(moves, signed, 1.0), 0.0)
    state = replace(state, ratio=ratios[best], observed=observed, trust=trust, largest=largest)
    return state, step, jnp.where(moves, mean + signed, 0.0)


def _add(
    search: AdaptiveBPG, state: AdaptiveState, weights: Array, plain: Array, scores: Array, spread: Array | None
) -> tuple[AdaptiveState, Array]:
    """The sums with the batch, and the batch's deviations Y − Ȳ."""
    # A new model gives the episodes other values Y: what was learned of the old ones fades.
    keep = 0.5 if search.model is not None else 1.0
    weighted = scores * weights[:, None]
    spread = jnp.diag(jnp.sum(weighted * scores, axis=0)) if spread is None else spread
    weight = keep * state.weight + weights.sum()
    value = keep * state.value + weights @ plain
    deviation = plain - value / weight
    return replace(
        state,
        weight=weight,
        value=value,
        products=keep * state.products + weighted.T @ scores,
        correlation=keep * state.correlation + weighted.T @ plain,
        mean_score=keep * state.mean_score + weighted.sum(axis=0),
        prior=keep * state.prior + spread,
        third_moment=keep * state.third_moment + weights @ deviation**3,
    ), deviation


def _fits(state: AdaptiveState, weights: Array, deviation: Array, scores: Array) -> tuple[Array, Array]:
    """(C, P), the coefficients E[ZZᵀ]⁻¹ E[ZY] of each ridge; (C, N), their predictions of each left-out episode."""
    size = scores.shape[1]
    target = state.correlation - state.value / state.weight * state.mean_score
    # Directions without any score (a constant added to all logits of a state) would leave the systems singular.
    nothing = (1e-9 * jnp.trace(state.prior) / size + 1e-30) * jnp.eye(size)

    def fit(strength: Array) -> tuple[Array, Array]:
        factor = jax.scipy.linalg.cho_factor(state.products + strength / state.weight * state.prior + nothing)
        coefficients = jax.scipy.linalg.cho_solve(factor, target)
        leverage = weights * jnp.sum(scores.T * jax.scipy.linalg.cho_solve(factor, scores.T), axis=0)
        residual = (deviation - scores @ coefficients) / jnp.maximum(1.0 - leverage, 1e-3)
        return coefficients, deviation - residual

    fits: tuple[Array, Array] = jax.vmap(fit)(jnp.asarray(CANDIDATES))
    return fits


def _held_out_sums(weights: Array, deviation: Array, left_out: Array) -> Array:
    """(5, C), see `AdaptiveState.held_out`."""
    same = jnp.ones(len(CANDIDATES))
    return jnp.stack(
        [
            same * weights.sum(),
            same * (weights @ deviation**2),
            left_out @ (weights * deviation),
            left_out**2 @ weights,
            left_out**2 @ (weights * deviation) ** 2,
        ]
    )


def _gains(state: AdaptiveState, fits: Array, caution: float, *, known_spread: bool) -> tuple[Array, Array]:
    """(C,), the share s of each candidate that predicts best, and the variance then relative to Monte Carlo's."""
    episodes, total, covered, predicted, noise = state.held_out
    covered = covered - caution * jnp.sqrt(noise)
    if known_spread:
        # Visited states know the variance of actions that no episode has shown yet.
        unseen = jnp.einsum("cp,pq,cq->c", fits, state.prior - state.products, fits) / state.weight
        predicted = predicted + episodes * jnp.maximum(unseen, 0.0)
    shares = jnp.clip(covered / jnp.maximum(predicted, 1e-300), 0.0, 1.0)
    gained = 2.0 * shares * covered - shares**2 * predicted
    return shares, jnp.where(total > 0.0, 1.0 - gained / jnp.maximum(total, 1e-300), 1.0)


@jax.jit
def _limit(
    state: AdaptiveState, weights: Array, log_weights: Array, theta: Array, step: Array, shift: Array
) -> tuple[AdaptiveState, tuple[Array, Array]]:
    """Shorten the step to the trust region that the candidate's own log-weights of the batch tell, or refuse it."""
    beyond = jnp.maximum(log_weights.max() / LARGEST_LOG_WEIGHT, log_weights.min() / SMALLEST_LOG_WEIGHT)
    # Under the candidate E[w²] = E_π[w], which the batch tells by its own weights.
    effective = weights.sum() / jnp.sum(weights * jnp.exp(log_weights))
    mean = state.value / state.weight
    moves = jnp.any(step != 0.0) & jnp.isfinite(beyond) & (effective >= SMALLEST_EFFECTIVE_SHARE)
    shorter = jnp.minimum(1.0, 2.0 / jnp.maximum(beyond, 1e-300))
    delta = jnp.where(moves, shorter * step, 0.0)
    moved = replace(
        state,
        parameters=(theta + delta).astype(theta.dtype),
        shift=jnp.where(moves, mean + (shift - mean) / shorter, 0.0),
        moved=moves,
    )
    gradient = (state.correlation - mean * state.mean_score) / state.weight
    return moved, (jnp.linalg.norm(gradient), jnp.linalg.norm(delta))
