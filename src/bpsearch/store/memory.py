"""The store of a study that need not outlive its process."""

from collections.abc import Iterator
from contextlib import contextmanager

from bpsearch.store.base import KINDS, Store


class MemoryStore(Store):
    """Records in memory."""

    def __init__(self) -> None:
        self._records: dict[str, dict[int, bytes]] = {kind: {} for kind in KINDS}
        self._before: dict[tuple[str, int], bytes | None] = {}

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction: an error puts back what was there before."""
        self._before = {}
        try:
            yield
        except BaseException:
            for (kind, number), data in self._before.items():
                self._records[kind].pop(number, None)
                if data is not None:
                    self._records[kind][number] = data
            raise

    def keys(self, kind: str) -> list[int]:
        """The numbers of all records of a kind, ascending."""
        return sorted(self._records[kind])

    def delete(self, kind: str, number: int) -> None:
        """Remove a record."""
        self._before.setdefault((kind, number), self._read(kind, number))
        self._records[kind].pop(number, None)

    def __str__(self) -> str:
        return "the store in memory"

    def _write(self, kind: str, number: int, data: bytes) -> None:
        self._before.setdefault((kind, number), self._read(kind, number))
        self._records[kind][number] = data

    def _read(self, kind: str, number: int) -> bytes | None:
        return self._records[kind].get(number)
