"""How every figure of the project looks, and the pieces that several of them share."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bpsearch._core.arrays import NumpyArray

# A palette that stays apart for color-blind readers and in gray print (Okabe and Ito).
COLORS = {
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "green": "#009E73",
    "purple": "#CC79A7",
    "sky": "#56B4E9",
    "orange": "#E69F00",
    "gray": "#666666",
}
_STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "font.size": 9,
    "axes.titlesize": 10,
    "legend.frameon": False,
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "svg.hashsalt": "bpsearch",
}

# Colors that nothing else has, replaced in a page's figures by those of the page.
_INK, _GRID = "#010203", "#040506"


@contextmanager
def figure(rows: int, columns: int, *, width: float, height: float) -> Iterator[tuple[Figure, Any]]:
    """A figure in the project's style, drawn without a window, with its axes as an array (rows, columns)."""
    with matplotlib.rc_context(_STYLE):
        drawing = Figure(figsize=(width, height), layout="constrained")
        yield drawing, drawing.subplots(rows, columns, squeeze=False)


def save(drawing: Figure, directory: Path, name: str) -> list[Path]:
    """Write the figure as PNG and SVG; the files do not depend on when they were written."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / f"{name}.{suffix}" for suffix in ("png", "svg")]
    drawing.savefig(paths[0])
    drawing.set_layout_engine("none")  # to lay it out again takes as long as to draw it
    drawing.savefig(paths[1], metadata={"Date": None})
    return paths


def inline_svg(drawing: Figure, label: str) -> str:
    """The figure as an SVG element for a page, whose text and lines take the page's color, light or dark."""
    _recolor(drawing)
    drawing.patch.set_alpha(0.0)
    buffer = io.StringIO()
    drawing.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor").replace(_GRID, "var(--grid)")
    text = text.replace(COLORS["blue"].lower(), "var(--accent)")
    # The page gives the width; the drawing keeps its proportions.
    text = re.sub(r'^<svg ([^>]*?)height="[^"]*" ', r"<svg \1", text, count=1)
    text = re.sub(r' width="[^"]*"', "", text.split(">", 1)[0], count=1) + ">" + text.split(">", 1)[1]
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1)


def _recolor(drawing: Figure) -> None:
    for axes in drawing.axes:
        axes.patch.set_alpha(0.0)
        axes.tick_params(colors=_INK, which="both")
        axes.grid(color=_GRID)
        for part in (axes.xaxis.label, axes.yaxis.label, axes.title):
            part.set_color(_INK)
        for spine in axes.spines.values():
            spine.set_color(_INK)
        legend = axes.get_legend()
        for text in legend.get_texts() if legend is not None else ():
            text.set_color(_INK)


def band(axes: Axes, x: NumpyArray, low: NumpyArray, high: NumpyArray, color: str) -> None:
    """A translucent band between two curves."""
    axes.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)


def mse_curve(
    axes: Axes,
    x: NumpyArray,
    squared_errors: NumpyArray,
    *,
    label: str,
    color: str,
    style: str = "-",
    with_band: bool = True,
) -> None:
    """Mean squared error over trials, (trials, points), with its 95% confidence band, on log axes."""
    mean = squared_errors.mean(axis=0)
    axes.plot(x, mean, color=color, linestyle=style, label=label, linewidth=1.4)
    if with_band:
        half = 1.96 * squared_errors.std(axis=0, ddof=1) / np.sqrt(len(squared_errors))
        band(axes, x, np.maximum(mean - half, mean * 1e-2), mean + half, color)
    axes.set_xscale("log")
    axes.set_yscale("log")
