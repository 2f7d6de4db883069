"""Changed bytes, and changed facts under checksums that fit, of a study's file."""

import json
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import bpsearch as bps
from benchmarks.fuzz.mutations import flip_bytes
from benchmarks.fuzz.tally import Tally, command, is_one_line
from benchmarks.fuzz.tell import problem
from bpsearch.study import codec
from bpsearch.study.rows import event_name

VALUES: tuple[Any, ...] = (None, True, -1, 0, 2**63, 1e400, "", "\x1b[31m", "x" * 300, [], {}, [[]], {"class": "BPG"})


def base(path: Path) -> float:
    """A small study in a file, and its value."""
    mdp, policy = problem()
    with bps.Study(policy, bps.BPG(0.01), seed=1, store=path) as study:
        study.run(mdp, episodes=40)
        study.ask()
        return study.estimate().value


def alter(value: Any, rng: random.Random) -> Any:
    """One place in nested facts changed, missing or added."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key, changed = rng.choice(sorted(value)), dict(value)
        match rng.randrange(8):
            case 0:
                del changed[key]
            case 1:
                changed[rng.choice(["x", "class", "list", "\x1b[2J"])] = rng.choice(VALUES)
            case _:
                changed[key] = alter(value[key], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        return [*value[:at], alter(value[at], rng), *value[at + 1 :]]
    return rng.choice(VALUES)


def forge(path: Path, rng: random.Random) -> str:
    """Change the facts of an event, with a checksum that fits; or exchange or remove events."""
    database = sqlite3.connect(path)
    try:
        rows = database.execute("SELECT position, facts FROM journal ORDER BY position").fetchall()
        position, data = rng.choice(rows)
        kind, facts = codec.decode_facts(data, event_name(position))
        if rng.random() < 0.1:
            other = rng.choice(rows)[0]
            columns = database.execute(
                "SELECT kind, facts, arrays FROM journal WHERE position = ?", (other,)
            ).fetchone()
            database.execute(
                "UPDATE journal SET kind = ?, facts = ?, arrays = ? WHERE position = ?", (*columns, position)
            )
            how = f"event {position} is a copy of {other}"
        elif rng.random() < 0.1:
            database.execute("DELETE FROM journal WHERE position = ?", (position,))
            how = f"event {position} is gone"
        else:
            changed = alter(facts, rng)
            changed = changed if isinstance(changed, dict) else {"facts": changed}
            name = event_name(position)
            head = json.dumps([kind, changed]).encode()
            database.execute(
                "UPDATE journal SET facts = ? WHERE position = ?", (codec._seal(head, name, "facts"), position)
            )
            how = f"facts of event {position}"
        if rng.random() < 0.5:
            database.execute("DELETE FROM cache")
        database.commit()
    finally:
        database.close()
    return how


def run(runs: int, seed: int, folder: Path, tally: Tally) -> None:
    value = base(folder / "base.db")
    for number in range(runs):
        rng = random.Random(f"{seed} {number}")
        for old in folder.glob("s.db*"):
            old.unlink()
        study = folder / "s.db"
        if rng.random() < 0.5:
            study.write_bytes(flip_bytes((folder / "base.db").read_bytes(), rng))
            how, honest = "bytes", True
        else:
            shutil.copyfile(folder / "base.db", study)
            how, honest = forge(study, rng), False
        how = f"run {number} ({how})"
        before = study.read_bytes()
        commands = (("status",), ("estimate", "--json"), ("verify",), ("ask", "--out", folder / "p.npz"), ("export",))
        name, *more = rng.choice(commands)
        more = ["--out", folder / f"out-{number}"] if name == "export" else more
        done = command("study", name, study, *more)
        reads = name not in ("ask",)
        if done.code == 0:
            tally.count(f"{name} done")
            # A checksum finds accidents; whoever makes a file on purpose may write other numbers into it.
            if name == "estimate" and honest and json.loads(done.out)["value"] != value:
                tally.complain("another value than was written", how)
        elif name in ("verify", "export") and done.code == 1 and not done.err and done.out.isascii():
            tally.count(f"{name} found damage")
        elif is_one_line(done):
            tally.count("refused")
        else:
            tally.complain(f"{name}: exit code {done.code}: {done.err + done.out!r:.300}", how)
        if reads and study.read_bytes() != before:
            tally.complain(f"{name} has changed the file", how)
        shutil.rmtree(folder / f"out-{number}", ignore_errors=True)
