"""Suite: one policy, or one kind of training, over several tasks; the mean over tasks with its error."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from bpsearch._core.checks import check_real
from bpsearch.errors import MissingDependencyError
from bpsearch.inference.estimate import Estimate, Interval

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False)
class Suite:
    """Evaluations of several tasks.

    The scores s_t of T tasks are (X_t − low_t)/(high_t − low_t), or the values X_t themselves. Their mean s̄ has one
    error for each of two questions.

    - These tasks, more episodes: Σ SE_t² / T², since the episodes of different tasks are independent.
    - Other tasks like these: the tasks are a sample, and each is a cluster of episodes that share it. Then the error is
      Σ (s_t − s̄)² / (T (T − 1)), with T − 1 degrees of freedom.

    Attributes:
        estimates: of each task, by name.
        scales: for each task the return that scores 0 and the one that scores 1; empty if values count as they are.
        settings: what repeats it.
    """

    estimates: dict[str, Estimate]
    scales: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def scores(self) -> dict[str, float]:
        """The value of each task, on its scale."""
        return {
            name: (estimate.value - self._low(name)) / self._unit(name) for name, estimate in self.estimates.items()
        }

    @property
    def mean(self) -> float:
        """The mean score."""
        return float(np.mean(list(self.scores.values())))

    @property
    def std_error(self) -> float | None:
        """Of the mean, for these tasks; None if that of a task is unknown."""
        errors = [(estimate.std_error, self._unit(name)) for name, estimate in self.estimates.items()]
        known = [error / unit for error, unit in errors if error is not None]
        return math.sqrt(sum(error**2 for error in known)) / len(errors) if len(known) == len(errors) else None

    @property
    def clustered_error(self) -> float | None:
        """Of the mean, if other tasks had been drawn like these; None of a single task."""
        count = len(self.estimates)
        return None if count < 2 else float(np.std(list(self.scores.values()), ddof=1)) / math.sqrt(count)

    def interval(self, level: float = 0.95) -> Interval | None:
        """The interval of the mean for these tasks, and a number of episodes fixed in advance."""
        error = self.std_error
        if error is None:
            return None
        half = float(stats.norm.ppf(0.5 + _check_level(level) / 2.0)) * error
        return self.mean - half, self.mean + half

    def clustered_interval(self, level: float = 0.95) -> Interval | None:
        """The interval of the mean over all tasks that these are a sample of."""
        error = self.clustered_error
        if error is None:
            return None
        half = float(stats.t.ppf(0.5 + _check_level(level) / 2.0, len(self.estimates) - 1.0)) * error
        return self.mean - half, self.mean + half

    @property
    def episodes(self) -> int:
        """Of all tasks."""
        return sum(estimate.episodes for estimate in self.estimates.values())

    def to_dataframe(self) -> "pandas.DataFrame":
        """A row for each task."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise MissingDependencyError("to_dataframe needs pandas: pip install pandas") from error
        rows = []
        for name, estimate in self.estimates.items():
            low, high = estimate.interval() or (math.nan, math.nan)
            row = {"task": name, "score": self.scores[name], "value": estimate.value, "std_error": estimate.std_error}
            rows.append(row | {"low": low, "high": high, "episodes": estimate.episodes, "savings": estimate.savings})
        return pandas.DataFrame(rows)

    def __str__(self) -> str:
        from bpsearch.report.suite_words import describe

        return describe(self)

    def _low(self, name: str) -> float:
        return self.scales[name][0] if self.scales else 0.0

    def _unit(self, name: str) -> float:
        return self.scales[name][1] - self.scales[name][0] if self.scales else 1.0


def _check_level(level: float) -> float:
    return check_real("level", level, above=0.0, high=1.0 - 1e-12)
