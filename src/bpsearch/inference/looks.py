"""Looking after every batch at a cost that does not grow with the batches before."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from bpsearch._core.arrays import NumpyArray
from bpsearch.control_variates.modeled import ModeledState
from bpsearch.errors import InvalidArgumentError
from bpsearch.inference.confidence_sequence import AsymptoticSequence, CertifiedSequence, out_of_range
from bpsearch.inference.cross_fitting import Knowledge
from bpsearch.inference.stopping import Target
from bpsearch.inference.valuation import Valuation, ValuedBatch


@dataclass(frozen=True, eq=False)
class _Seen:
    """Which batches have entered a sequence: how many, and the number of the last in the order of asking."""

    count: int = 0
    last: int = -1


class Looks:
    """The sequences of intervals of a study, extended by the batches that have come since the last look.

    Batches enter in the order of asking. One that is told late, between batches that have entered already, makes the
    sequences begin again. A look that is interrupted leaves everything as it was.

    Args:
        valuation: how batches are valued.
        state: the valuation's first state: the policy and γ.
        first_batch: what an episode of the first batch counts.
    """

    def __init__(self, valuation: Valuation, state: ModeledState, first_batch: float) -> None:
        self._valuation, self._state, self._first_batch = valuation, state, first_batch
        self._asymptotic: tuple[_Seen, AsymptoticSequence, Knowledge | None] | None = None
        self.values: dict[int, tuple[NumpyArray, NumpyArray]] = {}  # and returns, of the batches in that sequence
        self._certified: dict[tuple[float, float, float], tuple[_Seen, CertifiedSequence]] = {}

    def sequence(
        self, numbers: Collection[int], batch: Callable[[int], ValuedBatch], tightest: int
    ) -> AsymptoticSequence:
        """The asymptotic sequence after all batches.

        Args:
            numbers: of all batches, the last told last.
            batch: gives the batch of a number.
            tightest: of a new sequence.
        """
        nothing = (_Seen(), AsymptoticSequence(tightest), None)
        before = self._asymptotic
        seen, sequence, knowledge = nothing if before is None or before[1].tightest != tightest else before
        seen, new, again = _entering(numbers, seen)
        if again:
            _, sequence, knowledge = nothing
        for number in new:
            weight = 1.0 if number else self._first_batch
            valued = batch(number)
            values, knowledge = self._valuation.advance(self._state, knowledge, valued)
            self.values[number] = values, valued.returns
            sequence = sequence.add(values, weight, self._valuation.plain(valued))
        self._asymptotic = seen, sequence, knowledge
        return sequence

    def look(
        self,
        rule: Target,
        numbers: Collection[int],
        batch: Callable[[int], ValuedBatch],
        return_range: tuple[float, float] | None,
        tightest: int,
    ) -> tuple[float, float]:
        """The middle and half the width of the interval that a target is about, after all batches."""
        if rule.kind == "certified":
            assert return_range is not None
            low, high = self.certified(numbers, batch, return_range, rule.level)
            return (low + high) / 2.0, (high - low) / 2.0
        sequence = self.sequence(numbers, batch, tightest)
        return sequence.mean, sequence.half_width(rule.level)

    def certified(
        self,
        numbers: Collection[int],
        batch: Callable[[int], ValuedBatch],
        return_range: tuple[float, float],
        level: float,
    ) -> tuple[float, float]:
        """The certified interval after all batches.

        Raises:
            InvalidArgumentError: a return lies beyond the range, and nothing can be certified.
        """
        key = (*return_range, level)
        nothing = (_Seen(), CertifiedSequence(return_range, level))
        seen, sequence = self._certified.get(key, nothing)
        seen, new, again = _entering(numbers, seen)
        if again:
            _, sequence = nothing
        for number in new:
            valued = batch(number)
            if out_of_range(valued.returns, return_range):
                low, high = return_range
                raise InvalidArgumentError(
                    f"nothing can be certified: returns from {valued.returns.min():g} to {valued.returns.max():g} were "
                    f"seen, beyond the given range [{low:g}, {high:g}]; give one that holds every return that can "
                    "happen"
                )
            sequence = sequence.add(valued.log_weights, valued.returns)
        self._certified[key] = seen, sequence
        return sequence.interval


def _entering(numbers: Collection[int], seen: _Seen) -> tuple[_Seen, list[int], bool]:
    """What has been seen with all batches, those that enter, and whether it begins again because one came late."""
    if len(numbers) == seen.count:
        return seen, [], False
    newest = next(reversed(numbers))  # type: ignore[call-overload]
    if len(numbers) == seen.count + 1 and newest > seen.last:
        return _Seen(len(numbers), newest), [newest], False
    ordered = sorted(numbers)
    late = seen.count > 0 and ordered[seen.count - 1] != seen.last
    return _Seen(len(ordered), ordered[-1]), ordered if late else ordered[seen.count :], late
