"""Tables that a benchmark writes begin with a heading of the third level: as pages they get a title."""

import re
from typing import Any

from sphinx.application import Sphinx

TITLES = {
    "evaluators/evaluators": "Evaluators: all tables",
    "adversary/adversary": "The default under attack: all tables",
}


def _add(app: Sphinx, name: str, content: list[str]) -> None:
    if name in TITLES and not content[0].startswith("# "):
        content[0] = f"# {TITLES[name]}\n\n" + re.sub(r"^###", "##", content[0], flags=re.M)


def setup(app: Sphinx) -> dict[str, Any]:
    """Before the page is parsed."""
    app.connect("source-read", _add)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
