"""Advantages of a tabular policy, learned by backward induction from some of the folds of a batch."""

from dataclasses import dataclass

import numpy as np

from bpsearch.policies.table import SoftmaxTable
from bpsearch.trajectories import Array, Trajectories

PSEUDO_COUNT = 1.0  # how many visits "this action is as good as the others" is worth


@dataclass(frozen=True, eq=False)
class FoldedAdvantages:
    """Σ_t γ^t (q̂_t(S_t, A_t) − v̂_t(S_t)) of every episode, with q̂ learned from the folds that one says.

    q̂ follows from observed frequencies and mean rewards by backward induction. An action that has been seen n times in
    its state has q̂ = (n q̂_seen + k v̄) / (n + k), where v̄ is the mean over the seen actions, weighted by π_e: of an
    action never seen nothing is claimed. Whatever q̂ is, v̂_t(s) = Σ_a π_e(a|s) q̂_t(s, a), so the sum has mean 0.

    Attributes:
        policy: π_e.
        discount: γ.
        episodes: the batch, with final observations.
        folds: (N,), the fold of each episode.
        counts: (K, S · A, S), transitions seen.
        reward_sums: (K, S, A), rewards seen.
    """

    policy: SoftmaxTable
    discount: float
    episodes: Trajectories
    folds: Array
    counts: Array
    reward_sums: Array

    @classmethod
    def of(cls, policy: SoftmaxTable, discount: float, episodes: Trajectories, folds: Array) -> "FoldedAdvantages":
        """Count what each fold has seen."""
        states, actions = policy.logits.shape
        mask, observations = episodes.mask, episodes.observations
        size, pairs = int(folds.max()) + 1, (folds[:, None] * states + observations) * actions + episodes.actions
        counts = np.bincount((pairs * states + episodes.successors)[mask], minlength=size * states * actions * states)
        rewards = np.bincount(pairs[mask], episodes.rewards[mask], minlength=size * states * actions)
        return cls(
            policy,
            discount,
            episodes,
            folds,
            counts.reshape(size, states * actions, states).astype(np.float64),
            rewards.reshape(size, states, actions),
        )

    def __call__(self, kept: Array) -> Array:
        """(C, N), the sums of all episodes, for each of (C, K) bool with q̂ learned from the folds that are kept."""
        observations, mask = self.episodes.observations, self.episodes.mask
        advantages, _ = self._backward(kept, np.full(len(kept), PSEUDO_COUNT))
        states, actions = self.policy.logits.shape
        cells = (np.arange(mask.shape[1]) * states + observations) * actions + self.episodes.actions
        padded = np.pad(advantages.reshape(len(kept), -1), ((0, 0), (0, 1)))
        cells = np.where(mask, cells, padded.shape[1] - 1)  # the last cell, with nothing in it, after the end
        return np.stack([row.take(cells).sum(axis=1) for row in padded])

    def variance(self, coefficients: Array, shares: Array) -> float:
        """The variance of a value that the policy's own probabilities let one expect, environment's noise apart.

        Values are Y − Σ_t Ĉ_t(S_t, A_t), and their variance is E Σ_t Σ_a π_e(a|S_t) (A_t(S_t, a) − Ĉ_t(S_t, a))² with
        the true advantages A. Here the visited states stand for S_t, and what all episodes together say for A. So a
        rare action counts as often as it should have come, not as often as it did. An action that no episode has shown
        may lead anywhere: its advantage is taken to be as large as the values differ that were met on the way.

        Args:
            coefficients: (K, S · A), what of each logit's score is subtracted in each fold.
            shares: (K,), the share of the sums learned without the fold that is subtracted.
        """
        probabilities, mask = self.policy.probabilities, self.episodes.mask
        states, size, length = len(probabilities), len(self.counts), mask.shape[1]
        cells = (self.folds[:, None] * length + np.arange(length)) * states + self.episodes.observations
        met = np.bincount(cells[mask], minlength=size * length * states).reshape(size, length, states)
        logits = coefficients.reshape(size, 1, *probabilities.shape)
        control = logits - np.sum(probabilities * logits, axis=-1, keepdims=True)
        kept = np.vstack([~np.eye(size, dtype=bool), np.ones(size, dtype=bool)])
        advantages, values = self._backward(kept, np.array([PSEUDO_COUNT] * size + [0.0]))
        left = advantages[-1] - control - shares[:, None, None, None] * advantages[:-1]
        unseen = self.counts.sum(axis=(0, -1)).reshape(probabilities.shape) == 0.0
        known = np.sum(met[..., None] * probabilities * np.where(unseen, 0.0, left**2))
        visits = met.sum(axis=0)
        mean = np.average(values[-1], weights=visits)
        spread = np.average((values[-1] - mean) ** 2, weights=visits)
        unknown = np.sum(visits[..., None] * probabilities * unseen)
        return float((known + spread * unknown) / len(mask))

    def _backward(self, kept: Array, pseudo_counts: Array) -> tuple[Array, Array]:
        """γ^t (q̂_t − v̂_t), (C, T, S, A), and γ^t v̂_t, (C, T, S), for each of (C, K) bool with q̂ from the kept folds."""
        probabilities = self.policy.probabilities
        counts = np.tensordot(kept.astype(np.float64), self.counts, axes=1)
        visits = counts.sum(axis=-1).reshape(-1, *probabilities.shape)
        counted = np.maximum(visits, 1.0)
        rewards = np.tensordot(kept.astype(np.float64), self.reward_sums, axes=1) / counted
        frequencies = counts / counted.reshape(len(kept), -1, 1)
        seen = probabilities * (visits > 0.0)
        seen = seen / np.maximum(seen.sum(axis=-1, keepdims=True), 1e-300)
        trust = visits / np.maximum(visits + pseudo_counts[:, None, None], 1e-300)
        length = self.episodes.mask.shape[1]
        advantages, values = np.empty((len(kept), length, *probabilities.shape)), np.empty((length, *seen.shape[:2]))
        v_next = np.zeros(seen.shape[:2])
        for t in reversed(range(length)):
            q = rewards + self.discount * (frequencies @ v_next[..., None]).reshape(visits.shape)
            middle = (seen * q).sum(axis=-1, keepdims=True)
            q = middle + trust * (q - middle)
            v_next = (probabilities * q).sum(axis=-1)
            advantages[:, t] = self.discount**t * (q - v_next[..., None])
            values[t] = self.discount**t * v_next
        return advantages, values.swapaxes(0, 1)
