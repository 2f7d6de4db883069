"""Does a critic of a Stable-Baselines3 agent explain more than the scores of its policy network?

`auto` subtracts Σ_t wᵀ φ(S_t) U_t with φ the last hidden layer of the policy network and U_t the action's surprise, its
indicator less its probabilities; for Gaussian actions the standardised action. w is fitted to the returns of whole
episodes. Here the same

- with φ of the value network, and with both side by side;
- with the choice, among the candidates, of a critic: q̂ = (v + A U) of φ, and of φ times the time, fitted to the rewards
  that follow each step, by the folds that `auto` learns from.

Printed is the variance of the cross-fitted values relative to that of the returns, the mean over studies with its
standard error; "no control variate" is among the candidates as in `auto`.

    python -m benchmarks.critics --episodes 300 --studies 20
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from stable_baselines3 import PPO

import bpsearch as bps
from bpsearch._core.arrays import NumpyArray
from bpsearch.control_variates import ControlVariate, Scores
from bpsearch.inference.cross_fitting import cross_fit
from bpsearch.sampling.trajectories import Trajectories

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

    owner: NumpyArray
    actor: NumpyArray
    value: NumpyArray
    surprise: NumpyArray
    ahead: NumpyArray
    times: NumpyArray

    @classmethod
    def of(cls, model: PPO, batch: Trajectories) -> "Steps":
        """Through both networks."""
        mask = batch.mask
        inputs = torch.as_tensor(np.asarray(batch.observations)[mask], dtype=torch.float32)
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

    def surprising(self, features: NumpyArray) -> NumpyArray:
        """(M, A · F), U φᵀ of each step."""
        return (self.surprise[:, :, None] * features[:, None, :]).reshape(len(features), -1)

    def summed(self, products: NumpyArray) -> NumpyArray:
        """(N, P), over each episode."""
        totals = np.zeros((self.owner[-1] + 1, products.shape[1]))
        np.add.at(totals, self.owner, products)
        return totals

    @property
    def plain(self) -> NumpyArray:
        """(M, P), what the value of a state is fitted on."""
        return np.hstack([self.actor, self.actor * self.times, self.actor * self.times**2])

    @property
    def luck(self) -> NumpyArray:
        """(M, P), what the advantage of an action is fitted on; its mean is 0 in every state."""
        return self.surprising(np.hstack([self.actor, self.actor * self.times]))


@dataclass(frozen=True, eq=False)
class Sums:
    """Over the steps of some episodes: Σ x xᵀ and Σ x g of what is fitted."""

    products: NumpyArray
    targets: NumpyArray

    def __add__(self, other: "Sums") -> "Sums":
        """Over both."""
        return Sums(self.products + other.products, self.targets + other.targets)


@dataclass(frozen=True)
class Critic(ControlVariate[Steps, Sums, NumpyArray]):
    """Σ_t (q̂ − v̂)(S_t, A_t), with q̂ fitted to the rewards that follow each step."""

    model: PPO
    doubt: float = 1.0

    def summarize(self, batch: Trajectories) -> Steps:
        """The steps, through both networks."""
        return Steps.of(self.model, batch)

    def evidence(self, summary: Steps, targets: NumpyArray, groups: NumpyArray, count: int) -> list[Sums]:
        """Sums over the steps of each group's episodes."""
        inputs, group = np.hstack([summary.plain, summary.luck]), groups[summary.owner]
        rows = [group == number for number in range(count)]
        return [Sums(inputs[own].T @ inputs[own], inputs[own].T @ summary.ahead[own]) for own in rows]

    def fit(self, evidence: Sequence[Sums]) -> NumpyArray:
        """(C, P), a ridge regression each."""
        ridges = (np.diag(RIDGE * np.diag(sums.products) + 1e-9) for sums in evidence)
        pairs = zip(evidence, ridges, strict=True)
        return np.stack([np.linalg.solve(sums.products + ridge, sums.targets) for sums, ridge in pairs])

    def predict(self, fit: NumpyArray, summary: Steps) -> NumpyArray:
        """(C, 1, N), the sums of advantages."""
        totals = summary.summed(summary.luck)
        return (fit[:, -totals.shape[1] :] @ totals.T)[:, None]


def left(returns: NumpyArray, model: PPO, batch: Trajectories) -> dict[str, float]:
    """What each way leaves of the variance of the returns."""
    critic = Critic(model)
    steps = critic.summarize(batch)
    actor, value = (steps.summed(steps.surprising(features)) for features in (steps.actor, steps.value))
    ways = {
        "policy network's scores": [(Scores(), {"scores": actor})],
        "value network's": [(Scores(), {"scores": value})],
        "both": [(Scores(), {"scores": np.hstack([actor, value])})],
        "scores or a critic": [(Scores(), {"scores": actor}), (critic, steps)],
    }
    return {way: float(np.var(cross_fit(used, returns).values) / np.var(returns)) for way, used in ways.items()}


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
                found.append(left(batch.returns(1.0), model, batch))
        if number == 0:
            print(f"| agent | {' | '.join(found[0])} |\n{'|---' * (len(found[0]) + 1)}|")
        columns = np.array([list(row.values()) for row in found]).T
        cells = [f"{np.mean(x):.3f} ± {np.std(x, ddof=1) / np.sqrt(len(x)):.3f}" for x in columns]
        print(f"| {env_id} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
