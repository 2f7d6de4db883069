"""What a table's dynamics, as seen so far, let one expect: values, what doubly robust leaves, who is to act.

Notation: π the evaluation policy, μ a behavior, q̂ and v̂ the fitted values, n(s, a) visits. Arrays over time are in the
order of the steps that are *left*: entry 0 is the last step.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from bpsearch._core.arrays import NumpyArray, Scalar
from bpsearch._core.jaxtools import pytree, replace
from bpsearch.control_variates.dynamics import Dynamics
from bpsearch.control_variates.tabular_model import Use
from bpsearch.policies.base import Policy
from bpsearch.policies.table import SoftmaxTable
from bpsearch.sampling.trajectories import Trajectories

PSEUDO_VISITS = 1.0  # how many visits the prior of a pair (s, a) is worth
ROUNDS = 3  # in which a stationary behavior and its own second moments are fitted to each other


@dataclass(frozen=True, eq=False)
class Forecast:
    """Fitted values of a table, and the second moment of what the doubly robust estimator with them leaves.

    q̂ follows from frequencies and mean rewards by backward induction over the steps that are left, of the longest
    episode so far. An action that has been seen n times has q̂ = (n q̂_seen + v̄) / (n + 1), v̄ the mean over the seen
    actions, weighted by π: of an action never seen nothing is claimed. A constant that every episode is paid at its
    first step (`Dynamics.bonus`) is part of q̂ and v̂ at that step alone.

    The estimator's value is v̂(S_0) + Σ_t γ^t ρ_{0:t} δ_t with δ_t = R_t − q̂(S_t, A_t) + γ v̂(S_{t+1}). With the right
    model the δ_t have mean 0 given the past, so its variance under a behavior μ is Var v̂(S_0) + E U(S_0),

        U(s) = Σ_a π(a|s)² / μ(a|s) M(s, a),    M(s, a) = σ²(s, a) + γ² Σ_s' P(s'|s, a) U'(s'),

    with U' of one step less. σ², the second moment of δ, is that of n visits and a prior, (n σ̂² + V) / (n + 1), V the
    variance of the return: an action never seen may move it by as much as returns vary.

    Attributes:
        policy: (S, A), π.
        discount: γ.
        q: (T, S, A), q̂ without the bonus.
        v: (T + 1, S), v̂; row 0, with no step left, is 0.
        noise: (T, S, A), σ².
        seen_noise: (T, S, A), the variance that the visits themselves have shown: 0 without noise of the environment.
            A single visit shows none; what it was better or worse than other actions may all be noise.
        frequencies: (S, A, S), P.
        starts: (S,), how often episodes began in each state, as a share of all.
        visits: (S, A).
        bonus: what every episode is paid at its first step besides.
        variance_of_return: V, of an episode of π.
    """

    policy: NumpyArray
    discount: float
    q: NumpyArray
    v: NumpyArray
    noise: NumpyArray
    seen_noise: NumpyArray
    frequencies: NumpyArray
    starts: NumpyArray
    visits: NumpyArray
    bonus: float
    variance_of_return: float

    @classmethod
    def of(cls, dynamics: Dynamics, evaluation: SoftmaxTable, discount: float) -> "Forecast":
        """From what was seen; from nothing, q̂ and v̂ are 0 and the doubly robust estimator is per-decision IS."""
        policy, visits, bonus = evaluation.probabilities, dynamics.visits, dynamics.bonus
        first, counted, counted_but_one = (
            np.asarray(dynamics.first),
            np.maximum(visits, 1.0),
            np.maximum(visits - 1.0, 1.0),
        )
        frequencies = np.asarray(dynamics.counts) / counted[..., None]
        paid = (dynamics.rewards - bonus * first) / counted[..., None]
        squares = (dynamics.squares - 2.0 * bonus * dynamics.paid + bonus**2 * first.sum(axis=-1)) / counted
        mean = paid.sum(axis=-1)
        seen = policy * (visits > 0.0)
        seen = seen / np.maximum(seen.sum(axis=-1, keepdims=True), 1e-300)
        trust = visits / (visits + PSEUDO_VISITS)
        length, (states, actions) = int(dynamics.longest), policy.shape
        q, noise, seen_noise = np.empty((3, length, states, actions))
        v = np.zeros((length + 1, states))
        spread = np.zeros(states)  # the variance of what is left of the return
        for left in range(length):
            fitted = mean + discount * (frequencies @ v[left])
            middle = np.sum(seen * fitted, axis=-1, keepdims=True)
            q[left] = middle + trust * (fitted - middle)
            v[left + 1] = np.sum(policy * q[left], axis=-1)
            second = squares + 2.0 * discount * (paid @ v[left]) + discount**2 * (frequencies @ v[left] ** 2)
            variance = np.maximum(second - fitted**2, 0.0)
            noise[left] = variance + (fitted - q[left]) ** 2
            seen_noise[left] = np.where(visits == 1.0, (fitted - middle) ** 2, variance * visits / counted_but_one)
            here = v[left + 1][:, None]
            around = np.maximum(second - 2.0 * here * fitted + here**2, 0.0) + discount**2 * (frequencies @ spread)
            spread = np.sum(seen * around, axis=-1)
        starts = np.asarray(dynamics.starts) / max(float(np.sum(dynamics.starts)), 1.0)
        whole = float(starts @ spread) + _variance(starts, v[length])
        # Returns that are all the same but for rounding say nothing of how far they may vary. Any number serves then.
        scale = float(starts @ (spread + v[length] ** 2))
        prior = whole if whole > 1e-12 * scale else 1.0
        left_from = (visits.sum(axis=-1) > 0.0)[:, None]  # nothing follows where no episode went on
        noise = np.where(left_from, (visits * noise + PSEUDO_VISITS * prior) / (visits + PSEUDO_VISITS), 0.0)
        return cls(policy, discount, q, v, noise, seen_noise, frequencies, starts, visits, bonus, whole)

    def along(self, batch: Trajectories) -> tuple[NumpyArray, NumpyArray]:
        """q̂_t(S_t, A_t), (N, T), and v̂_t(S_t), (N, T + 1): 0 on padding and after the end.

        Of a time beyond the longest episode so far the values of its last step are taken.
        """
        mask, states = np.asarray(batch.mask), np.asarray(batch.observations)
        times = np.arange(mask.shape[1])
        left = np.maximum(len(self.q) - 1 - times, 0)
        bonus = np.where(times == 0, self.bonus, 0.0)
        q_hat = np.where(mask, self.q[left, states, np.asarray(batch.actions)] + bonus, 0.0)
        v_hat = np.where(mask, self.v[left + 1, states] + bonus, 0.0)
        return q_hat, np.pad(v_hat, ((0, 0), (0, 1)))

    def second_moments(self, behavior: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        """M, (T, S, A), and U of the whole episode, (S,), of probabilities (S, A) or (T, S, A)."""
        ratios = self._ratios(np.broadcast_to(behavior, self.q.shape))
        moments, rest = np.empty_like(self.q), np.zeros(len(self.starts))
        for left, ratio in enumerate(ratios):
            moments[left] = self.noise[left] + self.discount**2 * (self.frequencies @ rest)
            rest = np.sum(ratio * moments[left], axis=-1)
        return moments, rest

    def variance(self, behavior: NumpyArray) -> float:
        """The variance of a value under a behavior, with what the prior fears: Var v̂(S_0) + E U(S_0)."""
        return self.variance_of_starts + float(self.starts @ self.second_moments(behavior)[1])

    def seen_variance(self) -> float:
        """E Σ_t γ^2t σ̂²(S_t, A_t) under π: the environment's noise as it was seen, without any prior."""
        visits = self._squared_visits(self.policy)  # under π itself no weights: γ^2t Pr(S_t = s)
        return float(np.einsum("ts,sa,tsa->", visits, self.policy, self.seen_noise))

    @property
    def variance_of_starts(self) -> float:
        """Var v̂(S_0), which no behavior changes."""
        return _variance(self.starts, self.v[-1])

    @cached_property
    def optimum(self) -> tuple[NumpyArray, NumpyArray]:
        """The behavior of least variance, (T, S, A), and U of the whole episode, (S,): μ ∝ π √M, U = (Σ_a π √M)²."""
        behavior, rest = np.empty_like(self.q), np.zeros(len(self.starts))
        for left, noise in enumerate(self.noise):
            root = self.policy * np.sqrt(noise + self.discount**2 * (self.frequencies @ rest))
            behavior[left] = self._normalize(root)
            rest = root.sum(axis=-1) ** 2
        return behavior, rest

    def behavior(self, share: float) -> NumpyArray:
        """(S, A), the closed form without time, `share` of π mixed in at every step.

        Of stationary behaviors the best has μ(a|s) ∝ π(a|s) √(Σ_t D_t(s) M_t(s, a)), with the visits
        D_t(s) = E[γ^2t ρ²_{0:t−1} 1{S_t = s}]. M and D are those of the behavior itself; the rounds begin with the best
        one that knows the time.
        """
        behavior = share * self.policy + (1.0 - share) * self.optimum[0]
        for _ in range(ROUNDS):
            moments, visits = self.second_moments(behavior)[0], self._squared_visits(behavior)
            # Where the model never comes every time counts alike.
            weights = np.where(visits.sum(axis=0) > 0.0, visits, 1.0)
            root = self.policy * np.sqrt(np.einsum("ts,tsa->sa", weights, moments))
            behavior = share * self.policy + (1.0 - share) * self._normalize(root)
        return behavior

    def _squared_visits(self, behavior: NumpyArray) -> NumpyArray:
        """(T, S), E[γ^2t ρ²_{0:t−1} 1{S_t = s}]."""
        ratios = self._ratios(np.broadcast_to(behavior, self.q.shape))
        visits, now = np.empty((len(self.q), len(self.starts))), self.starts
        transitions = self.frequencies.reshape(-1, len(self.starts))
        for left in reversed(range(len(self.q))):
            visits[left] = now
            now = self.discount**2 * ((now[:, None] * ratios[left]).ravel() @ transitions)
        return visits

    def _ratios(self, behavior: NumpyArray) -> NumpyArray:
        """π²/μ; 0 where π is."""
        possible = np.broadcast_to(self.policy > 0.0, behavior.shape)
        return np.asarray(np.divide(self.policy**2, behavior, out=np.zeros(behavior.shape), where=possible))

    def _normalize(self, root: NumpyArray) -> NumpyArray:
        """To probabilities; π where there is nothing to choose by."""
        total = root.sum(axis=-1, keepdims=True)
        return np.where(total > 0.0, root / np.where(total > 0.0, total, 1.0), self.policy)


def _variance(shares: NumpyArray, values: NumpyArray) -> float:
    mean = float(shares @ values)
    return float(shares @ (values - mean) ** 2)


@pytree()
@dataclass(frozen=True, eq=False)
class SeenTable:
    """What a forecast is made of: the evaluation policy, γ, and what was seen."""

    evaluation: SoftmaxTable
    discount: Scalar
    dynamics: Dynamics

    @classmethod
    def of(cls, policy: Policy, discount: float) -> "SeenTable":
        """Before the first episode; the policy must be a table."""
        dynamics = Dynamics.of(policy)
        assert isinstance(policy, SoftmaxTable)
        return cls(policy, np.float64(discount), dynamics)

    def add(self, batch: Trajectories) -> "SeenTable":
        """With the episodes of a batch, too."""
        return replace(self, dynamics=self.dynamics.add(batch))

    @property
    def forecast(self) -> Forecast:
        """What is to be expected."""
        return Forecast.of(self.dynamics, self.evaluation, float(self.discount))


@dataclass(frozen=True)
class ForecastModel:
    """q̂ and v̂ of `Forecast` for an estimator, each batch with those of the batches before it.

    It takes its size from the policy and its horizon from the episodes, so that it serves every table: a `TabularMDP`,
    or a Gymnasium environment whose observations and actions are Discrete.
    """

    use: ClassVar[Use] = Use.PREDICTABLE
    traceable: ClassVar[bool] = False
    warm_up: ClassVar[Scalar] = np.int64(0)

    def init(self, policy: Policy, discount: float) -> SeenTable:
        """Nothing is known."""
        return SeenTable.of(policy, discount)

    def learn(
        self, state: SeenTable, number: Scalar, batch: Trajectories, policy: Policy, discount: Scalar
    ) -> SeenTable:
        """What is known after a batch."""
        return state.add(batch)

    def on_trajectories(self, state: SeenTable, batch: Trajectories) -> tuple[NumpyArray, NumpyArray]:
        """The values along the episodes."""
        return state.forecast.along(batch)
