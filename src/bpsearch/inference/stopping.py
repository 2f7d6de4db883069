"""When to stop, and why a study ended."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from bpsearch._core.checks import check_choice, check_real


class Ended(StrEnum):
    """Why no more episodes were run."""

    BUDGET = "budget"
    TARGET = "target"
    VERDICT = "verdict"
    TIME_LIMIT = "time limit"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Target:
    """When an estimate is precise enough, or has taken long enough. Whichever comes first ends the study.

    Attributes:
        halfwidth: stop when half the width of an anytime-valid interval is at most this.
        relative: stop when it is at most this share of the estimate's size.
        seconds: start no batch after this many seconds.
        level: of the interval.
        kind: "asymptotic", for any returns, or "certified", which needs their range.
    """

    halfwidth: float | None = None
    relative: float | None = None
    seconds: float | None = None
    level: float = 0.95
    kind: Literal["asymptotic", "certified"] = "asymptotic"

    def __post_init__(self) -> None:
        for name in ("halfwidth", "relative", "seconds"):
            if getattr(self, name) is not None:
                check_real(name, getattr(self, name), above=0.0)
        check_real("level", self.level, above=0.0, high=1.0 - 1e-12)
        check_choice("kind", self.kind, ("asymptotic", "certified"))

    @property
    def looks(self) -> bool:
        """Whether the estimate itself has a say in when to stop."""
        return self.halfwidth is not None or self.relative is not None

    @property
    def open_ended(self) -> bool:
        """Whether it may end a study before all episodes are run."""
        return self.looks or self.seconds is not None

    def reached(self, value: float, half_width: float) -> bool:
        """Whether an estimate of this value and half-width is precise enough."""
        absolute = self.halfwidth is not None and half_width <= self.halfwidth
        return absolute or (self.relative is not None and half_width <= self.relative * abs(value))
