"""Lemma 1: the behavior policy gradient of any unbiased estimator, derived instead of written."""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from bpsearch._core.arrays import Array, Scalar
from bpsearch._core.jaxtools import at_the_edge, in_64_bit
from bpsearch.errors import BiasedEstimatorError
from bpsearch.estimators.base import Estimator


@in_64_bit
def score_weights(
    estimator: Estimator,
    rewards: Float[Array, "episodes steps"],
    log_ratios: Float[Array, "episodes steps"],
    mask: Bool[Array, "episodes steps"],
    discount: Scalar | float,
    q_hat: Float[Array, "episodes steps"] | None = None,
    v_hat: Float[Array, "episodes steps+1"] | None = None,
    *,
    center: Scalar | float = 0.0,
) -> tuple[Float[Array, " episodes"], Float[Array, "episodes steps"]]:
    """Values X_n and score weights c_nt of a batch, such that ∇MSE = E[Σ_t c_t ∇log π_θ(A_t|S_t)].

    Lemma 1: ∇MSE[X] = E[X² Σ_t ∇log π_θ(A_t|S_t) + ∇X²]. The estimator depends on θ only through the log-ratios
    ℓ_t = log π_e − log π_θ, whence c_t = X² − ∂X²/∂ℓ_t, one reverse pass through the estimator. For importance
    sampling it gives Theorem 1, c_t = −IS²; for the doubly robust estimator Corollary 1.

    The mean of X does not depend on θ, so X may be replaced by X − b with any b that does not depend on the batch: the
    expectation stays, and per-decision and doubly robust gradients become far quieter where the mean is large.

    Args:
        estimator: an unbiased estimator whose value for an episode depends on that episode only.
        rewards: (N, T).
        log_ratios: (N, T).
        mask: (N, T).
        discount: γ.
        q_hat: (N, T), for an estimator with a model.
        v_hat: (N, T + 1), for an estimator with a model.
        center: b.

    Returns:
        (N,) and (N, T); weights of padding are 0.
    """
    if not estimator.unbiased:
        raise BiasedEstimatorError(
            f"{estimator.name} is biased: the gradient of its variance (Lemma 1) is not that of its mean squared error"
        )
    model = (q_hat, v_hat) if estimator.needs_model else ()
    values, pullback = jax.vjp(
        lambda ratios: estimator(rewards, ratios, mask, discount, *model), jnp.asarray(log_ratios)
    )
    centred = values - center
    (gradient_of_squares,) = pullback(2.0 * centred)
    return at_the_edge((values, jnp.where(mask, (centred**2)[:, None] - gradient_of_squares, 0.0)))
