"""Train an agent, with its value and interval in the log, and keep the best model only if it is significantly better.

    python examples/training_callback.py --timesteps 50000 --episodes 200

Needs Stable-Baselines3: pip install 'bpsearch[sb3]'. With TensorBoard installed, `tensorboard_log="runs"` of the model
shows the same numbers as curves.
"""

import argparse
from pathlib import Path

import torch
from stable_baselines3 import PPO

from bpsearch.integrations import EvaluationCallback


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timesteps", type=int, default=1024)
    parser.add_argument("--episodes", type=int, default=30, help="of each policy in an evaluation")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="directory for best_model.zip")
    options = parser.parse_args()
    torch.set_num_threads(1)  # networks this small are slower on several threads
    callback = EvaluationCallback(
        "CartPole-v1",
        eval_freq=options.timesteps // 4,
        episodes=options.episodes,
        best_model_save_path=options.out,
        verbose=1,
    )
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=256, batch_size=64, seed=0, device="cpu")
    model.learn(options.timesteps, callback=callback)
    print(f"{len(callback.estimates)} evaluations; the best model: {callback.best}")
    print(f"kept in {options.out / 'best_model.zip'}")


if __name__ == "__main__":
    main()
