"""Stores: what keeps a study through crashes, and for other processes."""

from pathlib import Path

from bpsearch.store.base import Store
from bpsearch.store.memory import MemoryStore
from bpsearch.store.sqlite import SQLiteStore

__all__ = ["MemoryStore", "SQLiteStore", "Store", "opened"]


def opened(store: Store | str | Path | None, *, read_only: bool = False) -> Store:
    """The store that `store` stands for: itself, the SQLite file of that path, or one in memory."""
    if store is None:
        return MemoryStore()
    return store if isinstance(store, Store) else SQLiteStore(store, read_only=read_only)
