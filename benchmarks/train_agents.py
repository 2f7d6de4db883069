"""Train the small agents that the tests and the benchmarks evaluate: seconds each, then saved as SB3 files.

    python -m benchmarks.train_agents tests/agents

The agents are stopped early on purpose: a half-trained policy still has the action noise that makes its evaluation
expensive.
"""

import argparse
import zipfile
from pathlib import Path
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

NETWORK: dict[str, Any] = {"net_arch": [32, 32]}
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"timesteps": 8_000, "n_steps": 128, "batch_size": 128},
    "Acrobot-v1": {"timesteps": 24_000, "n_steps": 256, "batch_size": 256, "gae_lambda": 0.94, "gamma": 0.99},
    "Pendulum-v1": {"timesteps": 40_000, "n_steps": 256, "batch_size": 256, "gamma": 0.9, "learning_rate": 1e-3},
}


def strip(path: Path) -> None:
    """Drop what SB3 notes about the computer: it is no part of the agent."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist() if name != "system_info.txt"}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


def learned(env_id: str, seed: int, timesteps: int | None = None) -> PPO:
    """PPO after so many steps, by default those of the agents of the tests."""
    settings = dict(SETTINGS[env_id])
    default = settings.pop("timesteps")
    envs = make_vec_env(env_id, n_envs=8, seed=seed)
    model = PPO("MlpPolicy", envs, seed=seed, device="cpu", policy_kwargs=NETWORK, **settings)
    return model.learn(timesteps or default)


def train(env_id: str, directory: Path, seed: int) -> None:
    model = learned(env_id, seed)
    path = directory / f"ppo-{env_id.lower()}.zip"
    model.save(path)
    strip(path)
    mean, deviation = evaluate_policy(model, model.get_env(), n_eval_episodes=40, deterministic=False)
    print(f"{env_id}: return {mean:.1f}, standard deviation {deviation:.1f}; {path.stat().st_size / 1000:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where the files are written")
    parser.add_argument("--env", choices=list(SETTINGS), action="append", help="all of them by default")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # networks this small are slower on several threads
    for env_id in options.env or SETTINGS:
        train(env_id, options.directory, options.seed)


if __name__ == "__main__":
    main()
