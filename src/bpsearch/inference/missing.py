"""Failures that a search has not found: what those that it has found tell of them.

A behavior that makes some failures likely may know nothing of the others. Those come by the share of episodes that the
policy itself runs, rarely, and with the largest weight that there is. Until one comes, what is seen are many failures
of tiny weights, and the variance of those says nothing of what is missing. But the weights tell: where a behavior has
learned how the policy fails, failures are worth many equally weighted ones. Where it only knows how to fail, the sum
of their weights is made by the largest few, and a tail that heavy has no end.

The values of a model vary little, and say nothing of what is missing, too, as long as no failure counts.

If so, the error gets what three episodes would add whose value is the largest possible (`unseen.PSEUDO_EPISODES`): as
for any event that no episode has shown.
"""

import numpy as np

from bpsearch._core.arrays import NumpyArray

FEW = 10.0  # equally weighted failures, below which others may be missing
ENDLESS = 1.0  # the shape of a tail from which on it has no mean
LEAST = 5  # values that a tail is fitted to
SMALLEST = 1e-300  # of such a value, beside the largest


def distance_of_missing(log_weights: NumpyArray, returns: NumpyArray, values: NumpyArray) -> float:
    """D, how far beyond all failures that were seen one may lie that was not; 0 if those speak for themselves.

    Args:
        log_weights: (n,), log w of all episodes that count.
        returns: (n,), 0 of those that have not failed; others are no event, and 0 is the answer.
        values: (n,), X. If no failure counts and all are the same, nothing is claimed, and 0 is the answer.
    """
    if not len(returns) or returns.min() != 0.0:
        return 0.0
    failed = returns > 0.0
    if not failed.any():
        return float(np.exp(log_weights.max())) if np.ptp(values) > 0.0 else 0.0
    logs = log_weights[failed] + np.log(returns[failed])
    values = np.exp(logs - logs.max())  # their unit is the largest
    worth = values.sum() ** 2 / (values @ values)
    if worth >= FEW and not tail_shape(values) > ENDLESS:
        return 0.0
    return max(float(np.exp(log_weights.max()) * returns.max() - np.exp(logs.max())), 0.0)


def tail_shape(values: NumpyArray) -> float:
    """The shape k of a generalised Pareto distribution of the largest of these positive values; NaN if they are few.

    It has no moments of order 1/k and more. The fit is Zhang's and Stephens' (2009), drawn a little toward 1/2 as by
    Vehtari, Simpson, Gelman, Yao and Gabry ("Pareto smoothed importance sampling").
    """
    count = int(min(0.2 * len(values), 3.0 * np.sqrt(len(values))))
    if count < LEAST:
        return float("nan")
    ordered = np.sort(values)
    above = ordered[-count:] - ordered[-count - 1]
    above = above[above > SMALLEST * ordered[-1]]
    if len(above) < LEAST:
        return 0.0  # the largest are all the same
    steps = np.arange(30 + int(np.sqrt(len(above)))) + 0.5
    scales = 1.0 / above[-1] + (1.0 - np.sqrt(len(steps) / steps)) / (3.0 * above[len(above) // 4])
    scales = scales[scales != 0.0]
    shapes = np.log1p(-scales[:, None] * above).mean(axis=1)
    likelihoods = len(above) * (np.log(-scales / shapes) - shapes - 1.0)
    shares = np.exp(likelihoods - likelihoods.max())
    shape = float(np.log1p(-(shares @ scales) / shares.sum() * above).mean())
    return (len(above) * shape + 10.0 * 0.5) / (len(above) + 10.0)
