"""The page about one estimate: a single HTML file with its figures inside, which needs no network."""

from typing import NamedTuple

from bpsearch.inference.estimate import Estimate
from bpsearch.report import words
from bpsearch.report.figures import draw_figures
from bpsearch.report.layout import render_page
from bpsearch.report.numbers import percent, significant
from bpsearch.report.repeat import repeat_lines


class Row(NamedTuple):
    """An interval of the page, with its bar: left end, width and the place of the value, in percent."""

    promise: words.Promise
    left: float
    width: float
    value: float


def render(estimate: Estimate) -> str:
    """The page of an `Estimate`, as HTML."""
    return render_page(
        "page.html",
        estimate=estimate,
        value=words.value_text(estimate),
        sentence=words.sentence(estimate),
        warnings=words.warnings(estimate),
        question=words.question(estimate),
        rows=_rows(estimate),
        upper_bound=significant(estimate.upper_bound()),
        certificate=words.certificate(estimate),
        numbers=_numbers(estimate),
        savings_basis=words.savings_basis(estimate),
        figures=draw_figures(estimate),
        settings=estimate.settings,
        repeat=repeat_lines(estimate),
    )


def _rows(estimate: Estimate) -> list[Row]:
    """The intervals side by side, on one scale."""
    promises = words.promises(estimate)
    ends = [end for promise in promises if promise.interval is not None for end in promise.interval]
    low, high = min([estimate.value, *ends]), max([estimate.value, *ends])
    scale = 100.0 / (high - low) if high > low else 0.0
    rows = []
    for promise in promises:
        start, end = promise.interval or (low, low)
        rows.append(Row(promise, (start - low) * scale, (end - start) * scale, (estimate.value - low) * scale))
    return rows


def _numbers(estimate: Estimate) -> dict[str, str]:
    found = estimate.diagnostics
    known = {
        "standard error": significant(estimate.std_error, 2),
        "variance per episode": significant(found.variance),
        "Monte Carlo's variance": significant(found.monte_carlo_variance),
        "savings": significant(estimate.savings),
        "largest share of variance": percent(found.largest_value_share),
    }
    if estimate.data.weighted:
        known |= {
            "variance in the last batch": significant(found.final_variance),
            "effective sample size": significant(found.effective_sample_size),
            "largest share of weight": percent(found.largest_weight_share),
        }
    return known
