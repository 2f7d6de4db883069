"""Features of vectors, from linear to kernels, and the ridge regressions on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch._core.systems import solve_positive

# Of the kernels, in standard deviations of all numbers of a vector together.
WIDTHS: tuple[float, ...] = (1.0, 0.5, 0.7)
WAVES: tuple[int, ...] = (128, 128, 256)  # random Fourier features of each width
MOST_SQUARED = 20  # numbers of a vector of which all products are features


@dataclass(frozen=True, eq=False)
class Scale:
    """The number of some vectors, their sum and the sum of their squares: (d,) each."""

    count: float
    total: NumpyArray
    squares: NumpyArray

    @classmethod
    def of(cls, rows: NumpyArray) -> "Scale":
        """Of (n, d) vectors."""
        return cls(float(len(rows)), rows.sum(axis=0), np.sum(rows**2, axis=0))

    def __add__(self, other: "Scale") -> "Scale":
        """Of both."""
        return Scale(self.count + other.count, self.total + other.total, self.squares + other.squares)

    @property
    def size(self) -> int:
        """D."""
        return len(self.total)

    def __call__(self, rows: NumpyArray) -> NumpyArray:
        """The vectors with mean 0 and standard deviation 1; 0 where nothing varies."""
        mean = self.total / max(self.count, 1.0)
        deviation = np.sqrt(np.maximum(self.squares / max(self.count, 1.0) - mean**2, 0.0))
        varies = deviation > 1e-7 * np.abs(mean)
        return np.where(varies, (rows - mean) / np.where(varies, deviation, 1.0), 0.0)


@dataclass(frozen=True, eq=False)
class Moments:
    """Sums over some rows x (n, D) and targets y (n,): their number, Σ x, Σ y, Σ x xᵀ and Σ x y."""

    count: float
    row: NumpyArray
    target: float
    products: NumpyArray
    correlation: NumpyArray

    @classmethod
    def of(cls, rows: NumpyArray, targets: NumpyArray) -> "Moments":
        """In 64 bit."""
        rows = rows.astype(np.float64)
        return cls(float(len(rows)), rows.sum(axis=0), float(targets.sum()), rows.T @ rows, rows.T @ targets)

    @classmethod
    def add(cls, parts: Sequence["Moments"]) -> "Moments":
        """Of all."""
        return cls(*(sum(column[1:], column[0]) for column in zip(*(vars(p).values() for p in parts), strict=True)))

    def center(self) -> tuple[NumpyArray, NumpyArray]:
        """Σ (x − x̄)(x − x̄)ᵀ and Σ (x − x̄)(y − ȳ)."""
        mean = self.row / max(self.count, 1.0)
        return self.products - np.outer(self.row, mean), self.correlation - self.target * mean


@dataclass(frozen=True)
class Candidate:
    """A ridge regression on some of the features.

    Attributes:
        products: whether on the products of two numbers.
        width: on the waves of which width; None for none.
        strength: of the ridge on the waves.
        last: whether of the numbers it knows the last one only.
    """

    products: bool
    width: int | None = None
    strength: float = 0.0
    last: bool = False

    def solve(self, size: int, products: NumpyArray, correlation: NumpyArray) -> NumpyArray:
        """(D,), the coefficients, 0 for features that it does not have."""
        used, penalties = self._features(size)
        system = products[np.ix_(used, used)]
        system.flat[:: len(used) + 1] += penalties
        coefficients = np.zeros(len(correlation))
        coefficients[used] = solve_positive(system, correlation[used])
        return coefficients

    @property
    def parts(self) -> "tuple[Candidate, ...]":
        """Itself."""
        return (self,)

    @cache  # noqa: B019  # there are few candidates, and they live as long as the program
    def _features(self, size: int) -> tuple[NumpyArray, NumpyArray]:
        """Which features it has, and the ridge on each."""
        linear, squared, *waves = _blocks(size)
        penalties = np.full(waves[-1].stop, np.inf)
        penalties[slice(linear.stop - 1, linear.stop) if self.last else linear] = 1.0
        if self.products:
            penalties[squared] = 1.0
        if self.width is not None:
            penalties[waves[self.width]] = self.strength
        used = np.flatnonzero(np.isfinite(penalties))
        return used, penalties[used]


@dataclass(frozen=True)
class Blend:
    """The mean of several regressions: what the draw of waves does to each of them averages out."""

    parts: tuple[Candidate, ...]


def solve_all(
    candidates: "Sequence[Candidate | Blend]", size: int, products: NumpyArray, correlation: NumpyArray
) -> list[NumpyArray]:
    """(D,), the coefficients of each; a regression that several have a part in is solved once."""
    single = {part: None for candidate in candidates for part in candidate.parts}
    found = {part: part.solve(size, products, correlation) for part in single}
    return [np.asarray(np.mean([found[part] for part in each.parts], axis=0)) for each in candidates]


_NARROW, _BETWEEN = Candidate(True, 1, 0.1), Candidate(True, 2, 0.2)
CANDIDATES = (
    Candidate(False),
    Candidate(True),
    Candidate(False, 0, 0.1),
    _NARROW,
    _BETWEEN,
    Blend((_NARROW, _BETWEEN)),
)
# Where the last number is a prediction already, few episodes suffice to learn its slope.
WITH_PREDICTION = (*CANDIDATES, Candidate(False, last=True))


def expand(rows: NumpyArray) -> NumpyArray:
    """(n, D), the features of (n, d) scaled vectors: the numbers, their products, waves of each width.

    In 32 bit, which is precise enough for features, and several times as fast.
    """
    size, rows = rows.shape[1], rows.astype(np.float32)
    first, second = _pairs(size)
    directions, phases, amplitudes = _waves(size)
    # In place: these are the largest arrays, and to ask for memory takes longer than to compute.
    waves = rows @ directions
    waves += phases
    np.cos(waves, out=waves)
    waves *= amplitudes
    return np.concatenate([rows, rows[:, first] * rows[:, second], waves], axis=1)


@cache
def _pairs(size: int) -> tuple[NumpyArray, NumpyArray]:
    """Which numbers are multiplied."""
    if size > MOST_SQUARED:
        return np.arange(size), np.arange(size)
    first, second = np.triu_indices(size)
    return first, second


def _blocks(size: int) -> list[slice]:
    """Where the numbers, the products and the waves of each width are among the features."""
    ends = np.cumsum([0, size, len(_pairs(size)[0]), *WAVES])
    return [slice(int(start), int(end)) for start, end in pairwise(ends)]


@cache
def _waves(size: int) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
    """Directions (d, W), phases (W,) and amplitudes (W,): always the same ones, so that results repeat."""
    rng = np.random.default_rng(size)
    directions: list[NumpyArray] = []
    phases: list[NumpyArray] = []
    for some in (slice(2), slice(2, None)):  # the width that came last leaves the waves of the others as they were
        for width, count in zip(WIDTHS[some], WAVES[some], strict=True):
            directions.append(rng.normal(size=(size, count)) / (width * np.sqrt(size)))
        phases.append(rng.uniform(0.0, 2.0 * np.pi, int(np.sum(WAVES[some]))))
    amplitudes = np.repeat(np.sqrt(2.0 / np.array(WAVES)), WAVES).astype(np.float32)
    return np.concatenate(directions, axis=1).astype(np.float32), np.concatenate(phases).astype(np.float32), amplitudes
