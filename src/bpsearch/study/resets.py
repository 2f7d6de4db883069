"""How many further starts the episodes of a study get."""

from typing import Any, Literal

from bpsearch._core.checks import check_integer, quote
from bpsearch.errors import InvalidArgumentError
from bpsearch.search.base import Search

Resets = Literal["auto", "never"]


def choose_resets(wanted: int | Resets, search: Search[Any], *, offered: int, useful: bool, before: int | None) -> int:
    """The same number for every episode of a study.

    Args:
        wanted: "auto", "never" or a number.
        search: one that resets the environment to offer starts is refused where that must never be.
        offered: how many the runner finds worth their price; 0 if it has none.
        useful: whether the method would use them.
        before: how many the study has had up to now; None before its first batch.
    """
    if isinstance(wanted, str) and wanted not in ("auto", "never"):
        raise InvalidArgumentError(f"resets must be 'auto', 'never' or a number, got {wanted!r}")
    if wanted == "never" and search.without_resets() is not search:
        raise InvalidArgumentError(
            f"the search {type(search).__name__} resets the environment to offer starts, and resets='never' forbids "
            f"that; make the study with {search.without_resets()}"
        )
    if wanted == "auto":
        return before if before is not None else offered if useful else 0
    count = 0 if wanted == "never" else check_integer("resets", wanted, at_least=0)
    if count and not offered:
        raise InvalidArgumentError(f"resets must be 0: further starts cannot be drawn here, got {quote(wanted)}")
    return count if useful else 0
