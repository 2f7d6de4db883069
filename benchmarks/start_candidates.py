"""What each further candidate for f, the regression of returns on starts, is worth.

    python -m benchmarks.start_candidates --pools /tmp/pools

Studies are drawn from pools of episodes (`start_pools.py`), the same ones for every set of candidates. Candidates were
found on the first half of each pool; what is shown is the second. "expected" is the variance that the values have,
relative to Monte Carlo's.
"""

import argparse
import time
from pathlib import Path
from unittest import mock

import numpy as np

from benchmarks.start_pools import Pool, Studies, find_pool
from benchmarks.systematic_starts import POOLS
from bpsearch.control_variates import Starts, starts
from bpsearch.control_variates.features import CANDIDATES
from bpsearch.policies.base import Policy

SETS = {"four": CANDIDATES[:4], "six": CANDIDATES}


def measure(title: str, policy: Policy, pool: Pool, episodes: int, resets: int, count: int) -> str:
    """A line of the table."""
    rng, studies = np.random.default_rng(7), Studies(policy, (Starts(),))
    found, seconds = np.zeros((len(SETS), count)), np.zeros(len(SETS))
    for study in range(count):
        drawn = pool.draw(rng, episodes, resets)
        for at, candidates in enumerate(SETS.values()):
            began = time.process_time()
            with mock.patch.object(starts, "CANDIDATES", candidates):
                error = studies.conclude(*drawn).tight_error
            seconds[at] += time.process_time() - began
            assert error is not None
            found[at, study] = error.variance / pool.plain_variance(episodes)
    ratios = found[-1] / found[0]
    cells = [f"{row.mean():.3f}" for row in found]
    cells.append(f"{ratios.mean():.3f} ± {ratios.std() / np.sqrt(count):.3f}")
    cells.append(f"{seconds[-1] / seconds[0]:.2f}")
    return f"| {title} | {episodes} | {resets} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(POOLS), help=", ".join(POOLS))
    parser.add_argument("--studies", type=int, default=24)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--resets", type=int, default=20)
    parser.add_argument("--pools", type=Path, required=True, help="where the pools are kept")
    options = parser.parse_args()
    print(f"| task | episodes | resets | {' | '.join(SETS)} | ratio | time of the conclusion, ratio |")
    print("|---|---|---|---|---|---|---|")
    for name in options.tasks:
        title, policy, pool = find_pool(name, POOLS[name], options.pools)
        half = len(pool.returns) // 2
        other = Pool(pool.starts[half:], pool.returns[half:])
        for episodes in options.sizes:
            print(measure(title, policy, other, episodes, options.resets, options.studies), flush=True)


if __name__ == "__main__":
    main()
