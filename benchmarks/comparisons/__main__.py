"""False verdicts, power and episodes of comparisons, beside what people do today.

    python -m benchmarks.comparisons false --comparisons 2000 --out docs/comparing --cache runs/comparisons
    python -m benchmarks.comparisons power --comparisons 1000 --out docs/comparing --cache runs/comparisons
    python -m benchmarks.comparisons savings --out docs/comparing
    python -m benchmarks.comparisons targets --comparisons 40 --out docs/comparing

`false` compares policies of the same value, found by the exact oracle, and looks after every round; of "rare loss" no
verdict without a range can be trusted. `power` compares policies that differ by 0.15 standard deviations of a return.
`savings` compares trained agents, `targets` evaluates them until they are known precisely enough. Verdicts that are in
the cache are not sought again: the same command goes on after an interrupt, and with more `--comparisons`. Lai's test
has rows if `sequentialized-barnard-tests` is installed.
"""

import argparse
import dataclasses
import json
import math
import time
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import stats

import bpsearch as bps
from benchmarks.comparisons.beside import lai_test, safe_test, separate_sequences, welch
from benchmarks.comparisons.tasks import UNSEEN, Pair, problems
from benchmarks.evaluators.tasks import TASKS
from bpsearch.inference.confidence_sequence import choose_tightest
from bpsearch.inference.difference import Decision, Turn
from bpsearch.inference.standing import Design, Standing
from bpsearch.policies import GaussianMLP
from bpsearch.runners import InProcess
from bpsearch.study.comparison import ComparisonStudy

GAP, LEVEL = 0.15, 0.95
Cell = dict[str, Any]
Verdict = tuple[Decision, int]  # and after how many episodes of each
Kind = Literal["asymptotic", "certified"]
AT_ONCE: dict[str, Kind] = {"mc": "asymptotic", "certified": "certified"}


def decided(pair: Pair, method: str, episodes: int, size: int, seed: int) -> Verdict:
    """The verdict of a comparison as people run it, without the estimates that it would end with."""
    policies = {"one": pair.one, "other": pair.other}
    study = ComparisonStudy(policies, method, episodes=episodes, batch_size=size, seed=seed)
    runner = InProcess(pair.env)
    while study.running and study.done < episodes:
        for _ in study.running:
            turn = study.ask()
            resets = study.studies[turn.name].decide_resets(runner, "auto")
            batch = runner.run(turn.behavior, turn.episodes, seed=turn.seed, batch=turn.number, resets=resets)
            study.tell(turn, batch)
    return study.standing.contests[0].decision, study.done


def verdicts(
    pair: Pair, gap: float, method: str, comparisons: int, episodes: int, size: int, cache: Path | None
) -> list[Verdict]:
    """Those of the comparisons 0, 1, ...; what is in the cache is read."""
    if method in AT_ONCE:
        return decided_at_once(pair, comparisons, episodes, size, AT_ONCE[method])
    found: list[Verdict] = []
    name = f"{pair.name}-{gap}-{method}-{episodes}-{size}.json".replace(" ", "-")
    path = None if cache is None else cache / name
    if path is not None and path.exists():
        found = [(Decision(verdict), needed) for verdict, needed in json.loads(path.read_text(encoding="utf-8"))]
    for seed in range(len(found), comparisons):
        found.append(decided(pair, method, episodes, size, seed))
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps([(str(verdict), needed) for verdict, needed in found]), encoding="utf-8")
    return found[:comparisons]


def returns_at_once(pair: Pair, comparisons: int, episodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(comparisons, episodes) each: of both policies from the same starts, and of the second from starts of its own.

    Episodes of a batch are independent, so thousands of comparisons are cut out of a few large batches.
    """
    size = -(-100_000 // episodes) * episodes
    batches = range(-(-comparisons * episodes // size))

    def run(policy: bps.Policy, seed: int) -> np.ndarray:
        parts = [bps.sample(pair.env, policy, size, seed=seed, batch=number) for number in batches]
        every = np.concatenate([np.asarray(part.returns(pair.env.discount)) for part in parts])
        return every.reshape(-1, episodes)[:comparisons]

    return run(pair.one, 0), run(pair.other, 0), run(pair.other, 1)


def decided_at_once(pair: Pair, comparisons: int, episodes: int, size: int, kind: Kind) -> list[Verdict]:
    """The verdicts of as many comparisons by Monte Carlo: what `decided` gives, in a fraction of the time."""
    found = []
    design = Design(("one", "other"), tightest=choose_tightest(episodes, may_end=True), kind=kind)
    for one, other, own in zip(*returns_at_once(pair, comparisons, episodes), strict=True):
        standing = Standing.begin(design, [pair.return_range, pair.return_range])
        for at in range(0, episodes, size):
            x, y = (part[at : at + size] for part in (one, other if standing.shares(1) else own))
            standing = standing.add({0: Turn(x, x), 1: Turn(y, y)})
            if not standing.running:
                break
        found.append((standing.contests[0].decision, at + size))
    return found


def count_false(
    comparisons: int, episodes: int, size: int, methods: list[str], only: list[str] | None, cache: Path | None
) -> list[Cell]:
    """How often policies of the same value are told apart."""
    cells = []
    for pair in problems(0.0, only):
        assert abs(pair.difference) < 1e-9 * max(pair.deviation, 1.0)
        for method in methods:
            start = time.perf_counter()
            found = verdicts(pair, 0.0, method, comparisons, episodes, size, cache)
            wrong = sum(verdict is not Decision.UNDECIDED for verdict, _ in found)
            cell: Cell = {
                "problem": pair.name,
                "method": method,
                "comparisons": comparisons,
                "false": wrong / comparisons,
            }
            cell |= {"looks": episodes // size, "episodes": episodes}
            cells.append(cell)
            print(cell, f"{time.perf_counter() - start:.0f} s", flush=True)
    return cells


def measure_power(
    comparisons: int, episodes: int, size: int, methods: list[str], only: list[str] | None, cache: Path | None
) -> list[Cell]:
    """How often the better policy is found, and from how many episodes of each."""
    cells, truncated = [], lai_test(episodes, LEVEL)
    for pair in problems(GAP, only):
        found: dict[str, list[tuple[bool, int]]] = {}
        if "mc" in methods:
            for x, _, y in zip(*returns_at_once(pair, comparisons, episodes), strict=True):  # independent evaluations
                found.setdefault("t-test, fixed number", []).append((welch(x, y, LEVEL), episodes))
                found.setdefault("two anytime-valid intervals", []).append(separate_sequences(x, y, size, LEVEL))
                if set(np.unique([x, y])) <= {0.0, 1.0}:
                    found.setdefault("exact sequential test", []).append(safe_test(x, y, LEVEL))
                    if truncated is not None:
                        found.setdefault("Lai's test", []).append(truncated(x, y))
        for method in methods:
            results = verdicts(pair, GAP, method, comparisons, episodes, size, cache)
            found[f"compare, {method}"] = [(verdict is Decision.BETTER, needed) for verdict, needed in results]
        for name, outcomes in found.items():
            right, taken = (np.array(column, dtype=float) for column in zip(*outcomes, strict=True))
            cell: Cell = {"problem": pair.name, "procedure": name, "comparisons": comparisons, "most": episodes}
            cell |= {"power": float(right.mean()), "episodes": float(taken.mean())}
            cells.append(cell)
            print(cell, flush=True)
    return cells


def still(policy: GaussianMLP) -> GaussianMLP:
    """The same agent almost without action noise."""
    return dataclasses.replace(policy, log_std=policy.log_std - 6.0)


def measure_savings(comparisons: int, episodes: int, methods: list[str]) -> list[Cell]:
    """What shared seeds save, by Monte Carlo and beside control variates, of agents of three environments."""
    cells = []
    for env_id in ("pendulum-v1", "cartpole-v1", "acrobot-v1"):
        trained, half = (TASKS[f"{env_id}-{stage}"]() for stage in ("trained", "half"))
        pairs = {"trained, half-trained": (trained.policy, half.policy)}
        if isinstance(trained.policy, GaussianMLP):
            pairs["with action noise, without"] = (trained.policy, still(trained.policy))
        for (what, (one, other)), method in product(pairs.items(), methods):
            found = [
                bps.compare({"a": one, "b": other}, trained.env, episodes, method, seed=seed, stop_early=False)
                for seed in range(comparisons)
            ]
            differences = [comparison.differences[0] for comparison in found]
            cell: Cell = {"task": env_id, "policies": what, "method": method}
            cell |= {"episodes": episodes, "comparisons": comparisons}
            names = ("savings", "tight_savings", "pairing_savings", "control_savings")
            cell |= {name: float(np.mean([getattr(d, name) for d in differences])) for name in names}
            pairing = [d.pairing_savings for d in differences]
            cell |= {"pairing_error": float(stats.sem(pairing)) if comparisons > 1 else math.nan}
            cells.append(cell)
            print(cell, flush=True)
    return cells


def measure_targets(comparisons: int, methods: list[str]) -> list[Cell]:
    """Episodes until an anytime-valid interval is as narrow as wanted."""
    cells = []
    wanted = {
        "cartpole-v1-half": 5.0,
        "cartpole-v1-trained": 10.0,
        "pendulum-v1-half": 30.0,
        "pendulum-v1-trained": 15.0,
    }
    for name, halfwidth in wanted.items():
        task = TASKS[name]()
        for method in methods:
            found = [
                bps.evaluate(task.policy, task.env, 20_000, method, seed=seed, target=halfwidth)
                for seed in range(comparisons)
            ]
            cell: Cell = {"task": name, "halfwidth": halfwidth, "method": method, "studies": comparisons}
            cell |= {"episodes": float(np.mean([estimate.episodes for estimate in found]))}
            cells.append(cell)
            print(cell, flush=True)
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("false", "power", "savings", "targets"))
    parser.add_argument("--comparisons", type=int, default=200)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument(
        "--method", action="append", help="mc, auto and, for tables, certified (by Monte Carlo) by default"
    )
    parser.add_argument("--problem", action="append", help="all by default")
    parser.add_argument("--out", type=Path, default=None, help="directory for the numbers, as JSON")
    parser.add_argument("--cache", type=Path, default=None, help="directory for the verdicts of each comparison")
    parser.add_argument("--name", default=None, help="of the file; by default what is measured")
    options = parser.parse_args()
    count, episodes, size = options.comparisons, options.episodes, options.batch_size
    # The returns of agents have no range: nothing can be certified of them.
    every = ["mc", "auto"] if options.what in ("savings", "targets") else ["mc", "certified", "auto"]
    methods = options.method or every
    asked = (count, episodes, size, methods, options.problem, options.cache)
    cells = {
        "false": lambda: count_false(*asked),
        "power": lambda: measure_power(*asked),
        "savings": lambda: measure_savings(count, episodes, methods),
        "targets": lambda: measure_targets(count, methods),
    }[options.what]()
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / f"{options.name or options.what}.json"
        path.write_text(json.dumps(cells, indent=1) + "\n", encoding="utf-8")
    wrong = [cell for cell in cells if "false" in cell and (cell["problem"] != UNSEEN or cell["method"] == "certified")]
    beyond = [cell for cell in wrong if stats.binom.sf(round(cell["false"] * count) - 1, count, 0.05) < 1e-3]
    if beyond:
        raise SystemExit(f"more false verdicts than 5% allow (false-alarm rate 1e-3 each): {beyond}")


if __name__ == "__main__":
    main()
