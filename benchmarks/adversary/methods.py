"""The methods under attack: studies of a task, and what they say after so many episodes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy import stats

import bpsearch as bps
from benchmarks.adversary.family import Task
from benchmarks.looks import BATCH, look, own_returns

LEVEL = 0.95


@dataclass(frozen=True)
class Outcome:
    """What a method says about one study.

    Attributes:
        value: the estimate.
        low: lower end of its 95% interval; NaN if it gives none.
        high: upper end.
        savings: how many times as many episodes Monte Carlo would need, as the method reports it; NaN if it does not.
        tight: the same without room for events that no episode has shown.
    """

    value: float
    low: float
    high: float
    savings: float
    tight: float


class Method(Protocol):
    """Runs a study of a task, and answers on the way."""

    def answers(self, task: Task, sizes: Sequence[int], seed: int) -> Iterator[Outcome]:
        """After each of the numbers of episodes, which ascend. Of one seed all methods get the same random numbers."""
        ...


@dataclass(frozen=True)
class MonteCarlo:
    """The mean of the returns with Student's interval."""

    def answers(self, task: Task, sizes: Sequence[int], seed: int) -> Iterator[Outcome]:
        """Their means."""
        returns = own_returns(task.policy, task.mdp, sizes[-1], seed)
        for size in sizes:
            own = returns[:size]
            half = stats.t.ppf(0.5 + LEVEL / 2.0, size - 1) * np.std(own, ddof=1) / np.sqrt(size)
            yield Outcome(float(own.mean()), float(own.mean() - half), float(own.mean() + half), 1.0, 1.0)


@dataclass(frozen=True)
class OfLibrary:
    """What `bps.evaluate(method=name)` says."""

    name: str

    def answers(self, task: Task, sizes: Sequence[int], seed: int) -> Iterator[Outcome]:
        """Value, interval and savings as `Estimate` has them; numbers that are whole batches are one study."""
        whole = [size for size in sizes if size % BATCH == 0]
        shared = iter(self._study(task, whole, seed)) if whole else iter(())
        for size in sizes:
            yield _outcome(next(shared) if size in whole else self._study(task, [size], seed)[0])

    def _study(self, task: Task, sizes: Sequence[int], seed: int) -> list[bps.Estimate]:
        return look(task.policy, task.mdp, sizes, self.name, seed)


def _outcome(estimate: bps.Estimate) -> Outcome:
    interval = estimate.interval(LEVEL) or (np.nan, np.nan)
    savings = (np.nan if found is None else found for found in (estimate.savings, estimate.tight_savings))
    return Outcome(estimate.value, *interval, *savings)


NAMES = ("auto", "bpg", "pdis-bpg", "closed-form", "as", "dr-bpg")
METHODS: dict[str, Method] = {**{name: OfLibrary(name) for name in NAMES}, "mc": MonteCarlo()}
