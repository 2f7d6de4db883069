"""Ctrl-C that waits for what must not be done by halves."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Let an interrupt that comes within the block be heard at its end.

    What is on disk and what is remembered of it belong together. In other threads than the main one, where Python
    delivers no signals, and where interrupts are ignored, nothing is changed.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[-1])
