"""The contract of a store."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Self

from bpsearch.errors import StoreError, StoreLockedError
from bpsearch.store.codec import Record, decode, encode

# What a store holds: the study itself; the settings that must not change; the search's state after so many told
# batches; requests; and of every told batch the numbers of the estimate and the episodes.
KINDS = ("study", "setting", "state", "request", "batch", "episodes")
_LONGEST_GAP = 10_000  # so many numbers in a row without a readable record are taken for the end


class Store(ABC):
    """A durable map from (kind, number) to records, changed in transactions.

    What every store promises, and `tests/store_suite.py` checks:

    - **All or nothing.** What is put and deleted within `with store.writing():` becomes visible together when the block
      ends, and stays, whatever happens to the process afterwards. If the block ends with an error, or the process ends
      within it, nothing of it is ever visible.
    - **What was put is what is got**, bit by bit, or the record is refused as damaged, by kind and number. Damage to
      one record does not make the others unreadable.
    - **One writer.** A second one is refused with `StoreLockedError`, which says who is the first; a writer that has
      ended, killed or not, is none. Readers come and go beside a writer, and see within `with store.reading():` one
      state of things: everything up to some transaction, and nothing of a later one.
    - **No code.** Reading a record runs nothing that is stored in it.

    Subclasses give transactions of bytes; the records are made here.
    """

    read_only: bool = False

    def check_writable(self) -> None:
        """Refuse a reader that is about to change something.

        Raises:
            StoreLockedError: the store was opened for reading.
        """
        if self.read_only:
            raise StoreLockedError(f"{self} was opened for reading; open it for writing to change the study")

    @abstractmethod
    def writing(self) -> AbstractContextManager[None]:
        """A transaction that changes the store.

        Raises:
            StoreLockedError: the store was opened for reading.
        """

    @contextmanager
    def reading(self) -> Iterator[None]:
        """One consistent view of the store."""
        yield

    @abstractmethod
    def keys(self, kind: str) -> list[int]:
        """The numbers of all records of a kind, ascending."""

    @abstractmethod
    def delete(self, kind: str, number: int) -> None:
        """Remove a record, if there is one; within `writing`."""

    @abstractmethod
    def _write(self, kind: str, number: int, data: bytes) -> None:
        """Keep `data`; within `writing`."""

    @abstractmethod
    def _read(self, kind: str, number: int) -> bytes | None:
        """What was kept, or None."""

    def put(self, kind: str, number: int, record: Record) -> None:
        """Keep a record in place of the one that was there; within `writing`."""
        self._write(kind, number, encode(record, _name(kind, number)))

    def get(self, kind: str, number: int) -> Record:
        """The record.

        Raises:
            StoreError: there is none, or it is damaged.
        """
        data = self._read(kind, number)
        if data is None:
            raise StoreError(f"{_name(kind, number)} is missing")
        return decode(data, _name(kind, number))

    def intact(self, kind: str) -> list[int]:
        """The numbers of all records of a kind that can be read, also where the list of them cannot."""
        found: list[int] = []
        number = 0
        while number - (found[-1] if found else 0) <= _LONGEST_GAP:
            try:
                self.get(kind, number)
                found.append(number)
            except StoreError:
                pass
            number += 1
        return found

    def damages(self) -> list[str]:
        """What is wrong with the store, in words; every record is read. Empty if all is as it was written."""
        found = []
        for kind in KINDS:
            try:
                numbers = self.keys(kind)
            except StoreError as error:
                found.append(f"the list of records of the kind {kind} cannot be read: {error}")
                continue
            for number in numbers:
                try:
                    self.get(kind, number)
                except StoreError as error:
                    found.append(str(error))
        return found

    def close(self) -> None:  # noqa: B027
        """Let go of the store; a writer makes room for the next."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _name(kind: str, number: int) -> str:
    return f"{kind} {number}"
