"""Which step size a search shall have, and which of its trials have diverged: computed from batches, not looked at."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch.paper.runs import Arrays

WINDOW = 20  # iterations over which a trial's batches are judged together
LIMIT = 4.0  # times Monte Carlo's variance: a chi-squared mean of 20 batches exceeds it with probability 1e-8
MARGIN = 3.5  # between a chosen step and the smallest one that diverged


@dataclass(frozen=True)
class Reference:
    """What on-policy roll-outs say of an evaluation policy.

    Attributes:
        value: the mean return.
        std_error: of the value.
        variance: of one episode's return.
        episodes: how many were run.
    """

    value: float
    std_error: float
    variance: float
    episodes: int

    @staticmethod
    def of(arrays: Arrays, batch_size: int) -> "Reference":
        """From the means and variances of on-policy batches."""
        means, episodes = arrays["means"], arrays["means"].size * batch_size
        variance = float((arrays["variances"].mean() + means.var()) * episodes / (episodes - 1))
        return Reference(float(means.mean()), float(np.sqrt(variance / episodes)), variance, episodes)


def relative_errors(means: NumpyArray, reference: Reference, batch_size: int) -> NumpyArray:
    """Per batch of k episodes k (X̄ − ρ)² / Var[g]: the search's variance relative to Monte Carlo's, on average.

    Unlike a batch's own variance it cannot be fooled by a behavior so far off that all weights of a batch vanish: such
    a batch has the mean 0 and the variance 0.
    """
    with np.errstate(over="ignore"):
        return batch_size * (means - reference.value) ** 2 / reference.variance


def find_diverged(arrays: Arrays, reference: Reference, batch_size: int) -> NumpyArray:
    """(trials,), whether a trial has diverged.

    It has if a batch is not finite, or if over any `WINDOW` iterations in a row the squared errors of the batch means
    or the variances within batches are on average more than `LIMIT` times what Monte Carlo's are.
    """
    errors = relative_errors(arrays["means"], reference, batch_size)
    variances = arrays["variances"] / reference.variance
    gone = np.asarray(~np.isfinite(arrays["means"]).all(axis=1) | ~np.isfinite(arrays["variances"]).all(axis=1))
    window = min(WINDOW, errors.shape[1])
    for values in (errors, variances):
        averages = np.lib.stride_tricks.sliding_window_view(values, window, axis=1).mean(axis=-1)
        gone |= ~(averages <= LIMIT).all(axis=1)
    return gone


def choose_step(sweep: Mapping[float, Arrays], reference: Reference, batch_size: int) -> float:
    """The step size with the lowest mean variance within the last `WINDOW` batches, of those that are safe.

    Safe is a step if no trial diverged with it, with any smaller one, or with one up to `MARGIN` times as large: a few
    short trials pass where one of many long ones would not. If none is safe the smallest is taken, and the trials tell
    what becomes of it.
    """
    wild = [step for step, arrays in sweep.items() if find_diverged(arrays, reference, batch_size).any()]
    safe = [step for step in sweep if step * MARGIN < min(wild, default=np.inf)]
    if not safe:
        return min(sweep)
    return min(safe, key=lambda step: float(sweep[step]["variances"][:, -WINDOW:].mean()))
