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

from bpsearch._core.arrays import NumpyArray
from bpsearch.control_variates.base import AnyControlVariate
from bpsearch.inference.candidates import Candidates
from bpsearch.inference.judgement import Judgement, beyond

FOLDS = 5
SMALLEST = 4 * FOLDS  # episodes; fewer teach nothing
# The sets of folds that are left out: each fold; each pair of folds, of which one judges for the other; none.
APART: list[tuple[int, ...]] = [*((fold,) for fold in range(FOLDS)), *combinations(range(FOLDS), 2), ()]
_KEPT = np.array([[fold not in left_out for fold in range(FOLDS)] for left_out in APART])
# By two folds, the set without both; without the one if they are the same.
_WITHOUT = np.array([[APART.index(tuple(sorted({a, b}))) for b in range(FOLDS)] for a in range(FOLDS)])


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
        unseen: the variance of the mean that what was subtracted has not shown, although the policy's probabilities
            tell it; only what is beyond luck counts.
        explained: by kind of noise, the share of the variance of left-out episodes that the choice removed, the mean
            over folds.
        expected: the variance of a value that the policy's own probabilities let one expect; 0 if they do not tell.
        knowledge: what these episodes teach; None where there were too few of them.
    """

    values: Float[NumpyArray, " episodes"]
    unseen: float
    explained: dict[str, float]
    expected: float
    knowledge: Knowledge | None

    @classmethod
    def nothing(cls, targets: NumpyArray) -> "CrossFit":
        """Nothing subtracted."""
        return cls(np.array(targets, dtype=np.float64), 0.0, {}, 0.0, None)


def cross_fit(
    controls: Sequence[tuple[AnyControlVariate, Any]], targets: NumpyArray, folds: NumpyArray | None = None
) -> CrossFit:
    """Value N episodes of the evaluation policy, those of one fold independent of those of the others.

    Args:
        controls: control variates, each with its summary of the episodes.
        targets: (N,), Y.
        folds: (N,), the fold of each; that of episode i is i mod K by default.
    """
    if len(targets) < SMALLEST or not controls:
        return CrossFit.nothing(targets)
    count = len(targets)
    folds = np.arange(count) % FOLDS if folds is None else folds
    own = [control.evidence(summary, targets, folds, FOLDS) for control, summary in controls]
    candidates = Candidates.of(controls, [[_add(_keep(parts, kept)) for kept in _KEPT] for parts in own])
    means = (_KEPT @ np.bincount(folds, targets)) / (_KEPT @ np.bincount(folds))
    subtracted, missing = np.zeros(count), np.zeros(count)
    explained = dict.fromkeys(candidates.kinds, 0.0)
    steps: list[NumpyArray] = []
    for fold in range(FOLDS):
        # What is known without this fold and another judges the candidates for this one by the episodes of the other.
        apart, rows, others = _WITHOUT[fold][folds], folds == fold, folds != fold
        predictions = candidates.predictions[apart, :, np.arange(count)].T
        spread = candidates.spread[apart, :, np.arange(count)].T
        applied = candidates.predictions[_WITHOUT[fold][fold]]
        left, kept = targets - means[apart], 1.0
        for kind in candidates.kinds:
            judgement = Judgement.of(left[others], predictions[:, others], spread[:, others], applied[:, others])
            best, share, gain = candidates.choose(judgement, kind)
            control, told = share * predictions[best], share**2 * spread[best]
            explained[kind] += kept * gain / FOLDS
            left, kept = left - control, kept * (1.0 - gain)
            subtracted[rows] += control[rows]
            missing[rows] += np.where(told > 0.0, told - control**2, 0.0)[rows]
            found = candidates.steps(fold, best, share) if kind == "actions" else None
            steps += [] if found is None else [found]
    taught = Knowledge(
        tuple(_add(part) for part in own),
        count,
        float(targets.sum()),
        _add([candidates.judge(fold, APART.index(()), folds == fold, targets - means[fold]) for fold in range(FOLDS)]),
    )
    expected = [
        control.expected_variance(summary, targets, folds, steps) if len(steps) == FOLDS else None
        for control, summary in controls
    ]
    return CrossFit(
        targets - subtracted,
        float(beyond(np.asarray(missing.sum()), np.asarray(np.sum(missing**2)))) / count**2,
        explained,
        max((variance for variance in expected if variance is not None), default=0.0),
        taught,
    )


def value_next(
    controls: Sequence[tuple[AnyControlVariate, Any]], targets: NumpyArray, earlier: Knowledge
) -> tuple[NumpyArray, Knowledge]:
    """The values of a batch by what earlier ones teach, which choose as well, and what is known after it."""
    every, values = np.zeros(len(targets), int), np.array(targets, dtype=np.float64)
    own = [control.evidence(summary, targets, every, 1)[0] for control, summary in controls]
    fits = [[before, before + more] for before, more in zip(earlier.evidence, own, strict=True)]
    candidates = Candidates.of(controls, fits)
    for kind in candidates.kinds:
        best, share, _ = candidates.choose(earlier.judgement, kind)
        values -= share * candidates.predictions[0, best]
    judgement = candidates.judge(0, 1, every == 0, targets - earlier.total / earlier.count)
    taught = Knowledge(tuple(own), len(targets), float(targets.sum()), judgement)
    return values, earlier + taught


def _keep(parts: Sequence[Any], kept: NumpyArray) -> list[Any]:
    return [part for part, keep in zip(parts, kept, strict=True) if keep]


def _add(parts: Sequence[Any]) -> Any:
    first, *rest = parts
    for part in rest:
        first = first + part
    return first
