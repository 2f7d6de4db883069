"""A family of tasks: parameters with their ranges, and what is built of them."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

import bpsearch as bps
from benchmarks.adversary.moments import known_moments
from benchmarks.adversary.ranges import Range
from benchmarks.adversary.sketch import Problem

if TYPE_CHECKING:
    from benchmarks.adversary.networks import Seen


@dataclass(frozen=True, eq=False)
class Task:
    """A problem whose answer is known.

    Attributes:
        family: its name.
        parameters: what builds the task again.
        mdp: where; a table, or one that is seen as numbers.
        policy: what is evaluated.
        truth: its value, exactly.
        variance: of one episode's return, Monte Carlo's, exactly.
        kurtosis: of one episode's return, exactly; 3 for a normal one, 1/p for an event of small probability p, NaN
            without variance.
    """

    family: str
    parameters: dict[str, float]
    mdp: "bps.TabularMDP | Seen"
    policy: bps.Policy
    truth: float
    variance: float
    kurtosis: float


@dataclass(frozen=True)
class Family:
    """Draws tasks and builds them.

    Attributes:
        name: for tables and options.
        attack: what it does to the method, in a few words.
        make: from the parameters to the problem.
        ranges: of the parameters.
    """

    name: str
    attack: str
    make: Callable[..., Problem]
    ranges: Mapping[str, Range]

    def __call__(self, rng: np.random.Generator) -> Task:
        """A task with drawn parameters."""
        return self.build(self.draw(rng))

    def draw(self, rng: np.random.Generator) -> dict[str, float]:
        """Parameters."""
        return {name: range_.draw(rng) for name, range_ in self.ranges.items()}

    def mutate(self, parameters: Mapping[str, float], rng: np.random.Generator) -> dict[str, float]:
        """Parameters near the given ones."""
        return {name: range_.mutate(parameters[name], rng) for name, range_ in self.ranges.items()}

    def build(self, parameters: Mapping[str, float]) -> Task:
        """The task with these parameters."""
        self.check(parameters)
        problem = self.make(**parameters)
        return Task(self.name, dict(parameters), *problem, **asdict(known_moments(*problem)))

    def check(self, parameters: Mapping[str, float]) -> None:
        """Refuse parameters of other names."""
        if parameters.keys() != self.ranges.keys():
            raise ValueError(f"{self.name} has the parameters {sorted(self.ranges)}, got {sorted(parameters)}")

    def with_ranges(self, **ranges: Range) -> "Family":
        """The same with other ranges of some parameters."""
        return replace(self, ranges={**self.ranges, **ranges})
