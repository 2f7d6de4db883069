"""The difference of two policies with bounded returns: intervals that hold for any number of episodes."""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64

from bpsearch._core.arrays import NumpyArray
from bpsearch._core.checks import check_real
from bpsearch.errors import InvalidArgumentError
from bpsearch.inference.confidence_sequence import BETS, out_of_range, refute
from bpsearch.inference.difference import Decision, Turn, decide

Ranges = tuple[tuple[float, float], tuple[float, float]]


@dataclass(frozen=True, eq=False)
class CertifiedDifference:
    """A confidence sequence of ρ_1 − ρ_2 by betting on pairs of episodes.

    Returns g in [a, b] with weight w and h in [c, d] with weight v make, with R = (b − a) + (d − c),

        ξ = (w (g − a) + v (d − h)) / R ≥ 0,    E[ξ] = (ρ_1 − ρ_2 − (a − d)) / R ≤ 1,

    because E[w] = E[v] = 1. That is all that `lower_bounds` needs: not that the two are independent, nor that all pairs
    are drawn alike. So whether seeds are shared may depend on the rounds before, and what both have in common cancels
    in ξ. The upper end is got from (w (b − g) + v (h − c)) / R in the same way; each has half of δ. Control variates
    have no part in it: what they subtract has no range.

    Attributes:
        ranges: [a, b] and [c, d].
        pairs: n.
        growth: (2, K), F_n(θ_k) = Σ log(1 + θ_k ξ_i) for the lower end and for the upper.
    """

    ranges: Ranges
    pairs: int = 0
    growth: NumpyArray = field(default_factory=lambda: np.zeros((2, len(BETS))))

    def add(self, one: Turn, other: Turn) -> "CertifiedDifference":
        """The sequence after another round.

        Raises:
            InvalidArgumentError: a return lies beyond its range, and nothing can be certified.
        """
        for turn, (low, high) in zip((one, other), self.ranges, strict=True):
            if out_of_range(turn.returns, (low, high)):
                raise InvalidArgumentError(
                    f"nothing can be certified: returns from {turn.returns.min():g} to {turn.returns.max():g} were "
                    f"seen, beyond the given range [{low:g}, {high:g}]; give one that holds every return that can "
                    "happen"
                )
        values = self._values(one, other)
        growth = self.growth + np.log1p(BETS[:, None] * values[:, None]).sum(axis=-1)
        return CertifiedDifference(self.ranges, self.pairs + values.shape[1], growth)

    def _values(self, one: Turn, other: Turn) -> Float64[NumpyArray, "2 pairs"]:
        (a, b), (c, d) = self.ranges
        w, v = (np.ones(len(t.returns)) if t.log_weights is None else np.exp(t.log_weights) for t in (one, other))
        g, h = np.clip(one.returns, a, b), np.clip(other.returns, c, d)
        return np.stack([w * (g - a) + v * (d - h), w * (b - g) + v * (h - c)]) / ((b - a) + (d - c))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The interval of this level; before the first pair, and if the ends contradict each other, all that can be."""
        side = (1.0 - check_real("level", level, above=0.0, high=1.0 - 1e-12)) / 2.0
        (a, b), (c, d) = self.ranges
        lower, upper = 0.0, 1.0
        if self.pairs:
            below, above = refute(self.growth, np.full(2, self.pairs), side)
            if below <= 1.0 - above:
                lower, upper = float(below), float(1.0 - above)
        width = (b - a) + (d - c)
        return a - d + lower * width, a - d + upper * width

    def middle(self, level: float = 0.95) -> float:
        """Of the interval of this level."""
        low, high = self.interval(level)
        return (low + high) / 2.0

    def half_width(self, level: float = 0.95) -> float:
        """Half the width of the interval of this level."""
        low, high = self.interval(level)
        return (high - low) / 2.0

    def decide(self, level: float, margin: float | None) -> Decision:
        """What the interval of this level says, from any number of pairs."""
        return decide(self.interval(level), margin)
