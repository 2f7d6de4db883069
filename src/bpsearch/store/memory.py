"""The store of a study that need not outlive its process."""

from collections.abc import Iterator
from contextlib import contextmanager

from bpsearch.store.base import Store


class MemoryStore(Store):
    """Records in memory."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, int], bytes] = {}
        self._before: dict[tuple[str, int], bytes | None] = {}

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction: an error puts back what was there before."""
        self._before = {}
        try:
            yield
        except BaseException:
            for key, data in self._before.items():
                if data is None:
                    self._records.pop(key, None)
                else:
                    self._records[key] = data
            raise

    def keys(self, kind: str) -> list[int]:
        """The numbers of all records of a kind, ascending."""
        return sorted(number for of_kind, number in self._records if of_kind == kind)

    def delete(self, kind: str, number: int) -> None:
        """Remove a record."""
        self._before.setdefault((kind, number), self._records.get((kind, number)))
        self._records.pop((kind, number), None)

    def __str__(self) -> str:
        return "the store in memory"

    def _write(self, kind: str, number: int, data: bytes) -> None:
        self._before.setdefault((kind, number), self._records.get((kind, number)))
        self._records[kind, number] = data

    def _read(self, kind: str, number: int) -> bytes | None:
        return self._records.get((kind, number))
