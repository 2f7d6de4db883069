"""Seconds until the package is there: of `import bpsearch`, of `bpsearch --help`, and of every shell completion.

    python -m benchmarks.import_time

The median of several processes each, the start of Python included; that start alone is printed beside it. They take
turns, so that other work on the computer slows all of them alike. The last two show what is put off: the first use of a
name that needs JAX or Gymnasium pays for it.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

SHELL = {"_BPSEARCH_COMPLETE": "complete_bash", "COMP_WORDS": "bpsearch evaluate --meth", "COMP_CWORD": "2"}
PYTHON, PROGRAM = sys.executable, str(Path(sys.executable).with_name("bpsearch"))
# Name, command, what its environment has besides, and the most that we accept, in seconds.
CONTESTANTS: dict[str, tuple[list[str], dict[str, str], float | None]] = {
    "python alone": ([PYTHON, "-c", ""], {}, None),
    "import bpsearch": ([PYTHON, "-c", "import bpsearch"], {}, 0.5),
    "bpsearch --help": ([PROGRAM, "--help"], {}, 0.4),
    "shell completion": ([PROGRAM], SHELL, None),
    "import bpsearch.envs": ([PYTHON, "-c", "import bpsearch.envs"], {}, None),
    "bpsearch.evaluate": ([PYTHON, "-c", "import bpsearch; bpsearch.evaluate"], {}, None),
}


def seconds(command: list[str], environment: dict[str, str]) -> float:
    """The whole life of a process."""
    start = time.perf_counter()
    subprocess.run(command, env=os.environ | environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    options = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for turn in range(options.runs + 1):
        for name, (command, environment, _) in CONTESTANTS.items():
            taken = seconds(command, environment)
            if turn:  # the first fills the caches of the disk
                times[name].append(taken)
    for name, (_, _, limit) in CONTESTANTS.items():
        median, verdict = statistics.median(times[name]), ""
        if limit is not None:
            verdict = f", at most {limit}: {'yes' if median <= limit else 'NO'}"
        print(f"{name:22s} {median:.2f} s ({min(times[name]):.2f} to {max(times[name]):.2f}){verdict}")


if __name__ == "__main__":
    main()
