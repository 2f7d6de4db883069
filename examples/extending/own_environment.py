"""An environment of your own, written in JAX: a walker in the wind.

Every part is a pure function, so the episodes of a batch run in one compiled program.

    python examples/extending/own_environment.py
"""

from dataclasses import dataclass, field

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

import bpsearch as bps
from bpsearch.runners import InProcess
from bpsearch.testing import check_runner

State = tuple[jax.Array, jax.Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WindyWalk(bps.envs.CompiledEnv):
    """Each step goes one to the left or to the right, and with the wind; it pays the place that it leads to.

    The policy sees the time only. If it goes right with probability p, the expected return is (2p − 1) L (L + 1) / 2.
    """

    wind: float = 0.5
    horizon: int = field(default=10, metadata={"static": True})
    discount: float = field(default=1.0, metadata={"static": True})

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = property(lambda self: gymnasium.spaces.Discrete(self.horizon + 1))

    def reset(self, key: bps.Array) -> State:
        """At time 0 in place 0."""
        return jnp.int32(0), jnp.float64(0.0)

    def observe(self, state: State) -> jax.Array:
        """The time."""
        return state[0]

    def step(self, key: bps.Array, state: State, action: bps.Array) -> tuple[State, jax.Array, jax.Array]:
        """One to the left (action 0) or to the right (action 1), and with the wind."""
        time, place = state
        place = place + 2.0 * action - 1.0 + self.wind * jax.random.uniform(key, minval=-1.0)
        return (time + 1, place), place, time + 1 >= self.horizon


def main() -> None:
    env = WindyWalk()
    policy = bps.SoftmaxTable.from_probabilities(np.tile([0.4, 0.6], (env.horizon + 1, 1)))
    check_runner(InProcess(env), policy)
    print(bps.evaluate(policy, env, episodes=1000, seed=0))
    print(f"exact value: {(2 * 0.6 - 1) * env.horizon * (env.horizon + 1) / 2:.4g}")


if __name__ == "__main__":
    main()
