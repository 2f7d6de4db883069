"""What n episodes cannot know: events that none of them has shown.

A reduction of variance is a claim about such events. One that none of n episodes has shown may have a probability of up
to 3/n (95%). Monte Carlo's interval is wide enough to hold its effect, as long as that is no larger than the spread of
the returns. Once a control variate has removed most of that spread, the sample's own variance says nothing about it.

So the error of a reduced mean gets what k episodes would add that are as far off as any return was seen to be, and at
least four standard deviations of the returns,

    Var = min(Var_reduced + k D² / n², Var_Monte Carlo),    D = max(max |g − ḡ|, 4 sd(g)),

which with k = 3 makes room for an event of probability 3/n whose effect is within ± D: 1.96 sqrt(3) D / n > 3 D / n.
Without the standard deviations there was next to no room where the returns seen are few numbers close together: of a
jackpot of probability 0.0016, six standard deviations off, a fifth of all studies of 1,000 episodes show nothing.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bpsearch._core.arrays import NumpyArray
from bpsearch.inference.intervals import MeanError

PSEUDO_EPISODES = 3.0
FAR = 4.0  # standard deviations


@dataclass(frozen=True)
class Elsewhere:
    """What other behaviors show of the policy's returns, also of events that the policy's own episodes have not shown.

    Episodes are weighted to the policy, w = π_e/μ.

    Attributes:
        weight: Σ w.
        mean: Σ w g / Σ w.
        squares: Σ w (g − mean)².
    """

    weight: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, returns: NumpyArray, log_weights: NumpyArray) -> "Elsewhere":
        """With more episodes."""
        weights = np.exp(log_weights)
        weight = float(weights.sum())
        if weight == 0.0:
            return self
        mean, total = float(weights @ returns) / weight, self.weight + weight
        apart = mean - self.mean
        between = apart**2 * self.weight * weight / total
        squares = self.squares + float(weights @ (returns - mean) ** 2) + between
        return Elsewhere(total, self.mean + apart * weight / total, squares)

    def excess(self, variance: float) -> float:
        """By how much returns vary more than the policy's own episodes did, of this variance."""
        return max(self.squares / self.weight - variance, 0.0) if self.weight else 0.0


NOTHING_ELSEWHERE = Elsewhere()


def farthest(returns: NumpyArray) -> float:
    """D, how far an event may lie from the mean of the returns."""
    return float(event_distance(np.abs(returns - returns.mean()).max(), returns.std()))


def event_distance(seen: ArrayLike, deviation: ArrayLike) -> NumpyArray:
    """D, from the largest distance that was seen and the standard deviation of the returns."""
    return np.maximum(seen, FAR * np.asarray(deviation))


def add_unseen(error: MeanError | None, unseen: float) -> MeanError | None:
    """The error with the variance of actions that were not seen, although the policy's probabilities tell of them.

    What is subtracted because of them is the same for many episodes, and goes with what those episodes were learned
    from: standard errors add up, not variances.
    """
    if error is None or not unseen:
        return error
    return MeanError((error.std_error + np.sqrt(unseen)) ** 2, error.degrees_of_freedom)


def make_room(reduced: MeanError | None, plain: MeanError | None, distance: float, episodes: int) -> MeanError | None:
    """The error of a mean of reduced variance, with room for events that were not seen.

    Args:
        reduced: of the mean of the values; None if they have no spread.
        plain: of the mean of the returns, Monte Carlo's; None if they have no spread.
        distance: D.
        episodes: n.
    """
    if plain is None:
        return None if reduced is None else reduced
    own = 0.0 if reduced is None else reduced.variance
    variance = own + PSEUDO_EPISODES * (distance / episodes) ** 2
    if variance >= plain.variance:
        return plain if own <= plain.variance else reduced
    if reduced is None or own == 0.0:
        return MeanError(variance, plain.degrees_of_freedom)
    return widen(reduced, variance - own)


def widen(error: MeanError | None, room: float) -> MeanError | None:
    """The error with more variance, which is not estimated (Welch and Satterthwaite); None if there is none."""
    if error is None or not room:
        return error
    variance = error.variance + room
    return MeanError(variance, error.degrees_of_freedom * (variance / error.variance) ** 2)


def at_least(error: MeanError | None, expected: float, episodes: int) -> MeanError | None:
    """The error, or what the policy's own probabilities let one expect of so many values, whichever is more."""
    known = 0.0 if error is None else error.variance
    return error if expected / episodes <= known else MeanError(expected / episodes, episodes - 1.0)
