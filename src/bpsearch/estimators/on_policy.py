"""Estimators for episodes of the evaluation policy itself (sections 2.2 and 2.3 of the paper)."""

from jaxtyping import Bool, Float

from bpsearch._core.arrays import Array, Scalar
from bpsearch.estimators.base import discounts, estimator


@estimator(on_policy=True)
def monte_carlo(
    rewards: Float[Array, "episodes steps"],
    log_ratios: Float[Array, "episodes steps"],
    mask: Bool[Array, "episodes steps"],
    discount: Scalar | float,
) -> Float[Array, " episodes"]:
    """MC = g(H) = Σ_t γ^t R_t."""
    return (rewards * discounts(discount, rewards)).sum(axis=-1)


@estimator(on_policy=True)
def advantage_sum(
    rewards: Float[Array, "episodes steps"],
    log_ratios: Float[Array, "episodes steps"],
    mask: Bool[Array, "episodes steps"],
    discount: Scalar | float,
    q_hat: Float[Array, "episodes steps"],
    v_hat: Float[Array, "episodes steps+1"],
) -> Float[Array, " episodes"]:
    """AS = Σ_t γ^t (R_t − q̂(S_t, A_t) + v̂(S_t)): the return without the luck that the model can explain."""
    return ((rewards - q_hat + v_hat[..., :-1]) * discounts(discount, rewards)).sum(axis=-1)
