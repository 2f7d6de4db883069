"""Evaluate an agent in plain PyTorch, written as in CleanRL: one module with an actor and a critic.

    python examples/torch_agent.py

All that bpsearch needs is a module whose `forward` gives the distribution of the actions.
"""

import gymnasium
import numpy as np
import torch
from torch.distributions import Categorical

import bpsearch as bps
from bpsearch.search import normalized


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> torch.nn.Linear:
    linear = torch.nn.Linear(inputs, outputs)
    torch.nn.init.orthogonal_(linear.weight, gain)
    torch.nn.init.zeros_(linear.bias)
    return linear


class Agent(torch.nn.Module):
    """Yours, as it is."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__()
        inputs, actions = env.observation_space.shape[0], env.action_space.n
        self.critic = torch.nn.Sequential(layer(inputs, 64), torch.nn.Tanh(), layer(64, 1, 1.0))
        self.actor = torch.nn.Sequential(layer(inputs, 64), torch.nn.Tanh(), layer(64, actions, 0.01))

    def get_value(self, observations: torch.Tensor) -> torch.Tensor:
        """The critic's, which evaluation does not need."""
        return self.critic(observations)


class Actor(torch.nn.Module):
    """What bpsearch sees of it."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.agent = agent

    def forward(self, observations: torch.Tensor) -> Categorical:
        """The distribution of the actions."""
        return Categorical(logits=self.agent.actor(observations))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with gymnasium.make("CartPole-v1") as env:
        # `adapt` names what the search may change: here the last layer of the actor.
        policy = bps.from_torch(Actor(Agent(env)), env.observation_space, env.action_space, adapt="agent.actor.2")
    study = bps.Study(policy, bps.BPG(normalized(0.003)))
    with bps.GymnasiumSampler("CartPole-v1", num_envs=8) as sampler:
        for _ in range(8):
            request = study.ask()
            study.tell(request.number, bps.sample(sampler, request.behavior, 100, batch=request.number))
        plain = bps.sample(sampler, policy, 800, seed=1).returns()
    result = study.estimate()
    print(f"behavior policy search: {result.value:.2f} +- {result.std_error:.2f} ({result.episodes} episodes)")
    print(f"Monte Carlo:            {plain.mean():.2f} +- {plain.std(ddof=1) / np.sqrt(len(plain)):.2f} (800 episodes)")


if __name__ == "__main__":
    main()
