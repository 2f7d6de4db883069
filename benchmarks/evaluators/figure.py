"""The figure: how the error falls below Monte Carlo's, one panel per task."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from benchmarks.evaluators.measure import Cell
from benchmarks.evaluators.methods import METHODS
from benchmarks.evaluators.tasks import Reference, Task
from bpsearch.report.plots import COLORS, figure, save

COLUMNS = 4
LOWEST, HIGHEST = 1e-3, 10.0  # what lies beyond is drawn at the edge


def draw(cells: Sequence[Cell], tasks: Sequence[Task], references: dict[str, Reference], directory: Path) -> list[Path]:
    """Mean squared error relative to Monte Carlo's against episodes, with 95% intervals; dashed methods are biased."""
    methods = list(dict.fromkeys(cell.method for cell in cells))
    colors = dict(zip(methods, [color for _ in methods for color in COLORS.values()], strict=False))
    columns = min(COLUMNS, len(tasks))
    rows = -(-len(tasks) // columns)
    with figure(rows, columns, width=2.9 * columns, height=2.3 * rows + 0.6) as (drawing, axes):
        for panel in axes.ravel()[len(tasks) :]:
            panel.set_axis_off()
        for task, panel in zip(tasks, axes.ravel(), strict=False):
            for method in methods:
                found = [cell for cell in cells if (cell.task, cell.method) == (task.name, method)]
                if found:
                    _curve(panel, found, colors[method])
            best = references[task.name].optimum
            if best is not None:
                panel.axhline(best, color="black", linestyle=":", linewidth=1.0)
            panel.axhline(1.0, color="black", linewidth=0.8)
            panel.set(title=task.title, xscale="log", yscale="log", ylim=(LOWEST, HIGHEST))
            panel.set_xticks(budgets := sorted({cell.episodes for cell in cells}), [f"{n}" for n in budgets])
            panel.minorticks_off()
        drawing.supxlabel("episodes, those of the search included")
        drawing.supylabel("mean squared error relative to Monte Carlo's")
        entries = {
            text: line for panel in axes.ravel() for line, text in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        drawing.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=5)
        return save(drawing, directory, "evaluators")


def _curve(panel: Axes, found: Sequence[Cell], color: str) -> None:
    method = METHODS[found[0].method]
    ratios, lows, highs = (
        np.clip([getattr(cell, name) for cell in found], LOWEST, HIGHEST)
        for name in ("ratio", "ratio_low", "ratio_high")
    )
    panel.errorbar(
        [cell.episodes for cell in found],
        ratios,
        yerr=(ratios - lows, highs - ratios),
        color=color,
        linestyle="--" if method.biased else "-",
        marker="o",
        markersize=3,
        linewidth=1.2,
        capsize=2,
        label=method.title,
    )
