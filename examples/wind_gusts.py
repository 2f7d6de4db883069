"""How probable is it that gusts push a drone into a wall? Its controller is deterministic: only the wind is random.

    python examples/wind_gusts.py

A drone hovers 1 m from a wall. A controller of springs and dampers holds its place. The wind is a sum of gusts: each
tenth of a second one number of known distribution is added, and what was there before fades. Nothing that the drone
does is random, so no other behavior of the drone could show more. But the environment declares its noise, with its
distribution. So a behavior may tilt that: it makes gusts toward the wall likely where they matter, and weights the
episodes by how much more likely it made them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

import bpsearch as bps
from bpsearch.report.words import certificate

TIME_STEP, FADING, WALL = 0.1, 0.9, 1.0
State = tuple[jax.Array, jax.Array, jax.Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Hover(bps.envs.NoisyEnv):
    """Five seconds beside a wall; the reward is minus the squared offset.

    Attributes:
        strength: standard deviation of what a gust adds to the wind's acceleration, in m/s².
    """

    strength: float = 0.53
    horizon: int = field(default=50, metadata={"static": True})
    discount: float = field(default=1.0, metadata={"static": True})

    noise: ClassVar = {"gusts": bps.envs.Normal(1)}
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)

    def reset(self, key: bps.Array) -> State:
        """In its place, at rest, without wind."""
        offset, speed, wind = jnp.zeros(3, jnp.float64)
        return offset, speed, wind

    def observe(self, state: State) -> jax.Array:
        """Offset toward the wall, speed, wind."""
        return jnp.stack(state)

    def step_with(
        self, key: bps.Array, state: State, action: bps.Array, noise: Mapping[str, bps.Array]
    ) -> tuple[State, jax.Array, jax.Array]:
        """A tenth of a second; the episode ends at the wall."""
        offset, speed, wind = state
        wind = FADING * wind + self.strength * noise["gusts"][0]
        speed = speed + TIME_STEP * (jnp.asarray(action)[0] + wind)
        offset = offset + TIME_STEP * speed
        return (offset, speed, wind), -(offset**2), offset > WALL


def controller(observation: np.ndarray) -> np.ndarray:
    """Spring and damper; it does not feel the wind."""
    offset, speed, _ = observation
    return np.array([-4.0 * offset - 3.0 * speed])


def spring_and_damper() -> bps.Policy:
    """The same controller as a network without hidden layers, which compiles: the mode of a Gaussian policy."""
    weights, none = np.array([[-4.0, -3.0, 0.0]]), np.zeros(1)
    return bps.GaussianMLP((weights,), (none,), none).mode()


def nearest(batch: bps.Trajectories) -> bps.Array:
    """The largest offset of each episode, in m."""
    during = np.where(batch.mask, np.asarray(batch.observations)[..., 0], -np.inf).max(axis=1)
    return np.maximum(during, np.asarray(batch.final_observations)[:, 0])


def crashes(batch: bps.Trajectories) -> bps.Array:
    """Whether the drone touched the wall."""
    return nearest(batch) > WALL


def main() -> None:
    agent, env = spring_and_damper(), Hover()
    print(bps.evaluate(agent, env, 3000, "mc", failure=crashes, seed=0))
    pair, exposed = bps.expose_noise(agent, env)
    found = bps.evaluate(pair, exposed, 3000, "levels", failure=crashes, level=nearest, seed=0)
    print(found)
    print(f"what is not known: {certificate(found)}")


if __name__ == "__main__":
    main()
