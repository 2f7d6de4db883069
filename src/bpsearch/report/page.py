"""The page about one estimate: a single HTML file with its figures inside, which needs no network."""

import math
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined

from bpsearch.report.plots import COLORS, band, figure, inline_svg
from bpsearch.trajectories import Array
from bpsearch.versions import versions

_WIDTH, _HEIGHT = 5.2, 3.0


def render(estimate: Any) -> str:
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


def _numbers(estimate: Any) -> dict[str, str]:
    found = estimate.diagnostics
    known = {
        "standard error": estimate.std_error,
        "variance per episode": found.variance,
        "Monte Carlo's variance": found.monte_carlo_variance,
        "variance in the last batch": found.final_variance,
        "savings": estimate.savings,
        "effective sample size": found.effective_sample_size,
        "largest share of weight": found.largest_weight_share,
        "largest share of variance": found.largest_value_share,
    }
    return {name: "unknown" if value is None else f"{value:.4g}" for name, value in known.items()}


def _figures(estimate: Any) -> list[tuple[str, str, str]]:
    """(title, explanation, SVG) of each figure."""
    moved = float(np.abs(estimate.data.log_weights).max()) > 1e-3
    parts = [_running(estimate), _variances(estimate)]
    if moved:
        parts.append(
            _histogram(
                "Importance weights",
                "How much more (right) or less (left) an episode counts than one of the policy itself. Close to 1 is "
                "safe: no single episode decides the estimate.",
                np.exp(estimate.data.log_weights),
                "weight of an episode",
                COLORS["purple"],
            )
        )
    parts.append(
        _histogram(
            "Returns",
            "The returns of the episodes as they came, of the behaviors that collected them.",
            estimate.data.returns,
            "return of an episode",
            COLORS["green"],
        )
    )
    parts.append(_divergences(estimate, moved))
    return parts


def _running(estimate: Any) -> tuple[str, str, str]:
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
    return "The estimate as it settled", text, svg


def _variances(estimate: Any) -> tuple[str, str, str]:
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
    return "Variance, batch by batch", "Below the dashed line the search saves episodes.", svg


def _histogram(title: str, text: str, values: Array, label: str, color: str) -> tuple[str, str, str]:
    with figure(1, 1, width=_WIDTH, height=_HEIGHT) as (drawing, axes):
        panel = axes[0, 0]
        panel.hist(values, bins=min(40, max(5, round(math.sqrt(len(values))))), color=color, alpha=0.8)
        panel.set(xlabel=label, ylabel="episodes")
        svg = inline_svg(drawing, title)
    return title, text, svg


def _divergences(estimate: Any, moved: bool) -> tuple[str, str, str]:
    history = estimate.history
    with figure(1, 1, width=_WIDTH, height=_HEIGHT) as (drawing, axes):
        panel = axes[0, 0]
        panel.plot(
            history.episodes, np.maximum(history.divergences, 0.0), color=COLORS["orange"], marker="o", markersize=3
        )
        panel.set(xlabel="episodes", ylabel="divergence of an episode (nats)")
        panel.set_ylim(bottom=0.0, top=None if moved else 0.1)
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
