"""Training: how evaluation policies are made."""

from bpsearch.training.reinforce import reinforce

__all__ = ["reinforce"]
