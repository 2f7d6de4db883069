"""The doubly robust estimator (section 4.1 of the paper, corrected)."""

import jax.numpy as jnp
from jaxtyping import Bool, Float

from bpsearch._core.arrays import Array, Scalar
from bpsearch.estimators.base import discounts, estimator


@estimator
def doubly_robust(
    rewards: Float[Array, "episodes steps"],
    log_ratios: Float[Array, "episodes steps"],
    mask: Bool[Array, "episodes steps"],
    discount: Scalar | float,
    q_hat: Float[Array, "episodes steps"],
    v_hat: Float[Array, "episodes steps+1"],
) -> Float[Array, " episodes"]:
    """DR = v̂(S_0) + Σ_t γ^t ρ_{0:t} (R_t − q̂(S_t, A_t) + γ v̂(S_{t+1})).

    The paper's main text prints no γ^t, and both its main text and its appendix lack the γ before v̂(S_{t+1}), without
    which the estimator is biased for γ < 1. v̂ is 0 after a terminal state and after the horizon.
    """
    rho_0t = jnp.exp(jnp.cumsum(log_ratios, axis=-1))
    delta_t = rewards - q_hat + discount * v_hat[..., 1:]
    return v_hat[..., 0] + (rho_0t * delta_t * discounts(discount, rewards)).sum(axis=-1)
