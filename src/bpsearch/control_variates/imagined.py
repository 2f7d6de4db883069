"""Actions that might have been taken: what the policy's probabilities tell of those that no episode has shown.

An action of probability 1e-4 has hardly ever been seen when a regression on scores is learned, so that it may get any
coefficient, and throws off the first episode in which it comes. So one more action is drawn in each step, a_t, all A of
them alike, with a random sign ε_t, and the *imagined score* of an episode is

    r = Σ_t ε_t √(A π(a_t|S_t)) ∇log π(a_t|S_t).

Given the states, the expectation of r rᵀ is Σ_t Cov_{a~π(·|S_t)} ∇log π(a|S_t), on average that of Z Zᵀ. But where Z
has a large number in one of ten thousand steps, r has a small one in every A-th.
"""

import jax
import jax.numpy as jnp
import numpy as np

from bpsearch._core.arrays import Array, NumpyArray, Observations
from bpsearch._core.jaxtools import in_64_bit, in_turn, to_numpy
from bpsearch.envs.spaces import limits
from bpsearch.policies.base import Policy
from bpsearch.sampling.trajectories import Trajectories

SEED = 0  # nothing that is estimated depends on these numbers by its expectation


def imagined_scores(policy: Policy, batch: Trajectories) -> NumpyArray | None:
    """(N, P), r of each episode; None where actions cannot be counted."""
    drawn = draw(policy, np.shape(batch.mask))
    if drawn is None:
        return None
    find = _jitted_scores if policy.traceable else score
    found: NumpyArray = to_numpy(find(policy, batch.observations, batch.actions, batch.mask, *drawn))
    return found


def draw(policy: Policy, shape: tuple[int, ...]) -> tuple[NumpyArray, NumpyArray] | None:
    """(N, T, ...) actions, and (N, T) numbers ε √A; None where actions cannot be counted.

    Those of the first steps of an episode do not depend on how many steps there are.
    """
    space = policy.action_space
    low, high = limits(space)
    if low is None:
        return None
    choose, sign = (np.random.default_rng((SEED, stream)) for stream in range(2))
    actions = choose.integers(low, high, endpoint=True, size=(*shape[::-1], *(space.shape or ())))
    signs = 2.0 * sign.integers(2, size=shape[::-1]) - 1.0
    alike = np.prod(np.broadcast_to(np.asarray(high) - low + 1.0, space.shape or ()))
    return np.moveaxis(actions, 0, 1), np.sqrt(alike) * signs.T


@in_64_bit
def score(
    policy: Policy, observations: Observations, actions: Array, mask: Array, imagined: Array, scales: Array
) -> Array:
    """R of each episode, from the imagined actions and ε √A."""
    log_probs = jnp.asarray(policy.log_prob(observations, imagined), jnp.float64)
    possible = jnp.asarray(mask) & (log_probs > -jnp.inf)
    weights = jnp.where(possible, scales * jnp.exp(log_probs / 2.0), 0.0)
    # An impossible action has no score. It would be a number that is none, which no weight removes.
    every = possible.reshape(possible.shape + (1,) * (jnp.ndim(imagined) - 2))
    return policy.episode_scores(observations, jnp.where(every, imagined, actions), weights)


_jitted_scores = in_turn(jax.jit(score))
