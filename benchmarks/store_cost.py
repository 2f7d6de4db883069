"""What a store costs: the same study of CartPole-v1 with and without one, in turns, in one run.

The policy is a small random network, and the method is Monte Carlo: nothing but sampling, beside which the store's
share is largest. Prints the ratio of the median times of a turn, which an interruption now and then does not disturb,
the ratio of the processor's time, the size of the file, and how much memory grew after the first fifth.

    python -m benchmarks.store_cost --episodes 100000
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import gymnasium
import numpy as np

import bpsearch as bps

BATCH_SIZE = 100  # of the methods that are known by name


def resident():
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=200, help="how often the two take turns")
    options = parser.parse_args()
    spaces = gymnasium.make("CartPole-v1")
    policy = bps.CategoricalMLP.init(0, spaces.observation_space, spaces.action_space, hidden=(16,))
    seconds, cpu = {"without": [], "with": []}, {"without": [], "with": []}
    memory = []
    with tempfile.TemporaryDirectory(dir=".") as folder, bps.GymnasiumSampler("CartPole-v1") as sampler:
        path = Path(folder) / "study.db"
        studies = {
            "without": bps.Study(policy, "mc", seed=0),
            "with": bps.Study(policy, "mc", seed=0, store=path),
        }
        for study in studies.values():
            study.run(sampler, total=BATCH_SIZE)  # compile
        for turn in range(1, options.turns + 1):
            total = BATCH_SIZE + options.episodes * turn // options.turns
            for name, study in studies.items():
                start, start_cpu = time.perf_counter(), time.process_time()
                study.run(sampler, total=total)
                seconds[name].append(time.perf_counter() - start)
                cpu[name].append(time.process_time() - start_cpu)
            memory.append(resident())
        values = [study.estimate().data.values for study in studies.values()]
        assert np.array_equal(*values)
        studies["with"].close()
        size = path.stat().st_size
        steps = values[0].sum()  # CartPole pays 1 for every step
    added = options.episodes - options.episodes // 5
    print(
        json.dumps(
            {
                "episodes": options.episodes,
                "steps": int(steps),
                "seconds_per_turn": {name: round(float(np.median(times)), 4) for name, times in seconds.items()},
                "ratio": round(float(np.median(seconds["with"]) / np.median(seconds["without"])), 4),
                "cpu_ratio": round(sum(cpu["with"]) / sum(cpu["without"]), 4),
                "bytes_per_step": round(size / steps, 2),
                "file_megabytes": round(size / 1e6, 1),
                # Of both studies, which keep 24 bytes of an episode each.
                "memory_growth_bytes_per_episode": round(
                    (memory[-1] - memory[max(options.turns // 5, 1) - 1]) / added, 1
                ),
            }
        )
    )


if __name__ == "__main__":
    main()
