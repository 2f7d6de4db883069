"""From the batches of many studies to the error and the coverage of a method."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from bpsearch._core.arrays import NumpyArray

LEVEL = 0.95
RESAMPLES = 2000


@dataclass(frozen=True, eq=False)
class Studies:
    """The batches of many studies of one method on one task.

    Attributes:
        means: (studies, batches), of the values of each batch.
        variances: (studies, batches), of the values within each batch, unbiased.
        batch_size: episodes per batch.
        counts: (batches,), what the episodes of each batch count in the estimate.
    """

    means: NumpyArray
    variances: NumpyArray
    batch_size: int
    counts: NumpyArray

    @classmethod
    def of_episodes(cls, values: NumpyArray, batch_size: int) -> "Studies":
        """The same from single episodes, (studies, episodes)."""
        grouped = values.reshape(len(values), -1, batch_size)
        return cls(grouped.mean(axis=2), grouped.var(axis=2, ddof=1), batch_size, np.ones(grouped.shape[1]))

    def estimates(self) -> NumpyArray:
        """(studies, batches), the estimate after each batch."""
        return np.cumsum(self.counts * self.means, axis=1) / np.cumsum(self.counts)

    def half_widths(self, level: float = LEVEL) -> NumpyArray:
        """(studies, batches), half the interval after each batch as `Estimate` gives it; NaN where it gives none.

        `intervals.martingale_error` for batches of one size n: Var(mean) = Σ_b ω_b² n Var_b / (Σ_b ω_b n)², with Welch
        and Satterthwaite's degrees of freedom.
        """
        size = self.batch_size
        parts = size * self.counts**2 * self.variances
        with np.errstate(invalid="ignore", over="ignore"):
            totals, squares = np.cumsum(parts, axis=1), np.cumsum(parts**2 / (size - 1), axis=1)
            freedom = np.where(totals > 0.0, totals**2, np.nan) / squares
            quantiles = stats.t.ppf(0.5 + level / 2.0, freedom)
            return np.asarray(quantiles * np.sqrt(totals) / (size * np.cumsum(self.counts)))

    def at(self, episodes: int) -> "Outcome":
        """What the studies say after so many episodes."""
        batches = episodes // self.batch_size
        shares = self.counts[:batches] / self.counts[:batches].sum()
        return Outcome(
            self.estimates()[:, batches - 1],
            self.half_widths()[:, batches - 1],
            batch_means=self.means[:, :batches],
            batch_shares=shares,
        )


@dataclass(frozen=True, eq=False)
class Outcome:
    """What many studies say after one budget.

    Attributes:
        estimates: (studies,).
        half_widths: (studies,), of their 95% intervals; NaN where there is none.
        batch_means: (studies, batches), if the errors of batches are martingale differences; None else.
        batch_shares: (batches,), the part that each has in the estimate.
        plain: (studies,), what Monte Carlo says from the same episodes, if they are the policy's own; None else.
        tight_half_widths: (studies,), of the intervals without room for events that no episode has shown, if the
            others have such room; None else.
    """

    estimates: NumpyArray
    half_widths: NumpyArray
    batch_means: NumpyArray | None = None
    batch_shares: NumpyArray | None = None
    plain: NumpyArray | None = None
    tight_half_widths: NumpyArray | None = None


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
        refined: the same ratio with less noise, None for biased methods. Where the errors of batches are martingale
            differences, from the errors of all batches, Σ_i c_i² (X̄_i − ρ)², which has the same expectation. Where all
            episodes are the policy's own, with Monte Carlo's squared error on the same episodes, whose expectation is
            known, as a control variate.
        refined_low: lower end of its interval.
        refined_high: upper end.
        bias: the mean error over studies in units of Monte Carlo's standard error.
        coverage: the share of studies whose own 95% interval holds the truth; without an interval it does not.
        coverage_low: lower end of its 95% interval (Wilson).
        coverage_high: upper end.
        floor: what the truth's own error adds to the ratio.
        width: median half-width of the intervals relative to Monte Carlo's, t_{n−1} sqrt(Var(g)/n), which is known;
            None if no study has an interval, or if it was not measured.
        tight_width: the same without room for events that no episode has shown.
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
    refined: float | None
    refined_low: float | None
    refined_high: float | None
    bias: float
    coverage: float
    coverage_low: float
    coverage_high: float
    floor: float
    width: float | None = None
    tight_width: float | None = None

    @property
    def error(self) -> tuple[float, float, float]:
        """The ratio with the ends of its interval, refined where it can be."""
        if self.refined is None or self.refined_low is None or self.refined_high is None:
            return self.ratio, self.ratio_low, self.ratio_high
        return self.refined, self.refined_low, self.refined_high


def cell(
    task: str,
    method: str,
    outcome: Outcome,
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
        outcome: of the studies with this budget.
        episodes: the budget.
        truth: ρ.
        truth_error: its standard error.
        variance: of one episode's return.
        biased: whether the method is.
    """
    monte_carlo = variance / episodes
    errors = outcome.estimates - truth
    squares = np.where(np.isfinite(errors), errors, np.inf) ** 2
    with np.errstate(invalid="ignore"):
        covered = int(np.sum(np.abs(errors) <= outcome.half_widths))
    ratio, low, high = bootstrap_mean(squares / monte_carlo)
    refined: tuple[float, float, float] | tuple[None, None, None] = (None, None, None)
    if outcome.batch_means is not None and outcome.batch_shares is not None and not biased:
        deviations = outcome.batch_shares * (outcome.batch_means - truth)
        finite = np.isfinite(deviations).all(axis=1, keepdims=True)
        summed = np.sum(np.where(finite, deviations, np.inf) ** 2, axis=1)
        refined = bootstrap_mean(summed / monte_carlo)
    elif outcome.plain is not None and not biased:
        own, plain = squares / monte_carlo, (outcome.plain - truth) ** 2 / monte_carlo
        slope = np.cov(own, plain)[0, 1] / max(np.var(plain, ddof=1), 1e-300)
        refined = bootstrap_mean(own - slope * (plain - 1.0))
    wilson = stats.binomtest(covered, len(errors)).proportion_ci(LEVEL, method="wilson")
    return Cell(
        task=task,
        method=method,
        biased=biased,
        episodes=episodes,
        studies=len(errors),
        diverged=int(np.sum(~np.isfinite(errors))),
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        refined=refined[0],
        refined_low=refined[1],
        refined_high=refined[2],
        bias=float(np.mean(errors) / np.sqrt(monte_carlo)),
        coverage=covered / len(errors),
        coverage_low=float(wilson.low),
        coverage_high=float(wilson.high),
        floor=truth_error**2 / monte_carlo,
        width=relative_width(outcome.half_widths, variance, episodes),
        tight_width=relative_width(outcome.tight_half_widths, variance, episodes),
    )


def relative_width(half_widths: NumpyArray | None, variance: float, episodes: int) -> float | None:
    """The median half-width relative to Monte Carlo's; None without any."""
    known = np.zeros(0) if half_widths is None else half_widths[np.isfinite(half_widths)]
    if not len(known):
        return None
    plain = stats.t.ppf(0.5 + LEVEL / 2.0, episodes - 1) * np.sqrt(variance / episodes)
    return float(np.median(known) / plain)


def bootstrap_mean(values: NumpyArray) -> tuple[float, float, float]:
    """The mean with its 95% bootstrap interval; all infinite if a value is."""
    if not np.isfinite(values).all():
        return np.inf, np.inf, np.inf
    rng = np.random.default_rng(0)
    means = values[rng.integers(len(values), size=(RESAMPLES, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [0.5 - LEVEL / 2.0, 0.5 + LEVEL / 2.0])
    return float(values.mean()), float(low), float(high)
