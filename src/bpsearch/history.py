"""The course of a study, batch by batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bpsearch.trajectories import Array


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

    episodes: Array
    values: Array
    std_errors: Array
    batch_variances: Array
    divergences: Array

    @classmethod
    def of(cls, values: Sequence[Array], log_weights: Sequence[Array], weights: Sequence[float]) -> "History":
        """From the values and log-weights of each batch, and what its episodes count, by running sums."""
        sizes, counts = np.array([len(batch) for batch in values]), np.asarray(weights)
        variances = np.array([np.var(batch, ddof=1) if len(batch) > 1 else np.nan for batch in values])
        totals = np.cumsum(counts * sizes)
        return cls(
            episodes=np.cumsum(sizes),
            values=np.cumsum(counts * [batch.sum() for batch in values]) / totals,
            std_errors=np.sqrt(np.cumsum(counts**2 * sizes * variances)) / totals,
            batch_variances=variances,
            divergences=np.array([_divergence(batch) for batch in log_weights]),
        )


def _divergence(log_weights: Array) -> float:
    """KL(π_b ‖ π_e) = E_b[w − 1 − log w]: each term is non-negative, so it is quieter than the mean of −log w."""
    with np.errstate(over="ignore"):
        return float(np.mean(np.expm1(log_weights) - log_weights))
