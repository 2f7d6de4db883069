"""Cases for enumeration, and models along trajectories by plain loops."""

import numpy as np

import bpsearch as bps
from bpsearch.testing import Enumeration, enumerate_trajectories, random_mdp, random_policy

__all__ = ["Enumeration", "enumerate_trajectories", "random_mdp", "random_policy"]

# (states, actions, horizon): few shapes, so that compiled programs are shared between many random MDPs.
SMALL_SHAPES = ((3, 2, 2), (2, 2, 3), (2, 3, 2))
SHAPES = (*SMALL_SHAPES, (2, 2, 4), (4, 3, 2))
DISCOUNTS = (0.0, 0.9, 1.0)


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
