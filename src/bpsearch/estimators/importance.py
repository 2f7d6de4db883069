"""Importance sampling in its trajectory, per-decision and weighted forms (section 2.4 of the paper)."""

import jax.numpy as jnp
from jaxtyping import Bool, Float

from bpsearch._core.arrays import Array, Scalar
from bpsearch.estimators.base import discounts, estimator


@estimator
def importance_sampling(
    rewards: Float[Array, "episodes steps"],
    log_ratios: Float[Array, "episodes steps"],
    mask: Bool[Array, "episodes steps"],
    discount: Scalar | float,
) -> Float[Array, " episodes"]:
    """IS = ρ_{0:L} g(H), with ρ_{0:t} = Π_{i≤t} π_e(A_i|S_i) / π_θ(A_i|S_i).

    The paper prints π(S_t|A_t) for π(A_t|S_t).
    """
    return jnp.exp(log_ratios.sum(axis=-1)) * (rewards * discounts(discount, rewards)).sum(axis=-1)


@estimator
def per_decision(
    rewards: Float[Array, "episodes steps"],
    log_ratios: Float[Array, "episodes steps"],
    mask: Bool[Array, "episodes steps"],
    discount: Scalar | float,
) -> Float[Array, " episodes"]:
    """PDIS = Σ_t γ^t ρ_{0:t} R_t: a reward is weighted only by the decisions that came before it."""
    rho_0t = jnp.exp(jnp.cumsum(log_ratios, axis=-1))
    return (rho_0t * rewards * discounts(discount, rewards)).sum(axis=-1)


@estimator(unbiased=False)
def weighted_importance_sampling(
    rewards: Float[Array, "episodes steps"],
    log_ratios: Float[Array, "episodes steps"],
    mask: Bool[Array, "episodes steps"],
    discount: Scalar | float,
) -> Float[Array, " episodes"]:
    """WIS: the mean of the values is Σ_n w_n g_n / Σ_n w_n. Biased at O(1/N), consistent.

    The weights are normalised in log space over the first axis, the episodes: one value depends on the whole batch.
    """
    log_weights = log_ratios.sum(axis=-1)
    weights = jnp.exp(log_weights - log_weights.max(axis=0))
    returns = (rewards * discounts(discount, rewards)).sum(axis=-1)
    return weights.shape[0] * weights * returns / weights.sum(axis=0)
