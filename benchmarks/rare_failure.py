"""The rare-failure example over many seeds: mean squared error of the default relative to Monte Carlo's.

    python benchmarks/rare_failure.py --trials 200

Both evaluate the courier of examples/rare_failure.py from 2,000 episodes in batches of 100; the truth is exact.
"""

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

import bpsearch as bps
from bpsearch.trials import Trials

EXAMPLE = Path(__file__).parents[1] / "examples" / "rare_failure.py"


def example() -> Any:
    spec = importlib.util.spec_from_file_location("rare_failure", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    options = parser.parse_args()
    env, policy = example().ridge(), example().courier()
    truth, variance = bps.oracle.value(env, policy), bps.oracle.variance(env, policy, None, "mc")
    print(f"Monte Carlo, exact: {variance / 2000:.4f}")
    for name, search in (("Monte Carlo", bps.OnPolicy()), ("default", bps.AdaptiveBPG())):
        _, means = Trials(search, iterations=20, batch_size=100, seed=5).run(env, policy, options.trials)
        errors = (means.mean(axis=1) - truth) ** 2
        noise = errors.std(ddof=1) / np.sqrt(len(errors))
        print(
            f"{name}: mean squared error over {options.trials} seeds {errors.mean():.4f} +- {noise:.4f}, relative to "
            f"Monte Carlo's exact {errors.mean() / (variance / 2000):.3f} +- {noise / (variance / 2000):.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
