"""Confidence sequences: intervals that hold at all times at once, so that one may look and stop at will."""

import numpy as np

from bpsearch.checks import check_real
from bpsearch.trajectories import Array

# λ_k = LARGEST · 2^−k with the prior weights 1/((k + 1)(k + 2)), which sum to 1. The smallest serves a sum of squares
# of about 1e16.
LARGEST, COUNT = 0.75, 28


def lower_bounds(values: Array, delta: float, looks: Array) -> Array:
    """Lower bounds of the mean of `values` after as many values as `looks` says; with chance ≥ 1 − δ all hold at once.

    The values ξ_i ≥ 0 have, given those before them, the same mean μ ≤ 1; they need not be bounded, nor independent,
    nor equally distributed. With m_{i−1} in [0, 1] the mean of the earlier values, S_n = Σ ξ_i,
    V_n = Σ (ξ_i − m_{i−1})² and ψ(λ) = −log(1 − λ) − λ,

        L_n = max_k (S_n − (ψ(λ_k) V_n + log((k + 1)(k + 2)/δ)) / λ_k) / n.

    For each λ in (0, 1), exp(λ(S_n − nμ) − ψ(λ) V_n) is a supermartingale that starts at 1, because
    exp(λx − ψ(λ)x²) ≤ 1 + λx for x ≥ −1 (the empirical Bernstein argument). By Ville's inequality it ever exceeds
    (k + 1)(k + 2)/δ with a chance of at most δ/((k + 1)(k + 2)), and these sum to δ. The bounds are those of the
    best look so far.

    Args:
        values: (..., n), ξ.
        delta: δ in (0, 1).
        looks: (B,), increasing, in 1, ..., n.

    Returns:
        (..., B).
    """
    numbers = np.arange(1, values.shape[-1] + 1)
    sums = np.cumsum(values, axis=-1)
    means = np.clip((0.5 + sums - values) / numbers, 0.0, 1.0)
    squares = np.cumsum((values - means) ** 2, axis=-1)
    at = np.asarray(looks) - 1
    k = np.arange(COUNT, dtype=np.float64)
    rates = LARGEST * 0.5**k
    penalties = -np.log1p(-rates) - rates
    costs = np.log((k + 1.0) * (k + 2.0) / delta)
    candidates = (sums[..., at, None] - (penalties * squares[..., at, None] + costs) / rates).max(axis=-1)
    return np.maximum.accumulate(candidates / numbers[at], axis=-1)


def anytime_bounds(
    log_weights: Array, returns: Array, return_range: tuple[float, float], looks: Array, level: float = 0.95
) -> tuple[Array, Array]:
    """Bounds of ρ = E[w g] after each look; with chance ≥ `level` they hold at all looks at once.

    Episodes come from behaviors that were fixed before them, so E[w g] = ρ and E[w] = 1 for each. The lower bound is
    that of the mean of w (g − g_min)/(g_max − g_min), the upper bound that of w (g_max − g)/(g_max − g_min) seen from
    above, each with δ/2. Weights of any size are allowed; large ones make the bounds wide, not wrong. Where the two
    contradict each other, which has a chance of at most δ, nothing is claimed but the range.

    Args:
        log_weights: (..., n), log w = log ρ_{0:L}.
        returns: (..., n), g in the range.
        return_range: (g_min, g_max).
        looks: (B,), after how many episodes.
        level: 1 − δ.
    """
    low, high = return_range
    side = (1.0 - check_real("level", level, above=0.0, high=1.0 - 1e-12)) / 2.0
    shares = np.clip((returns - low) / (high - low), 0.0, 1.0)
    weights = np.exp(log_weights)
    lower = np.maximum(lower_bounds(weights * shares, side, looks), 0.0)
    upper = np.minimum(1.0 - lower_bounds(weights * (1.0 - shares), side, looks), 1.0)
    contradict = lower > upper
    lower, upper = np.where(contradict, 0.0, lower), np.where(contradict, 1.0, upper)
    return low + lower * (high - low), low + upper * (high - low)


def upper_bound_of_event(log_weights: Array, happened: Array, looks: Array, level: float = 0.95) -> Array:
    """(..., B), one-sided upper bounds of the probability of an event, which hold at all looks at once."""
    check_real("level", level, above=0.0, high=1.0 - 1e-12)
    missed = np.exp(log_weights) * (1.0 - happened)
    return np.clip(1.0 - lower_bounds(missed, 1.0 - level, looks), 0.0, 1.0)
