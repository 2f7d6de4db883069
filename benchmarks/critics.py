"""Does a critic of a Stable-Baselines3 agent explain more than the scores of its policy network?

`auto` subtracts Σ_t wᵀ φ(S_t) U_t with φ the last hidden layer of the policy network and U_t the action's surprise, its
indicator less its probabilities; for Gaussian actions the standardised action. w is fitted to the returns of whole
episodes. Here the same

- with φ of the value network, and with both side by side;
- with the choice, among the candidates, of a critic: q̂ = (v + A U) of φ, and of φ times the time, fitted to the rewards
  that follow each step, by the folds that `auto` learns from.

Printed is the variance of the cross-fitted values relative to that of the returns, the mean over studies with its
standard error; "no control variate" is among the candidates as in `auto`.

    python benchmarks/critics.py --episodes 300 --studies 20
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from stable_baselines3 import PPO

import bpsearch as bps
from bpsearch.search.cross_fitting import FOLDS, cross_fit
from bpsearch.trajectories import Array, Trajectories

AGENTS = Path(__file__).parents[1] / "tests" / "agents"
RIDGE = 1e-3  # relative to each feature's own sum of squares


@dataclass(frozen=True, eq=False)
class Steps:
    """All steps of a batch, one after the other, as an agent sees them.

    Attributes:
        owner: (M,), the episode of each.
        actor: (M, F), the policy network's features, 1 among them.
        value: (M, F), the value network's.
        surprise: (M, A), of the action; its mean is 0 in every state.
        ahead: (M,), the sum of the rewards from here on.
        times: (M, 1), from 0 to 1.
    """

    owner: Array
    actor: Array
    value: Array
    surprise: Array
    ahead: Array
    times: Array

    @classmethod
    def of(cls, model: PPO, batch: Trajectories) -> "Steps":
        """Through both networks."""
        mask = batch.mask
        inputs = torch.as_tensor(batch.observations[mask], dtype=torch.float32)
        with torch.no_grad():
            latents = model.policy.mlp_extractor(model.policy.extract_features(inputs))
            distribution = model.policy.get_distribution(inputs).distribution
        actor, value = (np.hstack([x.numpy().astype(float), np.ones((len(x), 1))]) for x in latents)
        if isinstance(distribution, torch.distributions.Categorical):
            surprise = np.eye(distribution.probs.shape[1])[batch.actions[mask]] - distribution.probs.numpy()
        else:
            assert isinstance(distribution, torch.distributions.Normal)
            surprise = (batch.actions[mask] - distribution.mean.numpy()) / distribution.stddev.numpy()
        rewards = np.where(mask, batch.rewards, 0.0)
        ahead = np.cumsum(rewards[:, ::-1], axis=1)[:, ::-1][mask]
        owner, times = np.nonzero(mask)
        return cls(owner, actor, value, surprise, ahead, times[:, None] / mask.shape[1])

    def surprising(self, features: Array) -> Array:
        """(M, A · F), U φᵀ of each step."""
        return (self.surprise[:, :, None] * features[:, None, :]).reshape(len(features), -1)

    def summed(self, products: Array) -> Array:
        """(N, P), over each episode."""
        totals = np.zeros((self.owner[-1] + 1, products.shape[1]))
        np.add.at(totals, self.owner, products)
        return totals

    def critic(self, kept: Array) -> Array:
        """(C, N), Σ_t (q̂ − v̂) of all episodes, for each of (C, K) bool with q̂ learned from the folds that are kept."""
        plain = np.hstack([self.actor, self.actor * self.times, self.actor * self.times**2])
        luck = self.surprising(np.hstack([self.actor, self.actor * self.times]))
        inputs, totals = np.hstack([plain, luck]), self.summed(luck)
        folds = self.owner % FOLDS
        products = np.stack([inputs[folds == fold].T @ inputs[folds == fold] for fold in range(FOLDS)])
        targets = np.stack([inputs[folds == fold].T @ self.ahead[folds == fold] for fold in range(FOLDS)])
        sums = []
        for system, target in zip(np.tensordot(kept, products, axes=1), kept @ targets, strict=True):
            ridge = np.diag(RIDGE * np.diag(system) + 1e-9)
            sums.append(totals @ np.linalg.solve(system + ridge, target)[plain.shape[1] :])
        return np.stack(sums)


def left(returns: Array, steps: Steps) -> dict[str, float]:
    """What each way leaves of the variance of the returns."""
    actor, value = (steps.summed(steps.surprising(features)) for features in (steps.actor, steps.value))
    ways = {
        "policy network's scores": cross_fit(returns, actor),
        "value network's": cross_fit(returns, value),
        "both": cross_fit(returns, np.hstack([actor, value])),
        "scores or a critic": cross_fit(returns, actor, control=steps.critic),
    }
    return {way: float(np.var(fit.values) / np.var(returns)) for way, fit in ways.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--studies", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for number, env_id in enumerate(("CartPole-v1", "Acrobot-v1", "Pendulum-v1")):
        path = AGENTS / f"ppo-{env_id.lower()}.zip"
        model = PPO.load(path, device="cpu")
        policy = bps.load_sb3(path, env_id)
        found = []
        with bps.GymnasiumSampler(env_id) as sampler:
            for study in range(options.studies):
                batch = bps.sample(sampler, policy, options.episodes, seed=3, batch=study)
                found.append(left(batch.returns(1.0), Steps.of(model, batch)))
        if number == 0:
            print(f"| agent | {' | '.join(found[0])} |\n{'|---' * (len(found[0]) + 1)}|")
        columns = np.array([list(row.values()) for row in found]).T
        cells = [f"{np.mean(x):.3f} ± {np.std(x, ddof=1) / np.sqrt(len(x)):.3f}" for x in columns]
        print(f"| {env_id} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
