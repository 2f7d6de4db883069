"""The command with wrong options and files."""

import random
from pathlib import Path

from benchmarks.fuzz.store import base
from benchmarks.fuzz.tally import Tally, command

CALLS: tuple[tuple[str, ...], ...] = (
    ("evaluate", "--env", "bpsearch/Gridworld-v0", "--policy", "gridworld-early", "--episodes", "20", "--method", "mc"),
    ("plan", "--env", "bpsearch/Gridworld-v0", "--policy", "gridworld-early", "--pilot", "20"),
    ("study", "create", "new.db", "--policy", "gridworld-early", "--method", "mc", "--seed", "1"),
    ("study", "status", "base.db", "--json"),
    ("study", "estimate", "base.db"),
    ("study", "ask", "base.db", "--out", "p.npz", "--again", "4"),
    ("study", "tell", "base.db", "0", "e.npz"),
    ("study", "abandon", "base.db", "99", "--reason", "none"),
    ("study", "verify", "base.db"),
    ("study", "export", "base.db", "--out", "episodes", "--format", "npz"),
)
WRONG = (
    "",
    "x",
    "-1",
    "0",
    "nan",
    "1e400",
    "9" * 30,
    "--nothing",
    "\x1b[31m",
    "/",
    "nowhere/x",
    "pipe",
    "module:Id-v0",
    "é" * 300,
)


def run(runs: int, seed: int, folder: Path, tally: Tally) -> None:
    import os

    os.chdir(folder)
    os.mkfifo("pipe")
    base(folder / "base.db")
    for number in range(runs):
        rng = random.Random(f"{seed} {number}")
        call = list(rng.choice(CALLS))
        for _ in range(rng.choice((1, 1, 2))):
            at = rng.randrange(1, len(call))
            match rng.randrange(4):
                case 0:
                    del call[at]
                case 1:
                    call.insert(at, rng.choice(WRONG))
                case _:
                    call[at] = rng.choice(WRONG)
            if len(call) == 1:
                break
        for old in folder.glob("new.db*"):
            old.unlink()
        how = f"run {number} ({' '.join(call)!r:.200})"
        try:
            done = command(*call)
        except Exception as error:
            tally.complain(f"{type(error).__name__}: {error!s:.200}", how)
            continue
        usage = done.code == 2 and len(call) == 1 and "Usage:" in done.err  # a group of commands shows its help
        line = done.err.removesuffix("\n").isprintable() and done.err.startswith("bpsearch: ")
        if done.code == 0 or usage or (done.code == 2 and line):
            tally.count(f"exit code {done.code}")
        else:
            tally.complain(f"exit code {done.code}: {done.err!r:.300}", how)
