"""From what people name as a store to a journal."""

from pathlib import Path

from bpsearch._core.checks import check_path
from bpsearch.errors import StoreError
from bpsearch.study.journal import Journal
from bpsearch.study.sqlite import SQLiteJournal


def open_journal(store: Journal | str | Path, *, make: bool = False, read_only: bool = False) -> Journal:
    """The journal of a store: itself, or the file at a path.

    Args:
        store: the path of a study's file, or a `Journal`.
        make: whether a file that is not there is made.
        read_only: whether to look only.

    Raises:
        StoreError: there is no such file.
    """
    if isinstance(store, Journal):
        return store
    path = check_path("store", store)
    if not make and not path.exists():
        raise StoreError(f"there is no store {store}")
    return SQLiteJournal(path, read_only=read_only)
