"""Who may write a file: its one name, and a lock that the system takes back when its holder ends, however it ends."""

import contextlib
import errno
import json
import os
import socket
import stat
import weakref
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from bpsearch._core.clock import now
from bpsearch._core.texts import printable
from bpsearch.errors import StoreError, StoreLockedError

_NOT_FILES = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_FLAGS = ("O_RDWR", "O_CREAT", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
_LOCKED_BYTE = 2**30  # beyond what the lock file says: on Windows nobody else can read a locked byte
_HELD: set[str] = set()  # by this process, where the system has no locks


class WriterLock:
    """The lock of the file `path`, held from now on until `release` or the end of the process.

    It is the operating system's lock (`flock`, or `msvcrt.locking` on Windows) of a file beside `path`, which also
    says who holds it. Two paths that lead to one file by symbolic links are one lock. The lock file stays: removing it
    would let two writers lock two files of the same name. Where the system has neither lock, only the writers of this
    process exclude each other; those of other processes find out when they append (`Journal.append`).

    Raises:
        StoreLockedError: another process, or another object in this one, holds it.
        StoreError: the file cannot be locked.
    """

    def __init__(self, path: str | Path) -> None:
        self._beside = os.path.realpath(path) + ".lock"
        self._descriptor = -1
        self._let_go: Callable[[], object] = _nothing
        try:
            # Not through a symbolic link: what lies at its end would be overwritten.
            self._descriptor = os.open(self._beside, sum(getattr(os, flag, 0) for flag in _FLAGS), 0o666)
            taken = _take(self._descriptor, self._beside)
        except OSError as error:
            self.release()
            raise StoreError(
                f"cannot lock {printable(path)} by the file {printable(self._beside)}: {error.strerror}; put it into a "
                "directory that can be written, on a file system with locks"
            ) from error
        if taken is None:
            holder = _holder(self._descriptor)
            self.release()
            raise StoreLockedError(
                f"{printable(path)} is being written by {holder}; wait until that has ended, or open it for reading"
            )
        self._let_go = taken
        _LOCKS.add(self)
        _sign(self._descriptor)

    def release(self) -> None:
        """Make room for the next writer. A second call does nothing."""
        let_go, self._let_go = self._let_go, _nothing
        let_go()
        self.forget()

    def forget(self) -> None:
        """Close the lock file without giving up the lock: a fork must not hold what its parent holds."""
        descriptor, self._descriptor = self._descriptor, -1
        self._let_go = _nothing
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "_let_go"):
            self.release()


_LOCKS: "weakref.WeakSet[WriterLock]" = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_LOCKS):
        lock.forget()


if hasattr(os, "register_at_fork"):
    # Otherwise a worker that outlives its killed parent would keep the parent's lock.
    os.register_at_fork(after_in_child=_forget_all)


def real_path(path: str | Path) -> Path:
    """The one name of the file at `path`, without symbolic links. Nothing is opened; there need not be a file yet.

    Raises:
        StoreError: there is something else than a file, or no file can have that path.
    """
    text = os.fspath(path)
    if text in ("", ":memory:"):
        raise StoreError(f"expected the path of a file, got {text!r}; a study needs no journal to be kept in memory")
    try:
        real = os.path.realpath(text)
        mode = os.stat(real).st_mode
    except FileNotFoundError:
        return Path(real)
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot open {printable(text)}: {error}") from error
    if not stat.S_ISREG(mode):
        what = next((what for is_kind, what in _NOT_FILES if is_kind(mode)), "something else")
        raise StoreError(f"expected a file at {printable(text)}, got {what}")
    return Path(real)


def identity(path: Path) -> tuple[int, int] | None:
    """What tells files apart, whatever their names; None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def size(path: Path) -> int:
    """How many bytes a file has; 0 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def sync_directory(directory: Path) -> None:
    """Make the names in a directory as durable as what the files hold."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError:
        return  # Windows opens no directories
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):  # the file system has no such thing
            raise
    finally:
        os.close(descriptor)


def _nothing() -> None:
    pass


def _take(descriptor: int, name: str) -> Callable[[], object] | None:
    """Take the system's lock of a file.

    Returns:
        What gives it back, or None if somebody else has it.
    """
    # Imported here: neither exists on every system.
    with contextlib.suppress(ImportError):
        fcntl = import_module("fcntl")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return None
        return lambda: fcntl.flock(descriptor, fcntl.LOCK_UN)
    with contextlib.suppress(ImportError):
        msvcrt = import_module("msvcrt")
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return None
        return _nothing  # closing the file is enough
    if name in _HELD:
        return None
    _HELD.add(name)
    return lambda: _HELD.discard(name)


def _sign(descriptor: int) -> None:
    """Say in the lock file who holds it; that is a courtesy, and may fail."""
    with contextlib.suppress(OSError):
        who = {"pid": os.getpid(), "host": socket.gethostname(), "since": now()}
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, json.dumps(who).encode())


def _holder(descriptor: int) -> str:
    # What is there may be garbage, or not written yet.
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        who = json.loads(os.read(descriptor, 4096))
        pid, host, since = int(who["pid"]), str(who["host"]), str(who["since"])
    except (OSError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
        return "another process"
    return f"process {pid} on {printable(host)[:80]} since {printable(since)[:80]}"
