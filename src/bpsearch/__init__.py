"""bpsearch: unbiased policy evaluation from fewer episodes, by behavior policy search."""

from bpsearch import envs, estimators, models
from bpsearch.envs import TabularMDP
from bpsearch.envs.registration import register as _register
from bpsearch.estimators import Estimator, estimator
from bpsearch.policies import CategoricalMLP, GaussianMLP, Policy, SoftmaxTable, load_policy
from bpsearch.sampling import sample
from bpsearch.search import BPG, OnPolicy, Search, StepSize
from bpsearch.trajectories import Trajectories

_register()

__all__ = [
    "BPG",
    "CategoricalMLP",
    "Estimator",
    "GaussianMLP",
    "OnPolicy",
    "Policy",
    "Search",
    "SoftmaxTable",
    "StepSize",
    "TabularMDP",
    "Trajectories",
    "envs",
    "estimator",
    "estimators",
    "load_policy",
    "models",
    "sample",
]
