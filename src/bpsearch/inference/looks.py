"""Looking after every batch at a cost that does not grow with the batches before."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bpsearch.control_variates.modeled import ModeledState
from bpsearch.errors import InvalidArgumentError
from bpsearch.inference.confidence_sequence import AsymptoticSequence, CertifiedSequence, out_of_range
from bpsearch.inference.cross_fitting import Knowledge
from bpsearch.inference.difference import Turn
from bpsearch.inference.stopping import Target
from bpsearch.inference.valuation import Valuation, ValuedBatch


@dataclass(frozen=True, eq=False)
class _Seen:
    """Which batches have entered a sequence: how many, and the number of the last in the order of asking."""

    count: int = 0
    last: int = -1


class Looks:
    """The sequences of intervals of a study, extended by the batches that have come since the last look.

    Only what may be missing of an event that a search looks for is asked of all batches again (`Valuation.missing`).
    Batches enter in the order of asking. One that is told late, between batches that have entered already, makes the
    sequences begin again. A look that is interrupted leaves everything as it was.

    Args:
        valuation: how batches are valued.
        state: the valuation's first state: the policy and γ.
    """

    def __init__(self, valuation: Valuation, state: ModeledState) -> None:
        self._valuation, self._state = valuation, state
        self._asymptotic: tuple[_Seen, AsymptoticSequence, Knowledge | None] | None = None
        self.turns: dict[int, Turn] = {}  # of the batches in that sequence
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
            valued = batch(number)
            values, knowledge = self._valuation.advance(self._state, knowledge, valued)
            plain = self._valuation.plain(valued)
            turn = Turn(values, valued.returns, plain is not None, valued.weight, valued.log_weights)
            self.turns[number] = turn
            if valued.weight:
                self.turns[number] = turn = replace(turn, missing=self._valuation.missing(self.turns.values()))
            sequence = sequence.add(values, valued.weight, plain, turn.missing)
            if plain is None:
                sequence = sequence.learn(valued.returns, valued.log_weights)
        self._asymptotic = seen, sequence, knowledge
        return sequence

    def later(self, batches: Mapping[int, ValuedBatch], tightest: int) -> "LateSequence":
        """The same sequence for these batches, the last told last, computed when somebody asks for it."""
        return LateSequence(self, dict(batches), tightest)

    def again(self) -> "Looks":
        """The same before any look."""
        return Looks(self._valuation, self._state)

    @property
    def seen(self) -> int:
        """How many batches are in the asymptotic sequence."""
        return 0 if self._asymptotic is None else self._asymptotic[0].count

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
            sequence = sequence.add(valued.log_weights, valued.returns, counts=valued.weight > 0.0)
        self._certified[key] = seen, sequence
        return sequence.interval


class LateSequence:
    """The asymptotic sequence after some batches: most people who read an estimate never ask for it.

    It comes out the same to the last bit whenever it is asked for, whatever has been told since.
    """

    def __init__(self, looks: Looks, batches: dict[int, ValuedBatch], tightest: int) -> None:
        self._pending: tuple[Looks, dict[int, ValuedBatch], int] | None = (looks, batches, tightest)
        self._found: AsymptoticSequence | None = None

    def __call__(self) -> AsymptoticSequence:
        """The sequence."""
        if self._found is None:
            assert self._pending is not None
            looks, batches, tightest = self._pending
            # The study's own looks go on from what they have seen, unless they have seen more than these batches.
            own = looks if looks.seen <= len(batches) else looks.again()
            self._found = own.sequence(batches, batches.__getitem__, tightest)
            self._pending = None
        return self._found

    def __getstate__(self) -> dict[str, Any]:
        return {"_pending": None, "_found": self()}


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
