"""Do intervals with starts hold, and what do starts save precisely? Many studies of tasks whose truth is known exactly.

    python -m benchmarks.start_coverage --pools /tmp/pools --keep coverage.jsonl
    python -m benchmarks.start_coverage --tasks random-0 goal --studies 500 500 500 100

Of tables, simulations, agents and made-up tasks a pool is made once, and studies are drawn from it (`start_pools.py`):
the truth is the mean of the pool. What is judged is the control variate of starts
alone, with 10 and with 50 further starts for each episode.

The ratio is to Monte Carlo's exact variance; its noise is lowered by Monte Carlo's own squared error in the same
studies, whose mean is known. "expected" is the mean of the values' own variance. Three coverages of 95%: the default
interval, which has room for what was not seen; the tight one, without that room; Student's of the returns.
With --keep every cell is written down when it is done, and the same command goes on where it was stopped.
"""

import argparse
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from scipy import stats

import bpsearch as bps
from benchmarks.adversary.measure import pair_ratios
from benchmarks.start_pools import SEED, Pool, Studies, find_pool
from bpsearch.control_variates import Starts, StartStates
from bpsearch.policies.resolve import load

SIZES = (100, 300, 1000, 3000)
LEVEL = 0.95
SAMPLE = 400_000  # episodes of a pool that costs nothing
POOLED = {
    "random-0": 400_000,
    "random-1": 400_000,
    "random-2": 400_000,
    "acrobot": 400_000,
    "cartpole-swingup": 400_000,
    "pendulum-v1-half": 200_000,
    "pendulum-v1-half:mode": 200_000,
    "pendulum-v1-trained": 200_000,
    "pendulum-v1-trained:mode": 200_000,
    "acrobot-v1-trained": 60_000,
    "cartpole-v1-trained": 60_000,
    "Hopper-v5": 2_000,
    "HalfCheetah-v5": 1_000,
}


def reach_goal(starts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The farther the goal the lower the return; beyond a distance it is out of reach."""
    distance = np.linalg.norm(starts, axis=1)
    return -distance - 5.0 * (distance > 2.5) + 0.3 * rng.normal(size=len(starts))


def succeed(starts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Success or not, more likely from some starts."""
    return (rng.random(len(starts)) < 1.0 / (1.0 + np.exp(-2.0 * starts[:, 0] - 1.0))).astype(float)


def skew(starts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Few starts make most of the variance."""
    found: np.ndarray = np.exp(starts[:, 0]) + 0.5 * rng.exponential(size=len(starts))
    return found


def oscillate(starts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Neither linear nor quadratic."""
    found: np.ndarray = np.sin(3.0 * starts[:, 0]) * np.cos(2.0 * starts[:, 1]) + 0.5 * rng.normal(size=len(starts))
    return found


def slope(starts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The higher the number of the start, the better."""
    found: np.ndarray = starts + 2.0 * rng.choice([-1.0, 1.0], size=len(starts))
    return found


def flip(starts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Success or not; from every third start hardly ever."""
    return (rng.random(len(starts)) < np.where(starts % 3 == 0, 0.05, 0.8)).astype(float)


def pay_rarely(starts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The rarest starts pay most."""
    return np.sqrt(starts + 1.0) + rng.exponential(size=len(starts))


Reward = Callable[[np.ndarray, np.random.Generator], np.ndarray]
MADE_UP: dict[str, Reward] = {"goal": reach_goal, "success": succeed, "skewed": skew, "waves": oscillate}
# With the number of states in which episodes start: all alike, or the probability of the n-th ∝ 1/n.
COUNTED: dict[str, tuple[Reward, int, bool]] = {
    "slope": (slope, 12, True),
    "flips": (flip, 30, True),
    "rare": (pay_rarely, 60, False),
}


class _Spaces:
    """Three numbers are seen, and nothing can be done."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,))
    action_space = spaces.Discrete(1)


def make_up(name: str) -> tuple[str, Pool, Studies]:
    """A pool of starts and returns that are drawn by a formula."""
    rng = np.random.default_rng(SEED)
    if name in MADE_UP:
        starts = rng.normal(size=(SAMPLE, 3))
        judge = Studies(load(lambda observation: 0, _Spaces()), (Starts(),))
        return f"made up: {name}", Pool(starts, MADE_UP[name](starts, rng)), judge
    reward, states, alike = COUNTED[name]
    chances = np.ones(states) if alike else 1.0 / np.arange(1, states + 1)
    begun = rng.choice(states, SAMPLE, p=chances / chances.sum())
    judge = Studies(bps.SoftmaxTable(np.zeros((states, 2))), (StartStates(),))
    return f"made up, {states} starts: {name}", Pool(begun, reward(begun, rng)), judge


def find_population(name: str, pools: Path) -> tuple[str, Pool, Studies]:
    """Title, where studies come from, and who values them."""
    if name in MADE_UP or name in COUNTED:
        return make_up(name)
    title, policy, pool = find_pool(name, POOLED[name], pools)
    counted = isinstance(policy.observation_space, spaces.Discrete)
    return title, pool, Studies(policy, (StartStates() if counted else Starts(),))


def measure(population: Pool, judge: Studies, episodes: int, resets: int, count: int, seed: int) -> dict[str, Any]:
    """One cell."""
    rng = np.random.default_rng([seed, episodes, resets])
    truth, plain = population.value, population.plain_variance(episodes)
    rows = []
    for _ in range(count):
        starts, further, returns = population.draw(rng, episodes, resets)
        values = judge.conclude(starts, further, returns)
        halves = [np.inf if error is None else error.half_width(LEVEL) for error in (values.error, values.tight_error)]
        half = stats.t.ppf(0.5 + LEVEL / 2.0, episodes - 1) * returns.std(ddof=1) / np.sqrt(episodes)
        own = 0.0 if values.tight_error is None else values.tight_error.variance
        rows.append([values.mean - truth, returns.mean() - truth, own, *halves, half])
    error, plain_error, own, wide, tight, student = np.array(rows).T
    ratios = pair_ratios(error**2 / plain, plain_error**2 / plain, resolved=True)
    return {
        "ratio": float(ratios.mean()),
        "noise": float(ratios.std(ddof=1) / np.sqrt(count)),
        "expected": float(own.mean() / plain),
        "bias": float(error.mean() / (error.std(ddof=1) / np.sqrt(count))),
        "covered": float(np.mean(np.abs(error) <= wide)),
        "tight": float(np.mean(np.abs(error) <= tight)),
        "student": float(np.mean(np.abs(plain_error) <= student)),
        "width": float(wide.mean() / student.mean()),
    }


def main() -> None:
    every = [*COUNTED, *MADE_UP, *POOLED]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=every, help=", ".join(every))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--studies", type=int, nargs="+", default=[500] * len(SIZES), help="for each of the sizes")
    parser.add_argument("--resets", type=int, nargs="+", default=[10, 50], help="for each episode")
    parser.add_argument("--pools", type=Path, default=Path("runs/pools"), help="where the pools are kept")
    parser.add_argument("--keep", type=Path, help="a file in which every cell is kept")
    options = parser.parse_args()
    kept = options.keep.read_text().splitlines() if options.keep is not None and options.keep.exists() else []
    done = {(e["task"], e["episodes"], e["resets"], e["studies"]): e for e in map(json.loads, kept)}
    print("| task | episodes | M/n | studies | ratio | expected | bias | coverage | tight | Monte Carlo's | width |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name in options.tasks:
        title, population, judge = find_population(name, options.pools)
        for episodes, count in zip(options.sizes, options.studies, strict=True):
            for resets in options.resets:
                key = {"task": name, "episodes": episodes, "resets": resets, "studies": count}
                cell = done.get(tuple(key.values()))
                if cell is None:
                    cell = key | measure(population, judge, episodes, resets, count, zlib.crc32(name.encode()))
                    if options.keep is not None:
                        with options.keep.open("a") as file:
                            file.write(json.dumps(cell) + "\n")
                print(
                    f"| {title} | {episodes} | {resets} | {count} | {cell['ratio']:.3f} ± {cell['noise']:.3f} | "
                    f"{cell['expected']:.3f} | {cell['bias']:+.1f} | {cell['covered']:.1%} | {cell['tight']:.1%} | "
                    f"{cell['student']:.1%} | {cell['width']:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
