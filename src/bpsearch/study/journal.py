"""The contract of a journal: events in order, on disk before `append` returns, and a cache beside them."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self, TypeAlias

from numpy.typing import NDArray

from bpsearch.errors import StoreError, StoreLockedError

Facts: TypeAlias = dict[str, Any]  # what JSON has: None, bool, int, float, str, and lists and dicts of them
Arrays: TypeAlias = Mapping[str, NDArray[Any]]  # numbers: bool, integers, floats and complex numbers

_LONGEST_GAP = 10_000  # so many positions in a row without a readable event are taken for the end


@dataclass(frozen=True, eq=False)
class Event:
    """Something that happened to a study, or a snapshot in the cache.

    Attributes:
        kind: what happened; a journal does not interpret it.
        facts: values that JSON has, small. A tuple comes back as a list.
        arrays: arrays of numbers, by name; they may be large. They come back in the byte order of the machine.
    """

    kind: str
    facts: Facts = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)


class Journal(ABC):
    """Events 0, 1, 2, … of one study, which are only ever appended, and a cache of named snapshots.

    What every journal promises, and `bpsearch.testing.journals.check_journal` checks:

    - **Durable.** When `append` returns, the event is on disk, whatever happens to the process afterwards.
    - **All or nothing.** An event and the cache entries that go with it become visible together. If `append` raises a
      bpsearch error, or the process ends within it, nothing of them is ever visible. Only an interrupt (Ctrl-C) may
      come after the event is written: look at `len`.
    - **Compare and set.** An event is appended only at the position that its writer expects. So nothing that one
      writer was told is safe can be lost to another, however both came to the same journal.
    - **One writer.** A second one is refused with `StoreLockedError`: when it opens the journal where the system has
      locks, otherwise when it appends. A writer that has ended, killed or not, is none.
    - **What was appended is what is read**, bit by bit, or the event is refused as damaged, by its position. A damaged
      event does not make the others unreadable.
    - **The cache is only a cache.** It can be deleted at any time; a damaged entry is a missing one.
    - **Readers come and go beside a writer.** Within `with journal.reading():` they see one state of things.
    - **Threads** may share a journal.
    - **No code.** Reading runs nothing that is stored.
    """

    read_only: bool = False

    @abstractmethod
    def __len__(self) -> int:
        """The number of events: the position of the next one."""

    def __bool__(self) -> bool:
        return True  # `if journal:` asks whether there is one, not whether it holds events

    @abstractmethod
    def append(self, event: Event, *, position: int, cache: Mapping[str, Event | None] = MappingProxyType({})) -> None:
        """Write an event, and with it what changes in the cache.

        Args:
            event: what happened.
            position: how many events the writer knows of.
            cache: entries by name; None deletes one.

        Raises:
            StoreLockedError: the journal holds another number of events, or was opened for reading.
            InvalidArgumentError: the event, or an entry, holds something that cannot be kept.
            StoreError: it could not be written.
        """

    @abstractmethod
    def facts(self, position: int) -> tuple[str, Facts]:
        """The kind and the facts of an event. Its arrays are not read.

        Raises:
            StoreError: there is no such event, or it is damaged.
        """

    @abstractmethod
    def event(self, position: int) -> Event:
        """The whole event.

        Raises:
            StoreError: there is no such event, or it is damaged.
        """

    @abstractmethod
    def cached(self, name: str) -> Event | None:
        """The entry of the cache, or None if it is missing or cannot be read. Never an error."""

    @abstractmethod
    def forget(self) -> None:
        """Delete the whole cache.

        Raises:
            StoreLockedError: the journal was opened for reading.
        """

    @abstractmethod
    def damages(self) -> list[str]:
        """What is wrong with events and cache, in words. Every record is read. Empty if all is as it was written."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """One consistent view of events and cache. Nothing can be appended within it."""
        yield

    def intact(self) -> list[int]:
        """The positions of all events that can be read, also if the list of them cannot."""
        try:
            end = len(self)
        except StoreError:
            end = sys.maxsize
        found: list[int] = []
        position = 0
        while position < end and position - (found[-1] if found else 0) <= _LONGEST_GAP:
            try:
                self.event(position)
                found.append(position)
            except StoreError:
                pass
            position += 1
        return found

    def check_writable(self) -> None:
        """Refuse a reader that is about to change something.

        Raises:
            StoreLockedError: the journal was opened for reading.
        """
        if self.read_only:
            raise StoreLockedError(f"{self} was opened for reading; open it for writing to change the study")

    def close(self) -> None:  # noqa: B027
        """Let go of the journal; a writer makes room for the next. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
