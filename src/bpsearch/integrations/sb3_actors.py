"""The networks of Stable-Baselines3's policies as torch modules that give distributions."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.distributions import (
    CategoricalDistribution,
    DiagGaussianDistribution,
    StateDependentNoiseDistribution,
)
from stable_baselines3.common.policies import ActorCriticPolicy, BaseModel, BasePolicy
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import VecTransposeImage
from stable_baselines3.sac.policies import LOG_STD_MAX, LOG_STD_MIN
from torch.distributions import (
    AffineTransform,
    Categorical,
    Distribution,
    Normal,
    TanhTransform,
    Transform,
    TransformedDistribution,
)

from bpsearch._core.arrays import NumpyArray, Observations
from bpsearch.integrations.sb3_statistics import Statistics
from bpsearch.integrations.torch_architecture import as_tensors
from bpsearch.integrations.torch_numpy import InNumpy, Perceptron


def seen_space(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """What SB3's policies see of an environment: images whose channels come last are transposed."""
    if isinstance(space, gymnasium.spaces.Dict):
        return gymnasium.spaces.Dict({key: seen_space(part) for key, part in space.spaces.items()})
    if is_image_space(space) and not is_image_space_channels_first(space):  # type: ignore[arg-type]
        return VecTransposeImage.transpose_space(space)  # type: ignore[arg-type]
    return space


class Bridge(torch.nn.Module):
    """From the environment's observations to the policy's: normalise, in 64 bit as SB3 does, then transpose images."""

    def __init__(
        self, of_env: gymnasium.Space[Any], of_policy: gymnasium.Space[Any], statistics: Statistics | None
    ) -> None:
        super().__init__()
        parts = {} if statistics is None else statistics.parts
        self.clip = 0.0 if statistics is None else statistics.clip
        self.limits = {key: (torch.from_numpy(mean), torch.from_numpy(scale)) for key, (mean, scale) in parts.items()}
        pairs: dict[str | None, tuple[Any, Any]] = {None: (of_env, of_policy)}
        if isinstance(of_env, gymnasium.spaces.Dict) and isinstance(of_policy, gymnasium.spaces.Dict):
            pairs = {key: (of_env[key], of_policy[key]) for key in of_env.spaces}
        self.transposed = {key for key, (one, other) in pairs.items() if one.shape != other.shape}

    def forward(self, observations: Any) -> Any:
        """The same for a tensor and for a dict of them."""
        if isinstance(observations, dict):
            return {key: self._part(key, value) for key, value in observations.items()}
        return self._part(None, observations)

    def in_numpy(self) -> Callable[[NumpyArray], NumpyArray]:
        """The same for (N, inputs) by NumPy, as SB3's networks get it: in 32 bit."""
        if not self.limits:
            return lambda values: values.astype(np.float32)
        mean, scale = (limit.numpy() for limit in self.limits[None])
        return lambda values: np.clip((values - mean) / scale, -self.clip, self.clip).astype(np.float32)

    def _part(self, key: str | None, values: torch.Tensor) -> torch.Tensor:
        if key in self.limits:
            mean, scale = self.limits[key]
            values = ((values.double() - mean) / scale).clamp(-self.clip, self.clip).float()
        return values.movedim(-1, -3) if key in self.transposed else values


class Actor(torch.nn.Module):
    """PPO, A2C and TRPO. What follows the features runs in 64 bit, so that an action hardly ever hangs on rounding."""

    def __init__(self, policy: ActorCriticPolicy, bridge: Bridge) -> None:
        super().__init__()
        self.policy = policy
        self.bridge = bridge
        overridable = ("get_distribution", "_get_action_dist_from_latent")
        self.plain = all(getattr(type(policy), name) is getattr(ActorCriticPolicy, name) for name in overridable)
        if self.plain:
            widen(policy)

    def forward(self, observations: Any) -> Distribution | list[Distribution]:
        """The distribution of the actions."""
        policy, observations = self.policy, self.bridge(observations)
        if not self.plain:
            found: Any = policy.get_distribution(observations)
            return found.distribution  # type: ignore[no-any-return]
        features = BaseModel.extract_features(policy, observations, policy.pi_features_extractor)
        return decide(policy, policy.mlp_extractor.forward_actor(features.double()))

    def critic_values(self, observations: Any) -> torch.Tensor | None:
        """What the policy's critic expects; None from a policy of its own making."""
        policy = self.policy
        if not self.plain:
            return None
        features = BaseModel.extract_features(policy, self.bridge(observations), policy.vf_features_extractor)
        latent = policy.mlp_extractor.forward_critic(features.double())
        values: torch.Tensor = policy.value_net(latent.to(policy.value_net.weight.dtype))
        return values

    def in_numpy(self) -> InNumpy | None:
        """The same by NumPy, for vectors through a perceptron to a categorical or a plain Gaussian."""
        policy = self.policy
        space, kind = policy.observation_space, policy.action_dist
        vectors = isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1
        flat = type(policy.pi_features_extractor) is FlattenExtractor
        gaussian = type(kind) is DiagGaussianDistribution
        if not (self.plain and vectors and flat and (gaussian or isinstance(kind, CategoricalDistribution))):
            return None
        network = Perceptron.of(policy.mlp_extractor.policy_net, policy.action_net)
        if network is None:
            return None
        return InNumpy(self.bridge.in_numpy(), network, policy.log_std if gaussian else None)


def widen(policy: Any) -> None:
    """Let what follows the features compute in 64 bit."""
    policy.mlp_extractor.double()
    policy.action_net.double()
    if hasattr(policy, "log_std"):
        policy.log_std.data = policy.log_std.data.double()


def decide(policy: Any, latent: torch.Tensor) -> Distribution | list[Distribution]:
    """The distribution of an actor-critic policy from the output of its hidden layers."""
    # The two usual kinds are made here without SB3's checks, which take as long as the network.
    if isinstance(policy.action_dist, CategoricalDistribution):
        return Categorical(logits=policy.action_net(latent), validate_args=False)
    if type(policy.action_dist) is DiagGaussianDistribution:
        mean = policy.action_net(latent)
        return Normal(mean, policy.log_std.exp().expand_as(mean), validate_args=False)
    if isinstance(policy.action_dist, StateDependentNoiseDistribution):
        noisy = policy._get_action_dist_from_latent(latent).distribution
        return _squash(noisy, policy.action_space) if policy.squash_output else noisy
    return policy._get_action_dist_from_latent(latent).distribution  # type: ignore[no-any-return]


class SquashedActor(torch.nn.Module):
    """SAC and its kin: a Gaussian, squashed by tanh and stretched to the action space; 64 bit after the features."""

    def __init__(self, policy: Any, bridge: Bridge, space: gymnasium.spaces.Box) -> None:
        super().__init__()
        self.policy = policy
        self.bridge = bridge
        self.space = space
        names = ("features_extractor", "latent_pi", "mu", "log_std")
        actor = policy.actor
        self.plain = not actor.use_sde and all(isinstance(getattr(actor, n, None), torch.nn.Module) for n in names)
        if self.plain:
            for part in (actor.latent_pi, actor.mu, actor.log_std):
                part.double()

    def forward(self, observations: Any) -> Distribution:
        """The distribution of the actions."""
        actor, observations = self.policy.actor, self.bridge(observations)
        if not self.plain:
            mean, log_std, more = actor.get_action_dist_params(observations)
            return _squash(actor.action_dist.proba_distribution(mean, log_std, **more).distribution, self.space)
        features = actor.extract_features(observations, actor.features_extractor)
        latent = actor.latent_pi(features.double())
        scale = actor.log_std(latent).clamp(LOG_STD_MIN, LOG_STD_MAX).exp()
        return _squash(Normal(actor.mu(latent), scale, validate_args=False), self.space)


def _squash(gaussian: Normal, space: Any) -> TransformedDistribution:
    middle, half_width = torch.tensor((space.low + space.high) / 2), torch.tensor((space.high - space.low) / 2)
    transforms: list[Transform] = [TanhTransform(), AffineTransform(middle, half_width)]
    return TransformedDistribution(gaussian, transforms, validate_args=False)


class Greedy:
    """DQN, QRDQN, TD3, DDPG, ARS: the action without exploration."""

    def __init__(self, policy: BasePolicy, bridge: Bridge) -> None:
        self.policy = policy
        self.bridge = bridge

    def __call__(self, observations: Observations) -> Any:
        """(N, ...), the actions."""
        with torch.no_grad():
            actions = self.policy._predict(self.bridge(as_tensors(observations)), deterministic=True).numpy()
        actions = actions.reshape(-1, *(self.policy.action_space.shape or ()))
        return self.policy.unscale_action(actions) if self.policy.squash_output else actions

    def __repr__(self) -> str:
        return f"greedy {type(self.policy).__name__}"
