"""Links out of the docs folder lead to the file in the repository; they must exist.

A page that consists of `<!-- file: ../CHANGELOG.md -->` shows that file of the repository.
"""

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

REPOSITORY = "https://github.com/bpsearch/bpsearch"
ROOT = Path(__file__).parent.parent.parent
_FILE = re.compile(r"<!-- file: (\S+) -->\s*")
_LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)]*)?\)")


def _rewrite(app: Sphinx, name: str, content: list[str]) -> None:
    page = folder = Path(app.srcdir, name).parent
    shown = _FILE.fullmatch(content[0])
    if shown:
        path = (page / shown[1]).resolve()
        content[0], folder = path.read_text(encoding="utf-8"), path.parent

    def replace(match: re.Match[str]) -> str:
        target = (folder / match[1]).resolve()
        if not target.exists():
            raise ExtensionError(f"{name}: {match[1]} does not exist")
        if target.is_relative_to(app.srcdir):
            return f"]({target.relative_to(app.srcdir).as_posix()}{match[2] or ''})" if shown else match[0]
        kind = "tree" if target.is_dir() else "blob"
        return f"]({REPOSITORY}/{kind}/main/{target.relative_to(ROOT).as_posix()}{match[2] or ''})"

    parts = re.split(r"(^```.*?^```|`[^`\n]+`)", content[0], flags=re.M | re.S)  # code is left alone
    content[0] = "".join(part if number % 2 else _LINK.sub(replace, part) for number, part in enumerate(parts))


def setup(app: Sphinx) -> dict[str, Any]:
    """Before the page is parsed."""
    app.connect("source-read", _rewrite)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
