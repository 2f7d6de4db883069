"""The methods under attack: they value batches of a policy's episodes, and make an answer of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy import stats

import bpsearch as bps
from bpsearch.inference.intervals import MeanError
from bpsearch.inference.valuation import ValuedBatch
from bpsearch.methods import find_method

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
    """Values each batch once; the first batch, the first two, and so on make an answer each."""

    def value(self, policy: bps.SoftmaxTable, discount: float, batch: bps.Trajectories) -> Any:
        """What is kept of a batch."""
        ...

    def conclude(self, policy: bps.SoftmaxTable, discount: float, batches: Sequence[Any]) -> Outcome:
        """The answer from what was kept."""
        ...


@dataclass(frozen=True)
class MonteCarlo:
    """The mean of the returns with Student's interval."""

    def value(self, policy: bps.SoftmaxTable, discount: float, batch: bps.Trajectories) -> np.ndarray:
        """The returns."""
        return np.asarray(batch.returns(discount))

    def conclude(self, policy: bps.SoftmaxTable, discount: float, batches: Sequence[np.ndarray]) -> Outcome:
        """Their mean."""
        returns = np.concatenate(batches)
        half = stats.t.ppf(0.5 + LEVEL / 2.0, len(returns) - 1) * np.std(returns, ddof=1) / np.sqrt(len(returns))
        return Outcome(float(returns.mean()), float(returns.mean() - half), float(returns.mean() + half), 1.0, 1.0)


@dataclass(frozen=True)
class OfLibrary:
    """What `bps.evaluate(method=name)` says, without a study around it: of a method that the policy itself acts for."""

    name: str

    def value(self, policy: bps.SoftmaxTable, discount: float, batch: bps.Trajectories) -> ValuedBatch:
        """What the valuation keeps."""
        valuation = find_method(self.name).valuation
        return valuation.value(valuation.init(policy, discount), batch)

    def conclude(self, policy: bps.SoftmaxTable, discount: float, batches: Sequence[ValuedBatch]) -> Outcome:
        """Value, interval and savings as `Estimate` has them."""
        valuation = find_method(self.name).valuation
        values = valuation.conclude(valuation.init(policy, discount), batches)
        half = np.nan if values.error is None else values.error.half_width(LEVEL)
        returns = np.concatenate([batch.returns for batch in batches])
        savings = (_savings(returns, error) for error in (values.error, values.tight_error))
        return Outcome(values.mean, values.mean - half, values.mean + half, *savings)


def _savings(returns: np.ndarray, error: MeanError | None) -> float:
    """Monte Carlo's variance of the mean divided by the method's; NaN if nothing varies."""
    plain = float(np.var(returns, ddof=1)) / len(returns)
    return plain / error.variance if plain > 0.0 and error is not None else np.nan


METHODS: dict[str, Method] = {"auto": OfLibrary("auto"), "mc": MonteCarlo()}
