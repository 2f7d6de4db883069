"""How the parameters of a family are drawn, and how a search for the worst case changes them."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

STEP = 0.15  # of the whole range: the standard deviation of a mutation


class Range(Protocol):
    """The values that a parameter may have."""

    def draw(self, rng: np.random.Generator) -> float:
        """Any of them."""
        ...

    def mutate(self, value: float, rng: np.random.Generator) -> float:
        """One near `value`."""
        ...


@dataclass(frozen=True)
class Uniform:
    """Between two numbers."""

    low: float
    high: float

    def draw(self, rng: np.random.Generator) -> float:
        """Uniform."""
        return float(rng.uniform(self.low, self.high))

    def mutate(self, value: float, rng: np.random.Generator) -> float:
        """A normal step, cut off at the ends."""
        moved = value + STEP * (self.high - self.low) * rng.normal()
        return float(np.clip(moved, self.low, self.high))


@dataclass(frozen=True)
class LogUniform:
    """Between two positive numbers, each order of magnitude as likely as the other."""

    low: float
    high: float

    def draw(self, rng: np.random.Generator) -> float:
        """Uniform in the logarithm."""
        return self._clip(math.exp(self._logs.draw(rng)))

    def mutate(self, value: float, rng: np.random.Generator) -> float:
        """A normal step of the logarithm."""
        return self._clip(math.exp(self._logs.mutate(math.log(value), rng)))

    @property
    def _logs(self) -> Uniform:
        return Uniform(math.log(self.low), math.log(self.high))

    def _clip(self, value: float) -> float:
        return min(max(value, self.low), self.high)


@dataclass(frozen=True)
class Choice:
    """One of a few numbers in order. Sizes are few, so that tasks share compiled programs."""

    values: tuple[float, ...]

    def draw(self, rng: np.random.Generator) -> float:
        """Each as likely as the others."""
        return float(rng.choice(self.values))

    def mutate(self, value: float, rng: np.random.Generator) -> float:
        """The same in two of three cases, a neighbor else."""
        place = self.values.index(value) + int(rng.choice([-1, 0, 0, 0, 0, 1]))
        return float(self.values[min(max(place, 0), len(self.values) - 1)])


@dataclass(frozen=True)
class Seed:
    """The seed of whatever else a task draws."""

    def draw(self, rng: np.random.Generator) -> float:
        """Any."""
        return float(rng.integers(2**31))

    def mutate(self, value: float, rng: np.random.Generator) -> float:
        """The same in two of three cases, any other else: seeds have no neighbors."""
        return value if rng.uniform() < 2 / 3 else self.draw(rng)
