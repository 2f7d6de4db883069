"""What trackers are told of a study after each batch."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Self


class Tracker(ABC):
    """Writes the course of a study to an experiment tracker; `on_batch=` of `evaluate` takes one.

    Use it as a context, or close it after use:

        with TensorBoard("runs/agent") as tracker:
            bps.evaluate(policy, env, on_batch=tracker)
    """

    def __call__(self, study: Any, info: Any) -> None:
        """After each batch: the value, its standard error, the ends of the interval, and the savings."""
        estimate = study.estimate()
        interval = estimate.interval()
        found = {
            "value": estimate.value,
            "std_error": estimate.std_error,
            "interval_low": None if interval is None else interval[0],
            "interval_high": None if interval is None else interval[1],
            "savings": estimate.savings,
        }
        known = {f"bpsearch/{name}": float(number) for name, number in found.items() if number is not None}
        self.write(known, int(study.episodes))

    @abstractmethod
    def write(self, numbers: dict[str, float], episodes: int) -> None:
        """Log numbers by name, at so many episodes."""

    def close(self) -> None:  # noqa: B027
        """Finish what was opened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
