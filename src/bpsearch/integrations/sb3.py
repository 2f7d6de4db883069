"""Stable-Baselines3 models as policies."""

import copy
from collections.abc import Sequence
from typing import Any, Literal

import gymnasium
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, VecTransposeImage
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.td3.policies import TD3Policy
from torch.distributions import Distribution

from bpsearch.errors import InvalidArgumentError, MissingStatisticsError
from bpsearch.integrations.sb3_actors import Actor, Bridge, Greedy, SquashedActor
from bpsearch.integrations.sb3_statistics import UNKNOWN, Statistics, was_normalized
from bpsearch.integrations.torch import TorchPolicy
from bpsearch.integrations.torch_architecture import Architecture
from bpsearch.policies.function import FunctionPolicy

Spaces = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
DRAWN = (
    "actions were drawn from the policy; SB3's evaluate_policy is deterministic by default, which here is "
    "deterministic=True (--deterministic)"
)
_NOISE = (
    "state-dependent exploration (use_sde): its noise was drawn at every step, as its probabilities say; in training "
    "it was kept for several steps"
)
# Without action noise of their own, of both packages; by name, because sb3-contrib need not be installed.
_GREEDY = ("QRDQNPolicy", "ARSPolicy")


def from_sb3(
    model: BaseAlgorithm,
    *,
    normalize: VecNormalize | Literal[False] | None = None,
    adapt: str | Sequence[str] | None = None,
    observation_space: gymnasium.Space[Any] | None = None,
) -> TorchPolicy | FunctionPolicy:
    """The policy that a Stable-Baselines3 model has learned, as it is now: later training does not change it.

    PPO, A2C and TRPO (Discrete, MultiDiscrete, MultiBinary, Box), SAC and TQC keep their action noise, as
    `evaluate_policy(deterministic=False)` does; `mode()` of the result is the policy without it. RecurrentPPO keeps its
    memory, MaskablePPO its masks, which are the environment's `action_masks()`. DQN, QRDQN, TD3, DDPG and ARS have no
    noise of their own: their greedy policy can be evaluated by Monte Carlo.

    Args:
        model: the trained model.
        normalize: statistics of observations that are part of the policy, frozen; those of the model's environment by
            default; False for none. Rewards are never normalised: the return is the environment's.
        adapt: the parameters that a search may change, by SB3's names; "last" for the last layer ("action_net" of PPO
            and A2C, "actor.mu" of SAC); all on which the actions depend by default.
        observation_space: of the environment in which the policy is to run, if the model has none: SB3 transposes
            images by itself, and so does the policy.
    """
    if not isinstance(model, BaseAlgorithm):
        raise InvalidArgumentError(f"model must be a Stable-Baselines3 model, got {model!r}; load a file with load_sb3")
    of_model = model.get_vec_normalize_env() if normalize is None else normalize or None
    told: bool | None = False
    if normalize is None and of_model is None:
        off_policy = isinstance(model, OffPolicyAlgorithm)
        told = was_normalized(model._last_obs, model._last_original_obs, off_policy=off_policy)
        if told is None and model.env is not None and model._last_obs is not None:
            told = False  # it was trained in the environment that it has
    if told:
        raise MissingStatisticsError(
            "the model was trained on observations that VecNormalize normalised, and has no such environment now: "
            "without its statistics it would be another policy. Give them, bps.from_sb3(model, normalize=...), load "
            "the model's file instead, which has them beside it (bps.load_sb3), or say normalize=False"
        )
    statistics = None if of_model is None else Statistics.of(of_model)
    if observation_space is None:
        observation_space = model.observation_space if model.env is None else raw_space(model.env)
    notes = (UNKNOWN,) if told is None else ()
    return of_policy(model.policy, (observation_space, model.action_space), statistics, adapt, notes)


def raw_space(envs: VecEnv) -> gymnasium.Space[Any]:
    """The observations before SB3's own wrapper transposes images."""
    while isinstance(envs, VecTransposeImage | VecNormalize):
        envs = envs.venv
    return envs.observation_space


def of_policy(
    policy: BasePolicy,
    spaces: Spaces,
    statistics: Statistics | None = None,
    adapt: str | Sequence[str] | None = None,
    notes: Sequence[str] = (),
    *,
    copies: bool = True,
) -> TorchPolicy | FunctionPolicy:
    """The same for an SB3 policy module and the spaces of the environment in which it is to run.

    Without `copies` the module is the caller's no longer.
    """
    kinds = {kind.__name__ for kind in type(policy).__mro__}
    policy = _copy(policy) if copies else policy
    policy.set_training_mode(False)
    bridge = Bridge(spaces[0], policy.observation_space, statistics)
    name = type(policy).__name__
    if isinstance(policy, DQNPolicy | TD3Policy) or kinds.intersection(_GREEDY):
        greedy = Greedy(policy, bridge)
        return FunctionPolicy(greedy, spaces, vectorized=True, is_deterministic=True, notes=tuple(notes))
    actor = getattr(policy, "actor", None)
    last = "actor.mu" if actor is not None else "action_net"
    if adapt is not None:
        adapt = [f"policy.{n}" for n in ((last,) if adapt == "last" else (adapt,) if isinstance(adapt, str) else adapt)]
    if getattr(policy, "use_sde", False) or getattr(actor, "use_sde", False):
        notes = (*notes, _NOISE)
    if "RecurrentActorCriticPolicy" in kinds or "MaskableActorCriticPolicy" in kinds:
        from bpsearch.integrations import sb3_contrib  # it imports this module

        return sb3_contrib.of_policy(policy, bridge, spaces, adapt, notes)
    module: torch.nn.Module
    if hasattr(actor, "get_action_dist_params") and isinstance(spaces[1], gymnasium.spaces.Box):
        module = SquashedActor(policy, bridge, spaces[1])
    elif isinstance(policy, ActorCriticPolicy):
        module = Actor(policy, bridge)
    else:
        raise InvalidArgumentError(
            f"{name} is none of the policies of stable_baselines3 and sb3_contrib, and how its actions are distributed "
            "is not known; a function that gives its actions can be evaluated by Monte Carlo, if they depend on the "
            "observation alone"
        )
    words: dict[str, Any] = {"name": name, "notes": notes, "drawn": DRAWN}
    return TorchPolicy.of(Architecture(module, *spaces, adapt, cast=False, copies=False, **words))


def _copy(policy: BasePolicy) -> BasePolicy:
    memo: dict[int, Any] = {}
    for module in policy.modules():
        remembered = getattr(module, "action_dist", None)
        if remembered is not None:
            # SB3 keeps the distribution of the last call, whose tensors hang in a graph and cannot be copied.
            forgetful = copy.copy(remembered)
            for name, value in vars(forgetful).items():
                first = value[0] if isinstance(value, list) and value else value
                if isinstance(first, torch.Tensor | Distribution):
                    setattr(forgetful, name, None)
            memo[id(remembered)] = forgetful
    return copy.deepcopy(policy, memo).cpu()
