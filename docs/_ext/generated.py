"""Pages that the program itself tells: the options of its commands, and the keys of its JSON."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from sphinx.application import Sphinx

import bpsearch.report
from bpsearch.cli import app as command


def describe_commands() -> str:
    """Every command with its arguments and options."""
    return "\n".join(_describe(typer.main.get_command(command), "bpsearch", 2))


def _describe(found: Any, path: str, level: int) -> Iterator[str]:
    if hasattr(found, "commands"):
        if " " in path:
            yield f"{'#' * level} `{path}`\n\n{found.help or ''}\n"
        for name, inner in found.commands.items():
            yield from _describe(inner, f"{path} {name}", level)
        return
    yield f"{'#' * level} `{path}`\n\n{(found.help or '').strip()}\n"
    if found.epilog:
        yield f"```\n{found.epilog.removeprefix('Example: ')}\n```\n"
    yield "| option | | default |\n|---|---|---|"
    for parameter in found.params:
        if parameter.name == "help":
            continue
        names = ", ".join(f"`{name}`" for name in parameter.opts) if parameter.param_type_name == "option" else ""
        names = names or f"`{parameter.name.upper()}`"
        default = "" if parameter.default in (None, False, ()) or callable(parameter.default) else parameter.default
        shown = "required" if parameter.required else f"`{default}`" if default != "" else ""
        text = str(getattr(parameter, "help", "") or "").replace("|", r"\|")
        yield f"| {names} | {text} | {shown} |"
    yield ""


def describe_schemas() -> str:
    """The keys of every schema with their meaning."""
    lines: list[str] = []
    for path in sorted(Path(bpsearch.report.__file__).parent.glob("schemas/*.json")):
        schema = json.loads(path.read_text())
        lines += [f"## `{path.name}`", "", schema.get("description", schema["title"]), ""]
        lines += _keys(schema)
        for name, inner in schema.get("$defs", {}).items():
            if "properties" in inner:
                lines += [f"### {name}", "", inner.get("description", ""), "", *_keys(inner)]
    return "\n".join(lines)


def _keys(schema: dict[str, Any]) -> list[str]:
    rows = ["| key | type | |", "|---|---|---|"]
    for key, value in schema["properties"].items():
        kind = value.get("type") or value.get("$ref", "").rsplit("/", 1)[-1] or "any"
        kinds = kind if isinstance(kind, str) else " or ".join(kind)
        text = value.get("description", "").replace("|", r"\|")
        rows.append(f"| `{key}` | {kinds} | {text} |")
    return [*rows, ""]


def _generate(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "reference" / "_generated"
    folder.mkdir(exist_ok=True)
    for name, text in (("commands", describe_commands()), ("schemas", describe_schemas())):
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Before any page is read."""
    app.connect("builder-inited", _generate)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
