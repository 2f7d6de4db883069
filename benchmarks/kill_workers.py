"""Kill workers and the driver of one stored study again and again, by SIGKILL: same bits, nothing lost.

    python -m benchmarks.kill_workers --workers-killed 100 --drivers-killed 20

The study runs in a process of its own, the driver, with two workers. At random moments one of its workers is killed; in
between the driver is, and is started again on the same store. At the end every number must be that of a study that
ran in one process and was never disturbed, and the store must be without damage.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import bpsearch as bps
from benchmarks.workers import Busy, coin

SECONDS = 0.003  # of an episode


class Short(Busy):
    """Episodes of 3 ms."""

    def __init__(self) -> None:
        super().__init__(SECONDS)


def digest(estimate: bps.Estimate) -> str:
    parts = [estimate.data.values, estimate.data.returns, estimate.value, estimate.std_error]
    parts.append(estimate.anytime_interval())
    return hashlib.blake2b(b"".join(np.asarray(part).tobytes() for part in parts)).hexdigest()[:16]


def drive(store: str, episodes: int) -> None:
    """One life of the driver."""
    said = lambda study, _: print(json.dumps({"told": study.episodes}), flush=True)  # noqa: E731
    estimate = bps.evaluate(coin(Busy), Short, episodes, "mc", seed=7, store=store, workers=2, on_batch=said)
    print(json.dumps({"digest": digest(estimate)}), flush=True)


def children(pid: int) -> list[int]:
    """The workers of a driver."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        return [int(child) for child in listed.read_text().split()]
    except OSError:
        return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers-killed", type=int, default=100)
    parser.add_argument("--drivers-killed", type=int, default=20)
    parser.add_argument("--episodes", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--drive", metavar="STORE", help="be the driver")
    options = parser.parse_args()
    if options.drive:
        drive(options.drive, options.episodes)
        return
    rng = random.Random(options.seed)
    counts = {"workers": 0, "drivers": 0}
    acknowledged, wrong, found = 0, [], None
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/study.db"
        command = [sys.executable, "-m", "benchmarks.kill_workers", "--drive", store]
        command += ["--episodes", str(options.episodes)]
        while found is None:
            with open(f"{folder}/said", "w+b") as said:
                driver = subprocess.Popen(command, stdout=said)
                in_this_life = heard = 0
                while driver.poll() is None:
                    time.sleep(rng.uniform(0.2, 1.0))
                    crew = children(driver.pid)
                    last_life = counts["drivers"] == options.drivers_killed
                    # Mostly workers that are at work; now and then one that is just starting.
                    due = os.path.getsize(said.name) > heard or rng.random() < 0.1
                    wanted = counts["workers"] < options.workers_killed and (in_this_life < 5 or last_life)
                    if wanted and due and len(crew) == 2:
                        heard = os.path.getsize(said.name)
                        os.kill(rng.choice(crew), signal.SIGKILL)
                        counts["workers"] += 1
                        in_this_life += 1
                    elif in_this_life >= 5 and not last_life:
                        driver.kill()
                        counts["drivers"] += 1
                        break
                driver.wait()
                said.seek(0)
                facts = [json.loads(line) for line in said.read().splitlines() if line.endswith(b"}")]
            told = [fact["told"] for fact in facts if "told" in fact]
            if told and min(told) < acknowledged:
                wrong.append(f"{acknowledged} episodes were acknowledged, and {min(told)} were there")
            acknowledged = max([acknowledged, *told])
            print(json.dumps({**counts, "acknowledged": acknowledged}), file=sys.stderr, flush=True)
            found = next((fact["digest"] for fact in facts if "digest" in fact), None)
        with bps.SQLiteJournal(store, read_only=True) as journal:
            wrong += journal.damages()
    expected = digest(bps.evaluate(coin(Busy), Short, options.episodes, "mc", seed=7))
    if found != expected:
        wrong.append(f"the digest is {found}, expected {expected}")
    print(json.dumps({**counts, "episodes": options.episodes, "digest": found, "wrong": wrong}))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
