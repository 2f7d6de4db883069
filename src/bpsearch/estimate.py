"""Estimate: what a study says about the value of a policy, and how far it can be trusted."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bpsearch.intervals import MeanError
from bpsearch.trajectories import Array

MIN_EFFECTIVE_EPISODES = 10.0


@dataclass(frozen=True)
class Diagnostics:
    """Numbers behind the estimate.

    Attributes:
        effective_sample_size: (Σ w)² / Σ w² of the episodes' importance weights.
        largest_weight_share: the largest weight's share of the sum of weights.
        largest_value_share: the share of the sum of squared deviations that one episode has.
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


@dataclass(frozen=True)
class History:
    """The study after each batch: how many episodes, the value, its standard error (NaN where unknown)."""

    episodes: Array
    values: Array
    std_errors: Array
    batch_variances: Array


@dataclass(frozen=True)
class Estimate:
    """The expected return of the evaluation policy, from all episodes of a study.

    Attributes:
        value: the estimate.
        std_error: its standard error; None for fewer than two episodes or values without any spread.
        episodes: how many episodes it took, those of the search included.
        method: what collected and valued the episodes.
        unbiased: whether the method is unbiased; with False neither value nor interval have a guarantee.
        savings: how many times as many episodes Monte Carlo would need for the same standard error; None if unknown.
        savings_basis: how the savings were obtained.
        diagnostics: effective sample size and the like.
        unreliable: why the standard error should not be trusted; empty if nothing speaks against it.
        history: the study batch by batch.
    """

    value: float
    episodes: int
    method: str
    unbiased: bool
    error: MeanError | None
    diagnostics: Diagnostics
    history: History

    @property
    def std_error(self) -> float | None:
        """The standard error of `value`."""
        return None if self.error is None else self.error.std_error

    def interval(self, level: float = 0.95) -> tuple[float, float] | None:
        """The confidence interval of this level for a number of episodes fixed in advance; see `interval_kind`."""
        if self.error is None:
            return None
        half = self.error.half_width(level)
        return self.value - half, self.value + half

    @property
    def interval_kind(self) -> str:
        """What the interval promises."""
        if not self.unbiased:
            return "no guarantee: the values are biased by a model learned from the same episodes"
        return "martingale central limit theorem, for a number of episodes fixed in advance"

    @property
    def savings(self) -> float | None:
        """Monte Carlo's variance divided by this study's variance per episode."""
        monte_carlo, own = self.diagnostics.monte_carlo_variance, self.diagnostics.variance
        return monte_carlo / own if monte_carlo is not None and own else None

    @property
    def savings_basis(self) -> str:
        """How `savings` was obtained."""
        return (
            f"Monte Carlo's variance estimated by importance weighting from the same {self.episodes} episodes, divided "
            "by the variance per episode over the whole study, search included"
        )

    @property
    def unreliable(self) -> tuple[str, ...]:
        """Reasons not to trust the standard error."""
        reasons = []
        found = self.diagnostics
        if found.effective_sample_size < min(MIN_EFFECTIVE_EPISODES, 0.5 * self.episodes):
            reasons.append(
                f"the importance weights of {self.episodes} episodes are worth only {found.effective_sample_size:.1f} "
                "equally weighted ones"
            )
        if self.episodes > 2 and found.largest_weight_share > 0.5:
            reasons.append(f"one episode has {found.largest_weight_share:.0%} of all importance weight")
        if self.episodes > 2 and found.largest_value_share > 0.5:
            reasons.append(f"one episode makes {found.largest_value_share:.0%} of the variance")
        return tuple(reasons)

    def __str__(self) -> str:
        interval = self.interval()
        spread = "interval unknown" if interval is None else f"95% interval [{interval[0]:.6g}, {interval[1]:.6g}]"
        parts = [f"{self.value:.6g}, {spread}, {self.episodes} episodes, {self.method}"]
        if self.savings is not None:
            parts.append(f"as good as {self.savings * self.episodes:.0f} episodes of Monte Carlo")
        if not self.unbiased:
            parts.append("biased, without guarantee")
        if self.unreliable:
            parts.append("unreliable, because " + " and ".join(self.unreliable))
        return "; ".join(parts)


def diagnose(
    values: Array, log_weights: Array, returns: Array, final_values: Array, error: MeanError | None
) -> Diagnostics:
    """The diagnostics of a study with these values, log-weights and returns of all its episodes.

    Monte Carlo's variance is E_π[g²] − ρ²; its first term is estimated by w g², which needs no extra episodes and is
    quietest where the search did its work.
    """
    normalised = np.exp(log_weights - log_weights.max())
    squares = (values - values.mean()) ** 2
    with np.errstate(over="ignore"):
        second_moment = float(np.mean(np.exp(log_weights) * returns**2))
    monte_carlo: float | None = second_moment - float(values.mean()) ** 2
    if not np.isfinite(second_moment) or len(values) < 2 or monte_carlo is None or monte_carlo <= 0.0:
        monte_carlo = None
    final: Any = np.var(final_values, ddof=1) if len(final_values) > 1 else None
    return Diagnostics(
        effective_sample_size=float(normalised.sum() ** 2 / np.sum(normalised**2)),
        largest_weight_share=float(normalised.max() / normalised.sum()),
        largest_value_share=float(squares.max() / squares.sum()) if squares.any() else 0.0,
        monte_carlo_variance=monte_carlo,
        variance=None if error is None else error.variance * len(values),
        final_variance=None if final is None else float(final),
    )
