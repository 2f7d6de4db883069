"""Fuzzers of what comes from outside. Each prints how often what happened, and what should not have.

    python -m benchmarks.fuzz tell --runs 5000 --seed 0

- tell: changed files of episodes, told by the command. A file is counted with the right numbers, or refused by exit
  code 2 in one line, and then nothing changes.
- store: changed bytes and changed facts of a study's file. It is read as it was written, or refused in one line.
- zips: changed policy files, of bpsearch and of Stable-Baselines3. No code of theirs runs.
- minari: changed Minari datasets.
- environments: environments that show something else than they declare. The batch is right or refused.
- kills: `create`, `ask`, `tell` and `run`, killed at a point of a write or at any moment. Nothing acknowledged is lost.
- misuse: the public API with wrong arguments. An error of bpsearch, or a TypeError of a signature.
- command: the command with wrong options. Exit code 2, one line.

Exit code 1 if something happened that should not have.
"""

import argparse
import importlib
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.fuzz.tally import Tally

KINDS = ("tell", "store", "zips", "minari", "environments", "kills", "misuse", "command")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tally = Tally()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        importlib.import_module(f"benchmarks.fuzz.{options.kind}").run(options.runs, options.seed, Path(folder), tally)
    print(f"{options.kind}: {options.runs} runs, seed {options.seed}, {time.perf_counter() - start:.0f} s")
    print(tally)
    sys.exit(1 if tally.wrong else 0)


if __name__ == "__main__":
    main()
