"""Weights & Biases as a tracker."""

from typing import Any

import wandb

from bpsearch.integrations.tracking import Tracker


class WandB(Tracker):
    """Logs to a run.

    Args:
        run: a run of `wandb.init`; by default one is made, and finished by `close`.
        settings: of `wandb.init`: project, name, mode="offline", dir, ...
    """

    def __init__(self, run: Any = None, **settings: Any) -> None:
        self._owned = run is None
        self._run = wandb.init(**settings) if run is None else run

    def write(self, numbers: dict[str, float], episodes: int) -> None:
        """One entry with all numbers."""
        self._run.log({**numbers, "bpsearch/episodes": episodes})

    def close(self) -> None:
        """Finish the run, if it was made here."""
        if self._owned:
            self._run.finish()
