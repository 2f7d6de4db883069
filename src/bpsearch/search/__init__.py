"""Searches: `init(policy) -> state`, `behavior(state) -> policy`, `step(state, trajectories) -> (state, info)`."""

from bpsearch.search.adaptive import AdaptiveBPG, AdaptiveState
from bpsearch.search.auto import Auto
from bpsearch.search.base import Info, Search
from bpsearch.search.bpg import BPG, BPGState
from bpsearch.search.on_policy import OnPolicy, OnPolicyState
from bpsearch.search.step_size import StepSize, constant, decaying, normalized

__all__ = [
    "BPG",
    "AdaptiveBPG",
    "AdaptiveState",
    "Auto",
    "BPGState",
    "Info",
    "OnPolicy",
    "OnPolicyState",
    "Search",
    "StepSize",
    "constant",
    "decaying",
    "normalized",
]
