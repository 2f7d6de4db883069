"""Every trajectory of a small MDP, with its probability: expectations become finite sums."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bpsearch.envs.tabular import TabularMDP
from bpsearch.policies.table import SoftmaxTable
from bpsearch.sampling.trajectories import Trajectories

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Enumeration:
    """All trajectories of an MDP.

    Attributes:
        batch: all of them as one batch.
        env_probs: (N,), the probability of each without the policy's factors.
    """

    batch: Trajectories
    env_probs: Floats

    def probabilities(self, behavior: Floats) -> Floats:
        """(N,), Pr(H|μ) for behavior probabilities (S, A) or (L, S, A)."""
        return np.asarray(self.env_probs * np.exp(self.log_probs(behavior).sum(axis=1)))

    def log_probs(self, behavior: Floats) -> Floats:
        """(N, L), log μ of each step; 0 on padding."""
        batch, horizon = self.batch, self.batch.mask.shape[1]
        table = np.broadcast_to(behavior, (horizon, *behavior.shape[-2:]))
        picked = table[np.arange(horizon), np.asarray(batch.observations), np.asarray(batch.actions)]
        return np.where(batch.mask, np.log(np.where(batch.mask, picked, 1.0)), 0.0)

    def under(self, behavior: SoftmaxTable | Floats) -> Trajectories:
        """The batch as if `behavior` had collected it."""
        table = behavior.probabilities if isinstance(behavior, SoftmaxTable) else behavior
        batch = self.batch
        return Trajectories(
            batch.observations,
            batch.actions,
            batch.rewards,
            self.log_probs(table),
            batch.mask,
            batch.final_observations,
        )


def enumerate_trajectories(mdp: TabularMDP) -> Enumeration:
    """Every trajectory that some policy may have in `mdp`."""
    rows: list[tuple[list[tuple[int, int, float]], int, float]] = []

    def extend(state: int, prob: float, steps: list[tuple[int, int, float]]) -> None:
        if len(steps) == mdp.horizon or (steps and mdp.terminal[state]):
            rows.append((steps, state, prob))
            return
        for action in range(mdp.actions):
            for successor in np.flatnonzero(mdp.transitions[state, action]):
                p = float(mdp.transitions[state, action, successor])
                reward = float(mdp.rewards[state, action, successor])
                extend(int(successor), prob * p, [*steps, (state, action, reward)])

    for start in np.flatnonzero(mdp.initial):
        extend(int(start), float(mdp.initial[start]), [])
    shape = (len(rows), mdp.horizon)
    observations, actions = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    rewards, mask = np.zeros(shape), np.zeros(shape, bool)
    for i, (steps, _, _) in enumerate(rows):
        for t, (state, action, reward) in enumerate(steps):
            observations[i, t], actions[i, t], rewards[i, t], mask[i, t] = state, action, reward, True
    finals = np.array([state for _, state, _ in rows], np.int32)
    batch = Trajectories(observations, actions, rewards, np.zeros(shape), mask, finals)
    return Enumeration(batch, np.array([prob for _, _, prob in rows]))


def random_mdp(seed: int, shape: tuple[int, int, int], discount: float) -> TabularMDP:
    """A stochastic MDP of so many states, actions and steps; with more than two states the last one is terminal."""
    states, actions, horizon = shape
    rng = np.random.default_rng((seed, *shape))
    transitions = rng.dirichlet(np.ones(states), size=(states, actions))
    terminal = np.zeros(states, bool)
    terminal[-1] = states > 2
    initial = np.where(terminal, 0.0, rng.uniform(0.2, 1.0, states))
    rewards = rng.normal(size=transitions.shape)
    return TabularMDP(transitions, rewards, initial / initial.sum(), terminal, horizon, discount)


def random_policy(seed: int, mdp: TabularMDP, scale: float = 1.0) -> SoftmaxTable:
    """A policy of random logits."""
    return SoftmaxTable(np.random.default_rng(seed).normal(scale=scale, size=(mdp.states, mdp.actions)))
