"""From the batches of many studies to the error and the coverage of a method."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from bpsearch.trajectories import Array

LEVEL = 0.95
RESAMPLES = 2000


@dataclass(frozen=True, eq=False)
class Studies:
    """The batches of many studies of one method on one task.

    Attributes:
        means: (studies, batches), of the values of each batch.
        variances: (studies, batches), of the values within each batch, unbiased.
        batch_size: episodes per batch.
    """

    means: Array
    variances: Array
    batch_size: int

    @classmethod
    def of_episodes(cls, values: Array, batch_size: int) -> "Studies":
        """The same from single episodes, (studies, episodes)."""
        grouped = values.reshape(len(values), -1, batch_size)
        return cls(grouped.mean(axis=2), grouped.var(axis=2, ddof=1), batch_size)

    def estimates(self) -> Array:
        """(studies, batches), the estimate after each batch."""
        return np.cumsum(self.means, axis=1) / np.arange(1, self.means.shape[1] + 1)

    def half_widths(self, level: float = LEVEL) -> Array:
        """(studies, batches), half the interval after each batch as `Estimate` gives it; NaN where it gives none.

        `intervals.martingale_error` for batches of one size n: Var(mean) = Σ_b n Var_b / N², with Welch and
        Satterthwaite's degrees of freedom.
        """
        size = self.batch_size
        episodes = size * np.arange(1, self.means.shape[1] + 1)
        parts = size * self.variances
        with np.errstate(invalid="ignore", over="ignore"):
            totals, squares = np.cumsum(parts, axis=1), np.cumsum(parts**2 / (size - 1), axis=1)
            freedom = np.where(totals > 0.0, totals**2, np.nan) / squares
            quantiles = stats.t.ppf(0.5 + level / 2.0, freedom)
            return np.asarray(quantiles * np.sqrt(totals) / episodes)


@dataclass(frozen=True)
class Cell:
    """One method on one task with one budget.

    Attributes:
        task: its name.
        method: its name.
        biased: whether the method is.
        episodes: the budget, episodes of the search included.
        studies: how many.
        diverged: in how many of them the estimate is not finite.
        ratio: mean squared error of the estimates, relative to Monte Carlo's Var(g)/n, which is known.
        ratio_low: lower end of its 95% interval, by the bootstrap over studies.
        ratio_high: upper end.
        by_batch: the same ratio from the errors of all batches, Σ_i (X̄_i − ρ)² / m²: it has the same expectation where
            the errors of batches are martingale differences, as those of unbiased methods are, and much less noise;
            None for biased methods.
        by_batch_low: lower end of its interval.
        by_batch_high: upper end.
        bias: the mean error over studies in units of Monte Carlo's standard error.
        coverage: the share of studies whose own 95% interval holds the truth; without an interval it does not.
        coverage_low: lower end of its 95% interval (Wilson).
        coverage_high: upper end.
        floor: what the truth's own error adds to the ratio.
    """

    task: str
    method: str
    biased: bool
    episodes: int
    studies: int
    diverged: int
    ratio: float
    ratio_low: float
    ratio_high: float
    by_batch: float | None
    by_batch_low: float | None
    by_batch_high: float | None
    bias: float
    coverage: float
    coverage_low: float
    coverage_high: float
    floor: float


def cell(
    task: str,
    method: str,
    studies: Studies,
    episodes: int,
    *,
    truth: float,
    truth_error: float,
    variance: float,
    biased: bool,
) -> Cell:
    """The numbers of one cell.

    Args:
        task: its name.
        method: its name.
        studies: at least as many batches as the budget needs.
        episodes: the budget, a multiple of the batch size.
        truth: ρ.
        truth_error: its standard error.
        variance: of one episode's return.
        biased: whether the method is.
    """
    batches = episodes // studies.batch_size
    monte_carlo = variance / episodes
    errors = studies.estimates()[:, batches - 1] - truth
    squares = np.where(np.isfinite(errors), errors, np.inf) ** 2
    half = studies.half_widths()[:, batches - 1]
    with np.errstate(invalid="ignore"):
        covered = int(np.sum(np.abs(errors) <= half))
    ratio, low, high = bootstrap_mean(squares / monte_carlo)
    by_batch: tuple[float, float, float] | tuple[None, None, None] = (None, None, None)
    if not biased:
        deviations = studies.means[:, :batches] - truth
        finite = np.isfinite(deviations).all(axis=1)
        summed = np.sum(np.where(finite[:, None], deviations, np.inf) ** 2, axis=1) / batches**2
        by_batch = bootstrap_mean(summed / monte_carlo)
    wilson = stats.binomtest(covered, len(errors)).proportion_ci(LEVEL, method="wilson")
    return Cell(
        task,
        method,
        biased,
        episodes,
        len(errors),
        int(np.sum(~np.isfinite(errors))),
        ratio,
        low,
        high,
        *by_batch,
        float(np.mean(errors) / np.sqrt(monte_carlo)),
        covered / len(errors),
        float(wilson.low),
        float(wilson.high),
        truth_error**2 / monte_carlo,
    )


def bootstrap_mean(values: Array) -> tuple[float, float, float]:
    """The mean with its 95% bootstrap interval; all infinite if a value is."""
    if not np.isfinite(values).all():
        return np.inf, np.inf, np.inf
    rng = np.random.default_rng(0)
    means = values[rng.integers(len(values), size=(RESAMPLES, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [0.5 - LEVEL / 2.0, 0.5 + LEVEL / 2.0])
    return float(values.mean()), float(low), float(high)
