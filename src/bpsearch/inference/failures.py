"""Values of an event that a search looks for.

They have room for events that the search has not found (`EventValuation`). And where the first batch looks around, it
counts only if the event turns out to be common (`FailureValuation`).

A search for rare failures gives up its first batch: the values of a behavior that misses failures are nearly all 0 and
a few huge. If failures are common nothing was gained by that. Whether they are may not be decided by the episodes that
are to count. So the first batch is cut in two halves A and B, and each counts by what the *other* has shown:

    mean = a(B) X̄_A + b(A) X̄_B + (1 − a(B) − b(A)) X̄_later.

Its behavior was fixed before any episode, so that both halves are independent, and E[a(B) X̄_A] = E[a(B)] ρ. Given both,
the later batches have the mean ρ, whatever is left to them. So the mean is exactly ρ.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch.inference.counting import count_episodes
from bpsearch.inference.difference import Turn
from bpsearch.inference.intervals import martingale_error
from bpsearch.inference.missing import distance_of_missing
from bpsearch.inference.unseen import PSEUDO_EPISODES, widen
from bpsearch.inference.valuation import Valuation, ValuedBatch, Values

COMMON = 0.01  # the weighted share of failures in one half by which the other counts
SEVERAL = 2.0  # equally weighted failures at least


@dataclass(frozen=True)
class EventValuation(Valuation):
    """An estimator of the probability of an event, with room for such as the search has not found."""

    def conclude(self, state: Any, batches: Sequence[ValuedBatch]) -> Values:
        """The values of all batches, and the error of their mean."""
        return self._make_room(super().conclude(state, batches), batches)

    def missing(self, turns: Iterable[Turn]) -> float:
        """By the weights of the failures that were found."""
        return _distance(
            [(t.log_weights, t.returns, t.values) for t in turns if t.weight and t.log_weights is not None]
        )

    def _make_room(self, found: Values, parts: Sequence[ValuedBatch]) -> Values:
        """With what the episodes of these parts cannot know, whose values are in `found`."""
        told = zip(parts, found.batches, found.weights, strict=True)
        distance = _distance([(part.log_weights, part.returns, values) for part, values, weight in told if weight])
        total = sum(weight * len(values) for weight, values in zip(found.weights, found.batches, strict=True))
        return replace(found, error=widen(found.error, PSEUDO_EPISODES * (distance * max(found.weights) / total) ** 2))


@dataclass(frozen=True)
class FailureValuation(EventValuation):
    """The same, and the halves of the first batch count if the event is common."""

    def conclude(self, state: Any, batches: Sequence[ValuedBatch]) -> Values:
        """The values, those of the first batch as two batches, and the error of their mean."""
        first, *later = batches
        if not later or len(first.values) < 2:
            return super().conclude(state, batches)
        halves = np.array_split(np.arange(len(first.values)), 2)
        shares = [float(_is_common(first, other)) for other in reversed(halves)]
        counts = count_episodes([batch.weight for batch in later], [len(batch.values) for batch in later])
        left = sum((1.0 - share) * len(half) for share, half in zip(shares, halves, strict=True))
        size = sum(count * len(batch.values) for count, batch in zip(counts, later, strict=True))
        scale = (left + sum(len(batch.values) for batch in later)) / size
        values = [*(first.values[half] for half in halves), *(batch.values for batch in later)]
        weights = [*shares, *(scale * count for count in counts)]
        error = martingale_error(values, weights, heavy_tails=True)
        parts = [*(_take(first, half) for half in halves), *later]
        return self._make_room(Values(values, weights, error, error), parts)


def _take(batch: ValuedBatch, rows: NumpyArray) -> ValuedBatch:
    """Some episodes of a batch, without what control variates would need."""
    return ValuedBatch(batch.values[rows], batch.log_weights[rows], batch.returns[rows])


def _distance(told: Sequence[tuple[NumpyArray, NumpyArray, NumpyArray]]) -> float:
    """Of the log-weights, the returns and the values of some batches."""
    return distance_of_missing(*map(np.concatenate, zip(*told, strict=True))) if told else 0.0


def _is_common(batch: ValuedBatch, rows: NumpyArray) -> bool:
    """Whether these episodes of a batch show the event to be common."""
    weights = np.exp(batch.log_weights[rows]) * (batch.returns[rows] > 0.0)
    return bool(weights.sum() >= COMMON * len(rows) and weights.sum() ** 2 >= SEVERAL * (weights @ weights))
