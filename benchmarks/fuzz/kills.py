"""`create`, `ask`, `tell` and `run` killed by SIGKILL, at a point of a write or at any moment, and gone on with.

Every command runs in a fork of this process, which has imported everything and run no JAX.
"""

import contextlib
import os
import random
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import bpsearch as bps
from benchmarks.fuzz.tally import Done, Tally, command
from benchmarks.fuzz.tell import EPISODES, problem
from bpsearch.errors import BPSearchError
from bpsearch.policies.files import request_of, save_policy
from bpsearch.sampling.npz import load_npz, save_npz
from bpsearch.study.recorder import History, Recorder
from bpsearch.study.requests import Status

LONGEST_POINT = 14  # writes of one command, at most


def in_fork(work: Callable[[], object], *, point: int | None = None, delay: float | None = None) -> tuple[bool, Any]:
    """Run something in a fork; kill it at a point of a write, or after a delay.

    Returns:
        Whether it was killed, and the exit code that it gave.
    """
    receiving, sending = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.close(receiving)
            if point is not None:
                _kill_at(point)
            os.write(sending, b"x")
            found = work()
            code = found.code if isinstance(found, Done) else 0
        finally:
            os._exit(code)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        select.select([pipe], [], [], 60.0)
        if delay is not None:
            time.sleep(delay)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    return os.WIFSIGNALED(status), None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _kill_at(point: int) -> None:
    seen = 0
    original = bps.SQLiteJournal.__init__

    def reach(_: str) -> None:
        nonlocal seen
        seen += 1
        if seen == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def init(self: bps.SQLiteJournal, path: Any, *, read_only: bool = False, on_write: Any = None) -> None:
        original(self, path, read_only=read_only, on_write=None if read_only else reach)

    bps.SQLiteJournal.__init__ = init  # type: ignore[method-assign]


class Life:
    """One study from `create` to its estimate, killed on the way."""

    def __init__(self, folder: Path, rng: random.Random, tally: Tally) -> None:
        self.folder, self.rng, self.tally = folder, rng, tally
        self.study, self.kills = folder / "s.db", 0

    def killed(self, how: str, work: Callable[[], object]) -> bool:
        """Run a command that may be killed; whether it was acknowledged."""
        aim: dict[str, Any] = {"point": self.rng.randrange(1, LONGEST_POINT)}
        if self.rng.random() < 0.5:
            aim = {"delay": self.rng.uniform(0.0, 0.5)}
        was_killed, code = in_fork(work, **aim)
        self.kills += was_killed
        self.tally.count(f"{how} {'killed' if was_killed else 'not reached'}")
        if not was_killed and code != 0:
            self.tally.complain(f"exit code {code}", how)
        return not was_killed

    def finish(self, how: str, work: Callable[[], object], *, refusal: bool = False) -> None:
        """The same command without a kill."""
        _, code = in_fork(work)
        if code != (2 if refusal else 0):
            self.tally.complain(f"exit code {code} when it was repeated", how)

    def history(self) -> History | None:
        """What the study's file says; None if there is no study in it yet."""
        try:
            with bps.SQLiteJournal(self.study, read_only=True) as journal:
                return Recorder(journal).read()
        except BPSearchError:
            return None

    def live(self, episodes: tuple[Path, Path]) -> None:
        """From the first command to the last."""
        create = self._command("create", "--policy", self.folder / "policy.npz", "--method", "mc", "--seed", 1)
        whole = self.killed("create", create)
        found = self.history()
        if found is None or "source" not in found.settings:
            if whole:
                self.tally.complain("an acknowledged create is lost", "create")
            self.finish("create", create)
        else:
            self.finish("create", create, refusal=True)
        for number in range(2):
            self._ask(number)
        order = [0, 1]
        self.rng.shuffle(order)
        for number in order:
            self._tell(number, episodes[number])
        self.killed("run", self._run)
        self.finish("run", self._run)
        self.finish("verify", self._command("verify"))
        found = self.history()
        told = sum(entry.status is Status.TOLD for entry in found.entries) if found else 0
        if told < 2:
            self.tally.complain(f"only {told} batches at the end", "all")

    def _ask(self, number: int) -> None:
        out = self.folder / f"p{number}.npz"
        acknowledged = self.killed("ask", self._command("ask", "--out", out))
        found = self.history()
        entries = found.entries if found else []
        if len(entries) <= number:
            if acknowledged:
                self.tally.complain("an acknowledged request is lost", "ask")
            self.finish("ask", self._command("ask", "--out", out))
        elif not out.exists():
            self.tally.count("ask written again")
            self.finish("ask", self._command("ask", "--again", number, "--out", out))
        found = self.history()
        assert found is not None
        if request_of(out) != found.entries[number].identity:
            self.tally.complain("the file is of another request", "ask")

    def _tell(self, number: int, file: Path) -> None:
        """The episodes carry no behavior that could be wrong, only the identity of this study's request."""
        out = self.folder / f"e{number}.npz"
        batch = load_npz(file).trajectories
        save_npz(out, batch, request=request_of(self.folder / f"p{number}.npz"))
        tell = self._command("tell", number, out)
        acknowledged = self.killed("tell", tell)
        found = self.history()
        told = found is not None and found.entries[number].status is Status.TOLD
        if acknowledged and not told:
            self.tally.complain("an acknowledged batch is lost", "tell")
        self.finish("tell", tell, refusal=told)

    def _run(self) -> None:
        mdp, _ = problem()
        with bps.Study.open(self.study) as study:
            study.run(mdp, total=2 * EPISODES + 16)

    def _command(self, name: str, *arguments: object) -> Callable[[], Done]:
        return lambda: command("study", name, self.study, *arguments)


def run(runs: int, seed: int, folder: Path, tally: Tally) -> None:
    import bpsearch.cli  # noqa: F401  (before the forks)

    jax.config.update("jax_compilation_cache_dir", str(folder / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    mdp, policy = problem()
    files = (folder / "0.npz", folder / "1.npz")
    for number, file in enumerate(files):
        in_fork(lambda number=number, file=file: save_npz(file, bps.sample(mdp, policy, EPISODES, batch=number)))  # type: ignore[misc]
    kills = life = 0
    while kills < runs:
        home = folder / f"life-{life}"
        home.mkdir()
        save_policy(policy, home / "policy.npz")
        one = Life(home, random.Random(f"{seed} {life}"), tally)
        one.live(files)
        kills, life = kills + one.kills, life + 1
    tally.counts["kills"], tally.counts["studies"] = kills, life
