"""Searches: `init(policy) -> state`, `behavior(state) -> policy`, `step(state, batch) -> (state, info)`."""

from bpsearch.search.adaptive import AdaptiveBPG, AdaptiveState
from bpsearch.search.base import Info, Search
from bpsearch.search.bpg import BPG, BPGState
from bpsearch.search.closed_form import ClosedForm, ClosedFormState
from bpsearch.search.compiled import CompiledSearch
from bpsearch.search.levels import Levels, LevelsState
from bpsearch.search.levels_starts import LevelsStarts, LevelsStartsState
from bpsearch.search.may_move import MayMove, MayMoveState
from bpsearch.search.on_policy import OnPolicy
from bpsearch.search.step_size import StepSize, constant, decaying, normalized
from bpsearch.search.table_failures import TableFailures, TableFailuresState
from bpsearch.search.warm_start import WarmStart, WarmState

__all__ = [
    "BPG",
    "AdaptiveBPG",
    "AdaptiveState",
    "BPGState",
    "ClosedForm",
    "ClosedFormState",
    "CompiledSearch",
    "Info",
    "Levels",
    "LevelsStarts",
    "LevelsStartsState",
    "LevelsState",
    "MayMove",
    "MayMoveState",
    "OnPolicy",
    "Search",
    "StepSize",
    "TableFailures",
    "TableFailuresState",
    "WarmStart",
    "WarmState",
    "constant",
    "decaying",
    "normalized",
]
