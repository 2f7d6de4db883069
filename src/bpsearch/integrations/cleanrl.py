"""Agents as CleanRL writes them: modules with `get_action_and_value`, or with `action_scale` and `action_bias`."""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import gymnasium
import torch
from torch.distributions import (
    AffineTransform,
    Categorical,
    Distribution,
    Normal,
    TanhTransform,
    Transform,
    TransformedDistribution,
)

from bpsearch._core.arrays import Observations
from bpsearch.errors import InvalidArgumentError
from bpsearch.integrations.torch import TorchPolicy
from bpsearch.integrations.torch_architecture import Architecture, as_tensors
from bpsearch.integrations.torch_heads import Output
from bpsearch.integrations.torch_memory import Cell, Memory, RecurrentTorchPolicy
from bpsearch.policies.function import FunctionPolicy


def of_agent(
    agent: torch.nn.Module,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    *,
    adapt: str | None = None,
) -> TorchPolicy | FunctionPolicy:
    """PPO (also with an LSTM), SAC, TD3 and DDPG agents; `adapt` is "last" for the last layer of the actor."""
    module: torch.nn.Module
    act: Any = getattr(agent, "get_action_and_value", None)
    if act is not None:
        names = list(inspect.signature(act).parameters)
        if len(names) > 1 and names[1] not in ("action", "a", "actions"):
            if not hasattr(agent, "get_states") or not hasattr(agent, "lstm"):
                raise InvalidArgumentError(
                    f"{type(agent).__name__}.get_action_and_value takes {names}: only an agent with `lstm` and "
                    "`get_states`, as in CleanRL's ppo_atari_lstm.py, is known to have a memory"
                )
            cell = Architecture(_Recurrent(agent), observation_space, action_space, adapt, name=type(agent).__name__)
            return RecurrentTorchPolicy.of(cell)
        module = _ActionAndValue(agent, action_space)
    elif hasattr(agent, "get_action"):
        module = _Squashed(agent)
    else:
        own = agent.eval()
        return FunctionPolicy(
            _Deterministic(own), (observation_space, action_space), vectorized=True, is_deterministic=True
        )
    return TorchPolicy.of(Architecture(module, observation_space, action_space, adapt, name=type(agent).__name__))


class _ActionAndValue(torch.nn.Module):
    """PPO: the distribution is the one that the agent asks for the log-probability of an action that it is given."""

    def __init__(self, agent: torch.nn.Module, space: gymnasium.Space[Any]) -> None:
        super().__init__()
        self.agent = agent
        self.parts = len(space.nvec) if isinstance(space, gymnasium.spaces.MultiDiscrete) else 0
        self.shape = space.shape or ()

    def forward(self, observations: torch.Tensor) -> Output:
        rows = len(observations)
        # CleanRL's agents take the parts of a MultiDiscrete action first.
        action = torch.zeros(self.parts, rows) if self.parts else torch.zeros(rows, *self.shape)
        agent: Any = self.agent
        with _capture() as found:
            agent.get_action_and_value(observations, action)
        if not found:
            raise InvalidArgumentError(
                f"{type(agent).__name__}.get_action_and_value must ask a torch Categorical or Normal for log_prob"
            )
        return found if len(found) > 1 else found[0]


@contextlib.contextmanager
def _capture() -> Iterator[list[Any]]:
    """The distributions whose `log_prob` is asked for within."""
    found: list[Any] = []
    before: dict[Any, Any] = {kind: kind.log_prob for kind in (Categorical, Normal)}

    def watch(kind: Any) -> Any:
        def log_prob(self: Distribution, value: torch.Tensor) -> torch.Tensor:
            found.append(self)
            return before[kind](self, value)  # type: ignore[no-any-return]

        return log_prob

    for kind in before:
        kind.log_prob = watch(kind)
    try:
        yield found
    finally:
        for kind, own in before.items():
            kind.log_prob = own


class _Squashed(torch.nn.Module):
    """SAC: `forward` gives mean and log-std of a Gaussian, which tanh squashes and scale and bias stretch."""

    def __init__(self, actor: torch.nn.Module) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, observations: torch.Tensor) -> Distribution:
        actor: Any = self.actor
        mean, log_std = actor(observations)
        transforms: list[Transform] = [TanhTransform(), AffineTransform(actor.action_bias, actor.action_scale)]
        return TransformedDistribution(
            Normal(mean, log_std.exp(), validate_args=False), transforms, validate_args=False
        )


class _Deterministic:
    """TD3 and DDPG: `forward` gives the action."""

    def __init__(self, actor: torch.nn.Module) -> None:
        self.actor = actor

    def __call__(self, observations: Observations) -> Any:
        with torch.no_grad():
            return self.actor(as_tensors(observations).float()).numpy()

    def __repr__(self) -> str:
        return type(self.actor).__name__


class _Recurrent(Cell):
    """PPO with an LSTM, as in ppo_atari_lstm.py: `get_states(x, lstm_state, done)` and `actor(hidden)`."""

    def __init__(self, agent: torch.nn.Module) -> None:
        super().__init__()
        self.agent = agent

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        lstm: Any = self.agent.lstm
        return ((lstm.num_layers, lstm.hidden_size),) * 2

    def remember(self, observations: Any, memory: Memory) -> tuple[torch.Tensor, Memory]:
        agent: Any = self.agent
        state = tuple(part.transpose(0, 1).contiguous() for part in memory)
        hidden, after = agent.get_states(observations, state, torch.zeros(len(observations)))
        return hidden, tuple(part.transpose(0, 1).contiguous() for part in after)

    def decide(self, latent: torch.Tensor) -> Output:
        agent: Any = self.agent
        return Categorical(logits=agent.actor(latent), validate_args=False)
