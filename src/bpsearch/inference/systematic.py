"""Values and their error where starts are chosen together: one of every few neighbors, along a prediction.

Episodes of one fold choose their starts together, by what earlier episodes of the same fold have taught
(`policies.chosen_starts.StartStrata`, `search.systematic`). Between folds everything is independent, so that
cross-fitting stays exactly unbiased: what is subtracted in a fold knows nothing that the fold has a part in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch._core.checks import check_integer
from bpsearch._core.jaxtools import replace
from bpsearch.inference.cross_fitting import FOLDS, CrossFit, cross_fit, value_next
from bpsearch.inference.intervals import MeanError, martingale_error
from bpsearch.inference.valuation import Valuation, ValuedBatch
from bpsearch.sampling.trajectories import Trajectories


@dataclass(frozen=True)
class SystematicValuation(Valuation):
    """Control variates for episodes of which those of a fold choose their starts together.

    Features of starts are scaled by all starts that were offered (`Starts`). Which of them a group runs does not matter
    for that, if all of its episodes are there. A batch in which some are missing, the last one, is therefore valued by
    what the batches before it teach.

    Attributes:
        together: how many episodes of a fold choose together, as for the search.
    """

    independent: ClassVar[bool] = False

    together: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("together", self.together, at_least=2)

    def value(self, state: Any, batch: Trajectories, shift: float = 0.0, weight: float = 1.0) -> ValuedBatch:
        """As ever; and how many starts each episode was offered, its own among them."""
        further = 0 if batch.resets is None else jax.tree_util.tree_leaves(batch.resets)[0].shape[1]
        return replace(super().value(state, batch, shift, weight), offered=1 + further)

    def _fit(self, state: Any, batches: Sequence[ValuedBatch]) -> CrossFit:
        """Cross-fitted among all batches that are whole, by the folds of the search."""
        # The first batch starts wherever the environment says: nothing is missing from it.
        size = FOLDS * self.together
        whole = [at for at, batch in enumerate(batches) if not at or len(batch.values) % size == 0]
        fit = self._fit_whole(state, [batches[at] for at in whole])
        ends = np.cumsum([len(batches[at].values) for at in whole])[:-1]
        values = dict(zip(whole, np.split(fit.values, ends), strict=True))
        for at, batch in enumerate(batches):
            if at not in values:
                before = [batches[other] for other in whole if other < at]
                last = len(before) == len(whole)
                values[at] = self._value_after(state, batch, before, fit if last else self._fit_whole(state, before))
        return replace(fit, values=np.concatenate([values[at] for at in range(len(batches))]))

    def _fit_whole(self, state: Any, batches: Sequence[ValuedBatch]) -> CrossFit:
        folds = np.concatenate([np.arange(len(batch.values)) % FOLDS for batch in batches])
        controls = list(self._controls(state, batches).values())
        return cross_fit(controls, np.concatenate([batch.returns for batch in batches]), folds)

    def _value_after(self, state: Any, batch: ValuedBatch, before: Sequence[ValuedBatch], fit: CrossFit) -> NumpyArray:
        """The values of a batch by what those before it teach; its returns if that is nothing."""
        found = self._controls(state, [batch])
        if fit.knowledge is None or set(found) != set(self._controls(state, before)):
            return batch.returns
        return value_next(list(found.values()), batch.returns, fit.knowledge)[0]

    def _error(
        self, batches: Sequence[ValuedBatch], values: Sequence[NumpyArray], weights: Sequence[float]
    ) -> MeanError | None:
        """By differences of pairs of neighbors along the prediction."""
        return paired_error(values, weights, [batch.offered for batch in batches])


def paired_error(batches: Sequence[NumpyArray], weights: Sequence[float], offered: Sequence[int]) -> MeanError | None:
    """The error of the mean over batches whose starts were chosen, one of every K neighbors.

    Given the starts that were offered, only those within a stratum of K neighbors might have been others. What that
    adds to the variance of a value is at most D, the mean of (V_i − V_j)² / 2 over pairs of neighboring strata: it is
    that, plus half the squared difference of their means. That the offered starts might have been others adds a K-th
    of the variance of all: s² / K. Both together, D + s² / K, are on average not too small, and where the starts were
    not chosen, as in the first batch, too large by a K-th.

    Episodes i and i + F of 2 F neighbors in a batch are a pair, with F folds. Those that are left over, and batches
    where nothing was offered, count by s².

    Args:
        batches: their values.
        weights: what an episode of each batch counts.
        offered: K of each batch.
    """
    plain = martingale_error(batches, weights)
    if plain is None:
        return None
    parts, freedoms, total = [], [], 0.0
    every = float(np.var(np.concatenate(list(batches)), ddof=1))
    for values, weight, count in zip(batches, weights, offered, strict=True):
        size = len(values)
        spread = float(np.var(values, ddof=1)) if size > 1 else every
        paired = values[: size - size % (2 * FOLDS)].reshape(-1, 2, FOLDS)
        total += weight * size
        left = size - paired.size if count > 1 else size
        if left < size:
            within = float(np.mean((paired[:, 0] - paired[:, 1]) ** 2)) / 2.0
            parts.append(weight**2 * (size - left) * within)
            freedoms.append((size - left) / 2.0)
        parts.append(weight**2 * (left + (size - left) / count if left < size else left) * spread)
        freedoms.append(max(size - 1.0, 1.0))
    variances = np.array(parts)
    freedom = variances.sum() ** 2 / np.sum(variances**2 / np.array(freedoms))
    return MeanError(float(variances.sum() / total**2), float(freedom))
