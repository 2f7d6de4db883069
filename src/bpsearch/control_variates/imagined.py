"""Actions that might have been taken: what the policy's probabilities tell of those that no episode has shown.

An action of probability 1e-4 has hardly ever been seen when a regression on scores is learned, so that it may get any
coefficient, and throws off the first episode in which it comes. So K more actions are drawn in each step, a_t1 to a_tK,
all A of them alike, no two the same, with random signs ε_tk, and the *imagined scores* of an episode are

    r_k = Σ_t ε_tk √(A π(a_tk|S_t) / K) ∇log π(a_tk|S_t).

Given the states, the expectation of Σ_k r_k r_kᵀ is Σ_t Cov_{a~π(·|S_t)} ∇log π(a|S_t), on average that of Z Zᵀ. But
where Z has a large number in one of ten thousand steps, one of the r_k has a small one in every A-th. Up to four
actions are all imagined: a state that a single episode has met then tells all that its probabilities know.
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
MOST = 4  # K, or A if that is less


def imagined_scores(policy: Policy, batch: Trajectories) -> NumpyArray | None:
    """(N, K, P), the r_k of each episode; None where actions cannot be counted."""
    drawn = draw(policy, np.shape(batch.mask))
    if drawn is None:
        return None
    find = _jitted_score if policy.traceable else score
    found = [
        to_numpy(find(policy, batch.observations, batch.actions, batch.mask, *one)) for one in zip(*drawn, strict=True)
    ]
    return np.stack(found, axis=1)


def draw(policy: Policy, shape: tuple[int, ...]) -> tuple[NumpyArray, NumpyArray] | None:
    """(K, N, T, ...) actions, and (K, N, T) numbers ε √(A/K); None where actions cannot be counted.

    Those of the first steps of an episode do not depend on how many steps there are.
    """
    space = policy.action_space
    low, high = limits(space)
    if low is None:
        return None
    choose, sign = (np.random.default_rng((SEED, stream)) for stream in range(2))
    sizes = np.broadcast_to(np.asarray(high) - low + 1, space.shape or ())
    draws = int(min(MOST, sizes.max()))
    first = choose.integers(sizes, size=(*shape[::-1], *sizes.shape))
    apart = np.arange(draws).reshape(-1, *(1,) * first.ndim) * sizes // draws
    actions = np.moveaxis(low + (first + apart) % sizes, 1, 2)
    signs = 2.0 * sign.integers(2, size=(*shape[::-1], draws)) - 1.0
    return actions, np.sqrt(np.prod(sizes, dtype=np.float64) / draws) * signs.T  # of many bits no whole number


@in_64_bit
def score(
    policy: Policy, observations: Observations, actions: Array, mask: Array, imagined: Array, scales: Array
) -> Array:
    """(N, P), one r_k of each episode, from the imagined actions and ε √(A/K)."""
    log_probs = jnp.asarray(policy.log_prob(observations, imagined), jnp.float64)
    possible = jnp.asarray(mask) & (log_probs > -jnp.inf)
    weights = jnp.where(possible, scales * jnp.exp(log_probs / 2.0), 0.0)
    # An impossible action has no score. It would be a number that is none, which no weight removes.
    every = possible.reshape(possible.shape + (1,) * (jnp.ndim(imagined) - 2))
    return policy.episode_scores(observations, jnp.where(every, imagined, actions), weights)


_jitted_score = in_turn(jax.jit(score))
