"""The store on disk: one SQLite file per study."""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bpsearch.errors import StoreError
from bpsearch.store.base import KINDS, Store
from bpsearch.store.lock import WriterLock

SCHEMA_VERSION = 1
APPLICATION_ID = 0x62707331  # "bps1": what tells a store from any other SQLite file
_MAGIC = b"SQLite format 3\0"

# The moments of a write, in their order, at which `on_write` is called. A process may end at any of them.
WRITE_POINTS = (
    "file made",
    "tables made",
    "begun",
    *(f"{kind} written" for kind in KINDS),
    "state deleted",
    "before commit",
    "committed",
)


class SQLiteStore(Store):
    """A store in the SQLite file `path`, which is made if it does not exist.

    Every transaction is on disk when `writing` ends (write-ahead log, synchronous=FULL). Until the file is closed, or
    after its writer was killed, the newest transactions are in the file with the ending "-wal" beside it: copy both,
    or close the store first.

    Args:
        path: of the file.
        read_only: whether to watch only; the file must exist.
        on_write: called with the name of each of `WRITE_POINTS` as it is reached; for tests of what survives.

    Raises:
        StoreLockedError: another writer has the store open.
        StoreError: the file is damaged, not a store, or of another version; or it is missing and `read_only`. Of a file
            whose end is missing, a reader still gets what is left.
    """

    def __init__(
        self, path: str | Path, *, read_only: bool = False, on_write: Callable[[str], None] | None = None
    ) -> None:
        self.path = Path(path)
        self.read_only = read_only
        self._reach = on_write or (lambda _: None)
        self._check_kind_of_file()
        self._cut = ""
        self._padded: Any = None
        self._lock = None if read_only else WriterLock(self.path)
        try:
            self._database = self._connected()
            self._prepare()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction that is on disk when the block has ended."""
        self.check_writable()
        with self._named_errors():
            self._database.execute("BEGIN IMMEDIATE")
        try:
            self._reach("begun")
            yield
            self._reach("before commit")
            with self._named_errors():
                self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise
        self._reach("committed")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """One view of the store, whatever a writer does meanwhile."""
        with self._named_errors():
            self._database.execute("BEGIN")
        try:
            yield
        finally:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")

    def keys(self, kind: str) -> list[int]:
        """The numbers of all records of a kind, ascending."""
        with self._named_errors():
            return [number for (number,) in self._database.execute(f"SELECT number FROM {kind} ORDER BY number")]

    def delete(self, kind: str, number: int) -> None:
        """Remove a record."""
        with self._named_errors():
            self._database.execute(f"DELETE FROM {kind} WHERE number = ?", (number,))
        self._reach(f"{kind} deleted")

    def damages(self) -> list[str]:
        """What is wrong with the records, and with the file that holds them."""
        found = super().damages() + ([self._cut] if self._cut else [])
        try:
            with self._named_errors():
                lines = [line for (line,) in self._database.execute("PRAGMA integrity_check")]
        except StoreError as error:
            return [*found, str(error)]
        return found + [f"{self.path} is damaged: {' '.join(line.split())}" for line in lines if line != "ok"]

    def close(self) -> None:
        """Close the file, with all that was written in one piece, and make room for the next writer."""
        if hasattr(self, "_database"):
            self._database.close()
        if self._lock is not None:
            self._lock.release()
        if self._padded is not None:
            self._padded.cleanup()

    def __str__(self) -> str:
        return str(self.path)

    def _write(self, kind: str, number: int, data: bytes) -> None:
        with self._named_errors():
            self._database.execute(f"INSERT OR REPLACE INTO {kind} (number, data) VALUES (?, ?)", (number, data))
        self._reach(f"{kind} written")

    def _read(self, kind: str, number: int) -> bytes | None:
        with self._named_errors():
            row = self._database.execute(f"SELECT data FROM {kind} WHERE number = ?", (number,)).fetchone()
        if row is not None and not isinstance(row[0], bytes):
            raise StoreError(f"{kind} {number} is damaged: expected bytes, got {type(row[0]).__name__}")
        return None if row is None else row[0]

    def _check_kind_of_file(self) -> None:
        try:
            with self.path.open("rb") as file:
                start = file.read(len(_MAGIC))
        except FileNotFoundError:
            if self.read_only:
                raise StoreError(f"there is no store {self.path}") from None
            return
        except OSError as error:
            raise StoreError(f"cannot read the store {self.path}: {error.strerror}") from error
        if start and start != _MAGIC:
            raise StoreError(f"{self.path} is not a store of bpsearch: an SQLite file begins otherwise than {start!r}")

    def _connected(self) -> sqlite3.Connection:
        missing = self._missing_bytes()
        if missing:
            self._cut = f"{self.path} is damaged: the last {missing} bytes of the file are missing"
            if not self.read_only:
                raise StoreError(f"{self._cut}; `bpsearch study export` writes the batches that are intact")
        if self.read_only:
            path = self._lengthened(missing) if missing else self.path
            return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
        try:
            return sqlite3.connect(self.path, isolation_level=None)
        except sqlite3.Error as error:
            raise StoreError(f"cannot open the store {self.path}: {error}") from error

    def _missing_bytes(self) -> int:
        """How much shorter the file is than its header says; 0 while a log beside it may hold the rest."""
        log = self.path.with_name(self.path.name + "-wal")
        if not self.path.exists() or (log.exists() and log.stat().st_size):
            return 0
        with self.path.open("rb") as file:
            header = file.read(100)
        if 0 < len(header) < 100:
            raise StoreError(f"{self.path} is damaged: only {len(header)} bytes of the file are left")
        page = int.from_bytes(header[16:18], "big")
        pages = int.from_bytes(header[28:32], "big")
        return max(0, (65536 if page == 1 else page) * pages - self.path.stat().st_size)

    def _lengthened(self, missing: int) -> Path:
        """A copy in which the missing end is 0: SQLite opens no file that is too short."""
        self._padded = tempfile.TemporaryDirectory()
        copy = Path(self._padded.name) / self.path.name
        shutil.copyfile(self.path, copy)
        os.truncate(copy, copy.stat().st_size + missing)
        return copy

    def _prepare(self) -> None:
        with self._named_errors():
            application = self._database.execute("PRAGMA application_id").fetchone()[0]
            version = self._database.execute("PRAGMA user_version").fetchone()[0]
            tables = self._database.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
            is_new = not tables and not application  # also where a writer was killed before it had made the tables
            if is_new and self.read_only:
                raise StoreError(f"{self.path} holds no study yet")
            if not is_new and application != APPLICATION_ID:
                raise StoreError(
                    f"{self.path} is not a store of bpsearch: expected the application id {APPLICATION_ID:#x} in the "
                    f"SQLite file, got {application:#x}"
                )
            if not is_new and version != SCHEMA_VERSION:
                raise StoreError(
                    f"{self.path} is a store of another version: this program reads version {SCHEMA_VERSION}, got "
                    f"{version}"
                )
            if self.read_only:
                return
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            if is_new:
                self._make_tables()

    def _make_tables(self) -> None:
        self._reach("file made")
        self._database.execute("BEGIN IMMEDIATE")
        for kind in KINDS:
            self._database.execute(f"CREATE TABLE {kind} (number INTEGER PRIMARY KEY, data BLOB NOT NULL)")
        self._database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        self._database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        self._reach("tables made")
        self._database.execute("COMMIT")
        directory = os.open(self.path.resolve().parent, os.O_RDONLY)
        try:
            os.fsync(directory)  # the file's name must be as durable as its content
        finally:
            os.close(directory)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise StoreError(f"{self.path} cannot be read or written: {error}") from error
