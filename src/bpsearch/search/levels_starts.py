"""Rare failures by levels, from starts that are chosen: one search of behaviors and starts."""

from dataclasses import dataclass, field
from typing import ClassVar, Self

import jax
import numpy as np
from jaxtyping import Bool, Float, PyTree

from bpsearch._core.arrays import Array, Flag, NumpyArray, Observations, Scalar
from bpsearch._core.checks import check_type
from bpsearch._core.jaxtools import in_64_bit, pytree, replace
from bpsearch.policies.base import Policy
from bpsearch.policies.chosen_starts import ChosenStarts, Squared, StartWeights
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search.base import Info, Search
from bpsearch.search.levels import (
    LARGEST_RATIO,
    MEMORY,
    Levels,
    LevelsState,
    find_failures,
    find_shift,
    weigh_actions,
    weigh_episodes,
    weigh_explorer,
)
from bpsearch.search.start_learners import Seen, learner_of
from bpsearch.search.starts import StartSearch

STEADY = 3  # batches in a row without a better behavior than the policy itself, from which on episodes count
CHOICES = 2  # what is known about starts, trusted less and more: u, and u²


@pytree()
@dataclass(frozen=True, eq=False)
class LevelsStartsState:
    """What both searches carry.

    Attributes:
        levels: of the search of behaviors; its shift is that of both.
        known: what starts promise (`start_learners`).
        judged: (CHOICES + 1,), fading sums of the second moment that each choice of starts, and none, would have had
            over the target of the batch after it.
        chosen: which choice acts next: its number from 1 on, 0 for none.
        steady: how many batches in a row the policy itself was to act from chosen starts.
        found: (2,), the sum of the weights of all failures, and the number of episodes.
        varied: whether episodes have started in more than one place.
    """

    levels: LevelsState
    known: PyTree[Array]
    judged: Array
    chosen: Scalar
    steady: Scalar
    found: Array
    varied: Flag


@dataclass(frozen=True)
class LevelsStarts(Search[LevelsStartsState]):
    """`Levels`, whose episodes start near the target.

    The behavior draws actions as levels say, and one of K offered starts as a search of starts says. The weight of an
    episode is the product of both, 1/(K p) π_e(H)/μ(H). It is at most 1/(α_starts α_actions).

    What a start promises is learned from all batches, each episode weighted by π_e/μ of its actions. So it is what the
    policy itself would do from there, and stays the same while behaviors change.

    Whether starts are chosen at all, and how far what is known is trusted, is decided as levels decide about behaviors:
    by the second moment Σ_target w w' over the next batch, which had no part in the fit. Here w' is what an episode
    would weigh if the next behavior drew start and actions. If no choice is better than none, the environment draws the
    starts, and this is `Levels`.

    Attributes:
        levels: the search of behaviors.
        starts: the search of starts.
        resets: whether the environment may be reset to offer starts; if not, this is `Levels`.
    """

    for_events: ClassVar[bool] = True

    levels: Levels = field(default_factory=Levels)
    starts: StartSearch = field(default_factory=StartSearch)
    resets: bool = True

    def without_resets(self) -> Self:
        """Levels alone."""
        return replace(self, resets=False) if self.resets else self

    def init(self, policy: Policy, discount: float = 1.0) -> LevelsStartsState:
        """Before the first batch, which looks around from the environment's starts."""
        levels = self.levels.init(policy, discount)
        known = learner_of(self.starts, policy).init(policy, discount)
        nothing = np.int64(0)
        return LevelsStartsState(levels, known, np.zeros(CHOICES + 1), nothing, nothing, np.zeros(2), np.bool_(False))

    @in_64_bit
    def behavior(self, state: LevelsStartsState) -> Policy:
        """That of levels, from chosen starts if a choice was found better than none."""
        acts, choice = self.levels.behavior(state.levels), self._choice(state)
        return acts if choice is None else ChosenStarts(acts, choice, acts.weight_bound)

    def shift(self, state: LevelsStartsState) -> float:
        """That of levels, for the weights of both."""
        return self.levels.shift(state.levels)

    def weight(self, state: LevelsStartsState) -> float:
        """As levels say; or 1 once it is clear that starts can be chosen and actions cannot."""
        return float(state.levels.counting or state.steady >= STEADY)

    def weight_bound(self, state: LevelsStartsState) -> float:
        """That of the actions divided by the share of starts that are run without looking, whatever acts next."""
        bound = self.levels.weight_bound(state.levels)
        return bound / self.starts.uniform_share if self.resets and state.varied else bound

    def unused(self, state: LevelsStartsState) -> tuple[str, ...]:
        """Why no start was chosen."""
        policy = state.levels.evaluation
        if not self.resets:
            return ("starts: none was chosen, since the environment must not be reset without need",)
        refused = learner_of(self.starts, policy).refuse(policy)
        if refused:
            return (refused,)
        if not state.varied:
            return ("starts: none was chosen, since all episodes start alike",)
        return () if self._choice(state) is not None else ("starts: no choice among them was found better than none",)

    @in_64_bit
    def step(self, state: LevelsStartsState, batch: Trajectories) -> tuple[LevelsStartsState, Info]:
        """Both learn from the batch, and it judges the choices that were known before it."""
        check_type("batch", batch, Trajectories, "Trajectories")
        levels, info = self.levels.step(state.levels, batch)
        policy, before = levels.evaluation, float(state.levels.level)
        learner = learner_of(self.starts, policy)
        if not self.resets or learner.refuse(policy):
            return replace(state, levels=levels), info
        log_weights = weigh_episodes(policy, batch)
        weights, happened = np.exp(log_weights), find_failures(levels, batch)
        target, level = self.levels.find_target(state.levels, batch, weights)
        first, noise = batch.starts, weigh_explorer(levels, batch, log_weights)
        expected = weigh_actions(levels, batch, log_weights, noise)
        of_actions = np.exp(weigh_actions(state.levels, batch, log_weights, noise))
        seen = Seen(target, int(level > before) - int(level < before), of_actions, weights)
        judged = self._judge(state, first, target, log_weights, expected)
        best = int(np.argmin(judged[:-1]))
        new = not judged.any()  # no batch has judged a choice: what is known at first is followed with care
        chosen = 1 if new else best + 1 if judged[best] < LARGEST_RATIO * judged[-1] else 0
        stays = chosen > 0 and not new and np.array_equal(levels.parameters, policy.flat)
        state = LevelsStartsState(
            levels,
            learner.learn(state.known, batch, seen),
            judged,
            np.int64(chosen),
            np.int64(state.steady + 1 if stays or state.steady >= STEADY else 0),
            np.asarray(state.found + np.array([weights @ happened, len(batch)])),
            np.bool_(state.varied or _vary(first)),
        )
        choice = self._choice(state)
        if choice is None:
            return state, info
        expected = expected + _weigh_starts(choice, first, log_weights)
        shift = self._find_shift(state, happened, log_weights, expected)
        return replace(state, levels=replace(levels, shift=np.float64(shift))), info

    def _find_shift(
        self, state: LevelsStartsState, happened: NumpyArray, log_weights: NumpyArray, expected: NumpyArray
    ) -> float:
        """As for levels, with the probability of a failure from all batches: one from chosen starts may have few."""
        counting = replace(state.levels, counting=np.bool_(self.weight(state)))
        here = float(np.mean(np.exp(log_weights) * happened))
        of_all = float(state.found[0] / state.found[1])
        return find_shift(counting, happened, log_weights, expected) * of_all / here if here > 0.0 else 0.0

    def _judge(
        self,
        state: LevelsStartsState,
        first: Observations,
        target: Bool[NumpyArray, " episodes"],
        log_weights: Float[NumpyArray, " episodes"],
        expected: Float[NumpyArray, " episodes"],
    ) -> Float[NumpyArray, " choices"]:
        """(CHOICES + 1,), Σ_target w w' of each choice that is known before the batch, and of none, added up.

        As in `Levels` the weights are scaled to the number of equally weighted episodes that the target's are worth.

        Args:
            state: before the batch.
            first: where its episodes started.
            target: which of them are to become likely.
            log_weights: log w.
            expected: log w' of the actions.
        """
        choices = self._choices(state)
        if not choices or not target.any():
            return np.asarray(state.judged)
        shares = np.exp(log_weights) * target
        shares *= shares.sum() / (shares @ shares)
        starts = [*(_weigh_starts(choice, first, log_weights) for choice in choices), np.zeros(len(target))]
        found = np.array([shares @ np.exp(expected + own) for own in starts])
        return np.asarray(MEMORY * state.judged + found)

    def _choices(self, state: LevelsStartsState) -> list[StartWeights]:
        """What is known about starts, trusted less and more; nothing as long as nothing is known."""
        known = learner_of(self.starts, state.levels.evaluation).choose(state.known)
        return [] if known is None else [known, Squared(known)]

    def _choice(self, state: LevelsStartsState) -> StartWeights | None:
        """The one that acts."""
        choices = self._choices(state) if state.chosen and state.varied else []
        return choices[int(state.chosen) - 1] if choices else None


def _weigh_starts(
    choice: StartWeights, observations: Observations, log_weights: Float[NumpyArray, " episodes"]
) -> Float[NumpyArray, " episodes"]:
    """(N,), log 1/(K p) of each start if it is offered beside K − 1 others: K p ≈ α + (1 − α) u(s)/E[u].

    E[u] is over the environment's starts, by weighted episodes.
    """
    weights, promised = np.exp(log_weights), np.maximum(choice.weigh(observations), 0.0)
    mean = float(weights @ promised / weights.sum())
    if not mean > 0.0:
        return np.zeros(len(promised))
    return -np.log(choice.uniform_share + (1.0 - choice.uniform_share) * promised / mean)


def _vary(observations: Observations) -> bool:
    leaves = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(observations)]
    return any(bool(np.any(leaf != leaf[:1])) for leaf in leaves)
