"""How often nominal 95% intervals hold.

    python -m benchmarks.coverage --studies 2000 --out docs/intervals

Each case is a tabular problem whose value the oracle knows exactly, and a way to collect episodes; each study has
1,000 episodes in batches of 100 and looks after every batch. Counted is how often an interval holds after all of them,
where a study stops that ends when the interval looks narrow, and at all looks at once. Narrow is a width of at most
its median after 400 episodes in a pilot of 100 other studies. A certified interval that held less often than a binomial
bound allows (false-alarm rate 1e-3 per number) makes the program fail.
"""

import argparse
import importlib.util
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import bpsearch as bps
from bpsearch._core.arrays import Array
from bpsearch.control_variates import TabularModel
from bpsearch.estimators import importance_sampling, log_ratios
from bpsearch.inference.confidence_sequence import OPEN_ENDED, AsymptoticSequence, anytime_bounds
from bpsearch.inference.diagnostics import UNWEIGHTED
from bpsearch.inference.intervals import clopper_pearson, martingale_error
from bpsearch.paper.on_policy import OnPolicyCurve, OnPolicyState
from bpsearch.paper.trials import Trials
from bpsearch.policies import Policy
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search import CompiledSearch, Info, normalized
from bpsearch.search.base import defend

BATCHES, BATCH_SIZE, PILOT, LEVEL = 10, 100, 100, 0.95
EPISODES = BATCHES * BATCH_SIZE
LOOKS = BATCH_SIZE * np.arange(1, BATCHES + 1)
Bounds = tuple[Array, Array]  # (studies, looks) each


@dataclass(frozen=True)
class Tilted(CompiledSearch[OnPolicyState]):
    """A behavior that stands still: `tilt` is added to the logits of the first action."""

    tilt: float = 0.0
    estimator: bps.Estimator = importance_sampling
    model: TabularModel | None = None
    defensive: float = 0.0

    def init(self, policy: Policy, discount: float = 1.0) -> OnPolicyState:
        """Before the first batch."""
        return OnPolicyState(self.objective.init(policy, discount))

    def behavior(self, state: OnPolicyState) -> Policy:
        """The same for every batch."""
        evaluation = state.objective.evaluation
        tilted = evaluation.with_parameters(
            evaluation.parameters + self.tilt * np.eye(evaluation.parameters.shape[-1])[0]
        )
        return defend(evaluation, tilted, self.defensive)

    def update(self, state: OnPolicyState, batch: Trajectories) -> tuple[OnPolicyState, Info]:
        """Value the batch."""
        return OnPolicyCurve(self.estimator).update(state, batch)


@dataclass(frozen=True)
class Case:
    """A problem and a way to collect its episodes."""

    weights: str
    problem: str
    collected: str
    env: bps.TabularMDP
    policy: bps.SoftmaxTable
    search: CompiledSearch[Any]
    event: bool = False


@dataclass(frozen=True)
class Cell:
    """How often one kind of interval held in one case; `half_width` is the median at the full number of episodes."""

    weights: str
    problem: str
    collected: str
    interval: str
    fixed: float
    stopped: float
    always: float
    half_width: float
    episodes_at_stop: float
    largest_weight: float


def coins() -> bps.TabularMDP:
    """Twenty tosses; the return is the number of heads, action 0."""
    rewards = np.zeros((1, 2, 1))
    rewards[0, 0] = 1.0
    return bps.TabularMDP(np.ones((1, 2, 1)), rewards, np.ones(1), np.zeros(1, bool), horizon=20)


def failures() -> tuple[bps.TabularMDP, bps.SoftmaxTable]:
    """The courier of examples/rare_failure.py; the return is whether it slips where it matters."""
    path = Path(__file__).parents[1] / "examples" / "rare_failure.py"
    spec = importlib.util.spec_from_file_location("rare_failure", path)
    assert spec is not None
    assert spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    ridge = example.ridge()
    failed = (ridge.rewards < -100.0).astype(float)
    return bps.TabularMDP(ridge.transitions, failed, ridge.initial, ridge.terminal, ridge.horizon), example.courier()


def cases() -> list[Case]:
    grid, early = bps.envs.gridworld(), bps.shipped_policy("gridworld-early")
    tosses, fair = coins(), bps.SoftmaxTable.uniform(1, 2)
    courier_env, courier = failures()
    return [
        Case("none", "gridworld", "policy itself", grid, early, OnPolicyCurve()),
        Case("heavy", "coins", "fewer heads", tosses, fair, Tilted(-0.9)),
        Case("bounded", "coins", "fewer heads, α = 0.1", tosses, fair, Tilted(-0.9, defensive=0.1)),
        Case("heavy", "coins", "far fewer heads", tosses, fair, Tilted(-1.5)),
        Case("bounded", "coins", "far fewer heads, α = 0.1", tosses, fair, Tilted(-1.5, defensive=0.1)),
        Case("none", "failure", "policy itself", courier_env, courier, OnPolicyCurve(), event=True),
        Case("light", "gridworld", "BPG", grid, early, bps.BPG(normalized(0.05))),
        Case("light", "gridworld", "default search, α = 0.1", grid, early, bps.AdaptiveBPG(defensive=0.1)),
        Case("light", "gridworld", "default search", grid, early, bps.AdaptiveBPG()),
        Case("light", "failure", "default search", courier_env, courier, bps.AdaptiveBPG(), event=True),
    ]


def _episodes(search: Any, state: Any, info: Info, batch: Trajectories) -> tuple[Array, Array, Array]:
    log_weights = log_ratios(state.objective.evaluation, batch).sum(axis=-1)
    return info.values, log_weights, batch.rewards.sum(axis=-1)


def sampled(case: Case, studies: int, seed: int) -> tuple[Array, Array, Array]:
    """(studies, batches, episodes of a batch): values, log-weights and returns."""
    trials = Trials(case.search, BATCHES, BATCH_SIZE, seed=seed, record=_episodes)
    _, record = trials.run(case.env, case.policy, studies)
    return record


def batch_weights(case: Case) -> Array:
    """What an episode of each batch counts."""
    return np.array([case.search.weight(case.search.init(case.policy)), *[1.0] * (BATCHES - 1)])


def fixed_n(values: Array, log_weights: Array, returns: Array, case: Case) -> Bounds:
    """What `Estimate.interval` gives after every batch, for all studies at once.

    By the martingale central limit theorem; of an event the exact binomial interval as long as no episode is weighted.
    """
    weights = batch_weights(case)
    counted = BATCH_SIZE * np.cumsum(weights)
    parts = BATCH_SIZE * weights**2 * values.var(axis=2, ddof=1)
    total = np.cumsum(parts, axis=1)
    squares = np.cumsum(parts**2 / (BATCH_SIZE - 1), axis=1)
    freedom = np.where(squares > 0.0, total**2 / np.where(squares > 0.0, squares, 1.0), 1.0)
    half = stats.t.ppf(0.5 + LEVEL / 2.0, freedom) * np.sqrt(total) / counted
    error = martingale_error(list(values[0]), list(weights))
    assert error is None or np.isclose(error.half_width(LEVEL), half[0, -1])
    means = np.cumsum(weights * values.sum(axis=2), axis=1) / counted
    if not case.event:
        return means - half, means + half
    moved = np.maximum.accumulate(np.abs(log_weights).max(axis=2), axis=1) > UNWEIGHTED
    counts = np.cumsum(returns.sum(axis=2), axis=1).astype(int)
    pairs = {(int(k), n) for row in counts for k, n in zip(row, LOOKS, strict=True)}
    exact = {(k, n): clopper_pearson(k, n, LEVEL) for k, n in pairs}
    binomial = np.array([[exact[pair] for pair in zip(row, LOOKS, strict=True)] for row in counts])
    return (
        np.where(moved, np.clip(means - half, 0.0, 1.0), binomial[..., 0]),
        np.where(moved, np.clip(means + half, 0.0, 1.0), binomial[..., 1]),
    )


def anytime(values: Array, log_weights: Array, returns: Array, case: Case, tightest: int = EPISODES) -> Bounds:
    """What `Estimate.anytime_interval` gives after every batch, if the study was to have all these episodes."""
    nothing = (0.0, 1.0) if case.event else (-np.inf, np.inf)
    bounds = np.empty((*values.shape[:2], 2))
    for number, study in enumerate(values):
        sequence = AsymptoticSequence(tightest)
        for look, (batch, weight) in enumerate(zip(study, batch_weights(case), strict=True)):
            sequence = sequence.add(batch, weight)
            bounds[number, look] = np.clip(sequence.interval(LEVEL) or nothing, *nothing)
    return bounds[..., 0], bounds[..., 1]


def certified(values: Array, log_weights: Array, returns: Array, case: Case) -> Bounds:
    """What `Estimate.certified_interval` gives after every batch."""
    parts = [
        anytime_bounds(
            log_weights[i : i + 100].reshape(-1, EPISODES), r.reshape(-1, EPISODES), _range(case), LOOKS, LEVEL
        )
        for i in range(0, len(returns), 100)
        for r in (returns[i : i + 100],)
    ]
    return np.concatenate([low for low, _ in parts]), np.concatenate([high for _, high in parts])


def _range(case: Case) -> tuple[float, float]:
    known = (0.0, 1.0) if case.event else case.env.return_range
    assert known is not None
    return known


KINDS: dict[str, Callable[..., Bounds]] = {
    "fixed n": fixed_n,
    "anytime-valid": anytime,
    "certified": certified,
}
TARGETED = {"anytime-valid": partial(anytime, tightest=OPEN_ENDED)}  # of a study with a target, if they are others


def measure(case: Case, studies: int) -> list[Cell]:
    truth = bps.oracle.value(case.env, case.policy)
    pilot, record = sampled(case, PILOT, seed=1), sampled(case, studies, seed=0)
    cells = []
    for kind, bounds in KINDS.items():
        targeted = TARGETED.get(kind, bounds)
        low, high = targeted(*pilot, case)
        target = np.median((high - low)[:, BATCHES * 2 // 5 - 1])
        low, high = targeted(*record, case)
        narrow = high - low <= target
        narrow[:, -1] = True
        stop = narrow.argmax(axis=1)
        stopped = np.take_along_axis((low <= truth) & (truth <= high), stop[:, None], axis=1)
        if targeted is not bounds:
            low, high = bounds(*record, case)
        holds = (low <= truth) & (truth <= high)
        cells.append(
            Cell(
                case.weights,
                case.problem,
                case.collected,
                kind,
                fixed=float(holds[:, -1].mean()),
                stopped=float(stopped.mean()),
                always=float(holds.all(axis=1).mean()),
                half_width=float(np.median((high - low)[:, -1]) / 2.0),
                episodes_at_stop=float(LOOKS[stop].mean()),
                largest_weight=float(np.exp(record[1].max())),
            )
        )
    return cells


def too_few(coverage: float, studies: int) -> bool:
    """Whether so many misses have a chance below 1e-3 for an interval that holds with its nominal level."""
    return bool(stats.binom.sf(round((1.0 - coverage) * studies) - 1, studies, 1.0 - LEVEL) < 1e-3)


def table(cells: list[Cell]) -> str:
    """The cells as a table in Markdown."""
    lines = [
        "| weights | problem | episodes by | largest weight | interval | at the end | stopped | always | half-width |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        rates = " | ".join(f"{100 * rate:.1f}" for rate in (cell.fixed, cell.stopped, cell.always))
        lines.append(
            f"| {cell.weights} | {cell.problem} | {cell.collected} | {cell.largest_weight:.3g} | {cell.interval} | "
            f"{rates} | {cell.half_width:.3g} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=None, help="directory for coverage.json")
    options = parser.parse_args()
    cells = []
    for case in cases():
        start = time.perf_counter()
        cells += measure(case, options.studies)
        print(f"{case.problem}, {case.collected}: {time.perf_counter() - start:.0f} s", flush=True)
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            found = {"studies": options.studies, "episodes": EPISODES, "cells": [asdict(cell) for cell in cells]}
            (options.out / "coverage.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(table(cells))
    broken = [
        cell
        for cell in cells
        if cell.interval == "certified"
        and any(too_few(rate, options.studies) for rate in (cell.fixed, cell.stopped, cell.always))
    ]
    if broken:
        raise SystemExit(f"certified intervals that held too rarely: {broken}")


if __name__ == "__main__":
    main()
