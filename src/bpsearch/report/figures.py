"""The figures of one estimate, as SVG for its page."""

import math
from typing import NamedTuple

import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch.inference.diagnostics import Episodes
from bpsearch.inference.estimate import Estimate
from bpsearch.report.plots import COLORS, band, figure, inline_svg

NEAR_ZERO = 0.05  # relative variances below it are told apart on a logarithmic axis
_WIDTH, _HEIGHT = 5.2, 3.0


class Drawing(NamedTuple):
    """A figure of the page, with its title and a sentence that explains it."""

    title: str
    text: str
    svg: str


def draw_figures(estimate: Estimate) -> list[Drawing]:
    """Those that have something to show: weights of 1, events as 0 and 1, variances that differ by luck have not."""
    data = estimate.data
    returns = [] if estimate.event else [_returns(data)]
    if data.weighted:
        return [_running(estimate), _variances(estimate), _weights(data), *returns, _divergences(estimate)]
    if data.corrected:
        return [_running(estimate), _variances(estimate), _corrected_returns(data)]
    return [_running(estimate), *returns]


def _running(estimate: Estimate) -> Drawing:
    history = estimate.history
    monte_carlo = estimate.diagnostics.monte_carlo_variance
    possible = (0.0, 1.0) if estimate.event else (-np.inf, np.inf)
    with figure(1, 1, width=_WIDTH, height=_HEIGHT) as (drawing, axes):
        panel = axes[0, 0]
        if monte_carlo is not None:
            half = 1.96 * np.sqrt(monte_carlo / history.episodes)
            for side, label in ((-half, None), (half, "Monte Carlo's interval at as many episodes")):
                ends = np.clip(estimate.value + side, *possible)
                panel.plot(history.episodes, ends, color=COLORS["vermilion"], linestyle="--", label=label)
        panel.plot(history.episodes, history.values, color=COLORS["blue"], marker="o", markersize=2.5, label="estimate")
        half = 1.96 * history.std_errors
        low, high = (np.clip(history.values + side, *possible) for side in (-half, half))
        band(panel, history.episodes, low, high, COLORS["blue"])
        panel.set(xlabel="episodes", ylabel="probability" if estimate.event else "value")
        if estimate.event:
            panel.set_ylim(bottom=0.0)
        panel.legend(fontsize=8)
        svg = inline_svg(drawing, "Running estimate with its interval")
    text = "After each batch of episodes, with the 95% interval shaded."
    if estimate.data.corrected and not estimate.data.weighted:
        text += " Episodes are valued as they were in the end."
    return Drawing("The estimate as it settled", text, svg)


def _variances(estimate: Estimate) -> Drawing:
    history = estimate.history
    monte_carlo = estimate.diagnostics.monte_carlo_variance or math.nan
    relative = history.batch_variances / monte_carlo
    with figure(1, 1, width=_WIDTH, height=_HEIGHT) as (drawing, axes):
        panel = axes[0, 0]
        panel.axhline(1.0, color=COLORS["vermilion"], linestyle="--", label="Monte Carlo")
        panel.plot(history.episodes, relative, color=COLORS["blue"], marker="o", markersize=3, label="this study")
        panel.set(xlabel="episodes", ylabel="variance relative to Monte Carlo's")
        if np.nanmin(relative, initial=1.0) > NEAR_ZERO:
            panel.set_ylim(bottom=0.0)
        else:
            panel.set_yscale("log")
        panel.legend(fontsize=8)
        svg = inline_svg(drawing, "Variance in each batch, relative to Monte Carlo's")
    what = "the search saves" if estimate.data.weighted else "the control variates save"
    return Drawing("Variance, batch by batch", f"Below the dashed line {what} episodes.", svg)


def _weights(data: Episodes) -> Drawing:
    title = "Importance weights"
    text = (
        "How much more (right) or less (left) an episode counts than one of the policy itself. Close to 1 is safe: no "
        "single episode decides the estimate."
    )
    shown = {COLORS["purple"]: ("", np.exp(data.log_weights))}
    return Drawing(title, text, _histogram(title, "weight of an episode", shown))


def _returns(data: Episodes) -> Drawing:
    title = "Returns"
    text = "The returns of the episodes, whose mean is the estimate."
    if data.weighted:
        text = "The returns of the episodes as they came, of the behaviors that collected them."
    return Drawing(title, text, _histogram(title, "return of an episode", {COLORS["green"]: ("", data.returns)}))


def _corrected_returns(data: Episodes) -> Drawing:
    title = "Returns, and what is left of them"
    text = (
        "The values are the returns without what starts and the policy's own random choices explain: of "
        "the same mean, and the closer together, the fewer episodes are needed."
    )
    shown = {COLORS["green"]: ("returns", data.returns), COLORS["blue"]: ("values", data.values)}
    return Drawing(title, text, _histogram(title, "return and value of an episode", shown))


def _divergences(estimate: Estimate) -> Drawing:
    history = estimate.history
    with figure(1, 1, width=_WIDTH, height=_HEIGHT) as (drawing, axes):
        panel = axes[0, 0]
        panel.plot(
            history.episodes, np.maximum(history.divergences, 0.0), color=COLORS["orange"], marker="o", markersize=3
        )
        panel.set(xlabel="episodes", ylabel="divergence of an episode (nats)")
        panel.set_ylim(bottom=0.0)
        svg = inline_svg(drawing, "Divergence of the behavior from the policy")
    text = (
        "How far the episodes of a batch are from those of the policy (KL divergence, estimated from the weights). 0 "
        "is the policy itself."
    )
    return Drawing("How the behavior differs from the policy", text, svg)


def _histogram(title: str, label: str, shown: dict[str, tuple[str, NumpyArray]]) -> str:
    """The SVG of one or several histograms, by color, over the same bins."""
    with figure(1, 1, width=_WIDTH, height=_HEIGHT) as (drawing, axes):
        panel = axes[0, 0]
        every = np.concatenate([values for _, values in shown.values()])
        count = min(40, max(5, round(math.sqrt(len(every) / len(shown)))))
        bins = np.histogram_bin_edges(every, count)
        for color, (name, values) in shown.items():
            panel.hist(values, bins=bins, color=color, alpha=0.8 if len(shown) == 1 else 0.55, label=name)
        panel.set(xlabel=label, ylabel="episodes")
        if len(shown) > 1:
            panel.legend(fontsize=8)
        return inline_svg(drawing, title)
