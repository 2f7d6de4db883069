"""The advantages of a tabular policy as control variates, learned by backward induction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import scipy.sparse

from bpsearch._core.arrays import NumpyArray
from bpsearch.control_variates.base import ControlVariate
from bpsearch.control_variates.dynamics import steps_of
from bpsearch.policies.base import Policy
from bpsearch.policies.table import SoftmaxTable
from bpsearch.sampling.trajectories import Trajectories

PSEUDO_COUNT = 1.0  # how many visits "this action is as good as the others" is worth


@dataclass(frozen=True, eq=False)
class Transitions:
    """What some episodes have seen.

    Attributes:
        cells: (M,), steps from a pair (s, a) to s', as the number (s · A + a) · S + s', in ascending order.
        counts: (M,), how often each was seen; 0 if only others have seen it.
        visits: (S · A,), how often a pair was seen.
        rewards: (S · A,), the sum of its rewards.
        first: (2, S · A), how often it was the first step of an episode, and the sum of its rewards then.
        horizon: steps of the longest episode.
    """

    cells: NumpyArray
    counts: NumpyArray
    visits: NumpyArray
    rewards: NumpyArray
    first: NumpyArray
    horizon: int

    def __add__(self, other: "Transitions") -> "Transitions":
        """What both have seen."""
        cells, counts = self.cells, self.counts
        if cells is other.cells:
            counts = counts + other.counts
        else:
            cells, places = np.unique(np.concatenate([cells, other.cells]), return_inverse=True)
            counts = np.bincount(places, np.concatenate([counts, other.counts]))
        return Transitions(
            cells,
            counts,
            self.visits + other.visits,
            self.rewards + other.rewards,
            self.first + other.first,
            max(self.horizon, other.horizon),
        )

    @property
    def varying_rewards(self) -> NumpyArray:
        """The rewards without a constant that every episode is paid at its first step.

        The model knows no time: such a constant would look like the luck of the actions that happened to come first. It
        is what pairs are paid more at first steps than at later ones.
        """
        visits, paid = self.first
        later = self.visits - visits
        both = (visits > 0.0) & (later > 0.0)
        excess = paid[both] - visits[both] * (self.rewards - paid)[both] / later[both]
        return np.asarray(self.rewards - excess.sum() / max(visits[both].sum(), 1.0) * visits)


@dataclass(frozen=True, eq=False)
class Advantages:
    """C tables of γ-less advantages by the number of steps that are left, (C, T, S, A), and the horizons, (C,)."""

    tables: NumpyArray
    horizons: NumpyArray


@dataclass(frozen=True)
class TabularAdvantages(ControlVariate[dict[str, NumpyArray], Transitions, Advantages]):
    """Σ_t γ^t (q̂_t(S_t, A_t) − v̂_t(S_t)), with q̂ of a tabular model.

    q̂ follows from observed frequencies and mean rewards by backward induction. An action that has been seen n times in
    its state has q̂ = (n q̂_seen + k v̄) / (n + k), where v̄ is the mean over the seen actions, weighted by π_e: of an
    action never seen nothing is claimed. Whatever q̂ is, v̂_t(s) = Σ_a π_e(a|s) q̂_t(s, a), so the sum has mean 0.
    """

    doubt: float = 2.0
    pseudo_count: float = PSEUDO_COUNT
    policy: SoftmaxTable | None = field(default=None, repr=False, compare=False)
    discount: float = field(default=1.0, repr=False, compare=False)

    def bind(self, policy: Policy, discount: float) -> Self:
        """For the advantages of this policy."""
        assert isinstance(policy, SoftmaxTable)
        return replace(self, policy=policy, discount=discount)

    def refuse(self, policy: Policy) -> str:
        """Only tables have states that can be counted."""
        return "" if isinstance(policy, SoftmaxTable) else f"{type(policy).__name__} is no table"

    def summarize(self, batch: Trajectories) -> dict[str, NumpyArray] | None:
        """The steps of all episodes, one after the other; None if the last observations are not known."""
        return None if batch.final_observations is None else steps_of(batch)

    def evidence(
        self, summary: dict[str, NumpyArray], targets: NumpyArray, groups: NumpyArray, count: int
    ) -> list[Transitions]:
        """Transitions and rewards that each group has seen; returns follow from them."""
        states, actions = self._probabilities.shape
        pairs = summary["states"] * actions + summary["actions"]
        cells, places = np.unique(pairs * states + summary["successors"], return_inverse=True)
        groups = np.where((groups >= 0) & (groups < count), groups, count)  # one more, of those that belong to none
        group = np.repeat(groups, summary["lengths"])

        def by_group(kinds: NumpyArray, size: int, weights: NumpyArray | None = None) -> NumpyArray:
            found = np.bincount(group * size + kinds, weights, (count + 1) * size)
            return found.reshape(count + 1, size).astype(np.float64)

        size, rewards, start = states * actions, summary["rewards"], summary["times"] == 0
        counts, visits, paid = by_group(places, len(cells)), by_group(pairs, size), by_group(pairs, size, rewards)
        first = np.stack([by_group(pairs, size, start), by_group(pairs, size, start * rewards)], axis=1)
        horizons = np.ones(count + 1, int)
        np.maximum.at(horizons, groups, summary["lengths"])
        return [Transitions(cells, counts[n], visits[n], paid[n], first[n], int(horizons[n])) for n in range(count)]

    def fit(self, evidence: Sequence[Transitions]) -> Advantages:
        """Backward induction for all at once: the C tables are blocks of one sparse system."""
        probabilities = self._probabilities
        shape = (len(evidence), *probabilities.shape)
        visits = np.stack([seen.visits for seen in evidence]).reshape(shape)
        counted = np.maximum(visits, 1.0)
        rewards = np.stack([seen.varying_rewards for seen in evidence]).reshape(shape) / counted
        frequencies = _frequencies(evidence, counted)
        seen = probabilities * (visits > 0.0)
        seen = seen / np.maximum(seen.sum(axis=-1, keepdims=True), 1e-300)
        trust = visits / np.maximum(visits + self.pseudo_count, 1e-300)
        horizons = np.array([part.horizon for part in evidence])
        tables = np.empty((shape[0], int(horizons.max()), *shape[1:]))
        values = np.zeros(shape[:2])
        for left in range(tables.shape[1]):
            q = rewards + self.discount * (frequencies @ values.ravel()).reshape(shape)
            middle = (seen * q).sum(axis=-1, keepdims=True)
            q = middle + trust * (q - middle)
            values = (probabilities * q).sum(axis=-1)
            tables[:, left] = q - values[..., None]
        return Advantages(tables, horizons)

    def predict(self, fit: Advantages, summary: dict[str, NumpyArray]) -> NumpyArray:
        """(C, 1, N), the discounted sums of advantages."""
        actions = summary["actions"]
        return self._add_up(fit, summary, lambda table, left, states: table[left, states, actions], power=1)

    def spread(self, fit: Advantages, summary: dict[str, NumpyArray]) -> NumpyArray:
        """(C, 1, N), Σ_t γ^2t Σ_a π_e(a|S_t) (q̂_t(S_t, a) − v̂_t(S_t))²."""
        probabilities = self._probabilities

        def variance(table: NumpyArray, left: NumpyArray, states: NumpyArray) -> NumpyArray:
            return np.asarray(np.sum(probabilities * table**2, axis=-1)[left, states])

        return self._add_up(fit, summary, variance, power=2)

    def steps(self, fit: Advantages, which: int, candidate: int) -> NumpyArray:
        """(T, S, A), γ^t (q̂_t(s, a) − v̂_t(s))."""
        times = np.arange(fit.tables.shape[1])
        left = np.maximum(fit.horizons[which] - 1 - times, 0)
        return np.asarray(self.discount ** times[:, None, None] * fit.tables[which, left])

    def expected_variance(
        self, summary: dict[str, NumpyArray], targets: NumpyArray, folds: NumpyArray, subtracted: Sequence[NumpyArray]
    ) -> float:
        """E Σ_t Σ_a π_e(a|S_t) (A_t(S_t, a) − Ĉ_t(S_t, a))², the environment's own noise apart.

        The visited states stand for S_t, and what all episodes together say for the advantages A. So a rare action
        counts as often as it should have come, not as often as it did. Of an action that no episode has shown nothing
        is known: it is taken to move the return by as much as returns vary.
        """
        probabilities = self._probabilities
        exact = replace(self, pseudo_count=0.0)
        (seen,) = exact.evidence(summary, targets, np.zeros(len(targets), int), 1)
        advantages = exact.steps(exact.fit([seen]), 0, 0)
        unseen = (seen.visits == 0.0).reshape(probabilities.shape)
        length, states = len(advantages), len(probabilities)
        cells = summary["times"] * states + summary["states"]
        known = unknown = 0.0
        for fold, control in enumerate(subtracted):
            own = np.repeat(folds == fold, summary["lengths"])
            met = np.bincount(cells[own], minlength=length * states).reshape(length, states, 1)
            # A fit may have seen shorter episodes: its last step then stands for the later ones.
            control = control if len(control) == 1 else control[np.minimum(np.arange(length), len(control) - 1)]
            known += float(np.sum(met * probabilities * np.where(unseen, 0.0, (advantages - control) ** 2)))
            unknown += float(np.sum(met * probabilities * unseen))
        return (known + unknown * float(np.var(targets))) / len(targets)

    def _add_up(
        self,
        fit: Advantages,
        summary: dict[str, NumpyArray],
        look_up: Callable[[NumpyArray, NumpyArray, NumpyArray], NumpyArray],
        power: int,
    ) -> NumpyArray:
        """(C, 1, N), Σ_t γ^(power t) of what is looked up for each step, by steps left and state."""
        starts = np.cumsum(summary["lengths"]) - summary["lengths"]
        discounts = self.discount ** (power * summary["times"])
        sums = []
        for table, horizon in zip(fit.tables, fit.horizons, strict=True):
            # Of a time beyond every episode that was learned from, the last step's advantages are taken.
            left = np.maximum(horizon - 1 - summary["times"], 0)
            sums.append(np.add.reduceat(discounts * look_up(table, left, summary["states"]), starts))
        return np.stack(sums)[:, None]

    @property
    def _probabilities(self) -> NumpyArray:
        assert self.policy is not None
        return self.policy.probabilities


def _frequencies(evidence: Sequence[Transitions], visits: NumpyArray) -> scipy.sparse.csr_array:
    """(C · S · A, C · S), how often pairs led to states, in relation to their visits, (C, S, A)."""
    count, states, actions = visits.shape
    pairs, successors = (
        np.concatenate([number * size + part for number, part in enumerate(parts)])
        for size, parts in (
            (states * actions, [seen.cells // states for seen in evidence]),
            (states, [seen.cells % states for seen in evidence]),
        )
    )
    shares = (1.0 / visits.ravel())[pairs] * np.concatenate([seen.counts for seen in evidence])
    return scipy.sparse.csr_array((shares, (pairs, successors)), (count * states * actions, count * states))
