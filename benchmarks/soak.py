"""Tabular episodes for a long time: does memory grow, and does the mean stay right?

    python -m benchmarks.soak --episodes 100000000

The episodes are sampled in batches of one study's streams. Memory is that of the process after the first tenth of them
and at the end; the mean of all returns is compared with the exact value.
"""

import argparse
import resource
import time
from pathlib import Path

import numpy as np

import bpsearch as bps

BATCH = 100_000


def resident() -> float:
    """MiB that the process holds now; on systems without /proc, the most that it ever held."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=10**8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    transitions = rng.dirichlet(np.ones(3), size=(3, 2))
    mdp = bps.TabularMDP(transitions, rng.normal(size=(3, 2, 3)), [0.5, 0.5, 0.0], [False, False, True], 4)
    policy = bps.SoftmaxTable(rng.normal(size=(3, 2)))
    truth = bps.oracle.value(mdp, policy)
    spread = bps.oracle.variance(mdp, policy, None, "mc")
    batches, total, early, start = max(options.episodes // BATCH, 10), 0.0, 0.0, time.perf_counter()
    for number in range(batches):
        total += float(bps.sample(mdp, policy, BATCH, seed=options.seed, batch=number).returns().sum())
        if number == batches // 10:
            early = resident()
    episodes = batches * BATCH
    z = (total / episodes - truth) / np.sqrt(spread / episodes)
    print(f"{episodes} episodes in {time.perf_counter() - start:.0f} s")
    print(f"memory: {early:.0f} MiB after a tenth, {resident():.0f} MiB at the end")
    print(f"mean {total / episodes:.6f}, exact {truth:.6f}, z = {z:.2f}")


if __name__ == "__main__":
    main()
