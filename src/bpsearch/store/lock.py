"""One writer at a time: a lock that the system takes back when its holder ends, however it ends."""

import contextlib
import fcntl
import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bpsearch.errors import StoreError, StoreLockedError


class WriterLock:
    """The lock of the file `path`, held from now on until `release` or the end of the process.

    It is the operating system's lock of a file beside `path`, which also says who holds it. That file stays: removing
    it would let two writers lock two files of the same name.

    Raises:
        StoreLockedError: another process, or another object in this one, holds it.
    """

    def __init__(self, path: Path) -> None:
        beside = path.with_name(path.name + ".lock")
        try:
            self._descriptor = os.open(beside, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise StoreError(f"cannot open the lock {beside} of the store: {error.strerror}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(self._descriptor)
            self.release()
            raise StoreLockedError(
                f"{path} is being written by {holder}; wait until that has ended, or open the store for reading"
            ) from None
        who = {"pid": os.getpid(), "host": socket.gethostname(), "since": now()}
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(who).encode(), 0)

    def release(self) -> None:
        """Make room for the next writer."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self.release()


def now() -> str:
    """The time, to the second, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _holder(descriptor: int) -> str:
    who: dict[str, Any] = {}
    with contextlib.suppress(ValueError):  # the holder may be about to write it
        who = json.loads(os.pread(descriptor, 4096, 0))
    if not who:
        return "another process"
    return f"process {who['pid']} on {who['host']} since {who['since']}"
