"""For training loops: the callback for Stable-Baselines3."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.logger import configure

import bpsearch as bps
from bpsearch.errors import InvalidArgumentError
from bpsearch.inference.difference import Decision
from bpsearch.integrations import EvaluationCallback

pytestmark = pytest.mark.slow

AGENT = Path(__file__).parent / "agents" / "ppo-cartpole-v1.zip"


def test_the_callback_logs_value_and_interval_and_keeps_only_what_is_significantly_better(tmp_path):
    """A trained agent that training with a step size of 0 does not change: it never becomes better than itself."""
    model = PPO.load(AGENT, env=gymnasium.make("CartPole-v1"), device="cpu")
    model.n_steps, model.learning_rate = 128, 0.0
    model._setup_lr_schedule()
    model.rollout_buffer = type(model.rollout_buffer)(
        128, model.observation_space, model.action_space, device="cpu", n_envs=1
    )
    model.set_logger(configure(str(tmp_path), ["csv"]))
    callback = EvaluationCallback(
        "CartPole-v1", eval_freq=64, episodes=30, method="mc", best_model_save_path=tmp_path / "best", seed=3
    )
    model.learn(128, callback=callback, reset_num_timesteps=True)
    model.logger.close()
    assert len(callback.estimates) == 2
    assert callback.best is callback.estimates[0][1]
    steps, found = callback.comparisons[0]
    assert steps - callback.estimates[0][0] == 64
    assert found.difference == 0.0
    assert found.decision is Decision.UNDECIDED
    assert found.settings["seed"] == 4, "episodes that the best so far has not been chosen by"
    assert (tmp_path / "best" / "best_model.zip").exists()
    logged = (tmp_path / "progress.csv").read_text().splitlines()
    columns, rows = logged[0].split(","), [line.split(",") for line in logged[1:]]
    numbers = [dict(zip(columns, row, strict=True)) for row in rows if row[columns.index("eval/value")]]
    low, high = callback.best.interval()
    assert float(numbers[0]["eval/value"]) == pytest.approx(callback.best.value)
    assert float(numbers[0]["eval/interval_low"]) == pytest.approx(low)
    assert float(numbers[0]["eval/interval_high"]) == pytest.approx(high)
    assert float(numbers[1]["eval/is_better"]) == 0.0
    kept = bps.load_sb3(tmp_path / "best" / "best_model.zip", "CartPole-v1")
    observations = np.zeros((1, 1, 4), np.float32)
    assert kept.log_prob(observations, np.zeros((1, 1), int)) == pytest.approx(
        callback.best_policy.log_prob(observations, np.zeros((1, 1), int))
    )


def test_the_callback_names_mistakes():
    with pytest.raises(InvalidArgumentError, match="episodes must be"):
        EvaluationCallback("CartPole-v1", episodes=0)
