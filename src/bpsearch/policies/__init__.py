"""Policies: immutable, with a flat vector of parameters; a behavior policy is one with other parameters."""

from bpsearch.policies.base import Policy
from bpsearch.policies.callables import from_function
from bpsearch.policies.files import load_policy, shipped_policy
from bpsearch.policies.function import FunctionPolicy
from bpsearch.policies.mixture import Mixture
from bpsearch.policies.mlp import CategoricalMLP, GaussianMLP
from bpsearch.policies.table import SoftmaxTable

__all__ = [
    "CategoricalMLP",
    "FunctionPolicy",
    "GaussianMLP",
    "Mixture",
    "Policy",
    "SoftmaxTable",
    "from_function",
    "load_policy",
    "shipped_policy",
]
