"""How much of the return's variance under each shipped policy comes from the start state, how much from action noise.

Var[g] = Var[E[g|S_0]] + E[Var[g|S_0]]. Only the second part can be removed by a better behavior policy. Per start state
K episodes are run: their sample variance estimates Var[g|S_0] without bias, and the variance of their means, less
1/K of it, estimates Var[E[g|S_0]] without bias. Standard errors are those of the mean over start states (jackknife).
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import bpsearch as bps
from bpsearch.envs import CompiledEnv
from bpsearch.numerics import in_64_bit, pytree
from bpsearch.sampling.compiled import rollout

STARTS, REPEATS, CHUNK = 4000, 50, 100


@pytree(static=("horizon", "discount"))
@dataclass(frozen=True, eq=False)
class FixedStart(CompiledEnv):
    """`env` with every episode starting in `start`."""

    env: CompiledEnv
    start: Any
    horizon: int
    discount: float

    @property
    def observation_space(self):
        """That of `env`."""
        return self.env.observation_space

    @property
    def action_space(self):
        """That of `env`."""
        return self.env.action_space

    def reset(self, key):
        """Always `start`."""
        return self.start

    def observe(self, state):
        """As `env` does."""
        return self.env.observe(state)

    def step(self, key, state, action):
        """As `env` does."""
        return self.env.step(key, state, action)


@in_64_bit
def returns(env, policy, starts: int, repeats: int, seed: int) -> np.ndarray:
    """(starts, repeats), the returns of `repeats` episodes from each of `starts` start states."""

    def from_one_start(key):
        start_key, key = jax.random.split(key)
        fixed = FixedStart(env, env.reset(start_key), env.horizon, env.discount)
        return rollout(fixed, policy, key, repeats).rewards.sum(axis=1)

    chunk = jax.jit(lambda key: jax.vmap(from_one_start)(jax.random.split(key, CHUNK)))
    keys = jax.random.split(jax.random.key(seed), starts // CHUNK)
    return np.concatenate([np.asarray(chunk(key)) for key in keys])


def split(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(start part, action part, share of the action part) and their standard errors by the jackknife."""
    starts, repeats = values.shape
    means, inner = values.mean(axis=1), values.var(axis=1, ddof=1)

    def parts(total, squares, noise, count):
        action = noise / count
        between = (squares - total**2 / count) / (count - 1)
        start = between - action / repeats
        return np.array([start, action, action / (start + action)])

    whole = (means - means.mean()).sum(), ((means - means.mean()) ** 2).sum(), inner.sum()
    centred = means - means.mean()
    left_out = parts(whole[0] - centred, whole[1] - centred**2, whole[2] - inner, starts - 1)
    errors = np.sqrt((starts - 1) * left_out.var(axis=1))
    return parts(*whole, starts), errors


if __name__ == "__main__":
    for name, env in (("cartpole-swingup", bps.envs.cartpole_swingup()), ("acrobot", bps.envs.acrobot())):
        policy = bps.shipped_policy(name)
        values = returns(env, policy, STARTS, REPEATS, seed=0)
        (start, action, share), errors = split(values)
        print(
            f"{name}: mean return {values.mean():.3f}, variance {start + action:.2f} = start state {start:.2f} ± "
            f"{errors[0]:.2f} + action noise {action:.2f} ± {errors[1]:.2f} ({100 * share:.1f} ± "
            f"{100 * errors[2]:.1f}% action noise)"
        )
