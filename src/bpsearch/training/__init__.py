"""Training: how evaluation policies are made."""

from bpsearch.training.trpo import TRPO, TRPOInfo, TRPOState

__all__ = ["TRPO", "TRPOInfo", "TRPOState"]
