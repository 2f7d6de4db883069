"""Does it help a mean to choose starts by what they promise? `systematic` beside `auto`, at the same number of resets.

    python -m benchmarks.systematic_starts --studies 100 --pools /tmp/pools

Studies are drawn from pools of episodes whose mean is known exactly (`start_pools.py`). Both methods have K starts for
each episode. `auto` runs the first and learns from the others. `systematic` runs one of every K neighbors along a
prediction and learns from those that it does not run. Search, dealing and valuation are the program's own; only the
episodes come from the pool.

Mean squared errors would need thousands of studies. "variance" is that of the mean as groups of episodes tell it: the
folds of a batch are independent, so that the variance between their means has the right expectation, however episodes
of one fold depend on each other. Of all studies and batches together it is precise. "told" is what the methods say of
their own variance, without room for unseen events. All are relative to Monte Carlo's.
"""

import argparse
from pathlib import Path

import numpy as np

import bpsearch as bps
from benchmarks.start_pools import Pool, find_pool
from bpsearch.control_variates import Starts
from bpsearch.inference.cross_fitting import FOLDS
from bpsearch.inference.systematic import SystematicValuation
from bpsearch.inference.valuation import Valuation, ValuedBatch
from bpsearch.policies.base import Policy
from bpsearch.search.base import Search
from bpsearch.search.on_policy import OnPolicy
from bpsearch.search.systematic import SystematicStarts

BATCH = 100
POOLS = {
    "acrobot": 400_000,
    "cartpole-swingup": 400_000,
    "pendulum-v1-half": 200_000,
    "pendulum-v1-trained": 200_000,
    "pendulum-v1-trained:mode": 200_000,
}
METHODS: dict[str, tuple[Search, Valuation]] = {
    "auto": (OnPolicy(), Valuation(control_variates=(Starts(),))),
    "systematic": (SystematicStarts(), SystematicValuation(control_variates=(Starts(),))),
}


def draw_batch(
    pool: Pool, behavior: Policy, rng: np.random.Generator, size: int, offered: int
) -> tuple[np.ndarray, np.ndarray]:
    """(n,) episodes of the pool that are run, and (n, K − 1) whose starts are seen only."""
    rows = rng.integers(len(pool.returns), size=(size, offered))
    if behavior.starts is None:
        return rows[:, 0], rows[:, 1:]
    own, others = rows[:, 0].copy(), rows[:, 1:].copy()
    for first in {behavior.starts.members(episode).start for episode in range(size)}:
        members = behavior.starts.members(first)
        some = rows[list(members)].reshape(-1)
        dealt = behavior.starts.deal(members, rng.random(len(members)), pool.starts[some])
        assert dealt.others is not None
        own[list(members)], others[list(members)] = some[dealt.indices], some[dealt.others]
    return own, others


def run_study(
    pool: Pool, policy: Policy, method: str, rng: np.random.Generator, episodes: int, offered: int
) -> tuple[float, float, float, bool]:
    """The error of the mean, its variance by groups and as told, and whether the interval holds the truth."""
    search, valuation = METHODS[method]
    state, known = search.init(policy), valuation.init(policy, 1.0)
    (control,) = valuation.bind(policy, 1.0)
    assert control is not None
    batches = []
    for _ in range(0, episodes, BATCH):
        own, others = draw_batch(pool, search.behavior(state), rng, BATCH, offered)
        none, returns = np.zeros((BATCH, 1)), pool.returns[own]
        batch = bps.Trajectories(
            observations=pool.starts[own][:, None],
            actions=none,
            rewards=returns[:, None],
            log_probs=none,
            mask=np.ones((BATCH, 1), bool),
            resets=pool.starts[others],
        )
        state, _ = search.step(state, batch)
        batches.append(ValuedBatch(returns, none[:, 0], returns, (control.summarize(batch),), offered=offered))
    found = valuation.conclude(known, batches)
    assert found.tight_error is not None
    means = np.stack(found.batches).reshape(len(batches), -1, FOLDS).mean(axis=1)
    error = found.mean - pool.value
    covered = abs(error) <= found.tight_error.half_width(0.95)
    return error, float(means.var(axis=1, ddof=1).mean()) / means.size, found.tight_error.variance, covered


def measure(title: str, policy: Policy, pool: Pool, episodes: int, offered: int, count: int) -> str:
    """A line of the table."""
    plain, variances, cells = pool.plain_variance(episodes), [], []
    for method in METHODS:
        rng = np.random.default_rng(episodes)
        found = [run_study(pool, policy, method, rng, episodes, offered) for _ in range(count)]
        errors, variance, told, covered = (np.array(column) for column in zip(*found, strict=True))
        variances.append(variance / plain)
        cells += [
            f"{np.mean(errors**2) / plain:.3f} ± {np.std(errors**2) / plain / np.sqrt(count):.3f}",
            f"{variances[-1].mean():.4f} ± {variances[-1].std() / np.sqrt(count):.4f}",
            f"{told.mean() / plain:.4f}",
            f"{covered.mean():.1%}",
        ]
    one, other = (part.mean() for part in variances)
    noise = np.hypot(*(part.std() / part.mean() for part in variances)) / np.sqrt(count)
    cells.append(f"{other / one:.3f} ± {other / one * noise:.3f}")
    return f"| {title} | {episodes} | {offered} | {count} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(POOLS), help=", ".join(POOLS))
    parser.add_argument("--studies", type=int, default=100)
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--offered", type=int, default=20, help="K")
    parser.add_argument("--pools", type=Path, required=True, help="where the pools are kept")
    options = parser.parse_args()
    columns = " | ".join(f"{method}: squared error | variance | told | coverage" for method in METHODS)
    print(f"| task | episodes | K | studies | {columns} | variance relative to auto's |")
    print("|---" * (5 + 4 * len(METHODS)) + "|")
    for name in options.tasks:
        title, policy, pool = find_pool(name, POOLS[name], options.pools)
        for episodes in options.sizes:
            print(measure(title, policy, pool, episodes, options.offered, options.studies), flush=True)


if __name__ == "__main__":
    main()
