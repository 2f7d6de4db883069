"""An agent with a CNN in an Atari game: time and memory of an evaluation beside SB3's own `evaluate_policy`.

    python -m benchmarks.pictures --episodes 30              # ALE/Breakout-v5, 84 × 84 × 4, at most 300 steps
    python -m benchmarks.pictures --episodes 30 --method mc  # without control variates

Each side runs in a process of its own, on one core, with an agent that was trained for seconds (kept in `--cache`).
Seconds are those of the core (`time.process_time`); memory is how much the process has grown at its peak beyond what it
held when the agent was loaded and a first episode had run.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.agents_cases import ROWS

NAME = "SB3 PPO with a CNN, ALE/Breakout-v5"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=30)
    parser.add_argument("--method", default="auto")
    parser.add_argument("--cache", type=Path, default=Path("runs/agents"))
    parser.add_argument("--side", choices=("bpsearch", "sb3"), help="run one side, in this process")
    options = parser.parse_args()
    if options.side is not None:
        print(json.dumps(measure(options.side, options.episodes, options.method, options.cache)))
        return
    print(f"{NAME}, {options.episodes} episodes, method {options.method}")
    for side in ("sb3", "bpsearch"):
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.pictures", *sys.argv[1:], "--side", side]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.strip().splitlines()[-1])
        print(
            f"{side}: value {found['value']:.3g} ± {found['half']:.2g}, {found['seconds']:.1f} s, "
            f"{found['megabytes']:.0f} MB more at the peak"
        )


def measure(side: str, episodes: int, method: str, cache: Path) -> dict[str, float]:
    """One side, after a first episode."""
    import torch

    import bpsearch as bps

    torch.set_num_threads(1)
    row = next(row for row in ROWS if row.name == NAME)
    folder = cache / NAME.replace(" ", "-").replace(",", "").replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    agent, env, loop = row.make(folder)
    if side == "sb3":
        loop(1)
    else:
        bps.evaluate(agent, env, 1, "mc", seed=0)
    before, start = _peak(), time.process_time()
    if side == "sb3":
        returns = loop(episodes)
        value, half = returns.mean(), 1.96 * returns.std(ddof=1) / np.sqrt(episodes)
    else:
        result = bps.evaluate(agent, env, episodes, method, seed=1)
        value, half = result.value, np.nan if result.error is None else result.error.half_width(0.95)
    seconds = time.process_time() - start
    return {"value": float(value), "half": float(half), "seconds": seconds, "megabytes": _peak() - before}


def _peak() -> float:
    """Megabytes; Linux counts kilobytes, macOS bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**10 if sys.platform == "linux" else 2**20)


if __name__ == "__main__":
    main()
