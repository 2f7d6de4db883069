"""Runners: who runs the episodes."""

from bpsearch.runners.base import Runner
from bpsearch.runners.in_process import InProcess, runner_for

__all__ = ["InProcess", "Runner", "runner_for"]
