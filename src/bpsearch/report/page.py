"""The page about one estimate: a single HTML file with its figures inside, which needs no network."""

import re
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from bpsearch._core.versions import versions
from bpsearch.inference.estimate import Estimate
from bpsearch.report import words
from bpsearch.report.figures import draw_figures
from bpsearch.report.json import plain
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
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"begin": _begin, "code": _code}
    template = environment.from_string((files("bpsearch.report") / "page.html").read_text(encoding="utf-8"))
    return template.render(
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
        settings={name: _shown(value) for name, value in estimate.settings.items() if value is not None},
        repeat=repeat_lines(estimate),
        versions=versions(),
        date=date.today().isoformat(),
    )


def write_page(estimate: Estimate, path: str | Path) -> Path:
    """Write the page, in a directory that is made if there is none."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(estimate), encoding="utf-8")
    return path


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


def _begin(text: str) -> str:
    """As a sentence begins."""
    return text[0].upper() + text[1:]


def _code(text: str) -> Markup:
    """What stands between backticks as code; all is escaped."""
    return Markup(re.sub("`(.*?)`", r"<code>\1</code>", str(escape(text))))


def _shown(value: object) -> str:
    text = plain(value)
    return text if isinstance(text, str) else repr(text)
