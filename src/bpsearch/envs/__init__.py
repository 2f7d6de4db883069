"""Environments: tabular MDPs, the paper's gridworlds and simulations, compiled and through Gymnasium."""

from bpsearch.envs.acrobot import Acrobot, acrobot
from bpsearch.envs.adapter import GymnasiumEnv, GymnasiumVectorEnv
from bpsearch.envs.base import CompiledEnv
from bpsearch.envs.cartpole_swingup import CartPoleSwingUp, cartpole_swingup
from bpsearch.envs.classic_control import (
    ClassicAcrobot,
    ClassicCartPole,
    Pendulum,
    classic_acrobot,
    classic_cartpole,
    pendulum,
)
from bpsearch.envs.gridworlds import gridworld, rare_event_gridworld, stochastic_gridworld
from bpsearch.envs.noise import Categorical, DeclaresNoise, NoiseMixin, NoisyEnv, Normal
from bpsearch.envs.registration import register as _register
from bpsearch.envs.tabular import TabularMDP

_register()

__all__ = [
    "Acrobot",
    "CartPoleSwingUp",
    "Categorical",
    "ClassicAcrobot",
    "ClassicCartPole",
    "CompiledEnv",
    "DeclaresNoise",
    "GymnasiumEnv",
    "GymnasiumVectorEnv",
    "NoiseMixin",
    "NoisyEnv",
    "Normal",
    "Pendulum",
    "TabularMDP",
    "acrobot",
    "cartpole_swingup",
    "classic_acrobot",
    "classic_cartpole",
    "gridworld",
    "pendulum",
    "rare_event_gridworld",
    "stochastic_gridworld",
]
