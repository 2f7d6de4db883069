"""Values where the first batch looks around, and counts only if the event turns out to be common.

A search for rare failures gives up its first batch: the values of a behavior that misses failures are nearly all 0 and
a few huge. If failures are common nothing was gained by that. Whether they are may not be decided by the episodes that
are to count. So the first batch is cut in two halves A and B, and each counts by what the *other* has shown:

    mean = a(B) X̄_A + b(A) X̄_B + (1 − a(B) − b(A)) X̄_later.

Its behavior was fixed before any episode, so that both halves are independent, and E[a(B) X̄_A] = E[a(B)] ρ. Given both,
the later batches have the mean ρ, whatever is left to them. So the mean is exactly ρ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch.inference.counting import count_episodes
from bpsearch.inference.intervals import martingale_error
from bpsearch.inference.valuation import Valuation, ValuedBatch, Values

COMMON = 0.01  # the weighted share of failures in one half by which the other counts
SEVERAL = 2.0  # equally weighted failures at least


@dataclass(frozen=True)
class FailureValuation(Valuation):
    """An estimator of the probability of an event; the halves of the first batch count if the event is common."""

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
        return Values(values, weights, error, error)


def _is_common(batch: ValuedBatch, rows: NumpyArray) -> bool:
    """Whether these episodes of a batch show the event to be common."""
    weights = np.exp(batch.log_weights[rows]) * (batch.returns[rows] > 0.0)
    return bool(weights.sum() >= COMMON * len(rows) and weights.sum() ** 2 >= SEVERAL * (weights @ weights))
