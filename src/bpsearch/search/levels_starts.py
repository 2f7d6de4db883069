"""Rare failures by levels, from starts that are chosen: one search of behaviors and starts."""

from dataclasses import dataclass, field
from typing import Self

import jax
import numpy as np
from gymnasium import spaces
from jaxtyping import Float

from bpsearch._core.arrays import Array, Flag, NumpyArray, Scalar
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
)
from bpsearch.search.start_states import CountedStates
from bpsearch.search.starts import StartSearch, StartState

TRUSTS = 2  # how far what is known about starts may be trusted: u, and u²


@pytree()
@dataclass(frozen=True, eq=False)
class LevelsStartsState:
    """What both searches carry.

    Attributes:
        levels: of the search of behaviors; its shift is that of both.
        numbers: what is known about starts that are numbers.
        states: what is known about starts that are states.
        judged: (TRUSTS + 1,), fading sums of the second moment that each choice of starts, and none, would have had
            over the target of the batch after it.
        trust: which choice acts next: its number from 1 on, 0 for none.
        varied: whether episodes have started in more than one place.
    """

    levels: LevelsState
    numbers: StartState
    states: CountedStates
    judged: Array
    trust: Scalar
    varied: Flag


@dataclass(frozen=True)
class LevelsStarts(Search[LevelsStartsState]):
    """`Levels`, whose episodes start near the target.

    The behavior draws actions as levels say, and one of K offered starts as a search of starts says. The weight of an
    episode is the product of both, 1/(K p) π_e(H)/μ(H), at most the product of both bounds.

    What a start promises is learned from all batches, each weighted by π_e/μ of its actions: it is what the policy
    itself would do from there, so that it stays the same while behaviors change. Where starts are numbers it is the
    margin (`StartSearch`), where they are states the share of the target's episodes (`CountedStates`).

    Whether starts are chosen at all, and how far what is known is trusted, is decided as levels decide about behaviors:
    by the second moment Σ_target w w' over the next batch, which had no part in the fit. Here w' is what an episode
    would weigh if the next behavior drew actions and start. If no choice is better, the environment draws the starts,
    and this is `Levels`.

    Attributes:
        levels: the search of behaviors.
        starts: the search of starts.
        resets: whether the environment may be reset to offer starts; if not, this is `Levels`.
    """

    levels: Levels = field(default_factory=Levels)
    starts: StartSearch = field(default_factory=StartSearch)
    resets: bool = True

    def without_resets(self) -> Self:
        """Levels alone."""
        return replace(self, resets=False)

    def init(self, policy: Policy, discount: float = 1.0) -> LevelsStartsState:
        """Before the first batch, which looks around from the environment's starts."""
        return LevelsStartsState(
            self.levels.init(policy, discount),
            self.starts.init(policy, discount),
            CountedStates.of(policy),
            np.zeros(TRUSTS + 1),
            np.int64(0),
            np.bool_(False),
        )

    @in_64_bit
    def behavior(self, state: LevelsStartsState) -> Policy:
        """That of levels, from chosen starts if a choice has been found better than none."""
        acts = self.levels.behavior(state.levels)
        choices = self._choices(state) if state.trust else []
        return ChosenStarts(acts, choices[int(state.trust) - 1], acts.weight_bound) if choices else acts

    def shift(self, state: LevelsStartsState) -> float:
        """That of levels, for the weights of both."""
        return self.levels.shift(state.levels)

    def weight(self, state: LevelsStartsState) -> float:
        """As levels say."""
        return self.levels.weight(state.levels)

    def unused(self, state: LevelsStartsState) -> tuple[str, ...]:
        """Why no start was chosen."""
        policy = state.levels.evaluation
        refused = "" if _counts(policy) else self.starts.source.refuse(policy)
        if not self.resets:
            return ("starts: none was chosen, since the environment must not be reset without need",)
        if refused:
            return (refused,)
        if not state.varied:
            return ("starts: none was chosen, since all episodes start alike",)
        return () if state.trust else ("starts: none is chosen, since no choice was found better than none",)

    @in_64_bit
    def step(self, state: LevelsStartsState, batch: Trajectories) -> tuple[LevelsStartsState, Info]:
        """Both learn from the batch; then the choices that were known before it are judged by it."""
        check_type("batch", batch, Trajectories, "Trajectories")
        levels, info = self.levels.step(state.levels, batch)
        if not self.resets:
            return replace(state, levels=levels), info
        log_weights = weigh_episodes(state.levels.evaluation, batch)
        target, level = self.levels.find_target(state.levels, batch, np.exp(log_weights))
        of_actions = np.exp(weigh_actions(state.levels, batch, log_weights))
        expected = weigh_actions(levels, batch, log_weights)
        first = jax.tree_util.tree_map(lambda array: np.asarray(array)[:, 0], batch.observations)

        judged = np.asarray(state.judged)
        choices = self._choices(state)
        if target.any() and choices:
            shares = np.exp(log_weights) * target
            shares *= shares.sum() / (shares @ shares)
            weighed = [np.zeros(len(batch)), *(_weigh_starts(choice, first, log_weights) for choice in choices)]
            none, *moments = (float(shares @ np.exp(expected + own)) for own in weighed)
            judged = MEMORY * judged + np.array([*moments, none])
        best = int(np.argmin(judged[:-1]))
        learned = LevelsStartsState(
            levels,
            state.numbers if _counts(levels.evaluation) else self.starts.learn(state.numbers, batch, of_actions),
            state.states.add(batch, target, of_actions, int(np.sign(_difference(level, float(state.levels.level)))))
            if _counts(levels.evaluation)
            else state.states,
            judged,
            np.int64(best + 1 if judged[best] < LARGEST_RATIO * judged[-1] else 0),
            np.bool_(state.varied or _vary(first)),
        )
        choices = self._choices(learned)
        if learned.trust and choices:
            expected = expected + _weigh_starts(choices[int(learned.trust) - 1], first, log_weights)
        shift = find_shift(levels, find_failures(levels, batch), log_weights, expected)
        return replace(learned, levels=replace(levels, shift=np.float64(shift))), info

    def _choices(self, state: LevelsStartsState) -> list[StartWeights]:
        """What is known about starts, trusted more and more; nothing as long as nothing is known."""
        known: StartWeights | None
        if _counts(state.levels.evaluation):
            known = state.states.choose(self.starts.candidates, self.starts.uniform_share)
        else:
            known = self.starts.choose(state.numbers)
        return [] if known is None else [known, Squared(known)]


def _counts(policy: Policy) -> bool:
    """Whether starts are states that can be counted."""
    return isinstance(policy.observation_space, spaces.Discrete)


def _difference(level: float, before: float) -> float:
    """Of two levels, either of which may be infinite."""
    return 0.0 if level == before else level - before


def _weigh_starts(
    choice: StartWeights, observations: Array, log_weights: Float[NumpyArray, " episodes"]
) -> Float[NumpyArray, " episodes"]:
    """(N,), log 1/(K p) of each start if this choice offered it beside K − 1 others: K p ≈ α + (1 − α) u(s)/E[u].

    E[u] is over the environment's starts, by weighted episodes.
    """
    weights, promised = np.exp(log_weights), np.maximum(choice.weigh(observations), 0.0)
    mean = float(weights @ promised / weights.sum())
    if not mean > 0.0:
        return np.zeros(len(promised))
    return -np.log(choice.uniform_share + (1.0 - choice.uniform_share) * promised / mean)


def _vary(observations: Array) -> bool:
    leaves = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(observations)]
    return any(bool(np.any(leaf != leaf[:1])) for leaf in leaves)
