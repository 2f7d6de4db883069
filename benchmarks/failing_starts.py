"""A deterministic policy that fails from few of its starts: choosing starts beside Monte Carlo.

    python -m benchmarks.failing_starts --studies 100 --keep failing.jsonl

The most likely actions of a trained agent on Pendulum-v1, and of the paper's policy on its acrobot; the failure is a
return below the quantile of 0.2%, found once from 400,000 episodes. Ratios are mean squared errors relative to
p(1 − p)/n, that of Monte Carlo.
With --keep every study is written down when it is done, and the same command goes on where it was stopped.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import bpsearch as bps
from benchmarks.evaluators.tasks import TASKS
from bpsearch.inference.valuation import Valuation
from bpsearch.methods import Method
from bpsearch.search.starts import StartSearch

SHARE, SAMPLE = 0.002, 400_000


def find_event(name: str, kept: list[dict[str, Any]]) -> dict[str, Any]:
    """The condition, and its probability among many episodes."""
    for entry in kept:
        if entry["task"] == name and "condition" in entry:
            return entry
    task = TASKS[name]()
    parts = [
        bps.sample(task.env, task.policy.mode(), 20_000, seed=7, batch=batch).returns(task.env.discount)
        for batch in range(SAMPLE // 20_000)
    ]
    returns = np.concatenate([np.asarray(part) for part in parts])
    number = float(np.quantile(returns, SHARE))
    return {"task": name, "condition": f"return < {number!r}", "probability": float(np.mean(returns < number))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["pendulum-v1-trained", "acrobot"])
    parser.add_argument("--studies", type=int, default=100)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--candidates", type=int, default=StartSearch().candidates)
    parser.add_argument("--uniform-share", type=float, default=StartSearch().uniform_share)
    parser.add_argument("--keep", type=Path, help="a file in which every study is kept")
    options = parser.parse_args()

    def keep(entry: dict[str, Any]) -> None:
        if options.keep is not None:
            with options.keep.open("a") as file:
                file.write(json.dumps(entry) + "\n")

    stored = options.keep is not None and options.keep.exists()
    kept = [json.loads(line) for line in options.keep.read_text().splitlines()] if stored else []
    search = StartSearch(options.candidates, options.uniform_share)
    method = Method(search, Valuation(search.estimator), name="starts")
    print("| task | failures | episodes | studies | ratio to Monte Carlo | reported savings | coverage (95%) |")
    print("|---|---|---|---|---|---|---|")
    for name in options.tasks:
        event = find_event(name, kept)
        if event not in kept:
            keep(event)
        task, truth = TASKS[name](), event["probability"]
        key = {"task": name, "episodes": options.episodes, "settings": [options.candidates, options.uniform_share]}
        done = {e["study"]: e["found"] for e in kept if "study" in e and all(e[part] == key[part] for part in key)}
        for study in range(options.studies):
            if study not in done:
                found = bps.evaluate(
                    task.policy.mode(), task.env, options.episodes, method, failure=event["condition"], seed=study
                )
                low, high = found.interval() or (0.0, 1.0)
                done[study] = [found.value, found.savings or 1.0, low, high]
                keep(key | {"study": study, "found": done[study]})
        values, savings, low, high = np.array([done[study] for study in range(options.studies)]).T
        squares = (values - truth) ** 2 * options.episodes / (truth * (1.0 - truth))
        noise = squares.std() / np.sqrt(len(squares))
        covered = np.mean((low <= truth) & (truth <= high))
        print(
            f"| {task.title}, deterministic | {truth:.2%} | {options.episodes} | {len(values)} | "
            f"{squares.mean():.3f} ± {noise:.3f} | {np.median(savings):.1f} | {covered:.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
