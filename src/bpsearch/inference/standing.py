"""How a comparison stands after some rounds: what is decided, who runs next, and who shares seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from bpsearch._core.checks import check_choice, check_integer, check_real
from bpsearch.errors import InvalidArgumentError
from bpsearch.inference.certified_difference import CertifiedDifference
from bpsearch.inference.confidence_sequence import OPEN_ENDED
from bpsearch.inference.difference import Decision, DifferenceSequence, Pairing, Turn
from bpsearch.inference.stopping import Target


@dataclass(frozen=True)
class Design:
    """What is fixed before the first episode of a comparison.

    Attributes:
        names: of the policies, or of the environments.
        reference: the one that all others are compared with; None compares all pairs.
        margin: differences within ± this are equivalent; None if none is.
        level: the confidence that all verdicts are right at once. Each of m differences has the level 1 − (1 − level)/m
            (Bonferroni): no procedure that is valid for directions at any time, and for any dependence, is known to
            gain much on it.
        tightest: the number of pairs at which the intervals are to be narrow.
        target: a difference is compared until it is known as precisely as this; None until it is decided.
        stop_early: whether anything but the number of episodes ends a comparison.
        drop_losers: whether a policy that is clearly worse than another is not run any more.
        kind: which intervals decide: "asymptotic", for any returns, or "certified", which need their ranges.
        lower_is_better: whether the policy with the smaller value is the better one, as of the probability to fail.
    """

    names: tuple[str, ...]
    reference: str | None = None
    margin: float | None = None
    level: float = 0.95
    tightest: int = OPEN_ENDED
    target: Target | None = None
    stop_early: bool = True
    drop_losers: bool = False
    kind: Literal["asymptotic", "certified"] = "asymptotic"
    lower_is_better: bool = False

    def __post_init__(self) -> None:
        if len(self.names) < 2 or len(set(self.names)) < len(self.names):
            raise InvalidArgumentError(f"a comparison needs two or more different names, got {', '.join(self.names)}")
        if self.reference is not None and self.reference not in self.names:
            raise InvalidArgumentError(f"reference must be one of {', '.join(self.names)}, got {self.reference!r}")
        if self.margin is not None:
            check_real("margin", self.margin, above=0.0)
        check_real("level", self.level, above=0.0, high=1.0 - 1e-12)
        check_integer("tightest", self.tightest)
        check_choice("kind", self.kind, ("asymptotic", "certified"))
        if self.target is not None and self.target.looks and self.target.kind != self.kind:
            raise InvalidArgumentError(
                f"the target of a comparison must be of the comparison's own kind {self.kind!r}, got {self.target}"
            )

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The differences, each as the numbers of its first and its second policy."""
        every = range(len(self.names))
        if self.reference is None:
            return tuple(combinations(every, 2))
        at = self.names.index(self.reference)
        return tuple((number, at) for number in every if number != at)

    @property
    def anchor(self) -> int:
        """The policy whose episodes the others share the seeds of."""
        return 0 if self.reference is None else self.names.index(self.reference)

    def single_level(self, level: float | None = None) -> float:
        """The level of each difference that makes all hold at once with `level`."""
        family = self.level if level is None else check_real("level", level, above=0.0, high=1.0 - 1e-12)
        return 1.0 - (1.0 - family) / len(self.pairs)


@dataclass(frozen=True)
class Point:
    """A difference after a round.

    Attributes:
        pairs: of episodes so far, those included that only explored.
        mean: the middle of its interval.
        half_width: half its width.
        decision: the first that could be made.
        shared: whether both policies had the same seeds in this round.
    """

    pairs: int
    mean: float
    half_width: float
    decision: Decision
    shared: bool


@dataclass(frozen=True, eq=False)
class Contest:
    """One difference in progress.

    Attributes:
        sequence: of its intervals, and what pairing and control variates save.
        certified: of its certified intervals, if those decide.
        decision: the first that could be made; it stays.
        closed: whether nothing more has to be known of it.
        course: round by round.
    """

    sequence: DifferenceSequence
    certified: CertifiedDifference | None = None
    decision: Decision = Decision.UNDECIDED
    closed: bool = False
    course: tuple[Point, ...] = ()

    def add(self, design: Design, one: Turn, other: Turn, *, shared: bool) -> "Contest":
        """After another round."""
        sequence, level = self.sequence.add(one, other, shared=shared), design.single_level()
        certified = None if self.certified is None else self.certified.add(one, other)
        judge = certified or sequence
        decision = self.decision
        if decision is Decision.UNDECIDED:
            found = judge.decide(level, design.margin)
            decision = found.opposite if design.lower_is_better else found
        pairs = (self.course[-1].pairs if self.course else 0) + len(one.values)
        point = Point(pairs, judge.middle(level), judge.half_width(level), decision, shared)
        closed = self.closed or (design.stop_early and _is_enough(design, point))
        return Contest(sequence, certified, decision, closed, (*self.course, point))

    @property
    def decided_at(self) -> int | None:
        """After how many pairs it was decided; None if it is not."""
        return next((point.pairs for point in self.course if point.decision is not Decision.UNDECIDED), None)


def _is_enough(design: Design, point: Point) -> bool:
    if design.target is not None and design.target.looks:
        return math.isfinite(point.half_width) and design.target.reached(point.mean, point.half_width)
    return point.decision is not Decision.UNDECIDED


@dataclass(frozen=True, eq=False)
class Standing:
    """How a comparison stands. What it says of the next round follows from the rounds before, so it biases nothing.

    Attributes:
        design: fixed before the first episode.
        contests: one for each of the design's pairs.
        rounds: how many there were.
    """

    design: Design
    contests: tuple[Contest, ...]
    rounds: int = 0

    @classmethod
    def begin(cls, design: Design, ranges: Sequence[tuple[float, float] | None] = ()) -> "Standing":
        """Before the first round.

        Args:
            design: what is fixed.
            ranges: for certified verdicts, of each policy two numbers between which its returns lie.
        """
        nothing = DifferenceSequence.begin(design.tightest)
        if design.kind != "certified":
            return cls(design, tuple(Contest(nothing) for _ in design.pairs))
        known = [found for found in ranges if found is not None]
        if len(known) < len(design.names):
            raise InvalidArgumentError(
                "certified verdicts need return_range, two numbers between which every return lies: give "
                "estimand=bps.Return(return_range=(low, high)), --return-range, or the probability of a failure"
            )
        return cls(
            design,
            tuple(Contest(nothing, CertifiedDifference((known[one], known[other]))) for one, other in design.pairs),
        )

    def add(self, turns: Mapping[int, Turn]) -> "Standing":
        """After another round; `turns` are those of all policies that were to run, by number."""
        if set(turns) != set(self.running):
            raise InvalidArgumentError(f"policies {sorted(self.running)} were to run, got turns of {sorted(turns)}")
        contests = list(self.contests)
        for at, (one, other) in enumerate(self.design.pairs):
            if one in turns and other in turns:
                shared = self.shares(one) and self.shares(other)
                contests[at] = contests[at].add(self.design, turns[one], turns[other], shared=shared)
        return replace(self, contests=tuple(contests), rounds=self.rounds + 1)

    @property
    def dropped(self) -> frozenset[int]:
        """The policies that are clearly worse than another, if those are to be dropped."""
        if not self.design.drop_losers:
            return frozenset()
        losers = {Decision.BETTER: 1, Decision.WORSE: 0}
        return frozenset(
            pair[losers[contest.decision]]
            for pair, contest in zip(self.design.pairs, self.contests, strict=True)
            if contest.decision in losers
        )

    @property
    def running(self) -> tuple[int, ...]:
        """The policies that run in the next round: those of which a difference is still open."""
        dropped = self.dropped
        still = {
            policy
            for pair, contest in zip(self.design.pairs, self.contests, strict=True)
            if not contest.closed and dropped.isdisjoint(pair)
            for policy in pair
        }
        return tuple(sorted(still))

    def shares(self, policy: int) -> bool:
        """Whether a policy's next episodes have the seeds that all share.

        They have, unless earlier rounds say clearly that its values then go against those it is compared with.
        """
        if policy == self.design.anchor:
            return True
        pairs = zip(self.design.pairs, self.contests, strict=True)
        return not sum((c.sequence.pairing for pair, c in pairs if policy in pair), Pairing()).harms
