"""How much of a return's variance comes from the policy's actions, how much from all else.

Groups of episodes share U, the start and the environment's own random numbers, or the start alone; their actions are
independent. So Var[g] = Var[E[g|U]] + E[Var[g|U]], and the first part is the covariance of two episodes of a group.

No method that chooses actions and weighs episodes by their probabilities, or subtracts what has mean 0 for any U, can
remove the first part: given U its value of an episode still has the mean E[g|U]. This is true however the environment
turns its random numbers into outcomes. What a group does not share (noise after the start, if only the start is shared;
noise that depends on what the actions do) counts to the actions, so that their share is never taken for too small.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bpsearch._core.arrays import NumpyArray


@dataclass(frozen=True)
class VarianceSplit:
    """The two parts of a return's variance.

    Attributes:
        start: Var[E[g|U]].
        action: E[Var[g|U]].
        share: of the actions in the whole: the largest relative reduction that any behavior can reach.
        std_errors: of the three, by the jackknife over groups.
    """

    start: float
    action: float
    share: float
    std_errors: tuple[float, float, float]


def split_variance(returns: NumpyArray) -> VarianceSplit:
    """Unbiased estimates of the two parts from (groups, repeats) returns."""
    repeats = returns.shape[1]

    def statistic(sums: NumpyArray, count: int) -> NumpyArray:
        start, action = split_parts(sums, count, repeats)
        return np.array([start, action, action / (start + action)])

    values, errors = jackknife(statistic, split_terms(returns))
    start, action, share, *deviations = (float(x) for x in (*values, *errors))
    return VarianceSplit(start, action, share, (deviations[0], deviations[1], deviations[2]))


def split_terms(returns: NumpyArray) -> NumpyArray:
    """(3, groups): the deviation of a group's mean from that of all, its square, and the variance within the group.

    Groups of a single episode have none within.
    """
    centred = returns.mean(axis=1) - returns.mean()
    inner = returns.var(axis=1, ddof=1) if returns.shape[1] > 1 else np.zeros(len(returns))
    return np.stack([centred, centred**2, inner])


def split_parts(sums: NumpyArray, count: int, repeats: int) -> tuple[NumpyArray, NumpyArray]:
    """Var[E[g|U]] and E[Var[g|U]] from the sums of `split_terms` over `count` groups.

    The sample variance of the K episodes of a group estimates Var[g|U]; the variance of the groups' means, less 1/K of
    it, estimates Var[E[g|U]].
    """
    total, squares, noise = sums
    action = noise / count
    return (squares - total**2 / count) / (count - 1) - action / repeats, action


def jackknife(statistic: Callable[[NumpyArray, int], NumpyArray], terms: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    """`statistic(sums, n)` of the sums of (K, n) terms, and its standard errors by leaving out one of the n in turn."""
    count = terms.shape[1]
    sums = terms.sum(axis=1)
    left_out = statistic(sums[:, None] - terms, count - 1)
    return statistic(sums, count), np.sqrt((count - 1) * left_out.var(axis=1))
