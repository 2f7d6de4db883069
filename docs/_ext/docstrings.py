"""Docstrings are written for people: `code` in single backticks, and formulas with stars and bars as they are."""

import re
from typing import Any

from sphinx.application import Sphinx

_CODE = re.compile(r"(`[^`]+`)")
_SPECIAL = re.compile(r"([*|\\]|(?<=\w)_(?!\w))")


def to_rst(line: str) -> str:
    """A line with `x` as literal text, and nothing else that reStructuredText would take for markup."""
    parts = _CODE.split(line)
    return "".join(f"`{part}`" if part.startswith("`") else _SPECIAL.sub(r"\\\1", part) for part in parts)


def _process(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    lines[:] = _marked(lines)


def _marked(lines: list[str]) -> list[str]:
    """Formulas that are set apart by an indent stay as they are, as literal blocks."""
    result: list[str] = []
    literal = False
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        after_blank = number > 0 and not lines[number - 1].strip()
        if literal and line.strip() and indent < 4:
            literal = False
        elif not literal and after_blank and indent >= 4 and not _in_section(lines, number):
            result += ["::", ""]
            literal = True
        result.append(line if literal else to_rst(line))
    return result


def _in_section(lines: list[str], number: int) -> bool:
    """Whether the line belongs to Args:, Returns: and the like, whose entries are indented."""
    for line in reversed(lines[:number]):
        if line.strip() and not line.startswith(" "):
            return line.strip() in ("Args:", "Returns:", "Attributes:", "Raises:", "Yields:", "Example:", "Examples:")
    return False


def setup(app: Sphinx) -> dict[str, Any]:
    """Before napoleon, which has the priority 500."""
    app.connect("autodoc-process-docstring", _process, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
