"""Comparison: what a contest of policies says, difference by difference, and how they rank."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch.errors import InvalidArgumentError, MissingDependencyError
from bpsearch.inference.certified_difference import CertifiedDifference
from bpsearch.inference.difference import Decision, DifferenceSequence, Side, paired_error
from bpsearch.inference.estimate import Estimate, Interval
from bpsearch.inference.intervals import MeanError
from bpsearch.inference.standing import Contest, Design, Point
from bpsearch.inference.stopping import Ended

if TYPE_CHECKING:
    import pandas

    from bpsearch.report.comparison_json import ComparisonJson


@dataclass(frozen=True, eq=False)
class Difference:
    """By how much the value of the first of two policies is larger than that of the second.

    Attributes:
        one: the name of the first.
        other: the name of the second.
        value: the estimated difference of their values.
        error: of the difference, with room for events that no episode has shown; None if it cannot be known.
        tight_error: the same without that room.
        sequence: what the asymptotic anytime-valid interval is made of.
        decision: better, worse, equivalent within the margin, or undecided; valid whenever one stops.
        decided_at: after how many pairs of episodes it was decided; None if it is undecided.
        course: the difference after each round.
        pairs: (n, 2), the returns of both in each pair of episodes.
        shared: (n,), whether the two episodes of a pair had the same seed.
        comparisons: how many differences are decided at once.
        certified: what certified intervals are made of, if those decide.
    """

    one: str
    other: str
    value: float
    error: MeanError | None
    tight_error: MeanError | None
    sequence: DifferenceSequence
    decision: Decision
    decided_at: int | None
    course: tuple[Point, ...]
    pairs: NumpyArray
    shared: NumpyArray
    comparisons: int = 1
    certified: CertifiedDifference | None = None

    def interval(self, level: float = 0.95) -> Interval | None:
        """The anytime-valid interval that decides: it holds however often one looks and whenever one stops.

        An asymptotic one holds for many episodes, a certified one for any number. The intervals of all differences of
        a comparison hold at once with this level. None while nothing has varied, and for asymptotic ones while there
        are fewer than 30 pairs.
        """
        return (self.certified or self.sequence).interval(1.0 - (1.0 - level) / self.comparisons)

    def fixed_interval(self, level: float = 0.95) -> Interval | None:
        """The interval of this level, of this difference alone, for a number of episodes that was fixed in advance."""
        if self.error is None:
            return None
        half = self.error.half_width(level)
        return self.value - half, self.value + half

    @property
    def savings(self) -> float | None:
        """The variance of two independent Monte Carlo evaluations divided by that of this difference.

        So many times as many episodes they would need. There is room for what was not seen.
        """
        return self._times(self.sequence.plain_variance, self.sequence.variance)

    @property
    def tight_savings(self) -> float | None:
        """The same without that room."""
        return self._times(self.sequence.plain_variance, self.sequence.difference.reduced)

    @property
    def pairing_savings(self) -> float | None:
        """What shared seeds save of it: the variance without them divided by the variance with them."""
        return self._times(self.sequence.unpaired_variance, self.sequence.difference.reduced)

    @property
    def control_savings(self) -> float | None:
        """What the control variates of both policies save of it."""
        return self._times(self.sequence.plain_variance, self.sequence.unpaired_variance)

    def _times(self, before: float, after: float) -> float | None:
        return before / after if np.isfinite(before) and after > 0.0 else None


@dataclass(frozen=True)
class Rank:
    """A policy's place: 1 is the best. By what is decided it may be from `best` to `worst`."""

    name: str
    value: float
    best: int
    worst: int


@dataclass(frozen=True, eq=False)
class Comparison:
    """Which policy is better, and by how much. Of failures the better one is that which fails less often.

    Of two policies `difference`, `interval` and `decision` are those of the first beside the second. Of more, each
    difference has its own: `between`.

    Attributes:
        estimates: the evaluation of each policy, by name.
        differences: the first policy of each beside the second.
        design: what was fixed before the first episode.
        ended: why no more episodes were run.
        dropped: the policies that were not run any more because they are clearly worse than another.
        settings: what repeats the comparison, by name.
    """

    estimates: dict[str, Estimate]
    differences: tuple[Difference, ...]
    design: Design
    ended: Ended = Ended.BUDGET
    dropped: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    def between(self, one: str, other: str) -> Difference:
        """The difference of these two; it was asked for in this order."""
        for found in self.differences:
            if (found.one, found.other) == (one, other):
                return found
        known = ", ".join(f"{d.one} − {d.other}" for d in self.differences)
        raise InvalidArgumentError(f"the comparison has the differences {known}, got {one} − {other}")

    @property
    def difference(self) -> float:
        """By how much the value of the first of two policies is larger than that of the second."""
        return self._only.value

    @property
    def decision(self) -> Decision:
        """Better, worse, equivalent or undecided: the first of two policies beside the second."""
        return self._only.decision

    def interval(self, level: float = 0.95) -> Interval | None:
        """The anytime-valid interval of the difference of two policies."""
        return self._only.interval(level)

    def fixed_interval(self, level: float = 0.95) -> Interval | None:
        """The interval of the difference of two policies, for a number of episodes that was fixed in advance."""
        return self._only.fixed_interval(level)

    @property
    def counts_failures(self) -> bool:
        """Whether the values are probabilities to fail."""
        return self.design.lower_is_better and next(iter(self.estimates.values())).event != ""

    @property
    def episodes(self) -> int:
        """How many episodes all policies have run."""
        return sum(estimate.episodes for estimate in self.estimates.values())

    @property
    def ranking(self) -> tuple[Rank, ...]:
        """The policies from the best value to the worst, each with the places that the verdicts leave it."""
        better = {name: 0 for name in self.estimates}  # noqa: C420
        worse = dict(better)
        for found in self.differences:
            if found.decision in (Decision.BETTER, Decision.WORSE):
                first, second = found.one, found.other
                winner, loser = (first, second) if found.decision is Decision.BETTER else (second, first)
                better[loser] += 1
                worse[winner] += 1
        sign = 1.0 if self.design.lower_is_better else -1.0
        ordered = sorted(self.estimates, key=lambda name: sign * self.estimates[name].value)
        last = len(ordered)
        return tuple(Rank(n, self.estimates[n].value, 1 + better[n], last - worse[n]) for n in ordered)

    def to_json(self) -> "ComparisonJson":
        """What a program wants to know, of types that JSON has; None for what is unknown.

        `bpsearch.report.comparison_json.SCHEMA` is its JSON Schema.
        """
        from bpsearch.report.comparison_json import comparison_json

        return comparison_json(self)

    def to_dataframe(self) -> "pandas.DataFrame":
        """A row for each difference."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise MissingDependencyError("to_dataframe needs pandas: pip install pandas") from error
        rows = []
        for found in self.differences:
            low, high = found.interval(self.design.level) or (np.nan, np.nan)
            row = {"one": found.one, "other": found.other, "difference": found.value, "low": low, "high": high}
            row |= {"decision": str(found.decision), "decided_at": found.decided_at, "pairs": len(found.pairs)}
            rows.append(row | {"savings": found.savings, "pairing_savings": found.pairing_savings})
        return pandas.DataFrame(rows)

    def report(self, path: str | Path) -> Path:
        """Write a page that shows and explains the comparison: one HTML file that needs no network."""
        from bpsearch.report.packages import require_report

        require_report()
        from bpsearch.report.comparison_page import render
        from bpsearch.report.layout import write_page

        return write_page(render(self), path)

    def __str__(self) -> str:
        from bpsearch.report.comparison_words import describe

        return describe(self)

    def _repr_html_(self) -> str:
        from bpsearch.report.comparison_words import describe_html

        return describe_html(self)

    @property
    def _only(self) -> Difference:
        if len(self.differences) > 1:
            raise InvalidArgumentError(
                f"{len(self.estimates)} policies have more than one difference: name two with between(one, other)"
            )
        return self.differences[0]


def difference_of(
    names: tuple[str, str], estimates: tuple[Estimate, Estimate], contest: Contest, weights: list[float], many: int
) -> Difference:
    """What is said of two policies in the end.

    Args:
        names: of both.
        estimates: of both; they have at least the rounds of the contest.
        contest: their difference round by round.
        weights: what an episode of each round counts.
        many: how many differences are decided at once.
    """
    ends = np.array([point.pairs for point in contest.course])
    sides = (_side(estimates[0], ends), _side(estimates[1], ends))
    error, tight = paired_error(*sides, weights)
    sizes = np.diff(ends, prepend=0)
    means = np.array([(x - y).mean() for x, y in zip(sides[0].values, sides[1].values, strict=True)])
    counts = sizes * np.asarray(weights)
    return Difference(
        *names,
        value=float(counts @ means / counts.sum()),
        error=error,
        tight_error=tight,
        sequence=contest.sequence,
        decision=contest.decision,
        decided_at=contest.decided_at,
        course=contest.course,
        pairs=np.column_stack([np.concatenate(side.returns) for side in sides]),
        shared=np.repeat([point.shared for point in contest.course], sizes),
        comparisons=many,
        certified=contest.certified,
    )


def _side(estimate: Estimate, ends: NumpyArray) -> Side:
    last, cuts = ends[-1], ends[:-1]
    error, tight, data = estimate.error, estimate.tight_error, estimate.data
    room = 0.0 if error is None or tight is None else max(error.variance - tight.variance, 0.0)
    values, returns = (np.split(part[:last], cuts) for part in (data.values, data.returns))
    return Side(values, returns, not data.weighted, room)
