"""Advantages of a tabular policy, learned by backward induction from some of the folds of a batch."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bpsearch.policies.table import SoftmaxTable
from bpsearch.trajectories import Array, Trajectories

PSEUDO_COUNT = 1.0  # how many visits "this action is as good as the others" is worth
UNSEEN = 1.25  # E A² of an action that no episode has shown, in units of the variance of values met


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
        observations, actions, mask = self.episodes.observations, self.episodes.actions, self.episodes.mask
        total = np.zeros(len(mask))
        for t, advantages, _ in self._backward(kept, PSEUDO_COUNT):
            total += np.where(mask[:, t], advantages[observations[:, t], actions[:, t]], 0.0)
        return total

    def variance(self, coefficients: Array, shares: Array) -> float:
        """The variance of a value that the policy's own probabilities let one expect, environment's noise apart.

        Values are Y − Σ_t Ĉ_t(S_t, A_t), and their variance is E Σ_t Σ_a π_e(a|S_t) (A_t(S_t, a) − Ĉ_t(S_t, a))² with
        the true advantages A. Here the visited states stand for S_t, and what all episodes together say for A. So a
        rare action counts as often as it should have come, not as often as it did. An action that no episode has shown
        may lead anywhere: its advantage is taken to be about as large as the values differ that were met on the way.

        Args:
            coefficients: (K, S · A), what of each logit's score is subtracted in each fold.
            shares: (K,), the share of the sums learned without the fold that is subtracted.
        """
        probabilities = self.policy.probabilities
        mask, size = self.episodes.mask, len(self.counts)
        everything = np.ones(size, dtype=bool)
        unseen = self._visits(everything) == 0.0
        logits = coefficients.reshape(size, *probabilities.shape)
        scored = logits - np.sum(probabilities * logits, axis=-1, keepdims=True)
        learned = [self._backward(np.arange(size) != fold, PSEUDO_COUNT) for fold in range(size)]
        squares, unknown = 0.0, 0.0
        moments = np.zeros(3)  # of the values met: how many, their sum, their squares'
        for (t, truth, values), *parts in zip(self._backward(everything, 0.0), *learned, strict=True):
            here = mask[:, t]
            cells = self.folds[here] * len(probabilities) + self.episodes.observations[here, t]
            met = np.bincount(cells, minlength=size * len(probabilities)).reshape(size, -1)
            left = truth - scored - shares[:, None, None] * np.stack([advantages for _, advantages, _ in parts])
            squares += np.sum(met[..., None] * probabilities * np.where(unseen, 0.0, left**2))
            unknown += np.sum(met.sum(axis=0)[:, None] * probabilities * unseen)
            moments += met.sum(axis=0) @ np.stack([np.ones_like(values), values, values**2], axis=-1)
        spread = moments[2] / moments[0] - (moments[1] / moments[0]) ** 2
        return float((squares + UNSEEN * max(spread, 0.0) * unknown) / len(mask))

    def _visits(self, kept: Array) -> Array:
        """(S, A), how often the folds `kept` took each action."""
        return np.asarray(self.counts[kept].sum(axis=(0, -1)).reshape(self.policy.logits.shape))

    def _backward(self, kept: Array, pseudo_count: float) -> Iterator[tuple[int, Array, Array]]:
        """From the last step to the first: t, γ^t (q̂_t − v̂_t), (S, A), and γ^t v̂_t, (S,), with q̂ from these folds."""
        probabilities, visits = self.policy.probabilities, self._visits(kept)
        counted = np.maximum(visits, 1.0)
        rewards = self.reward_sums[kept].sum(axis=0) / counted
        frequencies = self.counts[kept].sum(axis=0) / counted.reshape(-1, 1)
        seen = probabilities * (visits > 0.0)
        seen = seen / np.maximum(seen.sum(axis=1, keepdims=True), 1e-300)
        trust = visits / np.maximum(visits + pseudo_count, 1e-300)
        v_next = np.zeros(len(probabilities))
        for t in reversed(range(self.episodes.mask.shape[1])):
            q = rewards + self.discount * (frequencies @ v_next).reshape(visits.shape)
            middle = (seen * q).sum(axis=1, keepdims=True)
            q = middle + trust * (q - middle)
            v_next = (probabilities * q).sum(axis=1)
            factor = self.discount**t
            yield t, factor * (q - v_next[:, None]), factor * v_next
