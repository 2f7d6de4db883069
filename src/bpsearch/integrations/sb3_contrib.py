"""Policies of sb3-contrib whose actions depend on more than the observation: on a memory, or on action masks."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.policies import BaseModel, BasePolicy
from torch.distributions import Categorical, Distribution

from bpsearch.errors import SpaceMismatchError
from bpsearch.integrations.sb3 import DRAWN, Spaces
from bpsearch.integrations.sb3_actors import Bridge, decide, widen
from bpsearch.integrations.torch import TorchPolicy
from bpsearch.integrations.torch_architecture import Architecture
from bpsearch.integrations.torch_memory import Cell, Memory, RecurrentTorchPolicy
from bpsearch.sampling.masks import masked_space


def of_policy(
    policy: BasePolicy, bridge: Bridge, spaces: Spaces, adapt: Sequence[str] | None, notes: Sequence[str]
) -> TorchPolicy:
    """A recurrent or a maskable policy; see `sb3.of_policy`."""
    name = type(policy).__name__
    words: dict[str, Any] = {"cast": False, "copies": False, "name": name, "notes": notes, "drawn": DRAWN}
    if hasattr(policy, "lstm_actor"):
        return RecurrentTorchPolicy.of(Architecture(_Recurrent(policy, bridge), *spaces, adapt, **words))
    masked = masked_space(*spaces)
    if masked is None:
        raise SpaceMismatchError(f"{name} masks actions of a Discrete or a MultiDiscrete space, got {spaces[1]}")
    return TorchPolicy.of(Architecture(_Maskable(policy, bridge), masked, spaces[1], adapt, sees_masks=True, **words))


class _Recurrent(Cell):
    """RecurrentPPO: features, an LSTM that starts at 0 with every episode, then the layers of PPO; 64 bit."""

    def __init__(self, policy: Any, bridge: Bridge) -> None:
        super().__init__()
        self.policy = policy
        self.bridge = bridge
        widen(policy)
        policy.lstm_actor.double()

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The hidden state and the cell state: (layers, units) each."""
        lstm = self.policy.lstm_actor
        return ((lstm.num_layers, lstm.hidden_size),) * 2

    def begin(self, rows: int) -> Memory:
        """Zeros, 64 bit."""
        return tuple(torch.zeros(rows, *shape, dtype=torch.float64) for shape in self.shapes())

    def remember(self, observations: Any, memory: Memory) -> tuple[torch.Tensor, Memory]:
        """One step of the LSTM."""
        hidden, cell = (part.transpose(0, 1).contiguous() for part in memory)
        latent, after = self.policy.lstm_actor(self._features(observations)[None], (hidden, cell))
        return latent[0], tuple(part.transpose(0, 1).contiguous() for part in after)

    def unroll(self, observations: Any) -> torch.Tensor:
        """All steps of the LSTM in one call: every episode starts with nothing remembered."""
        first = next(iter(observations.values())) if isinstance(observations, dict) else observations
        episodes, steps = first.shape[:2]
        flat = _flatten(observations)
        features = self._features(flat).reshape(episodes, steps, -1)
        return self.policy.lstm_actor(features.transpose(0, 1))[0].transpose(0, 1)  # type: ignore[no-any-return]

    def decide(self, latent: torch.Tensor) -> Distribution | list[Distribution]:
        """As PPO."""
        return decide(self.policy, self.policy.mlp_extractor.forward_actor(latent))

    def _features(self, observations: Any) -> torch.Tensor:
        policy = self.policy
        return BaseModel.extract_features(policy, self.bridge(observations), policy.pi_features_extractor).double()


class _Maskable(torch.nn.Module):
    """MaskablePPO: the logits of actions that are not allowed are −∞, so that their probability is exactly 0."""

    def __init__(self, policy: Any, bridge: Bridge) -> None:
        super().__init__()
        self.policy = policy
        self.bridge = bridge
        widen(policy)
        space = policy.action_space
        self.parts = space.nvec.tolist() if isinstance(space, gymnasium.spaces.MultiDiscrete) else [int(space.n)]

    def forward(self, observations: Any) -> list[Categorical] | Categorical:
        policy = self.policy
        seen = self.bridge(observations["observation"])
        features = BaseModel.extract_features(policy, seen, policy.pi_features_extractor)
        latent = policy.mlp_extractor.forward_actor(features.double())
        allowed = observations["action_mask"].bool()
        allowed = allowed | ~allowed.any(dim=-1, keepdim=True)  # padding allows nothing, and nothing is drawn there
        logits = policy.action_net(latent).masked_fill(~allowed, -np.inf)
        found = [Categorical(logits=part, validate_args=False) for part in torch.split(logits, self.parts, dim=-1)]
        return found if len(found) > 1 else found[0]


def _flatten(observations: Any) -> Any:
    if isinstance(observations, dict):
        return {key: _flatten(value) for key, value in observations.items()}
    return observations.flatten(0, 1)
