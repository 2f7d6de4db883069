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
        finals = np.asarray(episodes.final_observations)[:, None]
        continues = np.concatenate([mask[:, 1:], np.zeros_like(mask[:, :1])], axis=1)
        successors = np.where(continues, np.concatenate([observations[:, 1:], finals], axis=1), finals)
        size, pairs = int(folds.max()) + 1, (folds[:, None] * states + observations) * actions + episodes.actions
        counts = np.bincount((pairs * states + successors)[mask], minlength=size * states * actions * states)
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
        """(N,), the sums of all episodes, with q̂ learned from the folds `kept`, (K,) bool."""
        probabilities = self.policy.probabilities
        counts = self.counts[kept].sum(axis=0)
        visits = counts.sum(axis=-1).reshape(probabilities.shape)
        rewards = self.reward_sums[kept].sum(axis=0) / np.maximum(visits, 1.0)
        frequencies = counts / np.maximum(visits, 1.0).reshape(-1, 1)
        seen = probabilities * (visits > 0.0)
        seen = seen / np.maximum(seen.sum(axis=1, keepdims=True), 1e-300)
        trust = visits / (visits + PSEUDO_COUNT)
        observations, mask = self.episodes.observations, self.episodes.mask
        total, v_next = np.zeros(len(mask)), np.zeros(len(probabilities))
        for t in reversed(range(mask.shape[1])):
            q = rewards + self.discount * (frequencies @ v_next).reshape(visits.shape)
            middle = (seen * q).sum(axis=1, keepdims=True)
            q = middle + trust * (q - middle)
            v_next = (probabilities * q).sum(axis=1)
            advantages = (q - v_next[:, None])[observations[:, t], self.episodes.actions[:, t]]
            total += np.where(mask[:, t], self.discount**t * advantages, 0.0)
        return total
