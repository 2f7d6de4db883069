"""Cross-fitting: values with control variates that are exactly unbiased, whatever is learned from the other episodes.

The episodes of the evaluation policy are independent. They are dealt into K folds; what is subtracted from those of a
fold is learned, *and chosen*, from the other folds only, and has mean 0 for whatever is fixed. Hence E[Y − c C] = E[Y]
for every episode, for every K ≥ 3.

Batches may also be valued in their order, each with what the earlier ones teach (`value_next`): such values are never
touched again, so that a sequence of intervals can be made of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Float

from bpsearch._core.arrays import NumpyArray, Scalar
from bpsearch.control_variates.base import AnyControlVariate

FOLDS = 5
SMALLEST = 4 * FOLDS  # episodes; fewer teach nothing
CAUTION = 0.5  # standard errors that are taken off what a candidate seems to explain
# The sets of folds that are left out: each fold, then each pair of folds, of which one judges for the other.
APART: list[tuple[int, ...]] = [*((fold,) for fold in range(FOLDS)), *combinations(range(FOLDS), 2)]
_KEPT = np.array([[fold not in left_out for fold in range(FOLDS)] for left_out in APART])


@dataclass(frozen=True, eq=False)
class Judgement:
    """How well J candidates predicted some deviations D of episodes that had no part in them.

    Attributes:
        total: Σ D².
        covered: (J,), Σ C D.
        noise: (J,), Σ C² D², the square of the standard error of `covered` if C explains nothing.
        squares: (J,), Σ C².
        cubes: (J,), Σ C³ D.
        quartics: (J,), Σ C⁴.
        unseen: (J,), how much more that should have been by the policy's own probabilities, where they tell it.
        doubtful: (J,), the square of the standard error of `unseen`.
    """

    total: Float[Scalar, ""]
    covered: Float[NumpyArray, " candidates"]
    noise: Float[NumpyArray, " candidates"]
    squares: Float[NumpyArray, " candidates"]
    cubes: Float[NumpyArray, " candidates"]
    quartics: Float[NumpyArray, " candidates"]
    unseen: Float[NumpyArray, " candidates"]
    doubtful: Float[NumpyArray, " candidates"]

    @classmethod
    def of(
        cls,
        deviations: Float[NumpyArray, " episodes"],
        candidates: Float[NumpyArray, "candidates episodes"],
        spread: Float[NumpyArray, "candidates episodes"],
    ) -> "Judgement":
        """Of (n,) deviations, (J, n) candidates and what the policy tells of their squares, 0 where nothing."""
        squared = candidates**2
        missing = np.where(spread > 0.0, spread - squared, 0.0)
        return cls(
            deviations @ deviations,
            candidates @ deviations,
            squared @ deviations**2,
            squared.sum(axis=-1),
            (squared * candidates) @ deviations,
            np.sum(squared**2, axis=-1),
            missing.sum(axis=-1),
            np.sum(missing**2, axis=-1),
        )

    def __add__(self, other: "Judgement") -> "Judgement":
        """Of both."""
        return Judgement(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    @property
    def residual_noise(self) -> Float[NumpyArray, " candidates"]:
        """(J,), Σ C² (D − b C)², the square of the standard error of `covered`, with b the share of C that fits best."""
        share = np.clip(self.covered / np.maximum(self.squares, 1e-300), 0.0, 1.0)
        return np.maximum(self.noise - 2.0 * share * self.cubes + share**2 * self.quartics, 0.0)

    def choose(self, doubts: Float[NumpyArray, " candidates"]) -> tuple[int, float, float]:
        """Which candidate to subtract, how much of it, and the share of the variance that this removes.

        One candidate is taken, with a share in [0, 1], or none. What it seems to explain must be beyond doubt, and is
        reduced by a part of the standard error that the residuals leave, so that luck does not count as gain: nothing
        of a candidate that explains everything, half a standard error of one that explains little.
        """
        careful = self.covered - CAUTION * np.sqrt(self.residual_noise)
        # Actions that these episodes have not shown, although they should have, would move a candidate further. What is
        # beyond luck counts; what may be luck can forbid a candidate, and does not decide between two.
        squares = self.squares + beyond(self.unseen, self.doubtful)
        shares = np.clip(careful / np.maximum(squares, 1e-300), 0.0, 1.0)
        gains = 2.0 * shares * careful - shares**2 * squares
        worst = 2.0 * shares * careful - shares**2 * (self.squares + np.maximum(self.unseen, 0.0))
        gains = np.where((self.covered > doubts * np.sqrt(self.noise)) & (worst > 0.0), gains, 0.0)
        best = int(np.argmax(gains))
        if self.total == 0.0 or gains[best] <= 0.0:
            return 0, 0.0, 0.0
        return best, float(shares[best]), float(gains[best] / self.total)


def beyond(excess: NumpyArray, squares: NumpyArray) -> NumpyArray:
    """What of a sum of terms is more than two of its standard errors; `squares` is the sum of the squared terms."""
    return np.maximum(excess - 2.0 * np.sqrt(squares), 0.0)


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What earlier batches teach: evidence for each control variate, sums of the targets, a judgement.

    `about` are the numbers of the control variates among those of a valuation, which may not all be of use.
    """

    evidence: tuple[Any, ...]
    count: int
    total: float
    judgement: Judgement
    about: tuple[int, ...] = ()

    def __add__(self, other: "Knowledge") -> "Knowledge":
        """What both teach."""
        evidence = tuple(one + more for one, more in zip(self.evidence, other.evidence, strict=True))
        return Knowledge(evidence, self.count + other.count, self.total + other.total, self.judgement + other.judgement)


@dataclass(frozen=True, eq=False)
class CrossFit:
    """Cross-fitted values.

    Attributes:
        values: (N,), Y less what is subtracted, each with what the other folds say.
        controls: (N,), what was subtracted.
        spread: (N,), the expectation of its square by the policy's own probabilities; 0 where they do not tell.
        explained: the share of the variance of left-out episodes that the choice removed, the mean over folds.
        expected: the variance of a value that the policy's own probabilities let one expect; 0 if they do not tell.
        knowledge: what these episodes teach; None where there were too few of them.
    """

    values: Float[NumpyArray, " episodes"]
    controls: Float[NumpyArray, " episodes"]
    spread: Float[NumpyArray, " episodes"]
    explained: float
    expected: float
    knowledge: Knowledge | None

    @property
    def unseen(self) -> float:
        """The variance of the mean that what was subtracted has not shown, although the policy's probabilities tell it.

        Only what is beyond luck counts.
        """
        missing = np.where(self.spread > 0.0, self.spread - self.controls**2, 0.0)
        return float(beyond(missing.sum(), np.sum(missing**2))) / len(self.values) ** 2

    @classmethod
    def nothing(cls, targets: NumpyArray) -> "CrossFit":
        """Nothing subtracted."""
        zeros = np.zeros(len(targets))
        return cls(np.array(targets, dtype=np.float64), zeros, zeros, 0.0, 0.0, None)


def cross_fit(controls: Sequence[tuple[AnyControlVariate, Any]], targets: NumpyArray) -> CrossFit:
    """Value N independent episodes of the evaluation policy; episode i is in fold i mod K.

    Args:
        controls: control variates, each with its summary of the episodes.
        targets: (N,), Y.
    """
    if len(targets) < SMALLEST or not controls:
        return CrossFit.nothing(targets)
    folds = np.arange(len(targets)) % FOLDS
    members = [np.flatnonzero(folds == fold) for fold in range(FOLDS)]
    own = [control.evidence(summary, targets, folds, FOLDS) for control, summary in controls]
    evidence = [[_add(_keep(parts, kept)) for kept in _KEPT] for parts in own]
    fits, candidate, spread, doubts = _predict(controls, evidence)
    sums, sizes = np.array([targets[rows].sum() for rows in members]), np.array([len(rows) for rows in members])
    means = (_KEPT @ sums) / (_KEPT @ sizes)

    def judge(left_out: tuple[int, ...], rows: NumpyArray) -> Judgement:
        at = APART.index(left_out)
        return Judgement.of(targets[rows] - means[at], candidate[at][:, rows], spread[at][:, rows])

    judgements: list[list[Judgement]] = [[] for _ in range(FOLDS)]
    for one, other in combinations(range(FOLDS), 2):
        # What is known without both judges the candidates for the one by the episodes of the other.
        judgements[one].append(judge((one, other), members[other]))
        judgements[other].append(judge((one, other), members[one]))
    subtracted, told, explained = np.zeros(len(targets)), np.zeros(len(targets)), np.zeros(FOLDS)
    steps: list[NumpyArray | None] = []
    for fold, rows in enumerate(members):
        best, share, explained[fold] = _add(judgements[fold]).choose(doubts)
        steps.append(_steps(controls, fits, fold, best, share))
        subtracted[rows] = share * candidate[fold, best, rows]
        told[rows] = share**2 * spread[fold, best, rows]
    taught = Knowledge(
        tuple(_add(part) for part in own),
        len(targets),
        float(targets.sum()),
        _add([judge((fold,), rows) for fold, rows in enumerate(members)]),
    )
    known = [part for part in steps if part is not None]
    expected = [
        control.expected_variance(summary, targets, folds, known) if len(known) == FOLDS else None
        for control, summary in controls
    ]
    most = max((variance for variance in expected if variance is not None), default=0.0)
    return CrossFit(targets - subtracted, subtracted, told, float(explained.mean()), most, taught)


def value_next(
    controls: Sequence[tuple[AnyControlVariate, Any]], targets: NumpyArray, earlier: Knowledge
) -> tuple[NumpyArray, Knowledge]:
    """The values of a batch by what earlier ones teach, which choose as well, and what is known after it."""
    _, (candidate,), (spread,), doubts = _predict(controls, [[part] for part in earlier.evidence])
    best, share, _ = earlier.judgement.choose(doubts)
    every = np.zeros(len(targets), int)
    taught = Knowledge(
        tuple(control.evidence(summary, targets, every, 1)[0] for control, summary in controls),
        len(targets),
        float(targets.sum()),
        Judgement.of(targets - earlier.total / earlier.count, candidate, spread),
    )
    return targets - share * candidate[best], earlier + taught


def _predict(
    controls: Sequence[tuple[AnyControlVariate, Any]], evidence: Sequence[Sequence[Any]]
) -> tuple[list[tuple[Any, int]], NumpyArray, NumpyArray, NumpyArray]:
    """The fits with how many candidates each has; (C, J, N), those candidates; their spread; (J,), their doubts."""
    every, candidates, spreads, doubts = [], [], [], []
    for (control, summary), parts in zip(controls, evidence, strict=True):
        fits = control.fit(parts)
        found = control.predict(fits, summary)
        told = control.spread(fits, summary)
        every.append((fits, found.shape[1]))
        candidates.append(found)
        spreads.append(np.zeros_like(found) if told is None else told)
        doubts += [control.doubt] * found.shape[1]
    return every, np.concatenate(candidates, axis=1), np.concatenate(spreads, axis=1), np.array(doubts)


def _steps(
    controls: Sequence[tuple[AnyControlVariate, Any]], fits: list[tuple[Any, int]], which: int, best: int, share: float
) -> NumpyArray | None:
    """(T, S, A), what is subtracted in each step by this share of this candidate; None if it is not known."""
    if share == 0.0:
        return np.zeros((1, 1, 1))
    for (control, _), (fit, count) in zip(controls, fits, strict=True):
        if best < count:
            found = control.steps(fit, which, best)
            return None if found is None else share * found
        best -= count
    return None


def _keep(parts: Sequence[Any], kept: NumpyArray) -> list[Any]:
    return [part for part, keep in zip(parts, kept, strict=True) if keep]


def _add(parts: Sequence[Any]) -> Any:
    first, *rest = parts
    for part in rest:
        first = first + part
    return first
