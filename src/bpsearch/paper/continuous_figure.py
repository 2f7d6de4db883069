"""What Figure 2 shows of one domain, and how it is drawn."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch.inference.variance_split import VarianceSplit
from bpsearch.paper.curves import checkpoints, martingale_squared_errors, running_squared_errors
from bpsearch.paper.findings import Table
from bpsearch.paper.runs import Arrays
from bpsearch.paper.step_choice import Reference, find_diverged
from bpsearch.report.plots import COLORS, figure, mse_curve, save

PALETTE = {
    "mc": "vermilion",
    "bpg": "blue",
    "normalized": "green",
    "per-decision": "purple",
    "last-layer": "orange",
    "starts": "sky",
}
BINS = 20  # points of the variance curves, each the mean over neighboring iterations


@dataclass(frozen=True)
class Curve:
    """One method on one domain.

    Attributes:
        label: for the legend.
        means: (trials, iterations), means of the batches of those trials that have not diverged.
        variances: (trials, iterations), variances within these batches.
        trials: how many trials were run.
        truth: the value of the evaluation policy.
        step: the step size, 0 for Monte Carlo.
    """

    label: str
    means: NumpyArray
    variances: NumpyArray
    trials: int
    truth: float
    step: float

    @staticmethod
    def of(label: str, arrays: Arrays, reference: Reference, batch_size: int, step: float = 0.0) -> "Curve":
        """The trials of a run, without those that have diverged: they are counted, and the legend says how many."""
        kept = ~find_diverged(arrays, reference, batch_size)
        means, variances = arrays["means"], arrays["variances"]
        return Curve(label, means[kept], variances[kept], len(means), reference.value, step)

    @property
    def diverged(self) -> int:
        """How many trials have diverged."""
        return self.trials - len(self.means)

    @property
    def iterations(self) -> int:
        """Batches per trial."""
        return int(self.means.shape[1])

    @property
    def legend(self) -> str:
        """The label, with the number of diverged trials."""
        return self.label + (f" ({self.diverged} of {self.trials} diverged)" if self.diverged else "")

    def squared_errors(self) -> NumpyArray:
        """(trials, iterations), of the mean over all batches so far."""
        return running_squared_errors(self.means, self.truth)

    def final_errors(self, *, by_batch: bool) -> NumpyArray:
        """(trials,), squared errors of the final estimates, or Σ_i (X̄_i − ρ)² / n², which has the same mean."""
        if not by_batch:
            return self.squared_errors()[:, -1]
        return martingale_squared_errors(self.means, self.truth)


@dataclass(frozen=True)
class Panel:
    """All that was measured on one domain."""

    title: str
    batch_size: int
    reference: Reference
    split: VarianceSplit
    curves: dict[str, Curve]


def mse_table(panels: dict[str, Panel]) -> Table:
    """MSE with standard error, and variance within batches, of every curve at some iterations.

    They are of those trials that have not diverged, whose number is a column too; infinite if too few are left.
    """
    columns: dict[str, NumpyArray] = {}
    for domain, panel in panels.items():
        points = checkpoints(panel.curves["mc"].iterations)
        columns["episodes"] = panel.batch_size * (points + 1)
        for name, curve in panel.curves.items():
            squared = curve.squared_errors()[:, points]
            columns[f"{domain}-{name}-mse"] = _mean(squared)
            columns[f"{domain}-{name}-std-error"] = _std_error(squared)
            columns[f"{domain}-{name}-variance"] = _mean(curve.variances[:, points])
            columns[f"{domain}-{name}-diverged"] = np.full(len(points), curve.diverged)
    return Table("mse", columns)


def draw(panels: list[Panel], out: Path, name: str) -> list[Path]:
    """Above the mean squared errors, below the variance per batch relative to Monte Carlo's; a column per domain."""
    # Both domains on one scale, from just below the lowest variance that any behavior could reach, or that was reached.
    reached = [
        float(np.mean(panel.curves["starts"].variances[:, -1])) / panel.reference.variance
        for panel in panels
        if "starts" in panel.curves
    ]
    lowest = max(min([*(1.0 - panel.split.share for panel in panels), *reached]) - 0.05, 0.0)
    with figure(2, len(panels), width=4.6 * len(panels), height=6.8) as (drawing, axes):
        for column, panel in enumerate(panels):
            _draw_errors(axes[0, column], panel)
            _draw_variances(axes[1, column], panel, lowest)
        return save(drawing, out, name)


def _draw_errors(axes: Any, panel: Panel) -> None:
    for method, curve in panel.curves.items():
        points = checkpoints(curve.iterations)
        squared = curve.squared_errors()[:, points]
        color = COLORS[PALETTE[method]]
        if len(squared) > 1:
            # More than three bands on top of each other show nothing.
            banded = len(panel.curves) <= 3
            x = panel.batch_size * (points + 1)
            mse_curve(axes, x, squared, label=curve.legend, color=color, with_band=banded)
        else:
            axes.plot([], [], color=color, label=curve.legend)
    squared_error = panel.reference.std_error**2
    axes.axhline(squared_error, color="black", linestyle=":", linewidth=1.0, label="truth's squared standard error")
    axes.set(title=f"{panel.title}: mean squared error", xlabel="episodes", ylabel="mean squared error")
    axes.set(xscale="log", yscale="log")
    axes.legend(fontsize=7, loc="upper right")


def _draw_variances(axes: Any, panel: Panel, lowest: float) -> None:
    for method, curve in panel.curves.items():
        bins = np.array_split(np.arange(curve.iterations), min(BINS, curve.iterations))
        ratios = curve.variances / panel.reference.variance
        if len(ratios):
            centers = [float(np.mean(part)) + 1.0 for part in bins]
            values = [float(ratios[:, part].mean()) for part in bins]
            axes.plot(centers, values, color=COLORS[PALETTE[method]], linewidth=1.4)
    axes.axhline(
        1.0 - panel.split.share, color="black", linestyle="--", linewidth=1.0, label="without any action noise"
    )
    axes.set(title="Variance of one episode's value", xlabel="iteration", ylabel="relative to Monte Carlo's")
    axes.set_ylim(lowest, 1.15)
    axes.legend(fontsize=7, loc="upper right")


def _mean(values: NumpyArray) -> NumpyArray:
    return values.mean(axis=0) if len(values) else np.full(values.shape[1], np.inf)


def _std_error(values: NumpyArray) -> NumpyArray:
    count = len(values)
    return values.std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else np.full(values.shape[1], np.inf)
