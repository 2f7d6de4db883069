"""Training: how evaluation policies are made."""

from bpsearch.training.recipes import RECIPES, train_policy
from bpsearch.training.reinforce import reinforce
from bpsearch.training.trpo import TRPO, TRPOInfo, TRPOState

__all__ = ["RECIPES", "TRPO", "TRPOInfo", "TRPOState", "reinforce", "train_policy"]
