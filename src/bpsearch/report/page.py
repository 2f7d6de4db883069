"""The page about one estimate: a single HTML file with its figures inside, which needs no network."""

import math
from importlib.resources import files
from typing import Any, Protocol

import numpy as np
from jinja2 import Environment, StrictUndefined

from bpsearch.diagnostics import Diagnostics, Episodes
from bpsearch.history import History
from bpsearch.report.plots import COLORS, band, figure, inline_svg
from bpsearch.trajectories import Array
from bpsearch.versions import versions

_WIDTH, _HEIGHT = 5.2, 3.0
Figure = tuple[str, str, str]  # title, explanation, SVG


class _Estimate(Protocol):
    """What a page shows of an `Estimate`, of which this layer must not know."""

    @property
    def value(self) -> float: ...
    @property
    def std_error(self) -> float | None: ...
    @property
    def interval_kind(self) -> str: ...
    @property
    def anytime_kind(self) -> str: ...
    @property
    def certificate(self) -> str: ...
    @property
    def event(self) -> str: ...
    @property
    def sentence(self) -> str: ...
    @property
    def warnings(self) -> tuple[str, ...]: ...
    @property
    def method(self) -> str: ...
    @property
    def unbiased(self) -> bool: ...
    @property
    def ended(self) -> str: ...
    @property
    def savings(self) -> float | None: ...
    @property
    def savings_basis(self) -> str: ...
    @property
    def diagnostics(self) -> Diagnostics: ...
    @property
    def history(self) -> History: ...
    @property
    def data(self) -> Episodes: ...
    @property
    def settings(self) -> dict[str, Any]: ...

    def interval(self, level: float = ...) -> tuple[float, float] | None: ...
    def anytime_interval(self, level: float = ...) -> tuple[float, float] | None: ...
    def upper_bound(self, level: float = ...) -> float | None: ...


def render(estimate: _Estimate) -> str:
    """The page of an `Estimate`, as HTML."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((files("bpsearch.report") / "page.html").read_text(encoding="utf-8"))
    return template.render(
        estimate=estimate,
        brackets=_brackets,
        numbers=_numbers(estimate),
        figures=_figures(estimate),
        settings={name: repr(value) for name, value in estimate.settings.items()},
        call=_call(estimate.settings),
        versions=versions(),
    )


def _brackets(interval: tuple[float, float] | None) -> str:
    return "unknown" if interval is None else f"[{interval[0]:.6g}, {interval[1]:.6g}]"


def _numbers(estimate: _Estimate) -> dict[str, str]:
    found = estimate.diagnostics
    known = {
        "standard error": estimate.std_error,
        "variance per episode": found.variance,
        "Monte Carlo's variance": found.monte_carlo_variance,
        "savings": estimate.savings,
        "largest share of variance": found.largest_value_share,
    }
    if estimate.data.weighted:
        known |= {
            "variance in the last batch": found.final_variance,
            "effective sample size": found.effective_sample_size,
            "largest share of weight": found.largest_weight_share,
        }
    return {name: "unknown" if value is None else f"{value:.4g}" for name, value in known.items()}


def _figures(estimate: _Estimate) -> list[Figure]:
    """Those that have something to show: weights of 1, events as 0 and 1, variances that differ by luck have not."""
    data = estimate.data
    returns = [] if estimate.event else [_returns(data)]
    if data.weighted:
        return [_running(estimate), _variances(estimate), _weights(data), *returns, _divergences(estimate)]
    if data.corrected:
        return [_running(estimate), _variances(estimate), _corrected_returns(data)]
    return [_running(estimate), *returns]


def _running(estimate: _Estimate) -> Figure:
    history = estimate.history
    monte_carlo = estimate.diagnostics.monte_carlo_variance
    with figure(1, 1, width=_WIDTH, height=_HEIGHT) as (drawing, axes):
        panel = axes[0, 0]
        if monte_carlo is not None:
            half = 1.96 * np.sqrt(monte_carlo / history.episodes)
            for side in (-half, half):
                label = "Monte Carlo's interval at as many episodes" if side is half else None
                panel.plot(
                    history.episodes, estimate.value + side, color=COLORS["vermilion"], linestyle="--", label=label
                )
        panel.plot(history.episodes, history.values, color=COLORS["blue"], marker="o", markersize=2.5, label="estimate")
        half = 1.96 * history.std_errors
        band(panel, history.episodes, history.values - half, history.values + half, COLORS["blue"])
        panel.set(xlabel="episodes", ylabel="value")
        panel.legend(fontsize=8)
        svg = inline_svg(drawing, "Running estimate with its interval")
    text = "After each batch of episodes, with the 95% interval shaded."
    if estimate.data.corrected and not estimate.data.weighted:
        text += " Episodes are valued as they were in the end."
    return "The estimate as it settled", text, svg


def _variances(estimate: _Estimate) -> Figure:
    history = estimate.history
    monte_carlo = estimate.diagnostics.monte_carlo_variance or math.nan
    relative = history.batch_variances / monte_carlo
    with figure(1, 1, width=_WIDTH, height=_HEIGHT) as (drawing, axes):
        panel = axes[0, 0]
        panel.axhline(1.0, color=COLORS["vermilion"], linestyle="--", label="Monte Carlo")
        panel.plot(history.episodes, relative, color=COLORS["blue"], marker="o", markersize=3, label="this study")
        panel.set(xlabel="episodes", ylabel="variance relative to Monte Carlo's", ylim=(0.0, None))
        panel.legend(fontsize=8)
        svg = inline_svg(drawing, "Variance in each batch, relative to Monte Carlo's")
    what = "the search saves" if estimate.data.weighted else "the control variates save"
    return "Variance, batch by batch", f"Below the dashed line {what} episodes.", svg


def _weights(data: Episodes) -> Figure:
    title = "Importance weights"
    text = (
        "How much more (right) or less (left) an episode counts than one of the policy itself. Close to 1 is safe: no "
        "single episode decides the estimate."
    )
    return title, text, _histogram(title, "weight of an episode", {COLORS["purple"]: ("", np.exp(data.log_weights))})


def _returns(data: Episodes) -> Figure:
    title = "Returns"
    text = "The returns of the episodes, whose mean is the estimate."
    if data.weighted:
        text = "The returns of the episodes as they came, of the behaviors that collected them."
    return title, text, _histogram(title, "return of an episode", {COLORS["green"]: ("", data.returns)})


def _corrected_returns(data: Episodes) -> Figure:
    title = "Returns, and what is left of them"
    text = (
        "The values are the returns without what the policy's own random choices were found to explain: of the same "
        "mean, and the closer together, the fewer episodes are needed."
    )
    shown = {COLORS["green"]: ("returns", data.returns), COLORS["blue"]: ("values", data.values)}
    return title, text, _histogram(title, "return and value of an episode", shown)


def _histogram(title: str, label: str, shown: dict[str, tuple[str, Array]]) -> str:
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


def _divergences(estimate: _Estimate) -> Figure:
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
        "KL divergence of a batch's whole episodes from those of the policy, estimated from "
        "the weights; 0 is the policy itself."
    )
    return "How the behavior differs from the policy", text, svg


def _call(settings: dict[str, Any]) -> str:
    if not settings:
        return ""
    rest = ", ".join(f"{name}={value!r}" for name, value in settings.items() if name not in ("policy", "env"))
    return f"bps.evaluate({settings['policy']!r}, {settings['env']!r}, {rest})"
