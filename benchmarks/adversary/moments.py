"""The moments of a return around its mean, exactly.

The oracle has value and variance too, the latter as E[g²] − ρ². Here nothing large cancels, however large the rewards
are beside the spread; only possible transitions are visited, which makes Taxi cheap; and the fourth moment tells how
often studies show what makes Monte Carlo's error. The tests compare both routes.
"""

from dataclasses import dataclass
from math import comb

import numpy as np

import bpsearch as bps

ROUNDING = 1e-20  # a variance below this part of the largest squared value is rounding


@dataclass(frozen=True)
class Moments:
    """Value, variance and kurtosis of a return; the kurtosis is NaN without variance."""

    truth: float
    variance: float
    kurtosis: float


def known_moments(mdp: bps.TabularMDP, policy: bps.SoftmaxTable) -> Moments:
    """Of the return of one episode, by backward induction.

    The deviation of the rest of an episode from v_t(s) is D_t = δ_t + γ D_{t+1} with δ_t = r + γ v_{t+1}(s') − v_t(s),
    so E[D_t^k | s] = Σ_a π Σ_s' P Σ_j C(k, j) δ^(k−j) γ^j E[D_{t+1}^j | s'].
    """
    possible = np.where(mdp.terminal[:, None, None], 0.0, policy.probabilities[:, :, None] * mdp.transitions)
    states, actions, successors = np.nonzero(possible)
    weights, rewards = possible[states, actions, successors], mdp.rewards[states, actions, successors]
    nothing = np.repeat(np.eye(5)[0][:, None], mdp.states, axis=1)  # the moments of what is always 0
    values, moments, largest = np.zeros(mdp.states), nothing, 0.0

    def expected(of_transitions: np.ndarray) -> np.ndarray:
        return np.bincount(states, weights * of_transitions, minlength=mdp.states)

    for _ in range(mdp.horizon):
        targets = rewards + mdp.discount * values[successors]
        values = expected(targets)
        ahead = _added(targets - values[states], mdp.discount, moments[:, successors])
        moments = np.where(mdp.terminal, nothing, [expected(moment) for moment in ahead])
        largest = max(largest, float(np.max(values**2)))
    truth = float(mdp.initial @ values)
    _, _, variance, _, fourth = (float(mdp.initial @ moment) for moment in _added(values - truth, 1.0, moments))
    if variance <= ROUNDING * largest:
        return Moments(truth, 0.0, np.nan)
    return Moments(truth, variance, fourth / variance**2)


def _added(gaps: np.ndarray, discount: float, moments: np.ndarray) -> list[np.ndarray]:
    """The moments of gap + γ D, from those of D."""
    return [
        sum(comb(k, j) * gaps ** (k - j) * discount**j * moments[j] for j in range(k + 1)) for k in range(len(moments))
    ]
