"""bpsearch: unbiased policy evaluation from fewer episodes, by behavior policy search.

Names are imported when they are first used: `import bpsearch` itself loads neither JAX nor any environment.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bpsearch import (
        control_variates,
        envs,
        errors,
        estimators,
        inference,
        integrations,
        oracle,
        policies,
        runners,
        sampling,
        search,
        study,
        testing,
    )
    from bpsearch._core.arrays import Array
    from bpsearch.calls.compare import compare
    from bpsearch.calls.estimate import estimate
    from bpsearch.calls.evaluate import evaluate
    from bpsearch.calls.plan import plan
    from bpsearch.calls.suite import evaluate_suite
    from bpsearch.calls.task import environment
    from bpsearch.calls.warm_start import warm_start
    from bpsearch.control_variates import ControlVariate, Scores, TabularAdvantages
    from bpsearch.envs import TabularMDP
    from bpsearch.estimands import Failure, Outcome, Return
    from bpsearch.estimators import Estimator, estimator
    from bpsearch.inference.comparison import Comparison
    from bpsearch.inference.estimate import Estimate
    from bpsearch.inference.pilot import Plan
    from bpsearch.inference.stopping import Target
    from bpsearch.inference.suite import Suite
    from bpsearch.inference.valuation import Valuation
    from bpsearch.integrations import from_jax, from_sb3, from_torch, load_sb3
    from bpsearch.methods import Method
    from bpsearch.policies import (
        CategoricalMLP,
        FunctionPolicy,
        GaussianMLP,
        Mixture,
        Policy,
        SoftmaxTable,
        from_function,
        load_policy,
        shipped_policy,
    )
    from bpsearch.policies.nature import expose_noise
    from bpsearch.runners import Runner
    from bpsearch.sampling import GymnasiumSampler, sample
    from bpsearch.sampling.trajectories import Trajectories
    from bpsearch.search import BPG, AdaptiveBPG, Levels, OnPolicy, Search, StepSize
    from bpsearch.study import ComparisonStudy, SQLiteJournal, Study

__version__ = "0.2.0"

_ROOMS = (
    "control_variates",
    "envs",
    "errors",
    "estimators",
    "inference",
    "integrations",
    "oracle",
    "policies",
    "runners",
    "sampling",
    "search",
    "study",
    "testing",
)
_HOMES = {
    "_core.arrays": ("Array",),
    "calls.compare": ("compare",),
    "calls.estimate": ("estimate",),
    "calls.warm_start": ("warm_start",),
    "calls.evaluate": ("evaluate",),
    "calls.plan": ("plan",),
    "calls.suite": ("evaluate_suite",),
    "calls.task": ("environment",),
    "control_variates": ("ControlVariate", "Scores", "TabularAdvantages"),
    "envs": ("TabularMDP",),
    "estimands": ("Failure", "Outcome", "Return"),
    "estimators": ("Estimator", "estimator"),
    "inference.comparison": ("Comparison",),
    "inference.estimate": ("Estimate",),
    "inference.pilot": ("Plan",),
    "inference.stopping": ("Target",),
    "inference.suite": ("Suite",),
    "inference.valuation": ("Valuation",),
    "integrations": ("from_jax", "from_sb3", "from_torch", "load_sb3"),
    "methods": ("Method",),
    "policies": (
        "CategoricalMLP",
        "FunctionPolicy",
        "GaussianMLP",
        "Mixture",
        "Policy",
        "SoftmaxTable",
        "from_function",
        "load_policy",
        "shipped_policy",
    ),
    "policies.nature": ("expose_noise",),
    "runners": ("Runner",),
    "sampling": ("GymnasiumSampler", "sample"),
    "sampling.trajectories": ("Trajectories",),
    "search": ("BPG", "AdaptiveBPG", "Levels", "OnPolicy", "Search", "StepSize"),
    "study": ("ComparisonStudy", "SQLiteJournal", "Study"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "BPG",
    "AdaptiveBPG",
    "Array",
    "CategoricalMLP",
    "Comparison",
    "ComparisonStudy",
    "ControlVariate",
    "Estimate",
    "Estimator",
    "Failure",
    "FunctionPolicy",
    "GaussianMLP",
    "GymnasiumSampler",
    "Levels",
    "Method",
    "Mixture",
    "OnPolicy",
    "Outcome",
    "Plan",
    "Policy",
    "Return",
    "Runner",
    "SQLiteJournal",
    "Scores",
    "Search",
    "SoftmaxTable",
    "StepSize",
    "Study",
    "Suite",
    "TabularAdvantages",
    "TabularMDP",
    "Target",
    "Trajectories",
    "Valuation",
    "compare",
    "control_variates",
    "environment",
    "envs",
    "errors",
    "estimate",
    "estimator",
    "estimators",
    "evaluate",
    "evaluate_suite",
    "expose_noise",
    "from_function",
    "from_jax",
    "from_sb3",
    "from_torch",
    "inference",
    "integrations",
    "load_policy",
    "load_sb3",
    "oracle",
    "plan",
    "policies",
    "runners",
    "sample",
    "sampling",
    "search",
    "shipped_policy",
    "study",
    "testing",
    "warm_start",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
