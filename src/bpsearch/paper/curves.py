"""From what the trials kept to what a curve shows."""

import numpy as np

from bpsearch import oracle
from bpsearch._core.arrays import NumpyArray
from bpsearch.envs import TabularMDP
from bpsearch.policies import SoftmaxTable


def checkpoints(iterations: int, points: int = 30) -> NumpyArray:
    """Indices of iterations, the first and the last among them, spread evenly on a log axis."""
    spread = np.geomspace(1, iterations, min(points, iterations))
    return np.unique(np.round(spread).astype(int)) - 1


def running_squared_errors(means: NumpyArray, truth: float) -> NumpyArray:
    """(trials, iterations), the squared error of the mean over all batches so far."""
    return (np.cumsum(means, axis=1) / np.arange(1, means.shape[1] + 1) - truth) ** 2


def martingale_squared_errors(means: NumpyArray, truth: float) -> NumpyArray:
    """(trials,), Σ_i (X̄_i − ρ)² / n², from the means of all n batches.

    The errors of batches are martingale differences, so its expectation is the MSE of the mean over all batches; the
    noise of hundreds of batches is averaged out, where the squared error of one final estimate keeps it.
    """
    return np.asarray(np.sum((means - truth) ** 2, axis=1) / means.shape[1] ** 2)


def exact_variances(mdp: TabularMDP, policy: SoftmaxTable, thetas: NumpyArray) -> NumpyArray:
    """(N,), the exact variance of importance sampling with the behavior of each θ, (N, parameters)."""
    behaviors = np.array([policy.with_flat(theta).probabilities for theta in thetas])
    return oracle.variances(mdp, policy, behaviors)
