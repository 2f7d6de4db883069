"""Runners: who runs the episodes."""

from bpsearch.runners.backend import Backend
from bpsearch.runners.base import Runner
from bpsearch.runners.choice import open_workers, runner_for
from bpsearch.runners.in_process import InProcess
from bpsearch.runners.processes import Processes

__all__ = ["Backend", "InProcess", "Processes", "Runner", "open_workers", "runner_for"]
