"""Do the value network's features of a Stable-Baselines3 agent explain more than those of its policy network?

`auto` subtracts Σ_t wᵀ φ(S_t) (A_t's indicator − its probability), with φ the last hidden layer of the policy network;
for Gaussian actions the standardised action takes the indicator's place. Here the same with φ of the value network, and
with both side by side. Printed is the variance of the cross-fitted values relative to that of the returns, the mean
over studies with its standard error; the choice "no control variate" is among the candidates as in `auto`.

    python benchmarks/critic_features.py --episodes 300 --studies 20
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from stable_baselines3 import PPO

import bpsearch as bps
from bpsearch.search.cross_fitting import cross_fit
from bpsearch.trajectories import Array, Trajectories

AGENTS = Path(__file__).parents[1] / "tests" / "agents"


def features(model: PPO, batch: Trajectories) -> dict[str, Array]:
    """(N, P) for each kind of φ."""
    mask = batch.mask
    steps, owner = batch.observations[mask], np.repeat(np.arange(len(mask)), mask.sum(axis=1))
    with torch.no_grad():
        inputs = model.policy.extract_features(torch.as_tensor(steps, dtype=torch.float32))
        actor, critic = (latent.numpy().astype(float) for latent in model.policy.mlp_extractor(inputs))
        distribution = model.policy.get_distribution(torch.as_tensor(steps, dtype=torch.float32)).distribution
    if isinstance(distribution, torch.distributions.Categorical):
        surprise = np.eye(distribution.probs.shape[1])[batch.actions[mask]] - distribution.probs.numpy()
    else:
        assert isinstance(distribution, torch.distributions.Normal)
        surprise = (batch.actions[mask] - distribution.mean.numpy()) / distribution.stddev.numpy()

    def summed(latent: Array) -> Array:
        with_bias = np.hstack([latent, np.ones((len(latent), 1))])
        products = (surprise[:, :, None] * with_bias[:, None, :]).reshape(len(latent), -1)
        total = np.zeros((len(mask), products.shape[1]))
        np.add.at(total, owner, products)
        return total

    kinds = {"policy": summed(actor), "value": summed(critic)}
    return kinds | {"both": np.hstack(list(kinds.values()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--studies", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| agent | policy network's features | value network's | both |\n|---|---|---|---|")
    for env_id in ("CartPole-v1", "Acrobot-v1", "Pendulum-v1"):
        path = AGENTS / f"ppo-{env_id.lower()}.zip"
        model = PPO.load(path, device="cpu")
        policy = bps.load_sb3(path, env_id)
        found: dict[str, list[float]] = {}
        with bps.GymnasiumSampler(env_id) as sampler:
            for study in range(options.studies):
                batch = bps.sample(sampler, policy, options.episodes, seed=3, batch=study)
                returns = batch.returns(1.0)
                for kind, scores in features(model, batch).items():
                    left = np.var(cross_fit(returns, scores).values) / np.var(returns)
                    found.setdefault(kind, []).append(float(left))
        cells = [f"{np.mean(x):.3f} ± {np.std(x) / np.sqrt(len(x)):.3f}" for x in found.values()]
        print(f"| {env_id} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
