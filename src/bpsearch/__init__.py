"""bpsearch: unbiased policy evaluation from fewer episodes, by behavior policy search."""

from typing import TYPE_CHECKING, Any

from bpsearch import envs, estimators, exchange, models, oracle, policies, search, store, training
from bpsearch.envs import TabularMDP
from bpsearch.envs.registration import register as _register
from bpsearch.estimate import Estimate
from bpsearch.estimators import Estimator, estimator
from bpsearch.evaluate import evaluate
from bpsearch.forecast import Plan
from bpsearch.plan import plan
from bpsearch.policies import (
    CategoricalMLP,
    FunctionPolicy,
    GaussianMLP,
    Mixture,
    Policy,
    SoftmaxTable,
    load_policy,
    shipped_policy,
)
from bpsearch.sampling import GymnasiumSampler, sample
from bpsearch.search import BPG, AdaptiveBPG, Auto, OnPolicy, Search, StepSize
from bpsearch.store import SQLiteStore
from bpsearch.study import Study
from bpsearch.trajectories import Trajectories

if TYPE_CHECKING:
    from bpsearch.policies import from_sb3, from_torch, load_sb3

_register()

__all__ = [
    "BPG",
    "AdaptiveBPG",
    "Auto",
    "CategoricalMLP",
    "Estimate",
    "Estimator",
    "FunctionPolicy",
    "GaussianMLP",
    "GymnasiumSampler",
    "Mixture",
    "OnPolicy",
    "Plan",
    "Policy",
    "SQLiteStore",
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
    "exchange",
    "from_sb3",
    "from_torch",
    "load_policy",
    "load_sb3",
    "models",
    "oracle",
    "plan",
    "policies",
    "sample",
    "search",
    "shipped_policy",
    "store",
    "training",
]


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is first used."""
    if name in ("from_sb3", "from_torch", "load_sb3"):
        return getattr(policies, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
