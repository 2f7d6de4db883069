"""Estimators: pure functions from a batch of episodes to one value per episode."""

from bpsearch.estimators.base import Estimator, estimator, log_ratios
from bpsearch.estimators.doubly_robust import doubly_robust
from bpsearch.estimators.importance import importance_sampling, per_decision, weighted_importance_sampling
from bpsearch.estimators.on_policy import advantage_sum, monte_carlo
from bpsearch.estimators.score_weights import score_weights

__all__ = [
    "Estimator",
    "advantage_sum",
    "doubly_robust",
    "estimator",
    "importance_sampling",
    "log_ratios",
    "monte_carlo",
    "per_decision",
    "score_weights",
    "weighted_importance_sampling",
]
