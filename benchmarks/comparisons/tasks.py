"""Two policies of a tabular problem whose difference the oracle knows: none at all, or one that is worth finding."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

import bpsearch as bps
from benchmarks.coverage import failures
from benchmarks.evaluators.tasks import TASKS

OUTCOMES = ("two coins", "rare failure")  # problems whose return is 0 or 1
TINY = 1e-9
UNSEEN = "rare loss"  # the problem whose verdicts go wrong by what was not seen


@dataclass(frozen=True, eq=False)
class Pair:
    """Two policies in one environment, and the exact difference of their values."""

    name: str
    env: bps.TabularMDP
    one: bps.SoftmaxTable
    other: bps.SoftmaxTable

    @property
    def difference(self) -> float:
        """The value of the first less that of the second."""
        return bps.oracle.value(self.env, self.one) - bps.oracle.value(self.env, self.other)

    @property
    def return_range(self) -> tuple[float, float] | None:
        """Between which numbers returns lie: 0 and 1 if they are outcomes."""
        return (0.0, 1.0) if self.name in OUTCOMES else self.env.return_range

    @property
    def deviation(self) -> float:
        """The standard deviation of a return of the second."""
        return float(np.sqrt(bps.oracle.variance(self.env, self.other, self.other, "mc")))


def apart(
    name: str, env: bps.TabularMDP, policy: bps.SoftmaxTable, gap: float, seed: int = 0, size: float = 0.5
) -> Pair:
    """Two policies whose values differ by `gap` standard deviations of a return."""
    rng = np.random.default_rng(seed)
    for _ in range(50):
        first, second = rng.normal(scale=size, size=(2, *policy.logits.shape))
        other = bps.SoftmaxTable(policy.logits + first)
        deviation = np.sqrt(bps.oracle.variance(env, other, other, "mc"))
        wanted = bps.oracle.value(env, other) + gap * deviation

        def excess(t: float, second=second, wanted=wanted) -> float:
            return bps.oracle.value(env, bps.SoftmaxTable(policy.logits + t * second)) - wanted

        grid = np.linspace(-3.0, 3.0, 25)
        found = np.array([excess(t) for t in grid])
        change = np.flatnonzero(np.diff(np.sign(found)) != 0)
        if len(change):
            at = change[np.argmin(np.abs(np.abs(grid[change]) - 1.0))]
            t = brentq(excess, grid[at], grid[at + 1], xtol=1e-12)
            return Pair(name, env, bps.SoftmaxTable(policy.logits + t * second), other)
    raise ValueError(f"no two policies of {name} differ by {gap} deviations")


def two_coins(gap: float) -> Pair:
    """A coin of one of two kinds, and two policies that are each good with another kind; the return is 0 or 1."""
    rewards, transitions = np.zeros((3, 2, 3)), np.zeros((3, 2, 3))
    rewards[:2, 0], transitions[..., 2] = 1.0, 1.0
    env = bps.TabularMDP(transitions, rewards, [0.5, 0.5, 0.0], [False, False, True], horizon=1)
    half = gap / 4.0  # the deviation of a return is 1/2
    wins = ([0.7 + half, 0.3 + half, 0.5], [0.3 - half, 0.7 - half, 0.5])
    one, other = (bps.SoftmaxTable.from_probabilities(np.column_stack([p, np.subtract(1.0, p)])) for p in wins)
    return Pair("two coins", env, one, other)


def rare_loss(gap: float, chance: float = 0.01, loss: float = 20.0) -> Pair:
    """One policy tosses a coin for 1; the other gets a little more, and in one of a hundred episodes loses 20.

    A third of all studies do not see that in their first hundred episodes. No interval that knows only what it has seen
    can hold then.
    """
    rewards, transitions = np.zeros((4, 2, 4)), np.zeros((4, 2, 4))
    transitions[0, 0] = [0.0, 0.5, 0.5, 0.0]
    transitions[0, 1] = [0.0, (1.0 - chance) / 2.0, (1.0 - chance) / 2.0, chance]
    transitions[1:, :, 1:] = np.eye(3)[:, None]
    more = chance * (loss + 0.5) / (1.0 - chance)
    rewards[0, 0], rewards[0, 1] = [0.0, 1.0, 0.0, 0.0], [0.0, 1.0 + more, more, -loss]
    start, terminal = [1.0, 0.0, 0.0, 0.0], [False, True, True, True]
    one, other = (bps.SoftmaxTable.from_probabilities(np.tile(p, (4, 1))) for p in ((1 - TINY, TINY), (TINY, 1 - TINY)))
    equal = Pair(UNSEEN, bps.TabularMDP(transitions, rewards, start, terminal, horizon=1), one, other)
    rewards[0, 0] += gap * equal.deviation
    return Pair(UNSEEN, bps.TabularMDP(transitions, rewards, start, terminal, horizon=1), one, other)


def problems(gap: float, only: Collection[str] | None = None) -> Iterator[Pair]:
    """Seven problems, or some of them by name."""

    def ridge() -> Pair:
        env, courier = failures()
        return apart("rare failure", env, courier, gap, size=0.3)

    def of_task(name: str, task: str, size: float = 0.5) -> Pair:
        found = TASKS[task]()
        assert isinstance(found.env, bps.TabularMDP)
        assert isinstance(found.policy, bps.SoftmaxTable)
        return apart(name, found.env, found.policy, gap, size=size)

    every: dict[str, Callable[[], Pair]] = {
        "4x4 gridworld": lambda: of_task("4x4 gridworld", "gridworld-early", 0.2),
        "10x10 gridworld": lambda: of_task("10x10 gridworld", "stochastic-middle", 0.2),
        "random MDP": lambda: of_task("random MDP", "random-1"),
        "nearly deterministic MDP": lambda: of_task("nearly deterministic MDP", "random-0"),
        "two coins": lambda: two_coins(gap),
        "rare failure": ridge,
        UNSEEN: lambda: rare_loss(gap),
    }
    return (make() for name, make in every.items() if only is None or name in only)
