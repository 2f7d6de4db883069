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
    palette = list(COLORS.values())
    # When the colors are used up they come again, with another line and marker.
    looks = {m: (palette[i % len(palette)], ("-", "-.")[i // len(palette)]) for i, m in enumerate(methods)}
    columns = min(COLUMNS, len(tasks))
    rows = -(-len(tasks) // columns)
    with figure(rows, columns, width=2.9 * columns, height=2.3 * rows + 0.6) as (drawing, axes):
        for panel in axes.ravel()[len(tasks) :]:
            panel.set_axis_off()
        for task, panel in zip(tasks, axes.ravel(), strict=False):
            for method in methods:
                found = [cell for cell in cells if (cell.task, cell.method) == (task.name, method)]
                if found:
                    _curve(panel, found, *looks[method])
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


def draw_method(method: str, cells: Sequence[Cell], tasks: Sequence[Task], directory: Path) -> list[Path]:
    """One method on every task: its error relative to Monte Carlo's, and the coverage of its 95% interval."""
    own = [cell for cell in cells if cell.method == method]
    budgets = sorted({cell.episodes for cell in own})
    rows = {task.name: -row for row, task in enumerate(tasks)}
    with figure(1, 2, width=8.5, height=0.33 * len(tasks) + 1.2) as (drawing, axes):
        errors, coverage = axes[0]
        for position, (budget, color) in enumerate(zip(budgets, COLORS.values(), strict=False)):
            found = [cell for cell in own if cell.episodes == budget]
            heights = [rows[cell.task] + 0.3 - 0.2 * position for cell in found]
            values = np.array([cell.error for cell in found])
            errors.errorbar(
                values[:, 0],
                heights,
                xerr=np.abs(values[:, 1:] - values[:, :1]).T,
                color=color,
                linestyle="none",
                marker="o",
                markersize=3,
                label=f"{budget} episodes",
            )
            shares = np.array([(cell.coverage, cell.coverage_low, cell.coverage_high) for cell in found])
            spread = np.abs(shares[:, 1:] - shares[:, :1]).T
            coverage.errorbar(
                shares[:, 0], heights, xerr=spread, color=color, linestyle="none", marker="o", markersize=3
            )
        errors.axvline(1.0, color="black", linewidth=0.8)
        errors.set(xscale="log", xlabel="mean squared error relative to Monte Carlo's")
        errors.set_yticks(list(rows.values()), [task.title for task in tasks])
        coverage.axvline(0.95, color="black", linewidth=0.8)
        coverage.axvspan(0.93, 0.98, color="#eeeeee", zorder=0)
        coverage.set(xlabel="share of 95% intervals that hold the truth", xlim=(None, 1.0))
        coverage.set_yticks(list(rows.values()), [])
        for panel in (errors, coverage):
            panel.set_ylim(-len(tasks) + 0.4, 0.6)
        drawing.legend(loc="outside upper center", ncols=len(budgets))
        return save(drawing, directory, f"evaluators-{method}")


def _curve(panel: Axes, found: Sequence[Cell], color: str, line: str) -> None:
    method = METHODS[found[0].method]
    ratios, lows, highs = np.clip(np.transpose([cell.error for cell in found]), LOWEST, HIGHEST)
    panel.errorbar(
        [cell.episodes for cell in found],
        ratios,
        yerr=(ratios - lows, highs - ratios),
        color=color,
        linestyle="--" if method.biased else line,
        marker="o" if line == "-" else "s",
        markersize=3,
        linewidth=1.2,
        capsize=2,
        label=method.title,
    )
