"""Estimators for episodes of the evaluation policy itself (sections 2.2 and 2.3 of the paper)."""

from bpsearch.estimators.base import discounts, estimator
from bpsearch.trajectories import Array


@estimator(on_policy=True)
def monte_carlo(rewards: Array, log_ratios: Array, mask: Array, discount: Array) -> Array:
    """MC = g(H) = Σ_t γ^t R_t."""
    return (rewards * discounts(discount, rewards)).sum(axis=-1)


@estimator(on_policy=True)
def advantage_sum(rewards: Array, log_ratios: Array, mask: Array, discount: Array, q_hat: Array, v_hat: Array) -> Array:
    """AS = Σ_t γ^t (R_t − q̂(S_t, A_t) + v̂(S_t)): the return without the luck that the model can explain."""
    return ((rewards - q_hat + v_hat[..., :-1]) * discounts(discount, rewards)).sum(axis=-1)
