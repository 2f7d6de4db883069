"""Train the policies of the tasks that are not shipped with the package, and write them to data/.

    python -m benchmarks.evaluators.train [NAME ...]

Tabular ones are REINFORCE as for the shipped policies. Agents are PPO with the settings of benchmarks/train_agents.py:
"half" is the agent of the tests itself, "trained" has learned several times as long.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from stable_baselines3 import PPO

import bpsearch as bps
from benchmarks.evaluators.agents import network_of
from benchmarks.evaluators.tasks import DATA
from benchmarks.train_agents import learned
from bpsearch.paper.training import reinforce
from bpsearch.policies.files import save_policy

AGENTS = Path(__file__).parents[2] / "tests" / "agents"
SETTINGS = {"batch_size": 100, "step_size": 0.005, "seed": 1}
# The steps after which REINFORCE is stopped: one training run for each environment.
STAGES = {
    "gridworld": (bps.envs.gridworld, {"middle": 75, "noisy": 600}),
    "stochastic": (bps.envs.stochastic_gridworld, {"early": 1, "middle": 60, "late": 600}),
}
TIMESTEPS = {"CartPole-v1": 60_000, "Acrobot-v1": 150_000, "Pendulum-v1": 250_000}


def train_tables(name: str) -> None:
    make, stages = STAGES[name]
    env = make()
    policies = reinforce(env, iterations=max(stages.values()), **SETTINGS)
    for stage, iteration in stages.items():
        save_policy(policies[iteration], DATA / f"{name}-{stage}.npz")
        print(f"{name}-{stage}: value {bps.oracle.value(env, policies[iteration]):.2f}", flush=True)


def train_agents(env_id: str) -> None:
    half = PPO.load(AGENTS / f"ppo-{env_id.lower()}.zip", device="cpu")
    trained = learned(env_id, seed=0, timesteps=TIMESTEPS[env_id])
    for stage, model in (("half", half), ("trained", trained)):
        save_policy(network_of(model.policy), DATA / f"{env_id.lower()}-{stage}.npz")
        print(f"{env_id.lower()}-{stage}: written", flush=True)


def main() -> None:
    makers: dict[str, Callable[[str], None]] = dict.fromkeys(STAGES, train_tables) | dict.fromkeys(
        TIMESTEPS, train_agents
    )
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(makers), help=f"of {', '.join(makers)}; all by default")
    options = parser.parse_args()
    torch.set_num_threads(1)  # networks this small are slower on several threads
    DATA.mkdir(exist_ok=True)
    for name in options.names:
        makers[name](name)


if __name__ == "__main__":
    main()
