"""Journals: the shipped suite, kills, damage, locks, paths, and files that were made to do harm."""

import errno
import json
import os
import shutil
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
import zlib
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bpsearch.errors import InvalidArgumentError, StoreError, StoreLockedError
from bpsearch.study import codec, lock, sqlite
from bpsearch.study.journal import Event, Journal
from bpsearch.study.sqlite import WRITE_POINTS, SQLiteJournal
from bpsearch.testing.journals import CHECKS, check_journal

ESCAPE = "\x1b[31m"

posix = pytest.mark.skipif(
    os.name != "posix", reason="needs forks, pipes, or files that can be moved while they are open"
)

# Processes import only what lies below a journal: it needs no JAX, which takes seconds.
ALONE = """
import sys, types, bpsearch
room = types.ModuleType("bpsearch.study")
room.__path__ = [bpsearch.__path__[0] + "/study"]
sys.modules |= {"bpsearch.study": room, "jax": None}
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "study.db"


@pytest.fixture
def journal(path):
    with SQLiteJournal(path) as journal:
        yield journal


def fill(journal, events=3):
    for position in range(events):
        arrays = {"a": np.arange(1000.0) / (position + 3)}
        journal.append(
            Event("told", {"n": position}, arrays), position=position, cache={"state": Event("s", {}, arrays)}
        )


def run(script, path):
    command = [sys.executable, "-uc", ALONE + script, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def tamper(path, *statements):
    """Change the file behind the journal's back."""
    with sqlite3.connect(path) as database:
        for statement in statements:
            database.execute(*([statement] if isinstance(statement, str) else statement))
    database.close()


# The contract


class MemoryJournal(Journal):
    """A second journal, so that the suite does not describe SQLite: encoded events in lists that several share."""

    def __init__(self, shared=None, *, read_only=False):
        self.read_only = read_only
        self.shared = shared or SimpleNamespace(events=[], cache={}, turn=threading.RLock())
        self.view, self.closed = None, False

    def seen(self):
        if self.closed:
            raise StoreError("the journal is closed")
        return self.view or self.shared

    def __len__(self):
        return len(self.seen().events)

    def append(self, event, *, position, cache=None):
        self.check_writable()
        data = codec.encode_record(event.kind, event.facts, event.arrays, "it")
        entries = {
            name: entry and codec.encode_record(entry.kind, entry.facts, entry.arrays, "it")
            for name, entry in (cache or {}).items()
        }
        with self.shared.turn:
            if position != len(self):
                raise StoreLockedError("another writer has appended")
            if self.view:
                raise StoreLockedError("a view cannot be written")
            self.shared.events.append(data)
            self.shared.cache.update(entries)

    def event(self, position):
        if not 0 <= position < len(self):
            raise StoreError(f"event {position} is missing")
        return Event(*codec.decode_record(self.seen().events[position], "it"))

    def facts(self, position):
        event = self.event(position)
        return event.kind, event.facts

    def cached(self, name):
        data = self.seen().cache.get(name)
        return data and Event(*codec.decode_record(data, "it"))

    def forget(self):
        self.check_writable()
        self.shared.cache.clear()

    def damages(self):
        return []

    @contextmanager
    def reading(self):
        with self.shared.turn:
            before = self.view
            self.view = self.view or SimpleNamespace(events=[*self.shared.events], cache={**self.shared.cache})
            try:
                yield
            finally:
                self.view = before

    def close(self):
        self.closed = True


def reopen_sqlite(journal, *, read_only):
    return type(journal)(journal.path, read_only=read_only)


def reopen_memory(journal, *, read_only):
    return MemoryJournal(journal.shared, read_only=read_only)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_sqlite_keeps_the_contract(check, tmp_path):
    numbers = count()
    check(lambda: SQLiteJournal(tmp_path / f"{next(numbers)}.db"), reopen_sqlite)


def test_a_journal_in_memory_keeps_the_contract():
    check_journal(MemoryJournal, reopen_memory)


class Careless(SQLiteJournal):
    def append(self, event, *, position, cache=None):
        super().append(event, position=len(self), cache=cache or {})


class Hoarding(SQLiteJournal):
    def append(self, event, *, position, cache=None):
        kept = {name: entry for name, entry in (cache or {}).items() if entry is not None}
        super().append(event, position=position, cache=kept)


class Forgetful(SQLiteJournal):
    def event(self, position):
        return Event(*self.facts(position))


class Restless(SQLiteJournal):
    reading = Journal.reading


@pytest.mark.parametrize("broken", [Careless, Hoarding, Forgetful, Restless])
def test_the_suite_finds_a_journal_that_breaks_a_promise(broken, tmp_path):
    numbers = count()
    with pytest.raises(AssertionError):
        check_journal(lambda: broken(tmp_path / f"{next(numbers)}.db"), reopen_sqlite)


# What survives

KILLS = """
import json, os, random, signal, sys, time
from collections import Counter
from bpsearch.errors import StoreError
from bpsearch.study.journal import Event
from bpsearch.study.sqlite import WRITE_POINTS, SQLiteJournal
import numpy as np

def event(position):
    return Event("told", {"n": position}, {"a": np.arange(3000.0) / (position + 3)})

def live(path, say, point=None, occurrence=1):
    seen = Counter()
    def on_write(name):
        seen[name] += 1
        if name == point and seen[name] == occurrence:
            os.kill(os.getpid(), signal.SIGKILL)
    with SQLiteJournal(path, on_write=on_write) as journal:
        for n in range(len(journal), len(journal) + 12):
            cache = {f"state {n}": event(n), f"state {n - 1}": None}
            journal.append(event(n), position=n, cache=cache)
            say(n + 1)

def look(path):
    with SQLiteJournal(path, read_only=True) as journal, journal.reading():
        n = len(journal)
        whole = all(journal.event(i).arrays["a"].tobytes() == event(i).arrays["a"].tobytes() for i in range(n))
        states = [i for i in range(-1, n + 1) if journal.cached(f"state {i}")]
        return n, whole and states == ([n - 1] if n else []), journal.damages()

def kill(path, delay=None, **options):
    receiving, sending = os.pipe()
    pid = os.fork()
    if pid == 0:
        live(path, lambda n: os.write(sending, b"%d\\n" % n), **options)
        os._exit(0)
    os.close(sending)
    if delay is not None:
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
    with os.fdopen(receiving, "rb") as pipe:
        told = pipe.read().split()
    killed = os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    return int(told[-1]) if told else None, killed

rng = random.Random(0)
for number, options in enumerate(
    [{"point": point, "occurrence": k} for k in (1, 3) for point in WRITE_POINTS]
    + [{"delay": rng.uniform(0.005, 0.03)} for _ in range(10)]
):
    path = f"{sys.argv[1]}/{number if options.get('point') in WRITE_POINTS[:2] else 'many'}.db"
    try:
        before = look(path)[0]
    except StoreError:
        before = 0
    told, killed = kill(path, **options)
    try:
        found, right, damages = look(path)
    except StoreError as error:
        found, right, damages = 0, "no study yet" in str(error) or "no journal" in str(error), []
    facts = dict(options, told=before if told is None else told, killed=killed, found=found, right=right)
    print(json.dumps(dict(facts, damages=damages)))
"""


@posix
def test_kills_lose_nothing_and_leave_nothing_half_done(tmp_path):
    done = run(KILLS, tmp_path)
    assert done.returncode == 0, done.stderr
    lives = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lives) == 2 * len(WRITE_POINTS) + 10
    for life in lives:
        assert life["right"], life
        assert life["damages"] == [], life
        if "point" in life and (life["occurrence"] == 1 or life["point"] not in WRITE_POINTS[:2]):
            assert life["killed"], life
            assert life["found"] == life["told"] + (life["point"] == "committed"), life
        else:
            assert life["told"] <= life["found"] <= life["told"] + 1, life
    assert max(life["found"] for life in lives) > 10


@pytest.mark.parametrize("point", WRITE_POINTS[2:])
def test_an_interrupt_leaves_all_or_nothing(path, point):
    def interrupt(name):
        if armed and name == point:
            raise KeyboardInterrupt

    armed = False
    with SQLiteJournal(path, on_write=interrupt) as journal:
        journal.append(Event("a"), position=0, cache={"old": Event("old")})
        armed = True
        with pytest.raises(KeyboardInterrupt):
            journal.append(Event("b"), position=1, cache={"new": Event("new"), "old": None})
        armed = False
        there = point == "committed"
        assert len(journal) == 1 + there
        assert (journal.cached("new") is not None) == there
        assert (journal.cached("old") is None) == there
        journal.append(Event("c"), position=len(journal))


def test_every_transaction_is_synchronized(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    with SQLiteJournal(path) as journal:
        names = ("journal_mode", "synchronous", "fullfsync", "user_version", "application_id")
        pragmas = [journal._database.execute(f"PRAGMA {name}").fetchone()[0] for name in names]
    assert pragmas == ["wal", 2, 1, 2, 0x62707331]
    assert synced == [path.parent.stat().st_ino]


@pytest.mark.parametrize("fault", ["open", "fsync"])
def test_where_directories_cannot_be_synchronized_a_journal_still_works(path, monkeypatch, fault):
    real = getattr(os, fault)

    def fail(what, *arguments):
        if fault == "fsync" or what == path.parent:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(what, *arguments)

    monkeypatch.setattr(os, fault, fail)
    with SQLiteJournal(path) as journal:
        fill(journal)


def test_a_full_disk_is_an_error_and_the_event_is_not_there(journal):
    fill(journal)
    journal._database.execute(f"PRAGMA max_page_count = {journal._database.execute('PRAGMA page_count').fetchone()[0]}")
    large = Event("told", {}, {"a": np.random.default_rng(0).normal(size=10_000)})
    with pytest.raises(StoreError, match="disk is full"):
        journal.append(large, position=3, cache={"state": None})
    assert (len(journal), journal.cached("state").kind) == (3, "s")
    journal._database.execute("PRAGMA max_page_count = 1000000")
    journal.append(large, position=3)
    journal._database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
    with pytest.raises(StoreError, match="too big"):
        journal.append(large, position=4)
    assert len(journal) == 4


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts the bytes that Linux says were read")
def test_facts_are_read_without_the_arrays(path):
    def bytes_read():
        return int(Path("/proc/self/io").read_text().split()[1])

    large = {"a": np.random.default_rng(0).normal(size=10**6)}
    with SQLiteJournal(path) as journal:
        for position in range(3):
            journal.append(Event("told", {"n": position}, large), position=position)
    with SQLiteJournal(path, read_only=True) as reader:
        before = bytes_read()
        assert [reader.facts(position)[1]["n"] for position in range(len(reader))] == [0, 1, 2]
        between = bytes_read()
        reader.event(1)
        assert between - before < 100_000
        assert bytes_read() - between > 8_000_000


# One writer


def test_a_second_writer_is_told_who_is_the_first(journal, path):
    with pytest.raises(StoreLockedError, match=r"written by process \d+ on .+ since 20\d\d-.+for reading"):
        SQLiteJournal(path)
    done = run("from bpsearch.study.sqlite import SQLiteJournal; SQLiteJournal(sys.argv[1])", path)
    assert f"written by process {os.getpid()} on" in done.stderr
    journal.close()
    SQLiteJournal(path).close()


@pytest.mark.parametrize(
    "content", [b"", b"garbage", b"\xff\xfe", b"[]", b'{"pid": "x"}', b'{"pid": 1e999}', b"[" * 4096]
)
def test_garbage_in_the_lock_file_changes_nothing(path, content):
    beside = path.with_name("study.db.lock")
    beside.write_bytes(content)
    with SQLiteJournal(path):
        assert json.loads(beside.read_bytes())["pid"] == os.getpid()
        beside.write_bytes(content)
        with pytest.raises(StoreLockedError, match="written by another process"):
            SQLiteJournal(path)
        beside.write_text(json.dumps({"pid": 1, "host": ESCAPE, "since": "now"}))
        with pytest.raises(StoreLockedError) as found:
            SQLiteJournal(path)
        assert "\x1b" not in str(found.value)


@posix
def test_what_cannot_be_locked_is_refused_in_one_line(tmp_path, path, monkeypatch):
    with pytest.raises(StoreError, match=r"cannot lock .*nowhere.*No such file or directory"):
        SQLiteJournal(tmp_path / "nowhere" / "study.db")
    beside = path.with_name("study.db.lock")
    beside.mkdir()
    with pytest.raises(StoreError, match="cannot lock"):
        SQLiteJournal(path)
    beside.rmdir()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    beside.symlink_to(victim)
    with pytest.raises(StoreError, match="cannot lock"):
        SQLiteJournal(path)
    assert victim.read_text() == "precious"
    beside.unlink()

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setitem(sys.modules, "fcntl", SimpleNamespace(flock=no_locks, LOCK_EX=2, LOCK_NB=4))
    with pytest.raises(StoreError, match="No locks available; put it into a directory"):
        SQLiteJournal(path)
    assert not path.exists()


def test_without_fcntl_the_lock_of_windows_is_used(path, monkeypatch):
    locked = set()

    def locking(descriptor, mode, size):
        name = os.fstat(descriptor).st_ino, os.lseek(descriptor, 0, os.SEEK_CUR), size
        if name in locked:
            raise PermissionError(errno.EACCES, "Permission denied")
        locked.add(name)

    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
    with SQLiteJournal(path) as journal:
        fill(journal)
        with pytest.raises(StoreLockedError, match=f"process {os.getpid()} on"):
            SQLiteJournal(path)
    assert [name[1:] for name in locked] == [(2**30, 1)]


def test_without_any_lock_appending_protects(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", None)
    with SQLiteJournal(path) as journal:
        with pytest.raises(StoreLockedError, match="being written"):
            SQLiteJournal(path)
        monkeypatch.setattr(lock, "_HELD", set())  # as in another process
        with SQLiteJournal(path) as other:
            other.append(Event("other"), position=0)
        with pytest.raises(StoreLockedError, match="another writer has appended"):
            journal.append(Event("mine"), position=0)
        assert [journal.facts(0)[0], len(journal)] == ["other", 1]
    SQLiteJournal(path).close()


@posix
def test_a_fork_neither_holds_the_lock_nor_uses_the_journal(path):
    script = """
import os, signal, sys
from bpsearch.errors import StoreLockedError
from bpsearch.study.journal import Event
from bpsearch.study.sqlite import SQLiteJournal

receiving, sending = os.pipe()
writer = os.fork()
if writer == 0:
    os.close(sending)
    journal = SQLiteJournal(sys.argv[1])
    journal.append(Event("a"), position=0)
    if os.fork() == 0:
        append = lambda: journal.append(Event("b"), position=1)
        for use in (lambda: len(journal), append, lambda: SQLiteJournal(sys.argv[1])):
            try:
                use()
            except StoreLockedError as error:
                print(error)
        journal.close()
        os.kill(os.getppid(), signal.SIGKILL)
        os.read(receiving, 1)  # the worker outlives the writer
        os._exit(0)
    signal.pause()
os.waitpid(writer, 0)
with SQLiteJournal(sys.argv[1]) as journal:
    print(len(journal), journal.damages())
"""
    done = run(script, path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("cannot be used in a fork of it") == 3
    assert "1 []" in done.stdout


def link(kind, path, other):
    other.symlink_to(path) if kind == "symbolic" else os.link(path, other)


@posix
def test_symbolic_links_lead_to_one_lock(journal, path, tmp_path):
    (tmp_path / "sub").mkdir()
    other = tmp_path / "sub" / "other.db"
    other.symlink_to(path)
    with pytest.raises(StoreLockedError, match="being written"):
        SQLiteJournal(other)
    fill(journal)
    with SQLiteJournal(other, read_only=True) as reader:
        assert len(reader) == 3
    assert sorted(os.listdir(tmp_path / "sub")) == ["other.db"]


@posix
@pytest.mark.parametrize("kind", ["symbolic", "hard"])
@pytest.mark.parametrize("first", [0, 1])
def test_without_its_lock_file_two_writers_lose_nothing(path, tmp_path, kind, first):
    with SQLiteJournal(path) as journal:
        fill(journal)
        path.with_name("study.db.lock").unlink()
        link(kind, path, tmp_path / "other.db")
        writers = [journal]
        if kind == "hard":
            with pytest.raises(StoreLockedError, match="has hard links"):
                SQLiteJournal(tmp_path / "other.db")
        else:
            writers.append(SQLiteJournal(tmp_path / "other.db"))
        acknowledged = []
        for writer in writers[first:] + writers[:first]:
            with suppress(StoreLockedError):
                writer.append(Event("race", {"by": writers.index(writer)}), position=3, cache={"state": None})
                acknowledged.append(writers.index(writer))
        for writer in writers[1:]:
            writer.close()
        assert acknowledged == [first if len(writers) == 2 else 0]
        assert (len(journal), journal.event(3).facts) == (4, {"by": acknowledged[0]})
        assert journal.damages() == []


RACE = """
import sys
from bpsearch.errors import StoreLockedError
from bpsearch.study.journal import Event
from bpsearch.study.sqlite import SQLiteJournal
with SQLiteJournal(sys.argv[1]) as journal:
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(40):
        position = len(journal)
        try:
            journal.append(Event("race", {"by": sys.argv[2]}), position=position, cache={"by": Event(sys.argv[2])})
            print(position, flush=True)
        except StoreLockedError:
            pass
"""


def test_two_processes_without_a_lock_lose_nothing(path):
    processes = []
    for name in ("a", "b"):
        command = [sys.executable, "-c", ALONE + RACE, str(path), name]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n"
        path.with_name("study.db.lock").unlink()
        processes.append(process)
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    told = {
        int(line): name
        for name, process in zip("ab", processes, strict=True)
        for line in process.communicate(timeout=60)[0].split()
    }
    assert [process.returncode for process in processes] == [0, 0]
    with SQLiteJournal(path) as journal:
        assert told == {position: journal.facts(position)[1]["by"] for position in range(len(journal))}
        assert len(told) >= 40
        assert journal.cached("by").kind == told[len(told) - 1]
        assert journal.damages() == []


@posix
def test_a_file_that_was_moved_or_replaced_takes_no_event(path, tmp_path):
    with SQLiteJournal(path) as journal:
        fill(journal)
        path.rename(tmp_path / "moved.db")
        with pytest.raises(StoreError, match="moved or replaced while it was open"):
            journal.append(Event("lost"), position=3)
        path.touch()
        with pytest.raises(StoreError, match="moved or replaced while it was open"):
            journal.append(Event("lost"), position=3)


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="looks at the locks of Linux")
def test_a_reader_in_the_same_process_does_not_take_the_writers_locks_away(journal, path):
    def locks():
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        mine = [line for line in lines if "POSIX" in line and str(os.getpid()) in line]
        return sum(line[-3].endswith(f":{path.stat().st_ino}") for line in mine)

    fill(journal)
    held = locks()
    assert held > 0
    with SQLiteJournal(path, read_only=True) as reader:
        assert len(reader) == 3
    with suppress(StoreLockedError):
        SQLiteJournal(path)
    assert locks() == held


def test_a_reader_needs_no_directory_that_can_be_written(path, tmp_path, monkeypatch):
    with SQLiteJournal(path) as journal:
        fill(journal)
    before = sorted(os.listdir(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with SQLiteJournal(path, read_only=True) as reader:
        assert len(reader) == 3
        assert sorted(os.listdir(tmp_path)) == before


# Paths and foreign files


@posix
def test_what_is_not_a_file_is_refused_before_it_is_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("file").touch()
    Path("loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        expected = {
            "": "path of a file, got ''",
            ":memory:": "path of a file, got ':memory:'",
            ".": "got a directory",
            "pipe": "got a pipe",
            "/dev/null": "got a device",
            "socket": "got a socket",
            "loop": "Too many levels of symbolic links",
            "file/study.db": "Not a directory",
            "nul\0l": r"nul\\x00l",
        }
        for name, message in expected.items():
            for read_only in (False, True):
                with pytest.raises(StoreError, match=message) as found:
                    SQLiteJournal(name, read_only=read_only)
                assert "\n" not in str(found.value)
    with pytest.raises(StoreError, match="there is no journal"):
        SQLiteJournal("nowhere.db", read_only=True)
    assert sorted(os.listdir()) == ["file", "loop", "pipe", "socket"]


@posix
@pytest.mark.parametrize("name", ["study #1?%20.db", "file:x.db", "ü.db", f"{ESCAPE}.db", "a'b\".db", " .db"])
def test_any_name_of_a_file_will_do(tmp_path, name):
    with SQLiteJournal(tmp_path / name) as journal:
        fill(journal)
        with SQLiteJournal(tmp_path / name, read_only=True) as reader:
            assert len(reader) == 3
        with pytest.raises(StoreLockedError) as found:
            SQLiteJournal(tmp_path / name)
        assert "\x1b" not in str(found.value)
    assert sorted(os.listdir(tmp_path)) == sorted([name, f"{name}.lock"])


def test_foreign_files_are_refused_with_the_reason(tmp_path):
    text, foreign, old, empty = (tmp_path / name for name in ("a.txt", "b.db", "c.db", "d.db"))
    text.write_text("value,count\n1,2\n")
    with pytest.raises(StoreError, match=r"not a journal of bpsearch.*begins otherwise than b'value,count"):
        SQLiteJournal(text)
    assert not (tmp_path / "a.txt.lock").exists()
    tamper(foreign, "CREATE TABLE mine (a)")
    before = foreign.read_bytes()
    with pytest.raises(StoreError, match="expected the application id 0x62707331 in the SQLite file, got 0x0"):
        SQLiteJournal(foreign)
    assert foreign.read_bytes() == before
    for version in (1, 3):
        SQLiteJournal(old).close()
        tamper(old, f"PRAGMA user_version = {version}")
        for read_only in (False, True):
            with pytest.raises(StoreError, match=f"is a journal of version {version}; this program reads version 2"):
                SQLiteJournal(old, read_only=read_only)
        old.unlink()
    empty.touch()
    with pytest.raises(StoreError, match="holds no study yet"):
        SQLiteJournal(empty, read_only=True)
    with SQLiteJournal(empty) as journal:
        fill(journal)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON journal BEGIN DELETE FROM journal; END",
        "CREATE VIEW v AS SELECT * FROM journal",
        "ALTER TABLE journal ADD COLUMN more",
        "DROP TABLE cache",
    ],
)
def test_other_tables_are_refused(path, statement):
    with SQLiteJournal(path) as journal:
        fill(journal)
    tamper(path, statement)
    for read_only in (False, True):
        with pytest.raises(StoreError, match="its tables are not those of version 2"):
            SQLiteJournal(path, read_only=read_only)


# Damage


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A closed file of 30 events of some ten thousand bytes, and what is in it."""
    path = tmp_path_factory.mktemp("journal") / "study.db"
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=int(rng.integers(1000, 3000))) for _ in range(30)]
    with SQLiteJournal(path) as journal:
        for position, array in enumerate(arrays):
            cache = {f"state {number}": Event("state", {}, {"a": array}) for number in range(3) if not position}
            journal.append(Event("told", {"n": position}, {"a": array}), position=position, cache=cache)
    assert not path.with_name("study.db-wal").exists()
    return path, arrays


def read_all(path, arrays):
    """Which events can be read, and what is said to be wrong; none may be other than it was written."""
    try:
        journal = SQLiteJournal(path, read_only=True)
    except StoreError as error:
        return set(), [str(error)]
    with journal:
        readable = set()
        for position in range(len(arrays)):
            with suppress(StoreError):
                assert journal.facts(position) == ("told", {"n": position})
            with suppress(StoreError):
                array = journal.event(position).arrays["a"]
                assert array.tobytes() == arrays[position].tobytes(), "an event was read that was never written"
                readable.add(position)
        for number in range(3):
            entry = journal.cached(f"state {number}")
            assert entry is None or any(entry.arrays["a"].tobytes() == array.tobytes() for array in arrays)
        return readable, journal.damages()


def test_bit_flips_are_found_and_the_rest_stays_readable(written, tmp_path):
    path, arrays = written
    content = path.read_bytes()
    rng = np.random.default_rng(1)
    copy = tmp_path / "copy.db"
    unreadable = []
    for place in (*rng.integers(0, len(content), 60), *rng.integers(0, 4096, 25), *range(0, 100, 3)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(8))
        copy.write_bytes(damaged)
        readable, damages = read_all(copy, arrays)
        assert len(readable) == len(arrays) or damages, f"a flip at {place} went unnoticed"
        unreadable.append(len(arrays) - len(readable))
    assert np.mean(np.array(unreadable[:60]) > 0) > 0.7, "most of the file is events"
    assert np.median(unreadable[:60]) == 1, "a flip costs one event"


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.3, 0.6, 0.99])
def test_truncation_is_found_and_what_is_left_stays_readable(written, tmp_path, share):
    path, arrays = written
    copy = tmp_path / "cut.db"
    shutil.copy(path, copy)
    os.truncate(copy, int(share * path.stat().st_size))
    readable, damages = read_all(copy, arrays)
    assert damages
    assert len(readable) < len(arrays)
    if share:
        assert any("bytes of the file are" in line for line in damages)
        assert len(readable) >= 30 * share - 5
        with pytest.raises(StoreError, match=r"is damaged: .* \d+ bytes of the file are"):
            SQLiteJournal(copy)
    if share >= 0.3:
        with SQLiteJournal(copy, read_only=True) as journal:
            assert set(journal.intact()) == readable
        assert not journal._copy or not Path(journal._copy.name).exists()


def test_a_file_that_claims_to_be_huge_costs_nothing(written, tmp_path):
    path, arrays = written
    copy = tmp_path / "huge.db"
    content = bytearray(path.read_bytes())
    content[28:32] = b"\xff\xff\xff\xfe"
    copy.write_bytes(content)
    started = time.perf_counter()
    readable, damages = read_all(copy, arrays)
    assert readable == set(range(30))
    assert "bytes of the file are missing" in damages[0]
    assert time.perf_counter() - started < 5.0


def test_events_cannot_be_exchanged_changed_or_removed_unnoticed(path):
    with SQLiteJournal(path) as journal:
        fill(journal, 6)
    tamper(
        path,
        "UPDATE journal SET facts = (SELECT facts FROM journal WHERE position = 1) WHERE position = 0",
        "UPDATE journal SET arrays = (SELECT arrays FROM journal WHERE position = 2) WHERE position = 1",
        "UPDATE journal SET arrays = facts WHERE position = 2",
        "UPDATE journal SET kind = 'asked' WHERE position = 3",
        "DELETE FROM journal WHERE position = 4",
        "INSERT INTO cache SELECT 'other', data FROM cache",
    )
    with SQLiteJournal(path) as journal:
        damages = journal.damages()
        assert [line.split(" is damaged")[0] for line in damages] == [
            "events 4 to 4 are missing",
            *(f"event {position}" for position in range(4)),
            "the cached 'other'",
        ]
        assert journal.facts(1) == ("told", {"n": 1}), "the facts do not need the arrays"
        assert journal.intact() == [5]
        assert (journal.cached("other"), journal.cached("state").kind) == (None, "s")
        with pytest.raises(StoreError, match="event 4 is missing"):
            journal.event(4)


def test_a_damaged_cache_is_an_empty_one(path):
    with SQLiteJournal(path) as journal:
        fill(journal)
    tamper(path, "UPDATE cache SET data = zeroblob(3)", "INSERT INTO cache VALUES ('text', 'text')")
    with SQLiteJournal(path) as journal:
        assert (journal.cached("state"), journal.cached("text"), journal.cached("\ud800")) == (None, None, None)
        assert len(journal.damages()) == 2
        journal.append(Event("told"), position=3, cache={"state": Event("again")})
        assert journal.cached("state").kind == "again"
        journal.forget()
        assert journal.damages() == []
    assert journal.cached("state") is None


def test_files_that_were_made_to_do_harm_are_refused_without_a_word_of_theirs(path):
    with SQLiteJournal(path) as journal:
        fill(journal)
    facts = codec.encode_facts("x", {}, "event 7").hex()
    tamper(
        path,
        ("INSERT INTO journal VALUES (7, ?, ?, x'')", (ESCAPE, b"0" * 20)),
        ("INSERT INTO journal VALUES (8, ?, ?, 7)", (b"\xff", f"text {ESCAPE}")),
        ("INSERT INTO journal VALUES (9, CAST(x'ff1b5b33316d' AS TEXT), x'00', x'00')",),
        (f"INSERT INTO journal VALUES (10, 'x', x'{facts}', NULL)",),
        ("INSERT INTO cache VALUES (?, ?)", (ESCAPE, b"0" * 40)),
        "INSERT INTO journal VALUES (-5, 'x', x'00', x'00')",
        "INSERT INTO journal VALUES (9223372036854775807, 'x', x'00', x'00')",
    )
    with SQLiteJournal(path) as journal:
        with pytest.raises(StoreError, match="last event has the position 9223372036854775807"):
            len(journal)
        started = time.perf_counter()
        damages = journal.damages()
        assert len(damages) >= 8
        assert "events 11 to 9223372036854775806 are missing" in damages
        assert journal.intact() == [0, 1, 2]
        assert time.perf_counter() - started < 5.0
        for position in (7, 8, 9, 10):
            for read in (journal.facts, journal.event):
                with pytest.raises(StoreError) as found:
                    read(position)
                damages.append(str(found.value))
    assert not any("\x1b" in line or "\n" in line for line in damages)


# The codec

NUMBERS = [True, -1, 0, 1, 2**31, 2**63, 10**400, 0.5, 1e999]
TEXTS = ["", "<f8", "|O", "<M8[D]", "<f16", "|V8", "|i1", ">i4", ESCAPE]
SHAPES = [[], [-1], [2**62, 2**62], [0, 2**62], [1] * 65, [True], [2**33], [3], ["3"], [[]]]
VALUES = [None, {}, *NUMBERS, *TEXTS, *SHAPES]


def sealed(headers, payload=b"", length=None):
    head = headers if isinstance(headers, bytes) else json.dumps(headers).encode()
    return codec._seal(struct.pack("<I", len(head) if length is None else length) + head + payload, "it", "arrays")


def decoded(data):
    """What is decoded, or None; any other error than ours is one, and so is memory without bounds."""
    try:
        return codec.decode_arrays(data, "it")
    except StoreError as error:
        message = str(error)
    assert message.startswith("it is damaged: its arrays cannot be read: ")
    assert message.isprintable()
    return None


@pytest.fixture
def bounded():
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30e6


def test_headers_that_make_no_sense_are_refused(bounded, monkeypatch):
    monkeypatch.setattr(codec, "MAX_BYTES", 2**22)
    rng = np.random.default_rng(0)
    arrays = {"a": np.arange(300) % 7, "b": np.linspace(0, 1, 5), "c": np.full((3, 2), 2.5), "d": np.ones(9, bool)}
    data = codec.encode_arrays(arrays, "it")[16:]
    length = struct.unpack("<I", data[:4])[0]
    headers, payload = json.loads(data[4 : 4 + length]), data[4 + length :]
    assert list(decoded(sealed(headers, payload))) == list(arrays)
    keys = ["name", "type", "kept", "shape", "bytes", "constant", "zlib"]
    refused = 0
    for trial in range(600):
        changed = json.loads(json.dumps(headers))
        for _ in range(1 + trial % 2):
            header, key = changed[int(rng.integers(len(changed)))], keys[int(rng.integers(len(keys)))]
            if rng.random() < 0.15:
                header.pop(key, None)
            else:
                header[key] = VALUES[int(rng.integers(len(VALUES)))]
        refused += decoded(sealed(changed, payload)) is None
    assert refused > 400
    for odd in (
        b"",
        b"null",
        b"[",
        b"[1]",
        b"[[]]",
        b'[{"name": 1}]',
        b"\xff",
        b"[" * 100_000,
        b"[1" + b"0" * 5000 + b"]",
    ):
        assert decoded(sealed(odd)) is None
    for start in (0, 3, 2**32 - 1):
        assert decoded(sealed(headers, payload, start)) is None
    assert decoded(sealed(headers, payload + b"x")) is None
    assert decoded(sealed(headers, payload[:-1])) is None
    assert decoded(codec._seal(b"", "it", "arrays")) is None
    assert decoded(sealed([], b"")) == {}


def test_changed_bytes_under_a_checksum_that_fits_do_no_harm(bounded, monkeypatch):
    monkeypatch.setattr(codec, "MAX_BYTES", 2**22)
    rng = np.random.default_rng(1)
    arrays = {"a": np.arange(300) % 7, "b": np.linspace(0, 1, 5), "c": np.full((3, 2), 2.5)}
    parts = {"arrays": codec.encode_arrays(arrays, "it")[16:], "facts": codec.encode_facts("k", {"a": [1]}, "it")[16:]}
    for trial in range(600):
        part = ("arrays", "facts")[trial % 2]
        body = bytearray(parts[part])
        for place in rng.integers(0, len(body), 1 + trial % 3):
            body[place] = int(rng.integers(256))
        data = codec._seal(bytes(body[: len(body) - (trial % 5 == 0) * int(rng.integers(20))]), "it", part)
        if part == "arrays":
            decoded(data)
        else:
            with suppress(StoreError):
                codec.decode_facts(data, "it")


def test_a_bomb_is_not_unpacked(bounded):
    packer = zlib.compressobj()
    bomb = b"".join(packer.compress(bytes(10**6)) for _ in range(100)) + packer.flush()
    header = {"name": "a", "type": "|u1", "kept": "|u1", "shape": [10], "zlib": True, "bytes": len(bomb)}
    assert decoded(sealed([header], bomb)) is None
    assert decoded(sealed([header | {"shape": [2**34]}], bomb)) is None
    constant = {"name": "a", "type": "<f8", "kept": "|u1", "shape": [2**30 - 1], "constant": True, "bytes": 1}
    many = [constant | {"name": str(number)} for number in range(3)]
    assert decoded(sealed(many, b"xxx")) is None
    assert decoded(sealed([constant | {"shape": [2**20]}], b"\x07"))["a"][-1] == 7.0
    assert decoded(sealed([constant | {"shape": [0, 2**62]}], b"\x07")) is None


def test_more_than_can_be_read_again_is_not_written(monkeypatch):
    monkeypatch.setattr(codec, "MAX_BYTES", 1000)
    codec.encode_arrays({"a": np.zeros(125)}, "it")
    with pytest.raises(InvalidArgumentError, match="take more than 1000 bytes"):
        codec.encode_arrays({"a": np.zeros(125), "b": np.zeros(1)}, "it")
    facts = codec.encode_facts("a", {"a": "x" * 900}, "it")
    monkeypatch.setattr(codec, "MAX_JSON_BYTES", 900)
    with pytest.raises(InvalidArgumentError, match="more than 900; use arrays"):
        codec.encode_facts("a", {"a": "x" * 900}, "it")
    with pytest.raises(StoreError, match="at most 900 are allowed"):
        codec.decode_facts(facts, "it")


@pytest.mark.parametrize("code", "hiqHIQefdFD")
def test_values_survive_any_byte_order(code):
    values = np.array([0, 1, 200, 3]).astype(np.dtype(code).newbyteorder(">"))
    for array in (values, values[:1], np.broadcast_to(values[2], 5), values.reshape(2, 2).T):
        found = codec.decode_arrays(codec.encode_arrays({"a": array}, "it"), "it")["a"]
        assert found.dtype.isnative
        assert found.dtype == np.dtype(code)
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("data", [None, 7, "text", b"", b"0" * 15, b"0" * 16])
def test_what_is_no_record_is_refused(data):
    for decode in (codec.decode_facts, codec.decode_arrays, codec.decode_record):
        with pytest.raises(StoreError, match="it is damaged"):
            decode(data, "it")


def test_a_schema_change_needs_a_new_version():
    assert (sqlite.SCHEMA_VERSION, sqlite.APPLICATION_ID) == (2, 0x62707331)
    columns = "position INTEGER PRIMARY KEY, kind TEXT NOT NULL, facts BLOB NOT NULL, arrays BLOB"
    assert sqlite._TABLES[1] == f"CREATE TABLE journal ({columns})"
