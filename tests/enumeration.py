"""Every trajectory of a small MDP, with its probability: expectations become finite sums."""

from dataclasses import dataclass

import numpy as np

import bpsearch as bps

# (states, actions, horizon): few shapes, so that compiled programs are shared between many random MDPs.
SMALL_SHAPES = ((3, 2, 2), (2, 2, 3), (2, 3, 2))
SHAPES = (*SMALL_SHAPES, (2, 2, 4), (4, 3, 2))
DISCOUNTS = (0.0, 0.9, 1.0)


@dataclass(frozen=True)
class Enumeration:
    """All trajectories as one batch; `env_probs` is the probability of each without the policy's factors."""

    batch: bps.Trajectories
    env_probs: np.ndarray

    def probabilities(self, behavior: np.ndarray) -> np.ndarray:
        """Pr(H|μ) for behavior probabilities (S, A) or (L, S, A)."""
        return self.env_probs * np.exp(self.log_probs(behavior).sum(axis=1))

    def log_probs(self, behavior: np.ndarray) -> np.ndarray:
        horizon = self.batch.mask.shape[1]
        table = np.broadcast_to(behavior, (horizon, *behavior.shape[-2:]))
        picked = table[np.arange(horizon), self.batch.observations, self.batch.actions]
        return np.where(self.batch.mask, np.log(np.where(self.batch.mask, picked, 1.0)), 0.0)

    def under(self, behavior: bps.SoftmaxTable | np.ndarray) -> bps.Trajectories:
        """The batch as if `behavior` had collected it."""
        table = behavior.probabilities if isinstance(behavior, bps.SoftmaxTable) else behavior
        b = self.batch
        return bps.Trajectories(
            b.observations, b.actions, b.rewards, self.log_probs(table), b.mask, b.final_observations
        )


def enumerate_trajectories(mdp: bps.TabularMDP) -> Enumeration:
    rows = []

    def extend(state: int, prob: float, steps: list[tuple[int, int, float]]) -> None:
        if len(steps) == mdp.horizon or (steps and mdp.terminal[state]):
            rows.append((steps, state, prob))
            return
        for action in range(mdp.actions):
            for successor in np.flatnonzero(mdp.transitions[state, action]):
                p = mdp.transitions[state, action, successor]
                reward = mdp.rewards[state, action, successor]
                extend(int(successor), prob * p, [*steps, (state, action, reward)])

    for start in np.flatnonzero(mdp.initial):
        extend(int(start), mdp.initial[start], [])
    n, horizon = len(rows), mdp.horizon
    observations, actions = np.zeros((n, horizon), np.int32), np.zeros((n, horizon), np.int32)
    rewards, mask = np.zeros((n, horizon)), np.zeros((n, horizon), bool)
    for i, (steps, _, _) in enumerate(rows):
        for t, (s, a, r) in enumerate(steps):
            observations[i, t], actions[i, t], rewards[i, t], mask[i, t] = s, a, r, True
    batch = bps.Trajectories(
        observations, actions, rewards, np.zeros_like(rewards), mask, np.array([r[1] for r in rows], np.int32)
    )
    return Enumeration(batch, np.array([r[2] for r in rows]))


def random_mdp(seed: int, shape: tuple[int, int, int], discount: float) -> bps.TabularMDP:
    """A stochastic MDP; with more than two states the last one is terminal."""
    states, actions, horizon = shape
    rng = np.random.default_rng((seed, *shape))
    transitions = rng.dirichlet(np.ones(states), size=(states, actions))
    terminal = np.zeros(states, bool)
    terminal[-1] = states > 2
    initial = np.where(terminal, 0.0, rng.uniform(0.2, 1.0, states))
    return bps.TabularMDP(
        transitions, rng.normal(size=transitions.shape), initial / initial.sum(), terminal, horizon, discount
    )


def random_policy(seed: int, mdp: bps.TabularMDP, scale: float = 1.0) -> bps.SoftmaxTable:
    return bps.SoftmaxTable(np.random.default_rng(seed).normal(scale=scale, size=(mdp.states, mdp.actions)))


def random_model(seed: int, mdp: bps.TabularMDP, policy: bps.SoftmaxTable) -> bps.oracle.QFunction:
    """A q̂ without any relation to the truth, and its v̂ = Σ_a π q̂; 0 in terminal states."""
    q = np.random.default_rng(seed).normal(size=(mdp.horizon, mdp.states, mdp.actions))
    q[:, mdp.terminal] = 0.0
    return bps.oracle.QFunction(q, (policy.probabilities * q).sum(axis=-1))


def on_trajectories(model: bps.oracle.QFunction, batch: bps.Trajectories) -> tuple[np.ndarray, np.ndarray]:
    """q̂ and v̂ along the batch, by plain loops."""
    n, horizon = batch.mask.shape
    q_hat, v_hat = np.zeros((n, horizon)), np.zeros((n, horizon + 1))
    for i, t in np.argwhere(batch.mask):
        q_hat[i, t] = model.q[t, batch.observations[i, t], batch.actions[i, t]]
        v_hat[i, t] = model.v[t, batch.observations[i, t]]
    return q_hat, v_hat


CASES = [(seed, shape, discount) for seed, shape in enumerate(SHAPES) for discount in DISCOUNTS] + [
    (seed + 10, shape, discount) for seed, shape in enumerate(SMALL_SHAPES) for discount in DISCOUNTS
]
SMALL_CASES = [(seed, shape, discount) for seed in range(3) for shape in SMALL_SHAPES for discount in DISCOUNTS]


def case_id(case: tuple) -> str:
    seed, shape, discount = case
    return f"{seed}-{'x'.join(map(str, shape))}-{discount}"
