"""Would it help a mean to choose starts by what they promise? Strata along a prediction, beside the control variate.

    python -m benchmarks.systematic_starts --studies 60 --pools /tmp/pools

All methods have the same resets: K for each episode, its own among them. Batches have 100 episodes.

- control variate: what `auto` does. K − 1 further starts, f cross-fitted among all episodes, and gated.
- systematic: the first batch is the control variate's. From then on f is what earlier batches teach (learned again
  when the episodes have doubled). The 100 K starts of a batch are put in the order of f, and of each 100 neighbors in
  that order one is run. The value is the mean of the returns.
- both: the same starts, valued by g − f'(S) plus the mean of f' over the stratum, f' cross-fitted among all episodes.
  Given the offered starts this is unbiased, too.

What is compared are variances, not squared errors, which would need thousands of studies. Given f the pool
(`start_pools.py`) tells the variance of each method: Var(g − f') + Var(f')/(K − 1) without strata, the mean of the
variances within 100 strata plus Var(g)/K with them. f has no gate: an order without meaning does no harm, so this is
the best that can be said for strata. f' has none in "both", nor in "ungated", beside which "both" is to be seen.
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.start_pools import Pool, Studies, find_pool
from bpsearch.control_variates import Starts
from bpsearch.control_variates.features import CANDIDATES, Moments, Scale, expand
from bpsearch.inference.cross_fitting import FOLDS
from bpsearch.policies.base import Policy

BATCH = STRATA = 100
JUDGED = 20_000  # episodes by which the pool tells a variance
POOLS = {
    "acrobot": 400_000,
    "cartpole-swingup": 400_000,
    "pendulum-v1-half": 200_000,
    "pendulum-v1-trained": 200_000,
    "pendulum-v1-trained:mode": 200_000,
}


class Promise:
    """f: the ridge regression, among the candidates, that predicts one half of the episodes best from the other."""

    def __init__(self, numbers: np.ndarray, returns: np.ndarray) -> None:
        self.scale = Scale.of(numbers)
        rows, half = expand(self.scale(numbers)), np.arange(len(returns)) % 2 == 0
        parts = [Moments.of(rows[side], returns[side]) for side in (half, ~half)]
        wrong = np.zeros(len(CANDIDATES))
        for part, side in zip(parts, (~half, half), strict=True):
            slopes = np.array([candidate.solve(numbers.shape[1], *part.center()) for candidate in CANDIDATES])
            offsets = (part.target - slopes @ part.row) / part.count
            wrong += np.sum((rows[side] @ slopes.T + offsets - returns[side, None]) ** 2, axis=0)
        best = CANDIDATES[int(np.argmin(wrong))]
        self.slope = best.solve(numbers.shape[1], *Moments.add(parts).center())

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        """(n,), up to a constant."""
        found: np.ndarray = expand(self.scale(numbers)) @ self.slope
        return found


def within(values: np.ndarray, order: np.ndarray) -> float:
    """The mean variance within strata of neighbors."""
    strata = values[np.argsort(order)][: len(values) // STRATA * STRATA].reshape(STRATA, -1)
    return float(strata.var(axis=1, ddof=1).mean())


def run_study(
    pool: Pool, numbers: np.ndarray, studies: Studies, rng: np.random.Generator, episodes: int, offered: int
) -> dict[str, float]:
    """The variance of one episode's value, relative to that of a return."""
    drawn, judged = np.split(rng.permutation(len(pool.returns))[: episodes + JUDGED], [episodes])
    plain, returns = float(pool.returns.var()), pool.returns[judged]
    further = rng.integers(len(pool.returns), size=(episodes, offered - 1))

    def value(count: int) -> float:
        rows = drawn[:count]
        found = studies.conclude(pool.starts[rows], pool.starts[further[:count]], pool.returns[rows])
        assert found.tight_error is not None
        return found.tight_error.variance * count

    part = drawn[: episodes * (FOLDS - 1) // FOLDS]
    fitted = Promise(numbers[part], pool.returns[part])(numbers[judged])
    rest = returns - fitted
    found = {
        "control variate": value(episodes),
        "ungated": float(rest.var() + fitted.var() / (offered - 1)),
        "systematic": BATCH * value(BATCH),
        "both": BATCH * float(rest.var() + fitted.var() / (offered - 1)),
    }
    known = BATCH
    while known < episodes:
        ahead = min(known, episodes - known)
        promised = Promise(numbers[drawn[:known]], pool.returns[drawn[:known]])(numbers[judged])
        found["systematic"] += ahead * (within(returns, promised) + plain / offered)
        found["both"] += ahead * (within(rest, promised) + plain / offered)
        known += ahead
    for name in ("systematic", "both"):
        found[name] /= episodes
    return {name: variance / plain for name, variance in found.items()}


def measure(title: str, policy: Policy, pool: Pool, episodes: int, offered: int, count: int) -> str:
    """A line of the table."""
    numbers, studies = Starts().bind(policy, 1.0).numbers(pool.starts), Studies(policy, (Starts(),))
    rng = np.random.default_rng(episodes)
    found = [run_study(pool, numbers, studies, rng, episodes, offered) for _ in range(count)]
    columns = [np.array([study[name] for study in found]) for name in found[0]]
    cells = [f"{column.mean():.3f} ± {column.std(ddof=1) / np.sqrt(count):.3f}" for column in columns]
    return f"| {title} | {episodes} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(POOLS), help=", ".join(POOLS))
    parser.add_argument("--studies", type=int, default=60)
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--offered", type=int, default=20, help="K")
    parser.add_argument("--pools", type=Path, required=True, help="where the pools are kept")
    options = parser.parse_args()
    print("| task | episodes | control variate | ungated | systematic | both |")
    print("|---|---|---|---|---|---|")
    for name in options.tasks:
        title, policy, pool = find_pool(name, POOLS[name], options.pools)
        for episodes in options.sizes:
            print(measure(title, policy, pool, episodes, options.offered, options.studies), flush=True)


if __name__ == "__main__":
    main()
