"""How often anytime-valid intervals of whole studies hold: looks after every batch, and stops at a target.

    python -m benchmarks.coverage_studies --studies 2000 --out docs/intervals

Unlike `coverage.py`, which runs thousands of searches in one compiled program, this runs `bps.Study` as people do, so
that control variates and their room for unseen events count. Tasks are tabular: the oracle knows their values exactly.
Each study has 1,000 episodes and looks after each batch of 100. Counted is how often the asymptotic sequence holds at
all looks at once, and where a study ends that stops when half the width is at most its median after 400 episodes in a
pilot of 20 other studies.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

import bpsearch as bps
from benchmarks.evaluators.tasks import TASKS
from bpsearch.inference.confidence_sequence import AsymptoticSequence
from bpsearch.methods import find_method

EPISODES, BATCH, PILOT, LEVEL = 1000, 100, 20, 0.95
NAMES = (
    "gridworld-early",
    "gridworld-middle",
    "gridworld-noisy",
    "gridworld-converged",
    "random-0",
    "random-1",
    "random-2",
    "rare-0.3",
    "rare-0.05",
    "stochastic-middle",
)


def looks_of(env: bps.TabularMDP, policy: bps.Policy, method: str, seed: int) -> np.ndarray:
    """(looks, 2), middle and half-width after each batch, without the estimate that a study would end with."""
    chosen = find_method(method, env)
    study = bps.Study(policy, chosen, estimand=bps.Return(env.discount), seed=seed)
    for number in range(EPISODES // BATCH):
        request = study.ask()
        study.tell(number, bps.sample(env, request.behavior, BATCH, seed=seed, batch=number))
    sequence, found = AsymptoticSequence(EPISODES), []
    for _, (values, returns, weight) in sorted(study.sequential_values().items()):
        sequence = sequence.add(values, weight, returns if chosen.valuation.estimator.on_policy else None)
        found.append((sequence.mean, sequence.half_width(LEVEL)))
    return np.array(found)


def measure(name: str, method: str, studies: int) -> dict[str, float | str | int]:
    """One task and one method."""
    task = TASKS[name]()
    truth = bps.oracle.value(task.env, task.policy)
    pilot = np.array([looks_of(task.env, task.policy, method, 10**6 + seed) for seed in range(PILOT)])
    target = np.median(pilot[:, 3, 1])
    found = np.array([looks_of(task.env, task.policy, method, seed) for seed in range(studies)])
    holds = np.abs(found[..., 0] - truth) <= found[..., 1]
    narrow = found[..., 1] <= target
    narrow[:, -1] = True
    stop = narrow.argmax(axis=1)
    return {
        "task": name,
        "method": method,
        "studies": studies,
        "always": float(holds.all(axis=1).mean()),
        "stopped": float(np.take_along_axis(holds, stop[:, None], axis=1).mean()),
        "half_width": float(np.median(found[:, -1, 1])),
        "episodes_at_stop": float(BATCH * (1 + stop).mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--task", choices=NAMES, action="append", help="all of them by default")
    parser.add_argument("--method", action="append", help="mc, auto and bpg by default")
    parser.add_argument("--out", type=Path, default=None, help="directory for coverage-studies.json")
    options = parser.parse_args()
    cells = []
    for name in options.task or NAMES:
        for method in options.method or ("mc", "auto", "bpg"):
            start = time.perf_counter()
            cells.append(measure(name, method, options.studies))
            print(cells[-1], f"{time.perf_counter() - start:.0f} s", flush=True)
            if options.out is not None:
                options.out.mkdir(parents=True, exist_ok=True)
                path = options.out / "coverage-studies.json"
                path.write_text(json.dumps(cells, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
