"""What other packages add: entry points, by group and name."""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from bpsearch.errors import InvalidArgumentError

GROUPS = ("bpsearch.methods", "bpsearch.policies", "bpsearch.runners")


@cache
def _entries(group: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))


def find_plugin(group: str, name: str) -> Any:
    """What the entry point of that group and name loads; None if no installed package has one."""
    return next((found.load() for found in _entries(group) if found.name == name), None)


def ask_plugins(group: str, kinds: tuple[type, ...], *arguments: object) -> Any:
    """What the first entry point of a group that knows them makes of some arguments; None if none does.

    Raises:
        InvalidArgumentError: it has made something else than the group is for.
    """
    for entry in _entries(group):
        found = entry.load()(*arguments)
        if isinstance(found, kinds):
            return found
        if found is not None:
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise InvalidArgumentError(
                f"the entry point {entry.name!r} of the group {group!r} ({entry.value}) must give a {wanted}, or None "
                f"for what it does not know, got {found!r}"
            )
    return None
