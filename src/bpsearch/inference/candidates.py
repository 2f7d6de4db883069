"""What may be subtracted from episodes: the candidates of all control variates, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from bpsearch._core.arrays import NumpyArray
from bpsearch.control_variates.base import KINDS, AnyControlVariate
from bpsearch.inference.judgement import Judgement


@dataclass(frozen=True, eq=False)
class Candidates:
    """What C fits say of N episodes.

    Attributes:
        predictions: (C, J, N), what may be subtracted.
        spread: (C, J, N), the expectation of its square by the policy's own probabilities; 0 where they do not tell.
        doubts: (J,), how many standard errors each must explain.
        sources: (J,), for each its control variate, the fits of that, and its number among those.
        kinds: the candidates that explain each kind of noise. One of each kind may be taken: what explains different
            noise adds up, because its products have mean 0.
    """

    predictions: Float[NumpyArray, "fits candidates episodes"]
    spread: Float[NumpyArray, "fits candidates episodes"]
    doubts: Float[NumpyArray, " candidates"]
    sources: list[tuple[AnyControlVariate, Any, int]]
    kinds: dict[str, list[int]]

    @classmethod
    def of(cls, controls: Sequence[tuple[AnyControlVariate, Any]], evidence: Sequence[Sequence[Any]]) -> "Candidates":
        """Of all control variates, each with its summary, from C pieces of evidence for each."""
        predictions, spreads, sources = [], [], []
        for (control, summary), parts in zip(controls, evidence, strict=True):
            fits = control.fit(parts)
            found = control.predict(fits, summary)
            told = control.spread(fits, summary)
            predictions.append(found)
            spreads.append(np.zeros_like(found) if told is None else told)
            sources += [(control, fits, number) for number in range(found.shape[1])]
        kinds = {kind: [j for j, source in enumerate(sources) if source[0].kind == kind] for kind in KINDS}
        return cls(
            np.concatenate(predictions, axis=1),
            np.concatenate(spreads, axis=1),
            np.array([control.doubt for control, _, _ in sources]),
            sources,
            {kind: members for kind, members in kinds.items() if members},
        )

    def judge(self, fit: int, applied: int, rows: NumpyArray, deviations: NumpyArray) -> Judgement:
        """How well one fit predicts the deviations of the episodes `rows`, which the fit `applied` knows as well."""
        judged, used = self.predictions[fit][:, rows], self.predictions[applied][:, rows]
        return Judgement.of(deviations[rows], judged, self.spread[fit][:, rows], used)

    def choose(self, judgement: Judgement, kind: str) -> tuple[int, float, float]:
        """Which candidate of a kind to subtract, how much of it, and the share of the variance that this removes."""
        members = self.kinds[kind]
        best, share, gain = judgement.select(members).choose(self.doubts[members])
        return members[best], share, gain

    def steps(self, fit: int, candidate: int, share: float) -> NumpyArray | None:
        """(T, S, A), what is subtracted in each step by this share of this candidate; None if it is not known."""
        if share == 0.0:
            return np.zeros((1, 1, 1))
        control, fits, number = self.sources[candidate]
        found = control.steps(fits, fit, number)
        return None if found is None else share * found
