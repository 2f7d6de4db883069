"""Common mistakes that are warned of: rewards of training, single lives, seeds that are ignored."""

import random
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common.atari_wrappers import ClipRewardEnv, EpisodicLifeEnv
from stable_baselines3.common.vec_env import DummyVecEnv

import bpsearch as bps
from toy_envs import Toy

POLICY = bps.CategoricalMLP.init(0, Toy.observation_space, Toy.action_space, (4,))


def clipped(env: Any) -> Any:
    return gymnasium.wrappers.TransformReward(env, lambda reward: min(reward, 0.5))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: clipped(Toy()), "TransformReward"),
        (lambda: gymnasium.wrappers.NormalizeReward(Toy()), "NormalizeReward.*depend on earlier episodes"),
        (lambda: gymnasium.wrappers.TimeLimit(ClipRewardEnv(Toy()), 3), "ClipRewardEnv"),
        (lambda: SyncVectorEnv([lambda: clipped(Toy())] * 2), "TransformReward"),
        (lambda: gymnasium.wrappers.vector.NormalizeReward(SyncVectorEnv([Toy] * 2)), "NormalizeReward"),
        (lambda: gymnasium.wrappers.vector.ClipReward(SyncVectorEnv([Toy] * 2), 0.0, 1.0), "ClipReward"),
        (lambda: DummyVecEnv([lambda: ClipRewardEnv(Toy())]), "ClipRewardEnv"),
    ],
)
def test_rewards_of_training_are_warned_of(make: Any, name: str) -> None:
    with pytest.warns(UserWarning, match=f"{name}.*not of the environment's own"):
        bps.sample(make(), POLICY, 2, seed=0)


def test_factories_are_looked_at_once() -> None:
    with pytest.warns(UserWarning, match="TransformReward") as found:
        bps.evaluate(POLICY, lambda: clipped(Toy()), 150, seed=0)
    assert len([w for w in found if "TransformReward" in str(w.message)]) == 1


class Lives:
    """What SB3's wrapper asks a game for."""

    def lives(self) -> int:
        return 0


def test_single_lives_are_warned_of() -> None:
    class Game(Toy):
        ale = Lives()

        def get_action_meanings(self) -> list[str]:
            return ["NOOP", "FIRE"]

    with pytest.warns(UserWarning, match=r"EpisodicLifeEnv.*that of one life"):
        bps.sample(EpisodicLifeEnv(Game()), POLICY, 2, seed=0)


class Starts(Toy):
    """Starts where the program's own random numbers say."""

    def observe(self) -> Any:
        return np.array([self.steps, random.random() if self.steps == 0 else 0.0], np.float32)


class Rewards(Toy):
    """Obeys its seed in all but its rewards."""

    def reward(self, action: Any) -> float:
        return random.random()


class Steps(Toy):
    """Starts alike, and goes on as the program's own random numbers say."""

    def observe(self) -> Any:
        return np.array([self.steps, 0.0 if self.steps == 0 else random.random()], np.float32)


@pytest.mark.parametrize(
    ("env", "what"),
    [(Starts, "observation at step 0"), (Rewards, "reward at step 0"), (Steps, "observation at step 1")],
)
@pytest.mark.parametrize("vector", [False, True])
def test_ignored_seeds_are_warned_of(env: Any, what: str, vector: bool) -> None:
    place = SyncVectorEnv([env] * 3) if vector else env
    with pytest.warns(UserWarning, match=f"ignores seeds: episode 0.*another {what}"):
        bps.evaluate(POLICY, place, 40, seed=0)


def test_nothing_is_said_without_a_reason() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for env in (Toy, lambda: gymnasium.wrappers.TimeLimit(Toy(), 3), SyncVectorEnv([Toy] * 2), "CartPole-v1"):
            policy = bps.CategoricalMLP.init(0, gymnasium.make("CartPole-v1").observation_space, Toy.action_space, (4,))
            bps.evaluate(policy if env == "CartPole-v1" else POLICY, env, 40, seed=0)
        # A policy that draws by itself does what it did not before: that is not the environment's doing.
        bps.evaluate(lambda observation: random.randrange(2), Toy, 40, seed=0)
        # Resets that were forbidden are not made for a check.
        bps.evaluate(POLICY, Rewards, 40, seed=0, resets="never")
