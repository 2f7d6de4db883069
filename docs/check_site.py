"""Every link within the built site leads somewhere: to a file, and to a place in it.

python docs/check_site.py docs/_build/html
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and the places of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Of every element its id, what it links to, and what it loads."""
        for name, value in attrs:
            if name == "id" and value:
                self.places.add(value)
            elif name in ("href", "src") and value:
                self.links.add(value)


def broken_links(root: Path) -> list[str]:
    """Links within the site that lead nowhere, and files that would be loaded from another server."""
    pages = {path: Page(path) for path in sorted(root.rglob("*.html"))}
    wrong = []
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link.startswith(("#!", "data:")):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                wrong.append(f"{path.relative_to(root)}: {link} does not exist")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].places:
                wrong.append(f"{path.relative_to(root)}: {link} is no place of that page")
    return wrong


def main() -> None:
    """Print what is wrong."""
    root = Path(sys.argv[1]).resolve()
    wrong = broken_links(root)
    print(*wrong, sep="\n")
    print(f"{len(list(root.rglob('*.html')))} pages, {len(wrong)} broken links")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
