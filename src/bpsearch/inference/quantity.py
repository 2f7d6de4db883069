"""A number that is not known exactly: its estimate with a confidence interval."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

ENDLESS = 30.0  # an interval wider than that, on both sides of a logarithm, tells nothing


@dataclass(frozen=True)
class Quantity:
    """What the pilot says about a number: the estimate, and the ends of its confidence interval; None if unknown."""

    estimate: float
    low: float | None
    high: float | None

    def text(self, show: Callable[[float], str]) -> str:
        """For people."""
        if self.low is None or self.high is None:
            return f"{show(self.estimate)} (the pilot cannot tell how precisely)"
        middle, low, high = show(self.estimate), show(self.low), show(self.high)
        return middle if low == high else f"{middle} ({low} to {high})"


def from_logarithm(log: float, error: float, quantile: float) -> Quantity:
    """Of a positive number by its logarithm and the standard error of that."""
    half = quantile * error
    if not half < ENDLESS:  # without one of the groups hardly anything varied
        return Quantity(float(np.exp(log)), None, None)
    middle, low, high = (float(np.exp(log + end)) for end in (0.0, -half, half))
    return Quantity(middle, low, high)


def share_of(share: float, half: float, *, known: bool) -> Quantity:
    """Within [0, 1]; nothing is known about its precision if no two episodes of a pair were found to differ."""
    estimate, low, high = (float(np.clip(share + end, 0.0, 1.0)) for end in (0.0, -half, half))
    return Quantity(estimate, low, high) if known and math.isfinite(half) else Quantity(estimate, None, None)
