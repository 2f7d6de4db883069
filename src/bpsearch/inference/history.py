"""The course of a study, batch by batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bpsearch._core.arrays import NumpyArray


@dataclass(frozen=True, eq=False)
class History:
    """The study batch by batch.

    Attributes:
        episodes: how many there were after each batch.
        values: the estimate after each batch.
        std_errors: its standard error; NaN where unknown.
        batch_variances: the variance of the values within each batch.
        divergences: the estimated divergence KL(behavior ‖ policy) of each batch's whole episodes.
    """

    episodes: NumpyArray
    values: NumpyArray
    std_errors: NumpyArray
    batch_variances: NumpyArray
    divergences: NumpyArray

    @classmethod
    def of(cls, values: Sequence[NumpyArray], log_weights: Sequence[NumpyArray], weights: Sequence[float]) -> "History":
        """From the values and log-weights of each batch, and what its episodes count, by running sums."""
        sizes, counts = np.array([len(batch) for batch in values]), np.asarray(weights)
        starts = np.cumsum(sizes) - sizes
        every, logs = np.concatenate(values), np.concatenate(log_weights)
        sums = np.add.reduceat(every, starts)
        squares = np.add.reduceat((every - np.repeat(sums / sizes, sizes)) ** 2, starts)
        variances = np.where(sizes > 1, squares / np.maximum(sizes - 1, 1), np.nan)
        totals = np.cumsum(counts * sizes)
        with np.errstate(over="ignore"):
            # KL(π_b ‖ π_e) = E_b[w − 1 − log w]: each term is non-negative, so it is quieter than the mean of −log w.
            divergences = np.add.reduceat(np.expm1(logs) - logs, starts) / sizes
        return cls(
            episodes=np.cumsum(sizes),
            values=np.cumsum(counts * sums) / totals,
            std_errors=np.sqrt(np.cumsum(counts**2 * sizes * variances)) / totals,
            batch_variances=variances,
            divergences=divergences,
        )
