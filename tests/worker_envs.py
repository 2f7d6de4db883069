"""Environments that end or hang the process in which they run, as often as a file of lives lasts."""

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

from toy_envs import RandomLength


class Deadly(RandomLength):
    """In the second step of episodes that start with a number above 0.95 something bad happens, `times` times in all.

    Args:
        how: "kill" ends the process by a signal, "segfault" by reading address 0, "hang" sleeps.
        folder: where each time leaves a file, so that all processes know how many there were.
        times: how often.
    """

    def __init__(self, how: str, folder: str, times: int) -> None:
        super().__init__()
        self.how, self.folder, self.times = how, Path(folder), times
        self.fatal = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        self.fatal = bool(observation[1] > 0.95)
        return observation, info

    def step(self, action: Any) -> Any:
        if self.fatal and self.steps == 1 and len(list(self.folder.iterdir())) < self.times:
            (self.folder / f"{os.getpid()}-{time.monotonic_ns()}").touch()
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "segfault":
                ctypes.string_at(0)
            time.sleep(3600)
        return super().step(action)


class Slow(RandomLength):
    """Every step takes a millisecond of the core."""

    def step(self, action: Any) -> Any:
        end = time.perf_counter() + 1e-3
        while time.perf_counter() < end:
            pass
        return super().step(action)
