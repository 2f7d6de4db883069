"""How probable is it that a driving policy touches the barrier? About one in ten thousand, from 3,000 episodes.

    python examples/lane_keeping.py

A small network steers a car in its lane: it sees the offset from the middle and the sideways speed, and gives a
sideways acceleration, with noise. Gusts of wind push the car. To the right, 0.9 m from the middle, is a barrier. Monte
Carlo with 3,000 episodes sees no touch four times out of five, and can only say that its probability is below 0.1%.

`levels` goes there step by step: it learns from the episodes that came nearest, makes those likely, learns again,
and so on until touches are common; then it counts episodes and weights them. `level` says how near an episode came.
"""

from dataclasses import dataclass, field

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

import bpsearch as bps
from bpsearch.report.words import certificate

TIME_STEP, BARRIER = 0.1, 0.9
State = tuple[jax.Array, jax.Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Lane(bps.envs.CompiledEnv):
    """Four seconds in a lane; the reward is minus the squared offset.

    Attributes:
        gusts: standard deviation of the wind's acceleration, in m/s².
        barrier: its distance from the middle, in m.
    """

    gusts: float = 1.0
    barrier: float = BARRIER
    horizon: int = field(default=40, metadata={"static": True})
    discount: float = field(default=1.0, metadata={"static": True})

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def reset(self, key: bps.Array) -> State:
        """Near the middle, hardly moving."""
        offset, speed = 0.05 * jax.random.normal(key, (2,), jnp.float32)
        return offset, speed

    def observe(self, state: State) -> jax.Array:
        """Offset and sideways speed."""
        return jnp.stack(state)

    def step(self, key: bps.Array, state: State, action: bps.Array) -> tuple[State, jax.Array, jax.Array]:
        """A tenth of a second; the episode ends at the barrier."""
        offset, speed = state
        push = jnp.float32(self.gusts) * jax.random.normal(key, (), jnp.float32)
        speed = speed + TIME_STEP * (jnp.asarray(action, jnp.float32)[0] + push)
        offset = offset + TIME_STEP * speed
        return (offset, speed), -(offset**2), offset > self.barrier


def driver(hidden: tuple[int, ...] = (16,), noise: float = 3.0) -> bps.GaussianMLP:
    """A network that was fitted to a controller of springs and dampers, −4 offset − 3 speed."""
    lane, rng = Lane(), np.random.default_rng(0)
    network = bps.GaussianMLP.init(0, lane.observation_space, lane.action_space, hidden)
    seen = rng.normal(size=(2000, 2)).astype(np.float32)
    features = seen.T
    for weight, bias in zip(network.weights[:-1], network.biases[:-1], strict=True):
        features = np.tanh(weight @ features + bias[:, None])
    rows = np.vstack([features, np.ones(len(seen))]).T
    last, *_ = np.linalg.lstsq(rows, -4.0 * seen[:, 0] - 3.0 * seen[:, 1], rcond=1e-4)
    last = last.astype(np.float32)
    log_std = np.full(1, np.log(noise), np.float32)
    weights, biases = (*network.weights[:-1], last[None, :-1]), (*network.biases[:-1], last[-1:])
    return bps.GaussianMLP(weights, biases, log_std)


def offsets(batch: bps.Trajectories) -> bps.Array:
    """The largest offset of each episode, in m."""
    during = np.where(batch.mask, np.asarray(batch.observations)[..., 0], -np.inf).max(axis=1)
    return np.maximum(during, np.asarray(batch.final_observations)[:, 0]).astype(np.float64)


def touches(batch: bps.Trajectories) -> bps.Array:
    """Whether the car touched the barrier."""
    return offsets(batch) > BARRIER


def main() -> None:
    lane, policy = Lane(), driver()
    for method in ("mc", "levels"):
        found = bps.evaluate(policy, lane, 3000, method, failure=touches, level=offsets, seed=0)
        print(f"{method}: {found}")
    print(f"what is not known: {certificate(found)}")


if __name__ == "__main__":
    main()
