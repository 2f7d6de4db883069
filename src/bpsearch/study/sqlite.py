"""The journal on disk: one SQLite file per study."""

import os
import shutil
import sqlite3
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from operator import index
from pathlib import Path
from types import MappingProxyType

from bpsearch._core.texts import printable
from bpsearch.errors import StoreError, StoreLockedError
from bpsearch.study import codec
from bpsearch.study.journal import Event, Facts, Journal
from bpsearch.study.lock import WriterLock, identity, real_path, size, sync_directory
from bpsearch.study.rows import encode_entry, event_name, read_facts

SCHEMA_VERSION = 2
APPLICATION_ID = 0x62707331  # "bps1": what tells a journal from any other SQLite file

# The moments of a write, in their order, at which `on_write` is called. A process may end at any of them.
WRITE_POINTS = (
    "file made",
    "tables made",
    "begun",
    "event written",
    "cache written",
    "cache deleted",
    "before commit",
    "committed",
)

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_PAGES = slice(28, 32)  # in the header: how many pages the file has
# The arrays come last: SQLite reads a row only as far as it is asked for.
_TABLES = (
    "CREATE TABLE cache (name TEXT PRIMARY KEY NOT NULL, data BLOB NOT NULL)",
    "CREATE TABLE journal (position INTEGER PRIMARY KEY, kind TEXT NOT NULL, facts BLOB NOT NULL, arrays BLOB)",
)
_OPENING = threading.RLock()


class SQLiteJournal(Journal):
    """A journal in the SQLite file `path`, which is made if it does not exist.

    Every event is on disk when `append` returns (write-ahead log, synchronous=FULL). Until the file is closed, or
    after its writer was killed, the newest events are in the file with the ending "-wal" beside it: copy both, or close
    the journal first.

    Symbolic links to the file are followed. Hard links are refused: SQLite keeps one log per name, so that writers
    under two names would not see each other. An event may take 10⁹ bytes, SQLite's limit. A fork must not use the
    journal of its parent, and is told so.

    Args:
        path: of the file.
        read_only: whether to watch only; the file must exist.
        on_write: called with the name of each of `WRITE_POINTS` as it is reached; for tests of what survives.

    Raises:
        StoreLockedError: another writer has the journal open, or the file has hard links.
        StoreError: the file is damaged, not a journal, or of another version; or it is missing and `read_only`. Of a
            file whose end is missing, a reader still gets what is left.
    """

    def __init__(
        self, path: str | Path, *, read_only: bool = False, on_write: Callable[[str], None] | None = None
    ) -> None:
        self.path = Path(path)
        self.read_only = read_only
        self._reach = on_write or (lambda _: None)
        self._process = os.getpid()
        self._turn = threading.RLock()
        self._database: sqlite3.Connection | None = None
        self._lock: WriterLock | None = None
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._cut = ""
        self._identity: tuple[int, int] | None = None
        self._file = real_path(path)
        try:
            with _OPENING, self._named_errors():
                header = self._header()
                if not read_only:
                    self._lock = WriterLock(self._file)
                self._database = self._connect(header)
                self._prepare()
                self._identity = identity(self._file)
                _OPEN.add(self)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        with self._using() as database:
            last = database.execute("SELECT max(position) FROM journal").fetchone()[0]
        count = 0 if last is None else last + 1
        if not isinstance(count, int) or not 0 <= count <= sys.maxsize:
            raise StoreError(f"{self} is damaged: its last event has the position {last!r:.80}")
        return count

    def append(self, event: Event, *, position: int, cache: Mapping[str, Event | None] = MappingProxyType({})) -> None:
        """Write an event, and with it what changes in the cache, in one transaction that is on disk at the end."""
        name = event_name(position)
        position = index(position)
        facts = codec.encode_facts(event.kind, event.facts, name)
        arrays = codec.encode_arrays(event.arrays, name)
        entries = {key: encode_entry(key, entry) for key, entry in cache.items()}
        with self._writing() as database:
            if position != len(self):
                raise StoreLockedError(
                    f"another writer has appended to {self}: it holds {len(self)} events, expected {position}; open it "
                    "again to go on from there"
                )
            database.execute("INSERT INTO journal VALUES (?, ?, ?, ?)", (position, event.kind, facts, arrays))
            self._reach("event written")
            for key, data in entries.items():
                if data is None:
                    database.execute("DELETE FROM cache WHERE name = ?", (key,))
                    self._reach("cache deleted")
                else:
                    database.execute("INSERT OR REPLACE INTO cache VALUES (?, ?)", (key, data))
                    self._reach("cache written")

    def facts(self, position: int) -> tuple[str, Facts]:
        """The kind and the facts of an event; its arrays stay on disk."""
        kind, facts = self._row("kind, facts", position)
        return read_facts(position, kind, facts)

    def event(self, position: int) -> Event:
        """The whole event."""
        kind, facts, arrays = self._row("kind, facts, arrays", position)
        return Event(*read_facts(position, kind, facts), codec.decode_arrays(arrays, event_name(position)))

    def cached(self, name: str) -> Event | None:
        """The entry of the cache, or None."""
        try:
            return self._entry(name)
        except (StoreError, StoreLockedError):
            return None

    def forget(self) -> None:
        """Delete the whole cache."""
        with self._writing() as database:
            database.execute("DELETE FROM cache")
            self._reach("cache deleted")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """One view of the journal, whatever a writer does meanwhile. It may be nested. Other threads wait."""
        self._check_process()
        with self._turn:
            with self._using() as database:
                outermost = not database.in_transaction
            try:
                with self._using():
                    if outermost:
                        database.execute("BEGIN")
                        database.execute("PRAGMA schema_version").fetchone()  # the view is that of the first read
                yield
            finally:
                if outermost and self._database is not None:
                    database.rollback()

    def damages(self) -> list[str]:
        """What is wrong with the events, the cache, and the file that holds them."""
        found = [self._cut] if self._cut else []
        for look in (self._damaged_events, self._damaged_cache, self._damaged_pages):
            try:
                found += look()
            except StoreError as error:
                found.append(str(error))
        return found

    def close(self) -> None:
        """Close the file, with all that was written in one piece, and make room for the next writer."""
        if os.getpid() != self._process:
            return  # a fork that closed the file would disturb its parent
        with self._turn:
            self._identity = None
            if self._database is not None:
                self._database.close()
                self._database = None
            if self._lock is not None:
                self._lock.release()
            if self._copy is not None:
                self._copy.cleanup()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()

    def __str__(self) -> str:
        return printable(self.path)

    def _row(self, columns: str, position: int) -> tuple[object, ...]:
        row, position = None, index(position)
        if 0 <= position < sys.maxsize:
            with self._using() as database:
                row = database.execute(f"SELECT {columns} FROM journal WHERE position = ?", (position,)).fetchone()
        if row is None:
            raise StoreError(f"{event_name(position)} is missing")
        return tuple(row)

    def _entry(self, name: str) -> Event | None:
        with self._using() as database:
            row = database.execute("SELECT data FROM cache WHERE name = ?", (name,)).fetchone()
        return None if row is None else Event(*codec.decode_record(row[0], f"the cached {name!r}"))

    def _damaged_events(self) -> list[str]:
        with self._using() as database:
            positions = [row[0] for row in database.execute("SELECT position FROM journal ORDER BY position")]
        found = [
            f"events {before + 1} to {position - 1} are missing"
            for before, position in pairwise([-1, *positions])
            if position > before + 1
        ]
        return found + _faults(self.event, positions)

    def _damaged_cache(self) -> list[str]:
        with self._using() as database:
            names = [row[0] for row in database.execute("SELECT name FROM cache ORDER BY name")]
        return _faults(self._entry, names)

    def _damaged_pages(self) -> list[str]:
        with self._using() as database:
            lines = [" ".join(str(row[0]).split()) for row in database.execute("PRAGMA integrity_check")]
        return [f"{self} is damaged: {printable(line)[:200]}" for line in lines if line != "ok"]

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise StoreLockedError(f"{self} is open in process {self._process}, and cannot be used in a fork of it")

    def _check_in_place(self) -> None:
        if identity(self._file) != self._identity:
            raise StoreError(f"{self} was moved or replaced while it was open, and events would be lost; open it again")

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, OverflowError, UnicodeError, MemoryError) as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                raise StoreLockedError(f"{self} is being written by another program; try again") from error
            reason = getattr(error, "strerror", None) or error
            raise StoreError(f"{self} cannot be read or written: {printable(reason)[:200]}") from error

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """The database, for one thread at a time."""
        self._check_process()
        with self._turn, self._named_errors():
            if self._database is None:
                raise StoreError(f"{self} is closed")
            yield self._database

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is on disk when the block has ended."""
        self.check_writable()
        with self._using() as database:
            if database.in_transaction:
                raise StoreLockedError(f"{self} cannot be written within `reading`")
            try:
                database.execute("BEGIN IMMEDIATE")
                self._reach("begun")
                yield database
                self._reach("before commit")
                self._check_in_place()
                database.execute("COMMIT")
            except BaseException:
                database.rollback()
                raise
            self._check_in_place()
            self._reach("committed")

    def _header(self) -> bytes:
        """The first bytes of the file, if it has any; what is no SQLite file is refused without a trace."""
        found = identity(self._file)
        if found is None:
            if self.read_only:
                raise StoreError(f"there is no journal {self}")
            return b""
        if os.stat(self._file).st_nlink > 1:
            raise StoreLockedError(f"{self} has hard links, and may be written under another name; use a copy")
        for journal in _OPEN:
            if journal._identity == found:
                journal._check_process()  # SQLite would take the locks of a parent for those of its fork
                return b""  # a process that closes a file loses all its locks of it, SQLite's among them (POSIX)
        with self._file.open("rb") as file:
            header = file.read(_HEADER_BYTES)
        if header and not header.startswith(_MAGIC):
            raise StoreError(
                f"{self} is not a journal of bpsearch: an SQLite file begins otherwise than {header[: len(_MAGIC)]!r}"
            )
        if 0 < len(header) < _HEADER_BYTES:
            raise StoreError(f"{self} is damaged: only {len(header)} bytes of the file are left")
        return header

    def _connect(self, header: bytes) -> sqlite3.Connection:
        file, options = self._file, "mode=ro" if self.read_only else "mode=rwc"
        has_log = size(file.with_name(file.name + "-wal")) > 0
        page_size = int.from_bytes(header[16:18], "big")
        page_size = 65536 if page_size == 1 else page_size
        missing = int.from_bytes(header[_PAGES], "big") * page_size - size(file)
        if missing > 0 and not has_log:
            self._cut = f"{self} is damaged: the last {missing} bytes of the file are missing"
            if not self.read_only:
                raise StoreError(f"{self._cut}; `bpsearch study export` writes the batches that are intact")
            file = self._whole_copy(header, page_size)
        elif self.read_only and not has_log and not os.access(file.parent, os.W_OK):
            options += "&immutable=1"  # else SQLite would make files beside it
        return sqlite3.connect(f"{file.as_uri()}?{options}", uri=True, isolation_level=None, check_same_thread=False)

    def _whole_copy(self, header: bytes, page_size: int) -> Path:
        """A copy that claims the pages it has, the last one filled up: SQLite opens no file shorter than it says."""
        self._copy = tempfile.TemporaryDirectory()
        copy = Path(self._copy.name) / "journal.db"
        shutil.copyfile(self._file, copy)
        pages = -(-size(copy) // page_size)
        os.truncate(copy, pages * page_size)
        with copy.open("r+b") as file:
            file.write(header[: _PAGES.start] + pages.to_bytes(4, "big"))
        return copy

    def _prepare(self) -> None:
        with self._using() as database:
            database.execute("PRAGMA trusted_schema = OFF")
            application = database.execute("PRAGMA application_id").fetchone()[0]
            is_new = not application and not database.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
            if is_new and self.read_only:
                raise StoreError(f"{self} holds no study yet")
            if not is_new:
                self._check_format(database, application)
            if self.read_only:
                return
            if database.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
                raise StoreError(f"{self} lies on a file system without shared memory; put it on a local disk")
            database.execute("PRAGMA synchronous = FULL")
            database.execute("PRAGMA fullfsync = ON")  # macOS; elsewhere it changes nothing
            if is_new:
                self._make_tables(database)
            sync_directory(self._file.parent)

    def _check_format(self, database: sqlite3.Connection, application: int) -> None:
        if application != APPLICATION_ID:
            raise StoreError(
                f"{self} is not a journal of bpsearch: expected the application id {APPLICATION_ID:#x} in the SQLite "
                f"file, got {application:#x}"
            )
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version != SCHEMA_VERSION:
            raise StoreError(f"{self} is a journal of version {version}; this program reads version {SCHEMA_VERSION}")
        # A view or a trigger would run where a table is read or written.
        found = database.execute(
            "SELECT sql FROM sqlite_schema WHERE type IN ('view', 'trigger') OR name IN ('cache', 'journal') "
            "ORDER BY name"
        )
        if [row[0] for row in found] != list(_TABLES):
            raise StoreError(f"{self} is damaged: its tables are not those of version {SCHEMA_VERSION}")

    def _make_tables(self, database: sqlite3.Connection) -> None:
        self._reach("file made")
        database.execute("BEGIN IMMEDIATE")
        for statement in _TABLES:
            database.execute(statement)
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        self._reach("tables made")
        database.execute("COMMIT")


_OPEN: "weakref.WeakSet[SQLiteJournal]" = weakref.WeakSet()  # in this process


def _faults(read: Callable[..., object], keys: Iterable[object]) -> list[str]:
    found = []
    for key in keys:
        try:
            read(key)
        except StoreError as error:
            found.append(str(error))
    return found
