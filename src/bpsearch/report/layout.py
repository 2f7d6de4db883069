"""What all pages share: their look, their figures, how to repeat what they show."""

import re
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from bpsearch._core.versions import versions
from bpsearch.report.json import plain

Figure = tuple[str, str, str]


def render_page(
    template: str, *, settings: Mapping[str, object], figures: Sequence[Figure], repeat: str, **values: Any
) -> str:
    """A page as HTML: a single file with its figures inside, which needs no network.

    Args:
        template: the name of its file, which extends `layout.html`.
        settings: what repeats the result, by name; None is left out.
        figures: of each its title, its text and its picture.
        repeat: the lines that repeat the result; empty if there are none.
        values: what else the template shows.
    """
    environment = Environment(
        loader=FunctionLoader(_read), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"begin": _begin, "code": _code}
    return environment.get_template(template).render(
        settings={name: _shown(value) for name, value in settings.items() if value is not None},
        figures=figures,
        repeat=repeat,
        versions=versions(),
        date=date.today().isoformat(),
        **values,
    )


def write_page(page: str, path: str | Path) -> Path:
    """Write a page, in a directory that is made if there is none."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def _read(name: str) -> str:
    return (files("bpsearch.report") / name).read_text(encoding="utf-8")


def _begin(text: str) -> str:
    """As a sentence begins."""
    return text[0].upper() + text[1:]


def _code(text: str) -> Markup:
    """What stands between backticks as code; all is escaped."""
    return Markup(re.sub("`(.*?)`", r"<code>\1</code>", str(escape(text))))


def _shown(value: object) -> str:
    text = plain(value)
    return text if isinstance(text, str) else repr(text)
