"""TorchRL's actors: modules that read from a `TensorDict` and give a distribution."""

from typing import Any

import gymnasium
import torch
from tensordict import TensorDict
from torch.distributions import Categorical, Distribution, OneHotCategorical

from bpsearch._core.arrays import Observations
from bpsearch.errors import InvalidArgumentError
from bpsearch.integrations.torch import TorchPolicy
from bpsearch.integrations.torch_architecture import Architecture, as_tensors
from bpsearch.policies.function import FunctionPolicy


def of_actor(
    actor: Any, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], *, adapt: str | None = None
) -> TorchPolicy | FunctionPolicy:
    """A `ProbabilisticActor`, or a `TensorDictModule` that writes "action": that one is evaluated by Monte Carlo."""
    keys = [key for key in actor.in_keys if isinstance(key, str)]
    if len(keys) != 1 and not isinstance(observation_space, gymnasium.spaces.Dict):
        raise InvalidArgumentError(f"the actor must read one key of the TensorDict, got {list(actor.in_keys)}")
    if hasattr(actor, "get_dist"):
        module = _Probabilistic(actor, keys)
        return TorchPolicy.of(Architecture(module, observation_space, action_space, adapt, name=type(actor).__name__))
    if "action" not in actor.out_keys:
        raise InvalidArgumentError(f"the module must write the key 'action', it writes {list(actor.out_keys)}")
    plain = _Plain(actor, keys, action_space)
    return FunctionPolicy(plain, (observation_space, action_space), vectorized=True, is_deterministic=True)


def _tensordict(keys: list[str], observations: Any) -> TensorDict:
    if isinstance(observations, dict):
        rows = len(next(iter(observations.values())))
        return TensorDict(dict(observations), batch_size=[rows])
    return TensorDict({keys[0]: observations}, batch_size=[len(observations)])


class _Probabilistic(torch.nn.Module):
    def __init__(self, actor: Any, keys: list[str]) -> None:
        super().__init__()
        self.actor = actor
        self.keys = keys

    def forward(self, observations: Any) -> Distribution:
        found = self.actor.get_dist(_tensordict(self.keys, observations))
        # TorchRL's actions of a Discrete space are one-hot; Gymnasium's are numbers.
        if isinstance(found, OneHotCategorical) or type(found).__name__ in ("OneHotCategorical", "MaskedCategorical"):
            return Categorical(logits=found.logits, validate_args=False)
        return found  # type: ignore[no-any-return]


class _Plain:
    def __init__(self, actor: Any, keys: list[str], space: gymnasium.Space[Any]) -> None:
        self.actor, self.keys, self.space = actor.eval(), keys, space

    def __call__(self, observations: Observations) -> Any:
        with torch.no_grad():
            action = self.actor(_tensordict(self.keys, as_tensors(observations)))["action"]
        is_discrete = isinstance(self.space, gymnasium.spaces.Discrete)
        return (action.argmax(-1) if is_discrete and action.ndim > 1 else action).numpy()

    def __repr__(self) -> str:
        return type(self.actor).__name__
