"""Environments of libraries that fewer people have: `make test-integrations` installs them all."""

from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bpsearch as bps
from bpsearch.envs.resolve import adapt
from bpsearch.errors import InvalidArgumentError

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]
AGENTS = Path(__file__).parent / "agents"


def test_pools_start_every_episode_by_itself() -> None:
    envpool = pytest.importorskip("envpool")
    pool = envpool.make_gymnasium("Pendulum-v1", num_envs=5, seed=1)
    policy = bps.load_sb3(AGENTS / "ppo-pendulum-v1.zip", "Pendulum-v1")
    batch = bps.sample(pool, policy, 12, seed=0)
    assert (batch.lengths == 200).all()
    # Each step follows from the one before by the pendulum's own equations, so no reset came in between.
    angle = np.arctan2(batch.observations[:, :200, 1], batch.observations[:, :200, 0])
    speed = batch.observations[:, :200, 2].astype(float)
    torque = np.clip(batch.actions[:, :200, 0], -2.0, 2.0)
    after = np.clip(speed + 0.05 * (15.0 * np.sin(angle) + 3.0 * torque), -8.0, 8.0)
    np.testing.assert_allclose(after[:, :-1], speed[:, 1:], atol=1e-3)
    rewards = -(angle**2 + 0.1 * speed**2 + 0.001 * torque**2)
    np.testing.assert_allclose(batch.rewards[:, :200], rewards, atol=1e-3)
    starts = batch.observations[:, 0]
    assert len(np.unique(starts, axis=0)) == 12


def test_pools_of_episodes_of_many_lengths() -> None:
    """|z| < 4.5 against Gymnasium's own: a false alarm once in 100,000 seeds; and what cannot be promised is said."""
    envpool = pytest.importorskip("envpool")
    pool = envpool.make_gymnasium("CartPole-v1", num_envs=8, seed=1)
    agent = AGENTS / "ppo-cartpole-v1.zip"
    with pytest.warns(UserWarning, match="EnvPool ignores the seeds of resets"):
        ours = bps.evaluate(agent, pool, 200, "mc", seed=0)
    theirs = bps.evaluate(agent, "CartPole-v1", 200, "mc", seed=0)
    assert ours.std_error is not None
    assert theirs.std_error is not None
    assert abs(ours.value - theirs.value) < 4.5 * np.hypot(ours.std_error, theirs.std_error)
    again = bps.evaluate(agent, pool, 40, seed=0)
    assert any("do not come again" in text for text in again.unused)


def test_pools_that_would_bias_are_refused() -> None:
    envpool = pytest.importorskip("envpool")
    with pytest.raises(InvalidArgumentError, match="batch_size is 2"):
        adapt(envpool.make_gymnasium("CartPole-v1", num_envs=4, batch_size=2))
    with pytest.raises(InvalidArgumentError, match="make_gymnasium"):
        adapt(envpool.make_dm("CartPole-v1", num_envs=4))


def test_environments_of_playground_are_compiled() -> None:
    pytest.importorskip("mujoco_playground")
    env: Any = bps.environment("playground:PendulumSwingup", horizon=4)
    inner = env.inner
    policy = bps.GaussianMLP.init(0, env.observation_space, env.action_space, (8,))
    batch = bps.sample(env, policy, 2, seed=0)
    assert batch.mask.all()
    with jax.enable_x64(True):
        state = env.reset(jax.random.key(5))
        taken = env.step(jax.random.key(0), state, batch.actions[0, 0])[0]
    with jax.enable_x64(False):
        theirs = inner.reset(jax.random.key_data(jax.random.key(5)))
        after = inner.step(theirs, jnp.clip(jnp.asarray(batch.actions[0, 0], jnp.float32), -1.0, 1.0))
    np.testing.assert_allclose(env.observe(state), theirs.obs, rtol=1e-5)
    np.testing.assert_allclose(env.observe(taken), after.obs, rtol=1e-4, atol=1e-5)
    assert adapt(inner).horizon == 1000
    with pytest.raises(InvalidArgumentError, match="has no environment"):
        adapt("playground:Nothing")


class FirstPlayer(gymnasium.Env[Any, Any]):
    """Tic-tac-toe of PettingZoo for its first player; the second plays at random."""

    observation_space = gymnasium.spaces.Box(0, 1, (3, 3, 2), np.int8)
    action_space = gymnasium.spaces.Discrete(9)

    def __init__(self) -> None:
        from pettingzoo.classic import tictactoe_v3

        self.game: Any = tictactoe_v3.env()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.game.reset(seed=seed)
        return self.game.observe("player_1")["observation"], {}

    def action_masks(self) -> Any:
        return self.game.observe("player_1")["action_mask"]

    def step(self, action: Any) -> Any:
        self.game.step(int(action))
        if not any(self.game.terminations.values()):
            free = np.flatnonzero(self.game.observe("player_2")["action_mask"])
            self.game.step(int(self.np_random.choice(free)))
        over = any(self.game.terminations.values())
        return self.game.observe("player_1")["observation"], float(self.game.rewards["player_1"]), over, False, {}


def test_one_player_of_pettingzoo() -> None:
    """A uniform player wins 58.5% and loses 28.8% of the games against another: |z| < 4.5, as above."""
    pytest.importorskip("pettingzoo")
    contrib = pytest.importorskip("sb3_contrib")
    import torch

    model = contrib.MaskablePPO("MlpPolicy", FirstPlayer(), device="cpu", seed=0, n_steps=32, batch_size=32)
    with torch.no_grad():
        model.policy.action_net.weight.zero_()
    result = bps.evaluate(model, FirstPlayer, 300, seed=0)
    assert result.std_error is not None
    assert abs(result.value - (0.585 - 0.288)) < 4.5 * result.std_error
