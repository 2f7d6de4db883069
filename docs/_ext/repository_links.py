"""Links out of the docs folder lead to the file in the repository; they must exist."""

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

REPOSITORY = "https://github.com/bpsearch/bpsearch"
ROOT = Path(__file__).parent.parent.parent
_LINK = re.compile(r"\]\(((?:\.\./)+[^)#]+)(#[^)]*)?\)")


def _rewrite(app: Sphinx, name: str, content: list[str]) -> None:
    folder = Path(app.srcdir, name).parent

    def replace(match: re.Match[str]) -> str:
        target = (folder / match[1]).resolve()
        if target.is_relative_to(app.srcdir):
            return match[0]
        if not target.exists():
            raise ExtensionError(f"{name}: {match[1]} does not exist")
        kind = "tree" if target.is_dir() else "blob"
        return f"]({REPOSITORY}/{kind}/main/{target.relative_to(ROOT).as_posix()}{match[2] or ''})"

    content[0] = _LINK.sub(replace, content[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Before the page is parsed."""
    app.connect("source-read", _rewrite)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
