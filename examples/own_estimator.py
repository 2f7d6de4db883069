"""A user's own estimator gets its behavior policy gradient without writing any derivative.

The estimator is importance sampling with a return shift b: X = b + w (g − b). It is unbiased for every b that is fixed
before the episodes are run, since E[w] = 1, and a good b may lower the variance that a search can reach.

    python examples/own_estimator.py
"""

import jax.numpy as jnp

import bpsearch as bps
from bpsearch.search import normalized

SHIFT = 20.0


@bps.estimator
def shifted_importance_sampling(rewards, log_ratios, mask, discount):
    """X = b + w (g − b)."""
    returns = (rewards * discount ** jnp.arange(rewards.shape[-1])).sum(axis=-1)
    weights = jnp.exp(log_ratios.sum(axis=-1))
    return SHIFT + weights * (returns - SHIFT)


def main():
    env, policy = bps.envs.gridworld(), bps.shipped_policy("gridworld-early")
    study = bps.Study(policy, bps.BPG(normalized(0.05), estimator=shifted_importance_sampling), seed=0)
    print("estimate:", study.run(env, episodes=5000))
    print("truth:   ", bps.oracle.value(env, policy))
    reached = study.ask().behavior
    print("variance of one episode's value, exact:")
    print("  Monte Carlo             ", bps.oracle.variance(env, policy, policy, "mc"))
    print("  behavior that was found ", bps.oracle.variance(env, policy, reached, "is", shift=SHIFT))
    print("  best softmax behavior   ", bps.oracle.optimum(env, policy, "is", shift=SHIFT)[1])


if __name__ == "__main__":
    main()
