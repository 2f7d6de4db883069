"""Stable-Baselines3 models as policies."""

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.distributions import CategoricalDistribution, DiagGaussianDistribution
from stable_baselines3.common.policies import ActorCriticPolicy, BaseModel, BasePolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import LOG_STD_MAX, LOG_STD_MIN, SACPolicy
from stable_baselines3.td3.policies import TD3Policy
from torch.distributions import (
    AffineTransform,
    Categorical,
    Distribution,
    Normal,
    TanhTransform,
    TransformedDistribution,
)

from bpsearch._core.arrays import NumpyArray
from bpsearch.errors import InvalidArgumentError
from bpsearch.integrations.torch import Architecture, TorchPolicy
from bpsearch.integrations.torch_numpy import InNumpy, Perceptron
from bpsearch.policies.function import FunctionPolicy

Spaces = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]


def from_sb3(
    model: BaseAlgorithm, *, normalize: VecNormalize | None = None, adapt: str | Sequence[str] | None = None
) -> TorchPolicy | FunctionPolicy:
    """The policy that a Stable-Baselines3 model has learned, as it is now: later training does not change it.

    PPO and A2C (Discrete, MultiDiscrete, MultiBinary, Box) and SAC keep their action noise, as
    `evaluate_policy(deterministic=False)` does. DQN, TD3 and DDPG have none of their own: their greedy policy can be
    evaluated by Monte Carlo.

    Args:
        model: the trained model.
        normalize: statistics of observations that are part of the policy, frozen; those of the model's environment by
            default. Rewards are never normalised: the return is the environment's.
        adapt: the parameters that a search may change, by SB3's names; "last" for the last layer ("action_net" of PPO
            and A2C, "actor.mu" of SAC); all on which the actions depend by default.
    """
    if not isinstance(model, BaseAlgorithm):
        raise InvalidArgumentError(f"model must be a Stable-Baselines3 model, got {model!r}; load a file with load_sb3")
    statistics = model.get_vec_normalize_env() if normalize is None else normalize
    observation_space = model.observation_space if statistics is None else statistics.venv.observation_space
    return of_policy(model.policy, (observation_space, model.action_space), statistics, adapt)


def of_policy(
    policy: BasePolicy,
    spaces: Spaces,
    statistics: VecNormalize | None = None,
    adapt: str | Sequence[str] | None = None,
) -> TorchPolicy | FunctionPolicy:
    """The same for an SB3 policy module and the spaces of the environment in which it is to run."""
    if getattr(policy, "use_sde", False) or getattr(getattr(policy, "actor", None), "use_sde", False):
        raise InvalidArgumentError(
            "the policy uses state-dependent exploration (use_sde=True), whose noise is shared by many steps: its "
            "trajectories have no probability that is a product over steps"
        )
    policy = _copied(policy)
    normalizer = _Normalizer(statistics)
    if isinstance(policy, DQNPolicy | TD3Policy):
        return FunctionPolicy(_Greedy(policy, normalizer), spaces, vectorized=True, is_deterministic=True)
    module: torch.nn.Module
    if isinstance(policy, SACPolicy):
        assert isinstance(spaces[1], gymnasium.spaces.Box)
        module = _SquashedActor(policy, normalizer, spaces[1])
    elif isinstance(policy, ActorCriticPolicy) and _needs_only_observations(policy):
        module = _Actor(policy, normalizer)
    else:
        raise InvalidArgumentError(
            f"{type(policy).__name__} gives no action distribution that depends on the observation alone; PPO, A2C, "
            f"SAC, DQN, TD3 and DDPG of stable_baselines3 can be evaluated, others as a plain function by Monte Carlo"
        )
    if adapt == "last":
        adapt = "actor.mu" if isinstance(policy, SACPolicy) else "action_net"
    if adapt is not None:
        adapt = [f"policy.{name}" for name in ((adapt,) if isinstance(adapt, str) else adapt)]
    return TorchPolicy.of(Architecture(module, *spaces, adapt, cast=False))


def _copied(policy: BasePolicy) -> BasePolicy:
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
    copied = copy.deepcopy(policy, memo).cpu()
    copied.set_training_mode(False)
    return copied


class _Normalizer(torch.nn.Module):
    """Frozen statistics of VecNormalize, computed in 64 bit as it does; nothing without statistics."""

    def __init__(self, statistics: VecNormalize | None) -> None:
        super().__init__()
        self.limits: dict[str | None, tuple[torch.Tensor, torch.Tensor]] = {}
        if statistics is None or not statistics.norm_obs:
            return
        self.clip = float(statistics.clip_obs)
        by_key: dict[str | None, Any] = (
            dict(statistics.obs_rms) if isinstance(statistics.obs_rms, dict) else {None: statistics.obs_rms}
        )
        for key, moments in by_key.items():
            scale = np.sqrt(moments.var + statistics.epsilon)
            self.limits[key] = torch.tensor(moments.mean), torch.tensor(scale)

    def forward(self, observations: Any) -> Any:
        if not self.limits:
            return observations
        if isinstance(observations, dict):
            return {key: self._normalized(key, value) for key, value in observations.items()}
        return self._normalized(None, observations)

    def in_numpy(self) -> Callable[[NumpyArray], NumpyArray]:
        """The same for (N, inputs) by NumPy, as SB3's networks get it: in 32 bit."""
        if not self.limits:
            return lambda values: values.astype(np.float32)
        mean, scale = (limit.numpy() for limit in self.limits[None])
        return lambda values: np.clip((values - mean) / scale, -self.clip, self.clip).astype(np.float32)

    def _normalized(self, key: str | None, values: torch.Tensor) -> torch.Tensor:
        if key not in self.limits:
            return values
        mean, scale = self.limits[key]
        return ((values.double() - mean) / scale).clamp(-self.clip, self.clip).float()


class _Actor(torch.nn.Module):
    """PPO and A2C. What follows the features runs in 64 bit, so that an action hardly ever hangs on rounding."""

    def __init__(self, policy: ActorCriticPolicy, normalizer: _Normalizer) -> None:
        super().__init__()
        self.policy = policy
        self.normalizer = normalizer
        overridable = ("get_distribution", "_get_action_dist_from_latent")
        self.plain = all(getattr(type(policy), name) is getattr(ActorCriticPolicy, name) for name in overridable)
        if self.plain:
            policy.mlp_extractor.double()
            policy.action_net.double()
            if hasattr(policy, "log_std"):
                policy.log_std.data = policy.log_std.data.double()

    def forward(self, observations: Any) -> Distribution | list[Distribution]:
        policy, observations = self.policy, self.normalizer(observations)
        distribution: Any
        if not self.plain:
            distribution = policy.get_distribution(observations)
            return distribution.distribution  # type: ignore[no-any-return]
        features = BaseModel.extract_features(policy, observations, policy.pi_features_extractor)
        latent = policy.mlp_extractor.forward_actor(features.double())
        # The two usual kinds are made here without SB3's checks, which take as long as the network.
        if isinstance(policy.action_dist, CategoricalDistribution):
            return Categorical(logits=policy.action_net(latent), validate_args=False)
        if type(policy.action_dist) is DiagGaussianDistribution:
            mean = policy.action_net(latent)
            return Normal(mean, policy.log_std.exp().expand_as(mean), validate_args=False)
        distribution = policy._get_action_dist_from_latent(latent)
        return distribution.distribution  # type: ignore[no-any-return]

    def in_numpy(self) -> InNumpy | None:
        """The same by NumPy, for vectors through a perceptron to a categorical or a plain Gaussian."""
        policy = self.policy
        vectors = (
            isinstance(policy.observation_space, gymnasium.spaces.Box) and len(policy.observation_space.shape) == 1
        )
        flat = type(policy.pi_features_extractor) is FlattenExtractor
        gaussian = type(policy.action_dist) is DiagGaussianDistribution
        if not (
            self.plain and vectors and flat and (gaussian or isinstance(policy.action_dist, CategoricalDistribution))
        ):
            return None
        network = Perceptron.of(policy.mlp_extractor.policy_net, policy.action_net)
        if network is None:
            return None
        return InNumpy(self.normalizer.in_numpy(), network, policy.log_std if gaussian else None)


class _SquashedActor(torch.nn.Module):
    """SAC: a Gaussian, squashed by tanh and stretched to the action space; in 64 bit after the features."""

    def __init__(self, policy: SACPolicy, normalizer: _Normalizer, space: gymnasium.spaces.Box) -> None:
        super().__init__()
        self.policy = policy
        self.normalizer = normalizer
        self.middle = torch.tensor((space.low + space.high) / 2)
        self.half_width = torch.tensor((space.high - space.low) / 2)
        for part in (policy.actor.latent_pi, policy.actor.mu, policy.actor.log_std):
            part.double()

    def forward(self, observations: Any) -> Distribution:
        actor: Any = self.policy.actor
        features = actor.extract_features(self.normalizer(observations), actor.features_extractor)
        latent = actor.latent_pi(features.double())
        scale = actor.log_std(latent).clamp(LOG_STD_MIN, LOG_STD_MAX).exp()
        return TransformedDistribution(
            Normal(actor.mu(latent), scale, validate_args=False),
            [TanhTransform(), AffineTransform(self.middle, self.half_width)],
            validate_args=False,
        )


class _Greedy:
    """DQN, TD3, DDPG: the action without exploration."""

    def __init__(self, policy: BasePolicy, normalizer: _Normalizer) -> None:
        self.policy = policy
        self.normalizer = normalizer

    def __call__(self, observations: NumpyArray) -> NumpyArray:
        tensors, _ = self.policy.obs_to_tensor(observations)
        with torch.no_grad():
            actions = self.policy._predict(self.normalizer(tensors), deterministic=True).numpy()
        actions = actions.reshape(-1, *(self.policy.action_space.shape or ()))
        return self.policy.unscale_action(actions) if self.policy.squash_output else actions

    def __repr__(self) -> str:
        return f"greedy {type(self.policy).__name__}"


def _needs_only_observations(policy: ActorCriticPolicy) -> bool:
    """False for recurrent policies, whose distribution depends on a hidden state."""
    arguments = list(inspect.signature(policy.get_distribution).parameters.values())
    return all(argument.default is not inspect.Parameter.empty for argument in arguments[1:])
