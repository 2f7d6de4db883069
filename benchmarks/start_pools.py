"""Many starts of a task with what came of them, from which studies are drawn: the truth is then known exactly.

A pool is a large number of episodes, each kept as its start and its return. A study runs n of them, without
replacement, and draws further starts from all. So the value is the mean of the pool, and Monte Carlo's variance is

    Var(g) / n · (P − n) / (P − 1),    Var(g) = Σ (g − ḡ)² / P,

for a pool of P episodes: no long reference run is as exact, and a study costs nothing but its own arithmetic.
A pool of 200,000 is as good as the task itself. Pools are kept in a directory, so that they are made once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import bpsearch as bps
from benchmarks.starts import find_task
from bpsearch.control_variates.base import AnyControlVariate
from bpsearch.inference.valuation import Valuation, ValuedBatch, Values
from bpsearch.policies.base import Policy

CHUNK = 5000  # episodes that are run at once
SEED = 20261119


@dataclass(frozen=True, eq=False)
class Pool:
    """P starts (P, ...) with their returns (P,)."""

    starts: np.ndarray
    returns: np.ndarray

    @property
    def value(self) -> float:
        """The truth."""
        return float(self.returns.mean())

    def plain_variance(self, episodes: int) -> float:
        """Monte Carlo's mean squared error."""
        left = (len(self.returns) - episodes) / (len(self.returns) - 1)
        return float(self.returns.var()) / episodes * left

    def draw(self, rng: np.random.Generator, episodes: int, resets: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Starts (n, ...), further starts (n, r, ...) and returns (n,)."""
        rows = rng.choice(len(self.returns), episodes, replace=False)
        further = rng.integers(len(self.returns), size=(episodes, resets))
        return self.starts[rows], self.starts[further], self.returns[rows]


def pool_of(env: Any, policy: Policy, episodes: int) -> Pool:
    """Run that many episodes."""
    discount = getattr(env, "discount", None)
    starts, returns = [], []
    for batch, first in enumerate(range(0, episodes, CHUNK)):
        some = bps.sample(env, policy, min(CHUNK, episodes - first), seed=SEED, batch=batch)
        starts.append(np.asarray(some.observations)[:, 0].copy())
        returns.append(np.asarray(some.returns(1.0 if discount is None else discount)))
    return Pool(np.concatenate(starts), np.concatenate(returns))


def find_pool(name: str, episodes: int, directory: Path) -> tuple[str, Policy, Pool]:
    """Title, policy and pool of a task of `benchmarks.starts`; the pool is read if it has been kept."""
    title, env, policy, _ = find_task(name)
    path = directory / f"{name.replace(':', '-')}-{episodes}.npz"
    if not path.exists():
        pool = pool_of(env, policy, episodes)
        directory.mkdir(parents=True, exist_ok=True)
        np.savez(path, starts=pool.starts, returns=pool.returns)
    with np.load(path) as kept:
        return title, policy, Pool(kept["starts"], kept["returns"])


class Studies:
    """What a valuation says of episodes that are known by their start and their return.

    Args:
        policy: who acted; only its critic and its spaces matter.
        controls: the control variates, about starts.
    """

    def __init__(self, policy: Policy, controls: Sequence[AnyControlVariate]) -> None:
        self.valuation = Valuation(control_variates=tuple(controls))
        self._state = self.valuation.init(policy, 1.0)
        self._controls = self.valuation.bind(policy, 1.0)

    def conclude(self, starts: np.ndarray, further: np.ndarray, returns: np.ndarray) -> Values:
        """The values of a study, and their error."""
        none = np.zeros(len(returns))
        batch = bps.Trajectories(
            observations=starts[:, None],
            actions=none[:, None],
            rewards=returns[:, None],
            log_probs=none[:, None],
            mask=np.ones((len(returns), 1), bool),
            resets=further,
        )
        summaries = tuple(None if control is None else control.summarize(batch) for control in self._controls)
        return self.valuation.conclude(self._state, [ValuedBatch(returns, none, returns, summaries)])
