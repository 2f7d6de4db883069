"""Models: value functions of the evaluation policy, learned from the episodes, as control variates."""

from bpsearch.models.tabular import TabularModel, TabularModelState, Use

__all__ = ["TabularModel", "TabularModelState", "Use"]
