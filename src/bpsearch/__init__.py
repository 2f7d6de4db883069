"""bpsearch: unbiased policy evaluation from fewer episodes, by behavior policy search."""

from bpsearch import envs, estimators, models, oracle
from bpsearch.envs import TabularMDP
from bpsearch.envs.registration import register as _register
from bpsearch.estimate import Estimate
from bpsearch.estimators import Estimator, estimator
from bpsearch.evaluate import evaluate
from bpsearch.policies import Policy, SoftmaxTable
from bpsearch.sampling import sample
from bpsearch.search import BPG, OnPolicy, Search, StepSize
from bpsearch.study import Study
from bpsearch.trajectories import Trajectories

_register()

__all__ = [
    "BPG",
    "Estimate",
    "Estimator",
    "OnPolicy",
    "Policy",
    "Search",
    "SoftmaxTable",
    "StepSize",
    "Study",
    "TabularMDP",
    "Trajectories",
    "envs",
    "estimator",
    "estimators",
    "evaluate",
    "models",
    "oracle",
    "sample",
]
