"""Which starts to run: of several that the environment offers, one near the event that is asked about."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from jaxtyping import Float
from scipy import special

from bpsearch._core.arrays import Array, NumpyArray, Observations
from bpsearch._core.checks import check_integer, check_real
from bpsearch._core.jaxtools import pytree, replace
from bpsearch.control_variates.features import CANDIDATES, Blend, Candidate, Moments, Scale, expand, solve_all
from bpsearch.control_variates.starts import Starts
from bpsearch.errors import InvalidArgumentError
from bpsearch.policies.base import Policy
from bpsearch.policies.chosen_starts import ChosenStarts, StartWeights
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search.base import Info, Search

CLIPPED = 6.0  # standard deviations of the first batch beyond which a margin tells nothing more
KEPT = 0.7  # of what is known about the errors of predictions, from batch to batch: the last ones count most
FEWEST = 20  # episodes of a first batch that can be split
DOUBT = 2.0  # standard errors by which predictions must be better than none


@dataclass(frozen=True, eq=False)
class NearStarts(StartWeights):
    """Prefers starts from which the event is predicted: u(s) = sqrt(Φ(f(s)/σ)).

    f predicts the margin, by how much an episode misses the event (positive if the event happens), and σ is how wrong
    such predictions have been. So Φ(f/σ) is the predicted probability of the event, which is the second moment of its
    indicator, and the square root of that is the best choice in two-phase sampling.
    """

    source: Starts
    scale: Scale
    coefficients: NumpyArray
    offset: float
    deviation: float
    candidates: int
    uniform_share: float

    def weigh(self, observations: Observations) -> Float[NumpyArray, " starts"]:
        """The u of each start."""
        features = expand(self.scale(self.source.numbers(observations))).astype(np.float64)
        return np.sqrt(special.ndtr((features @ self.coefficients + self.offset) / self.deviation))

    @property
    def parameters(self) -> NumpyArray:
        """The coefficients, the offset and σ."""
        return np.array([*self.coefficients, self.offset, self.deviation])


@pytree()
@dataclass(frozen=True, eq=False)
class StartState:
    """What is known about the margins of starts.

    Attributes:
        evaluation: who acts.
        scale: (3, d), number, sums and squares of the starts of the first batch, by which all are scaled.
        sums: (D + 2, D + 2), Σ z zᵀ with z = (1, features of the start, margin).
        errors: (J + 2,), the squared errors of each candidate for f when it did not know the batch yet, of the mean,
            and how many there were, older ones discounted.
        clip: (2,), between which margins count.
        chosen: (D + 2,), coefficients, offset and deviation of what chooses starts; a deviation of 0 is no choice.
    """

    evaluation: Policy
    scale: Array
    sums: Array
    errors: Array
    clip: Array
    chosen: Array


@dataclass(frozen=True)
class StartSearch(Search[StartState]):
    """Episodes of the policy itself from starts that are chosen; what a start promises is learned from earlier batches.

    The first batch starts wherever the environment says. Then a regression of margins on starts, linear, quadratic or
    with kernels, whichever has predicted new batches best, says from which starts the event is near. Nothing is chosen
    until predictions are better than the mean by more than luck.

    Attributes:
        candidates: K, how many starts are offered to each episode; resets cost next to nothing beside episodes.
        uniform_share: α, the share of starts that are chosen without looking: no weight exceeds 1/α.
    """

    candidates: int = 30
    uniform_share: float = 0.2
    source: Starts = field(default_factory=Starts, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_integer("candidates", self.candidates, at_least=2)
        check_real("uniform_share", self.uniform_share, above=0.0, high=1.0)

    def init(self, policy: Policy, discount: float = 1.0) -> StartState:
        """Nothing is known."""
        size = 1
        if not self.source.refuse(policy):
            size = self.source.bind(policy, discount).size
        features = expand(np.zeros((1, size))).shape[1]
        return StartState(
            policy,
            np.zeros((3, size)),
            np.zeros((features + 2, features + 2)),
            np.zeros(len(CANDIDATES) + 2),
            np.zeros(2),
            np.zeros(features + 2),
        )

    def weight(self, state: StartState) -> float:
        """A half in the first batch, which starts wherever the environment says."""
        return 1.0 if state.scale.any() else 0.5

    def without_resets(self) -> Self:
        """Nothing is left of it."""
        raise InvalidArgumentError(
            "this method resets the environment several times for each episode, to choose where it starts, and "
            "resets='never' forbids that; give another method, 'mc' for instance"
        )

    def behavior(self, state: StartState) -> Policy:
        """The policy, from chosen starts once something is known about them."""
        choice = self.choose(state)
        return state.evaluation if choice is None else ChosenStarts(state.evaluation, choice)

    def choose(self, state: StartState, aim: float = 0.0) -> NearStarts | None:
        """Who chooses the next starts, near episodes of the margin `aim`; None as long as nothing is known about them.

        The event itself has the margin 0.
        """
        coefficients, (offset, deviation) = np.asarray(state.chosen[:-2]), state.chosen[-2:]
        if not float(deviation) > 0.0:
            return None
        return NearStarts(
            self.source.bind(state.evaluation, 1.0),
            _scale(state),
            coefficients,
            float(offset) - aim,
            float(deviation),
            self.candidates,
            self.uniform_share,
        )

    def step(self, state: StartState, batch: Trajectories) -> tuple[StartState, Info]:
        """Learn from a batch what its starts promise.

        Raises:
            InvalidArgumentError: no event is asked about.
        """
        if not self.source.refuse(state.evaluation):
            state = self.learn(state, batch, find_margins(batch), np.ones(len(batch)))
        return state, Info(np.zeros(0), np.float64(0.0))

    def learn(
        self,
        state: StartState,
        batch: Trajectories,
        margins: Float[NumpyArray, " episodes"],
        weights: Float[NumpyArray, " episodes"],
    ) -> StartState:
        """`step` for a batch whose actions another behavior may have drawn.

        The regression is weighted by π_e/μ of the actions. So f(s) is the margin that the policy itself has from s,
        whatever behaviors ran the batches.

        Args:
            state: what is known before it.
            batch: the episodes.
            margins: how near each came.
            weights: π_e/μ of each one's actions, without the chance of its start; 1 if the policy acted.
        """
        numbers = self.source.bind(state.evaluation, 1.0).numbers(batch.starts)
        if not state.scale.any():
            own, mean = Scale.of(numbers), float(np.average(margins, weights=weights))
            spread = CLIPPED * float(np.sqrt(np.average((margins - mean) ** 2, weights=weights)))
            scale = np.stack([np.full(own.size, own.count), own.total, own.squares])
            state = replace(state, scale=scale, clip=np.array([mean - spread, mean + spread]))
        features = expand(_scale(state)(numbers)).astype(np.float64)
        targets = np.clip(margins, *state.clip)
        errors = KEPT * np.asarray(state.errors) + self._judge(state, features, targets, weights)
        learned = replace(state, sums=state.sums + _sums(features, targets, weights), errors=errors)
        return replace(learned, chosen=_choose(learned))

    def _judge(self, state: StartState, features: NumpyArray, targets: NumpyArray, weights: NumpyArray) -> NumpyArray:
        """What earlier batches would have predicted for this one, candidate by candidate.

        The first batch has none before it: each half of it predicts the other.
        """
        if not state.sums.any():
            even = np.arange(len(targets)) % 2 == 0
            if len(targets) < FEWEST:
                return np.zeros(len(CANDIDATES) + 2)
            halves = [(features[half], targets[half], weights[half]) for half in (even, ~even)]
            one, other = (
                self._judge(replace(state, sums=_sums(*known)), *new) for known, new in (halves, halves[::-1])
            )
            return one + other
        fits = _fit(state, CANDIDATES)
        wrong = [weights @ (features @ slope + offset - targets) ** 2 for slope, offset in fits]
        mean = state.sums[0, -1] / state.sums[0, 0]
        return np.array([*wrong, weights @ (targets - mean) ** 2, weights.sum()])


def find_margins(batch: Trajectories) -> NumpyArray:
    """How near each episode came to the event, positive if it happened.

    A level of the user's own tells an order, and need not have its zero there; then the event itself is what counts.
    """
    happened = np.asarray(batch.returns())
    if not np.isin(happened, (0.0, 1.0)).all():
        raise InvalidArgumentError(
            "this method looks for starts near an event, and no event is asked about: give failure='return < -100', or "
            "another method"
        )
    if batch.margins is None or np.any((np.asarray(batch.margins) > 0.0) & (happened == 0.0)):
        return happened - 0.5
    return np.asarray(batch.margins)


def _sums(features: NumpyArray, targets: NumpyArray, weights: NumpyArray) -> NumpyArray:
    rows = np.column_stack([np.ones(len(targets)), features, targets])
    sums: NumpyArray = (weights[:, None] * rows).T @ rows
    return sums


def _scale(state: StartState) -> Scale:
    count, total, squares = np.asarray(state.scale)
    return Scale(float(count[0]), total, squares)


def _fit(state: StartState, candidates: Sequence[Candidate | Blend]) -> list[tuple[NumpyArray, float]]:
    """Coefficients and offset of each candidate."""
    sums = np.asarray(state.sums)
    moments = Moments(float(sums[0, 0]), sums[0, 1:-1], float(sums[0, -1]), sums[1:-1, 1:-1], sums[1:-1, -1])
    slopes = solve_all(candidates, state.scale.shape[1], *moments.center())
    return [(slope, float((moments.target - moments.row @ slope) / moments.count)) for slope in slopes]


def _choose(state: StartState) -> NumpyArray:
    """(D + 2,), the candidate that has predicted best; zeros if none is better than the mean by more than luck."""
    *errors, plain, count = np.asarray(state.errors)
    nothing = np.zeros(state.chosen.shape)
    if count == 0.0:
        return nothing
    best = int(np.argmin(errors))
    if errors[best] > plain * max(1.0 - DOUBT * np.sqrt(2.0 / count), 0.0) or not errors[best] > 0.0:
        return nothing
    ((slope, offset),) = _fit(state, CANDIDATES[best : best + 1])
    return np.array([*slope, offset, np.sqrt(errors[best] / count)])
