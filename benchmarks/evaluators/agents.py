"""PPO agents of Stable-Baselines3 as networks of bpsearch, which run in compiled environments."""

import numpy as np
import torch
from stable_baselines3.common.distributions import CategoricalDistribution, DiagGaussianDistribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor

from bpsearch import CategoricalMLP, GaussianMLP
from bpsearch.errors import InvalidArgumentError


def network_of(policy: ActorCriticPolicy) -> CategoricalMLP | GaussianMLP:
    """The actor of PPO or A2C: tanh layers, then a linear one, in 32 bit as it was trained."""
    layers = [layer for layer in policy.mlp_extractor.policy_net if not isinstance(layer, torch.nn.Tanh)]
    plain = isinstance(policy.features_extractor, FlattenExtractor)
    if not plain or not all(isinstance(layer, torch.nn.Linear) for layer in layers):
        raise InvalidArgumentError(f"expected an actor of linear layers with tanh between them, got {policy}")
    layers.append(policy.action_net)
    weights = tuple(layer.weight.detach().numpy().copy() for layer in layers)
    biases = tuple(layer.bias.detach().numpy().copy() for layer in layers)
    if isinstance(policy.action_dist, CategoricalDistribution):
        return CategoricalMLP(weights, biases)
    if type(policy.action_dist) is DiagGaussianDistribution:
        return GaussianMLP(weights, biases, np.array(policy.log_std.detach().numpy()))
    raise InvalidArgumentError(f"expected a categorical or a Gaussian policy, got {policy.action_dist}")
