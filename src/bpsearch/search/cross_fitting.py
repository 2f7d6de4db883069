"""Control variates of on-policy episodes, cross-fitted: exactly unbiased, whatever is learned from the other episodes.

Under π_e the scores Z = Σ_t ∇log π_e(A_t|S_t) have mean 0, and so has every sum C = Σ_t γ^t (q̂_t(S_t, A_t) − v̂_t(S_t))
with v̂_t(s) = Σ_a π_e(a|s) q̂_t(s, a). So E[Y − vᵀZ − c C] = E[Y] for all v, c and q̂ that do not depend on the episode.
The episodes are dealt into K folds; what is subtracted from those of a fold is learned, *and chosen*, from the other
folds only. Episodes of the evaluation policy are independent, hence the values are unbiased for every K ≥ 3.

This is NumPy, not JAX: it runs once per estimate, on systems of the size of the parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import scipy.linalg

from bpsearch.errors import InvalidArgumentError
from bpsearch.policies.base import Policy
from bpsearch.trajectories import Array

MAX_PARAMETERS = 2000
FOLDS = 5
STRENGTHS = (0.003, 0.03, 0.3, 3.0)  # of the ridge, relative to what the episodes themselves tell
CAUTION = 0.5  # standard errors that are taken off what a candidate seems to explain
DOUBT = (2.0, 1.0)  # standard errors that it must explain to be used at all: a fit of the scores, the model's control

Control = Callable[[Array], Array]


def check_size(policy: Policy) -> int:
    """The number of parameters of a policy for which a system of that size is to be solved."""
    size = len(policy.flat)
    if size > MAX_PARAMETERS:
        raise InvalidArgumentError(
            f"at most {MAX_PARAMETERS} parameters can be learned at once, got {size}; adapt the last layer only "
            f"(adapt=...), or use BPG with a step size of your own"
        )
    return size


@dataclass(frozen=True, eq=False)
class CrossFit:
    """Cross-fitted values.

    Attributes:
        values: (N,), Y − vᵀZ − c C, each with what the other folds say.
        explained: the share of the variance of left-out episodes that the choice removed, the mean over folds.
        coefficients: (K, P), v of each fold.
        shares: (K,), c of each fold.
        variance: what the variance of a value should be at least, by the policy's own probabilities; 0 if unknown.
    """

    values: Array
    explained: float
    coefficients: Array
    shares: Array
    variance: float = 0.0

    @classmethod
    def nothing(cls, returns: Array) -> "CrossFit":
        """Monte Carlo's."""
        return cls(np.asarray(returns, dtype=np.float64), 0.0, np.zeros((FOLDS, 0)), np.zeros(FOLDS))


def cross_fit(returns: Array, scores: Array, spread: Array | None = None, control: Control | None = None) -> CrossFit:
    """Value N independent episodes of the evaluation policy; episode i is in fold i mod K.

    Args:
        returns: (N,), Y.
        scores: (N, P), Z.
        spread: (K, P, P), Σ Σ_t Cov_{a~π_e} ∇log π_e(a|S_t) over the episodes of each fold, where the policy tells it:
            visited states know the variance of actions that no episode has shown.
        control: of a tabular model: from the folds that it may learn from, (C, K) bool, to C of all episodes, (C, N).
    """
    folds = np.arange(len(returns)) % FOLDS
    members = [np.flatnonzero(folds == fold) for fold in range(FOLDS)]
    parts = [_Sums.of(returns[m], scores[m], None if spread is None else spread[k]) for k, m in enumerate(members)]

    apart: list[tuple[int, ...]] = [*((fold,) for fold in range(FOLDS)), *combinations(range(FOLDS), 2)]
    kept = np.array([[fold not in left_out for fold in range(FOLDS)] for left_out in apart])
    controls = [()] * len(apart) if control is None else control(kept)[:, None]

    def learn(*left_out: int) -> tuple[float, Array, Array]:
        """Without these folds: the mean of Y, the fits, and the candidates' C of all episodes, (C, N)."""
        others = (part for fold, part in enumerate(parts) if fold not in left_out)
        mean, fits = sum(others, start=_Sums.zero()).fits()
        return mean, fits, np.vstack([fits @ scores.T, *controls[apart.index(left_out)]])

    doubts = np.repeat(DOUBT, (len(STRENGTHS), control is not None))
    judged: list[list[tuple[Array, Array]]] = [[] for _ in range(FOLDS)]
    for one, other in combinations(range(FOLDS), 2):
        mean, _, candidates = learn(one, other)
        # What is known without both judges the candidates for the one by the episodes of the other.
        for fold, judge in ((one, members[other]), (other, members[one])):
            judged[fold].append((returns[judge] - mean, candidates[:, judge]))
    values, explained = np.array(returns, dtype=np.float64), np.zeros(FOLDS)
    coefficients, shares = np.zeros((FOLDS, scores.shape[1])), np.zeros(FOLDS)
    for fold, own in enumerate(members):
        deviations, candidates = (np.concatenate(part, axis=-1) for part in zip(*judged[fold], strict=True))
        weights, explained[fold] = _choose(deviations, candidates, doubts)
        if weights.any():
            _, fits, candidates = learn(fold)
            values[own] -= weights @ candidates[:, own]
            coefficients[fold], shares[fold] = weights[: len(fits)] @ fits, weights[len(fits) :].sum()
    return CrossFit(values, float(explained.mean()), coefficients, shares)


@dataclass(frozen=True, eq=False)
class _Sums:
    """Over some episodes: n, Σ Y, Σ Z, Σ Z Y, Σ Z Zᵀ, and the spread that the policy itself tells."""

    count: Array
    value: Array
    score: Array
    correlation: Array
    products: Array
    spread: Array

    @classmethod
    def zero(cls) -> "_Sums":
        return cls(*(np.zeros(()) for _ in range(6)))

    @classmethod
    def of(cls, y: Array, z: Array, spread: Array | None) -> "_Sums":
        products = z.T @ z
        told = np.diag(np.diag(products)) if spread is None else spread
        return cls(np.asarray(len(y)), y.sum(), z.sum(axis=0), z.T @ y, products, told)

    def __add__(self, other: "_Sums") -> "_Sums":
        return _Sums(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def fits(self) -> tuple[float, Array]:
        """The mean of Y, and (Σ Z Zᵀ + κ F)⁻¹ Σ Z (Y − Ȳ) for each strength κ, (C, P)."""
        mean = self.value / max(self.count, 1)
        target = self.correlation - mean * self.score
        # Directions without any score (a constant added to all logits of a state) would leave the systems singular.
        nothing = (1e-9 * np.trace(self.spread) / len(target) + 1e-30) * np.eye(len(target))
        systems = (self.products + strength * self.spread + nothing for strength in STRENGTHS)
        return float(mean), np.stack([scipy.linalg.solve(system, target, assume_a="pos") for system in systems])


def _choose(deviations: Array, candidates: Array, doubts: Array) -> tuple[Array, float]:
    """How much of each candidate to subtract, (C,), and the share of the variance of (n,) deviations that it removes.

    One candidate is taken, with a share in [0, 1], or none. What it seems to explain must be beyond doubt, and is
    reduced by a part of its own standard error, so that luck does not count as gain.
    """
    total = float(deviations @ deviations)
    covered, noise = candidates @ deviations, np.sqrt(candidates**2 @ deviations**2)
    careful = covered - CAUTION * noise
    squares = np.sum(candidates**2, axis=1)
    shares = np.clip(careful / np.maximum(squares, 1e-300), 0.0, 1.0)
    gains = np.where(covered > doubts * noise, 2.0 * shares * careful - shares**2 * squares, 0.0)
    best = int(np.argmax(gains))
    if total == 0.0 or gains[best] <= 0.0:
        return np.zeros(len(candidates)), 0.0
    return np.where(np.arange(len(candidates)) == best, shares, 0.0), float(gains[best] / total)
