"""What the episodes of a study say besides its estimate."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch.inference.intervals import MeanError

UNWEIGHTED = 1e-3  # log-weights below it are rounding: the episodes are the evaluation policy's own


@dataclass(frozen=True)
class Diagnostics:
    """Numbers behind the estimate.

    Attributes:
        effective_sample_size: (Σ w)² / Σ w² of the episodes' importance weights.
        largest_weight_share: the largest weight's share of the sum of weights.
        largest_value_share: the share of the squared standard error that one episode makes: by its value, or by its
            return where the error is Monte Carlo's.
        monte_carlo_variance: estimated variance of the return of the evaluation policy; None if unknown.
        variance: estimated variance per episode over the whole study.
        final_variance: estimated variance per episode in the last batch: what the search has reached.
    """

    effective_sample_size: float
    largest_weight_share: float
    largest_value_share: float
    monte_carlo_variance: float | None
    variance: float | None
    final_variance: float | None


@dataclass(frozen=True, eq=False)
class Episodes:
    """(N,) each, of all episodes in their order.

    Attributes:
        values: the estimator's.
        log_weights: log ρ_{0:L}.
        returns: as they came.
        counts: what each counts in the estimate; 0 of those that only explored.
    """

    values: NumpyArray
    log_weights: NumpyArray
    returns: NumpyArray
    counts: NumpyArray

    @property
    def weighted(self) -> bool:
        """Whether other behaviors than the evaluation policy collected them."""
        return float(np.abs(self.log_weights).max()) > UNWEIGHTED

    @property
    def corrected(self) -> bool:
        """Whether the values are other than the returns, by weights or control variates."""
        return not np.allclose(self.values, self.returns, atol=UNWEIGHTED)


def diagnose(
    data: Episodes, final_values: NumpyArray, error: MeanError | None, tight_error: MeanError | None
) -> Diagnostics:
    """The diagnostics of a study with these episodes, and these errors with room for unseen events and without.

    Monte Carlo's variance is E_π[(g − ρ)²], estimated by the weighted mean of (g − ḡ)², with ḡ the weighted mean of g:
    it needs no extra episodes, and a constant added to all returns does not change it. Episodes that count nothing have
    no part in it, but their number makes the variance per episode larger.
    """
    counted = data.counts > 0.0
    values, log_weights, returns = (part[counted] for part in (data.values, data.log_weights, data.returns))
    normalised = np.exp(log_weights - log_weights.max())
    shares = normalised / normalised.sum()
    effective = float(1.0 / np.sum(shares**2))
    spread = float(shares @ (returns - shares @ returns) ** 2)
    known = effective > 1.0 + 1e-9 and spread > 0.0
    monte_carlo = spread * effective / (effective - 1.0) if known else None
    final: Any = np.var(final_values, ddof=1) if len(final_values) > 1 else None
    return Diagnostics(
        effective_sample_size=effective,
        largest_weight_share=float(shares.max()),
        largest_value_share=_largest_share(values, returns[np.abs(log_weights) <= UNWEIGHTED], error, tight_error),
        monte_carlo_variance=monte_carlo,
        variance=None if tight_error is None else tight_error.variance * len(data.values),
        final_variance=None if final is None else float(final),
    )


def _largest_share(values: NumpyArray, plain: NumpyArray, error: MeanError | None, tight: MeanError | None) -> float:
    """Of the error's variance; `plain` are the returns of the policy's own episodes.

    The room that makes up the rest is no estimate of what one episode shows. It is never more than Monte Carlo's error:
    if one return makes half of that, then the room is as large, because it holds three times what that return adds.
    """
    share = _share_of_squares(values)
    if error is None or tight is None or error.variance <= tight.variance:
        return share
    return max(share * tight.variance / error.variance, _share_of_squares(plain))


def _share_of_squares(values: NumpyArray) -> float:
    squares = (values - values.mean()) ** 2 if len(values) else values
    return float(squares.max() / squares.sum()) if squares.any() else 0.0
