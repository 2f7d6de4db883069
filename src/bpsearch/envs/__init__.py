"""Environments: tabular MDPs and the paper's gridworlds, compiled and through Gymnasium."""

from bpsearch.envs.adapter import GymnasiumEnv
from bpsearch.envs.base import CompiledEnv
from bpsearch.envs.gridworlds import gridworld, rare_event_gridworld, stochastic_gridworld
from bpsearch.envs.tabular import TabularMDP

__all__ = [
    "CompiledEnv",
    "GymnasiumEnv",
    "TabularMDP",
    "gridworld",
    "rare_event_gridworld",
    "stochastic_gridworld",
]
