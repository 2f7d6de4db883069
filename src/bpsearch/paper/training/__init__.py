"""Training: how evaluation policies are made."""

from bpsearch.paper.training.recipes import RECIPES, train_policy
from bpsearch.paper.training.reinforce import reinforce
from bpsearch.paper.training.trpo import TRPO, TRPOInfo, TRPOState

__all__ = ["RECIPES", "TRPO", "TRPOInfo", "TRPOState", "reinforce", "train_policy"]
