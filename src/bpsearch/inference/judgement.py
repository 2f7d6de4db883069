"""Which candidates help: judged by episodes that had no part in them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from bpsearch._core.arrays import NumpyArray, Scalar

CAUTION = 0.5  # standard errors that are taken off what a candidate seems to explain


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
        influence: (J,), Σ (C' − C)², C' what would be subtracted by a fit to these episodes as well. It is large if a
            fit hangs on a single one of them, whose like no other shows: then C is not what was judged.
    """

    total: Float[Scalar, ""]
    covered: Float[NumpyArray, " candidates"]
    noise: Float[NumpyArray, " candidates"]
    squares: Float[NumpyArray, " candidates"]
    cubes: Float[NumpyArray, " candidates"]
    quartics: Float[NumpyArray, " candidates"]
    unseen: Float[NumpyArray, " candidates"]
    doubtful: Float[NumpyArray, " candidates"]
    influence: Float[NumpyArray, " candidates"]

    @classmethod
    def of(
        cls,
        deviations: Float[NumpyArray, " episodes"],
        candidates: Float[NumpyArray, "candidates episodes"],
        spread: Float[NumpyArray, "candidates episodes"],
        applied: Float[NumpyArray, "candidates episodes"] | None = None,
    ) -> "Judgement":
        """Of (n,) deviations, (J, n) candidates and what the policy tells of their squares, 0 where nothing.

        `applied` are (J, n), the candidates by a fit to these episodes as well; the same by default.
        """
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
            np.zeros(len(candidates)) if applied is None else np.sum((applied - candidates) ** 2, axis=-1),
        )

    def select(self, candidates: Sequence[int]) -> "Judgement":
        """Of these candidates alone."""
        total, *rest = vars(self).values()
        return Judgement(total, *(column[list(candidates)] for column in rest))

    def __add__(self, other: "Judgement") -> "Judgement":
        """Of both."""
        return Judgement(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    @property
    def residual_noise(self) -> Float[NumpyArray, " candidates"]:
        """(J,), Σ C² (D − b C)², the square of the standard error of `covered`, b the share of C that fits best."""
        share = np.clip(self.covered / np.maximum(self.squares, 1e-300), 0.0, 1.0)
        return np.maximum(self.noise - 2.0 * share * self.cubes + share**2 * self.quartics, 0.0)

    def choose(self, doubts: Float[NumpyArray, " candidates"]) -> tuple[int, float, float]:
        """Which candidate to subtract, how much of it, and the share of the variance that this removes.

        One candidate is taken, with a share in [0, 1], or none. What it seems to explain must be beyond doubt, and is
        reduced by a part of the standard error that the residuals leave, so that luck does not count as gain: nothing
        of a candidate that explains everything, half a standard error of one that explains little.
        """
        careful = self.covered - CAUTION * np.sqrt(self.residual_noise)
        moved = self.squares + self.influence
        # Actions that these episodes have not shown, although they should have, would move a candidate further. What is
        # beyond luck counts; what may be luck can forbid a candidate, and does not decide between two.
        squares = moved + beyond(self.unseen, self.doubtful)
        shares = np.clip(careful / np.maximum(squares, 1e-300), 0.0, 1.0)
        gains = 2.0 * shares * careful - shares**2 * squares
        worst = 2.0 * shares * careful - shares**2 * (moved + np.maximum(self.unseen, 0.0))
        gains = np.where((self.covered > doubts * np.sqrt(self.noise)) & (worst > 0.0), gains, 0.0)
        best = int(np.argmax(gains))
        if self.total == 0.0 or gains[best] <= 0.0:
            return 0, 0.0, 0.0
        return best, float(shares[best]), float(gains[best] / self.total)


def beyond(excess: NumpyArray, squares: NumpyArray) -> NumpyArray:
    """What of a sum of terms is more than two of its standard errors; `squares` is the sum of the squared terms."""
    return np.maximum(excess - 2.0 * np.sqrt(squares), 0.0)
