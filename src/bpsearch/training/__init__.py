"""Training: how evaluation policies are made."""

from bpsearch.training.reinforce import reinforce
from bpsearch.training.shipped import load_policy, train_policy

__all__ = ["load_policy", "reinforce", "train_policy"]
