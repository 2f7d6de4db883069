"""From batch means to curves of squared errors."""

import numpy as np

from bpsearch.trajectories import Array


def checkpoints(iterations: int, points: int = 30) -> Array:
    """Indices of iterations, the first and the last among them, spread evenly on a log axis."""
    spread = np.geomspace(1, iterations, min(points, iterations))
    return np.unique(np.round(spread).astype(int)) - 1


def running_squared_errors(means: Array, truth: float) -> Array:
    """(trials, iterations), the squared error of the mean over all batches so far."""
    return (np.cumsum(means, axis=1) / np.arange(1, means.shape[1] + 1) - truth) ** 2
