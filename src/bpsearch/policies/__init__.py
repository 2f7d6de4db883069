"""Policies: immutable, with a flat vector of parameters; a behavior policy is one with other parameters."""

from bpsearch.policies.base import Policy
from bpsearch.policies.table import SoftmaxTable

__all__ = ["Policy", "SoftmaxTable"]
