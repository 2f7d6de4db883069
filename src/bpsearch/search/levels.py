"""Rare failures: cross-entropy through intermediate levels, until failures are common."""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np
from jaxtyping import Bool, Float, PyTree

from bpsearch._core.arrays import Array, Flag, NumpyArray, Scalar
from bpsearch._core.checks import check_real, check_type
from bpsearch._core.jaxtools import in_64_bit, in_turn, pytree, replace, to_numpy
from bpsearch.errors import InvalidArgumentError
from bpsearch.estimators.base import log_ratios
from bpsearch.policies.base import Policy
from bpsearch.policies.mixture import Mixture
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search.base import Info, Search
from bpsearch.search.imitation import imitation_of

ENOUGH = 5.0  # equally weighted failures of a batch that tell whether they become more common
MEMORY = 0.7  # what earlier batches count after one of another level, and earlier judgements after another
AT_RANDOM = 0.5  # the share of the policy itself in batches that look around
TEMPERATURES = (4.0, 2.0, 8.0)  # of the policies that look around, one after the other
LOOK_AROUND = 2  # batches in a row that do not raise the level, before one looks around
AT_LEAST_EVERY = 4  # so many batches one looks around, as long as no failure has been seen
COMMON = 0.2  # of a batch: failures worth so many equally weighted episodes are enough to count
VISIBLE = 0.01  # a probability of failures that episodes of the policy itself show often enough
SEVERAL = 2.0  # equally weighted failures by which the first batch tells that
GROWTH = 1.3  # by which failures must become more common for another batch of preparation to be worth it
SPREAD = 0.1  # of the weights, as a variance: below it there is nothing that a shift could remove
PATIENCE = 5  # batches with failures after which episodes count in any case
LARGEST_RATIO = 0.97  # second moment relative to the policy's own; above it there is nothing to gain


@pytree()
@dataclass(frozen=True, eq=False)
class LevelsState:
    """What the search carries from batch to batch.

    Attributes:
        evaluation: π_e.
        discount: γ of the numbers, whose sign says whether the event happened.
        parameters: θ of π_θ, the searched part of the next behavior.
        share: of the evaluation policy in it.
        explored: of the policy that looks for other ways to fail in it; 0 if none can.
        candidates: (J, P), the parameters among which the next θ is chosen.
        known: what the targets' episodes taught (`imitation`).
        predicted: (J + 1,), fading sums of the second moment that each candidate, and π_e itself, would have had over
            the target of the batch after it.
        batches: how many there were.
        level: the margin from which on an episode is one of the target; infinite if that is the event itself.
        stalled: how many batches in a row have not raised it.
        common: how many equally weighted episodes the last batch's failures were worth, per episode.
        prepared: batches with failures.
        shift: b of the next batch.
        counting: whether the next batch counts.
    """

    evaluation: Policy
    discount: Scalar
    parameters: Array
    share: Scalar
    explored: Scalar
    candidates: Array
    known: PyTree[Array]
    predicted: Array
    batches: Scalar
    level: Scalar
    stalled: Scalar
    common: Scalar
    prepared: Scalar
    shift: Scalar
    counting: Flag


@dataclass(frozen=True)
class Levels(Search[LevelsState]):
    """Weighted cross-entropy toward the episodes that came nearest to the event, with a defensive mixture.

    An event of probability 1e-6 is not seen in thousands of episodes of the policy. So each batch has a target: the
    episodes of the largest margins, or those that failed as soon as enough did. The next π_θ makes the target's
    episodes likely, weighted to π_e (`imitation`): it maximises

        Σ_target w log π_θ(H),    w = π_e(H) / μ(H),

    with a prior toward π_e. The behavior is μ = α π_e + β π_noisy + (1 − α − β) π_θ for whole episodes, so that no
    weight exceeds 1/α, and a second way to fail is still seen at least α times as often as the policy itself shows it.
    A noisier π_e shows it far more often, where it needs few rare actions: what is learned of the first way cannot
    hide it.

    - How far the fit is trusted is chosen by episodes that had no part in it: each candidate is judged by the second
      moment Σ_target w π_e(H)/μ(H) of the next batch. If none is better than π_e itself, the behavior is π_e.
    - The first batch, and one now and then as long as no failure has been seen, looks around with a noisier policy: a
      failure by a single rare action has no levels, but the probabilities of actions are known.
    - Batches before failures are common count nothing (`weight`): the values of a behavior that misses failures are
      nearly all 0 and a few huge. When failures have become common, or do not become more common any more, or the
      policy itself shows them often enough, episodes begin to count, and count from then on. The behavior is refined
      between batches all the time.

    Its numbers are those of an event: an episode with a positive return has failed. `margins` of the batch tell how
    near the others came; without them only looking around finds failures.

    Attributes:
        quantile: the share of a batch that its target should be worth.
        defensive: α, the share of episodes that the evaluation policy itself runs, in (0, 1).
        careful: the same where episodes count, if that is more. With a half of them no weight exceeds 2: nothing that
            the search does not know can make the estimate more than twice as bad as the policy itself would.
        exploring: β, the share of episodes that a noisier π_e runs. 0 for policies that cannot be made noisier.
    """

    for_events: ClassVar[bool] = True

    quantile: float = 0.05
    defensive: float = 0.2
    careful: float = 0.0
    exploring: float = 0.1

    def __post_init__(self) -> None:
        check_real("quantile", self.quantile, above=0.0, high=0.5)
        check_real("exploring", self.exploring, low=0.0, high=0.4)
        check_real("defensive", self.defensive, above=0.0, high=0.99 - self.exploring)
        check_real("careful", self.careful, low=0.0, high=0.99 - self.exploring)

    @in_64_bit
    def init(self, policy: Policy, discount: float = 1.0) -> LevelsState:
        """Before the first batch, which looks around."""
        check_type("policy", policy, Policy, "a policy of bpsearch").check_searchable()
        if policy.remembers:
            raise InvalidArgumentError(
                f"levels run the policy itself in a share of the episodes, and for that its actions must depend on the "
                f"observation alone; {policy.name} has a memory"
            )
        imitation, noisy = imitation_of(policy), policy.noisier(TEMPERATURES[0])
        return LevelsState(
            evaluation=policy,
            discount=np.float64(discount),
            parameters=np.asarray(noisy.flat),
            share=np.float64(AT_RANDOM),
            explored=np.float64(0.0 if np.array_equal(noisy.flat, policy.flat) else self.exploring),
            candidates=np.tile(np.asarray(policy.flat), (imitation.candidates, 1)),
            known=imitation.init(policy),
            predicted=np.zeros(imitation.candidates + 1),
            batches=np.int64(0),
            level=np.float64(-np.inf),
            stalled=np.int64(0),
            common=np.float64(0.0),
            prepared=np.int64(0),
            shift=np.float64(0.0),
            counting=np.bool_(False),
        )

    @in_64_bit
    def behavior(self, state: LevelsState) -> Policy:
        """α π_e + β π_noisy + (1 − α − β) π_θ, drawn once for each episode."""
        both = Mixture(state.evaluation, state.evaluation.with_flat(state.parameters), state.share)
        return replace(both, explorer=_explorer(state), explored=state.explored) if state.explored else both

    def shift(self, state: LevelsState) -> float:
        """The b with which earlier episodes let one expect the least variance."""
        return float(state.shift)

    def weight_bound(self, state: LevelsState) -> float:
        """One over the smallest share of π_e in a batch, also of those that count nothing."""
        return 1.0 / min(self.defensive, AT_RANDOM)

    def weight(self, state: LevelsState) -> float:
        """0 until failures are common, then 1."""
        return float(state.counting)

    @in_64_bit
    def step(self, state: LevelsState, batch: Trajectories) -> tuple[LevelsState, Info]:
        """Find the target of the batch, judge the candidates by it, learn from it, and choose the next behavior."""
        check_type("batch", batch, Trajectories, "Trajectories")
        evaluation = state.evaluation
        component = evaluation.with_flat(state.parameters)
        log_weights = weigh_episodes(evaluation, batch)
        weights = np.exp(log_weights)
        happened = find_failures(state, batch)
        target, level = self.find_target(state, batch, weights)

        common = _worth(weights * happened) / len(batch)
        told = state.prepared > 0 or common * len(batch) >= SEVERAL
        visible = bool(told and weights @ happened >= VISIBLE * len(batch))
        found = bool(happened.any()) and level == math.inf
        counting = bool(state.counting) or visible or (found and self._is_prepared(state, common, len(batch)))
        share = max(self.defensive, self.careful) if counting else self.defensive
        predicted, noise = np.asarray(state.predicted), weigh_explorer(state, batch, log_weights)
        if target.any():
            predicted = MEMORY * predicted + self._second_moments(state, batch, log_weights, target, share, noise)
        # What was above the old level need not be above the new one; what was below it is not.
        fade = (1.0, 1.0) if level == state.level else (0.0 if level > state.level else MEMORY, MEMORY)
        imitation, drawn = imitation_of(evaluation), np.exp(weigh_episodes(component, batch))
        known = imitation.add(state.known, component, batch, target, weights, drawn, fade)

        state = replace(
            state,
            candidates=imitation.fit(known, evaluation, component),
            known=known,
            predicted=predicted,
            batches=np.int64(state.batches + 1),
            level=np.float64(level),
            stalled=np.int64(0 if level > state.level else state.stalled + 1),
            common=np.float64(common),
            prepared=np.int64(state.prepared + found),
            counting=np.bool_(counting),
        )
        state, explained = self._choose(state, share, visible)
        shift = find_shift(state, happened, log_weights, weigh_actions(state, batch, log_weights, noise))
        state = replace(state, shift=np.float64(shift))
        values = weights * happened
        return to_numpy(state), Info(values, np.float64(np.mean(values**2)), explained=np.float64(explained))

    def find_target(
        self, state: LevelsState, batch: Trajectories, weights: Float[NumpyArray, " episodes"]
    ) -> tuple[Bool[NumpyArray, " episodes"], float]:
        """Which episodes the next behavior is to make likely; and their level, infinite if those have failed.

        It is the highest level whose episodes are worth enough, at least that of the batch before. If no episode has
        reached that, the level stays.
        """
        happened = find_failures(state, batch)
        margins = happened.astype(np.float64) if batch.margins is None else np.asarray(batch.margins)
        # A level that the search cannot reach again was luck; failures that were seen once stay the target.
        lowers = state.level < math.inf and state.stalled >= LOOK_AROUND
        least = -math.inf if lowers else float(state.level)
        found, level = self._target(state.evaluation, happened, margins, weights, least)
        return found, level if found.any() else float(state.level)

    def _target(
        self, policy: Policy, happened: NumpyArray, margins: NumpyArray, weights: NumpyArray, least: float
    ) -> tuple[Bool[NumpyArray, " episodes"], float]:
        imitation = imitation_of(policy)
        if happened.any() and (imitation.failures_at_once or happened.sum() >= imitation.enough):
            return happened, math.inf
        wanted = max(imitation.enough, self.quantile * len(margins))
        nearness = np.where(happened, math.inf, margins)
        found, level = np.zeros(len(margins), bool), -math.inf
        for lower in np.unique(nearness)[::-1]:
            more = nearness >= lower
            # If most episodes came so near, that tells nothing: better a few that came nearer.
            if lower < least or (more.mean() > 0.5 and lower < math.inf):
                break
            found, level = more, float(lower)
            if _worth(weights * found) >= wanted:
                break
        return found, level

    def _second_moments(
        self,
        state: LevelsState,
        batch: Trajectories,
        log_weights: Float[NumpyArray, " episodes"],
        target: Bool[NumpyArray, " episodes"],
        share: float,
        noise: Float[NumpyArray, " episodes"],
    ) -> Float[NumpyArray, " candidates"]:
        """(J + 1,), Σ_target w π_e/μ of the mixture with each candidate, and with π_e itself.

        The weights are scaled so that their sum is the number of equally weighted episodes that the target's are worth.
        """
        shares = np.exp(log_weights) * target
        shares *= shares.sum() / (shares @ shares)
        vectors = np.asarray(state.candidates)
        candidates = (replace(state, parameters=vector, share=np.float64(share)) for vector in vectors)
        found = [shares @ np.exp(weigh_actions(candidate, batch, log_weights, noise)) for candidate in candidates]
        return np.array([*found, shares.sum()])

    def _is_prepared(self, state: LevelsState, common: float, episodes: int) -> bool:
        """Whether another batch that does not count would hardly make failures more common."""
        if common >= COMMON or state.prepared + 1 >= PATIENCE:
            return True
        return ENOUGH <= common * episodes <= GROWTH * float(state.common) * episodes

    def _choose(self, state: LevelsState, share: float, visible: bool) -> tuple[LevelsState, float]:
        """The next behavior, of which π_e has this share, and the part of the second moment that it should remove.

        Where failures are visible, a fit that no batch has judged yet need not act.
        """
        policy = state.evaluation
        *judged, own = np.asarray(state.predicted)
        due = state.stalled >= LOOK_AROUND or state.batches % AT_LEAST_EVERY == 0
        vector = policy.noisier(TEMPERATURES[int(state.batches) % len(TEMPERATURES)]).flat
        sees_more = not np.array_equal(vector, policy.flat)
        lost = not state.counting and (state.level < math.inf or state.common == 0.0)
        if own == 0.0 or (lost and due and sees_more and state.share != AT_RANDOM):
            return replace(state, parameters=np.asarray(vector), share=np.float64(AT_RANDOM)), math.nan
        new = np.allclose(judged, own, rtol=1e-6)  # the first fit, which no batch has judged yet
        best = len(judged) // 2 if new else int(np.argmin(judged))
        ratio = judged[best] / own
        stays = visible if new else ratio > LARGEST_RATIO
        vector = policy.flat if stays else state.candidates[best]
        state = replace(state, parameters=np.asarray(vector), share=np.float64(share))
        return state, 0.0 if stays else math.nan if new else 1.0 - ratio


def find_failures(state: LevelsState, batch: Trajectories) -> Bool[NumpyArray, " episodes"]:
    """Which episodes failed."""
    failed: Bool[NumpyArray, " episodes"] = np.asarray(batch.returns(float(state.discount))) > 0.0
    return failed


def _explorer(state: LevelsState) -> Policy:
    return state.evaluation.noisier(TEMPERATURES[0])


def weigh_explorer(
    state: LevelsState, batch: Trajectories, log_weights: Float[NumpyArray, " episodes"]
) -> Float[NumpyArray, " episodes"]:
    """(N,), log π_noisy − log π_e of the actions, with log w of the episodes; 0 where nobody explores."""
    if not state.explored:
        return np.zeros(len(log_weights))
    return weigh_episodes(_explorer(state), batch) - log_weights


@in_64_bit
def weigh_actions(
    state: LevelsState,
    batch: Trajectories,
    log_weights: Float[NumpyArray, " episodes"],
    noise: Float[NumpyArray, " episodes"],
) -> Float[NumpyArray, " episodes"]:
    """(N,), log π_e/μ of the actions under the behavior of a state, whoever ran the episodes.

    Args:
        state: what the behavior is made of.
        batch: the episodes.
        log_weights: of π_e to whoever ran them.
        noise: log π_noisy − log π_e (`weigh_explorer`).
    """
    own = weigh_episodes(state.evaluation.with_flat(state.parameters), batch) - log_weights  # log π_θ − log π_e
    share, explored = float(state.share), float(state.explored)
    others = math.log1p(-share - explored) + own
    if explored:
        others = np.logaddexp(others, math.log(explored) + noise)
    return np.asarray(-np.logaddexp(math.log(share), others))


def find_shift(
    state: LevelsState,
    happened: Bool[NumpyArray, " episodes"],
    log_weights: Float[NumpyArray, " episodes"],
    expected: Float[NumpyArray, " episodes"],
) -> float:
    """B = Cov(w'g, w') / Var(w') under the next behavior μ', as the batch of μ tells it.

    E_μ'[w'² g] = E_μ[w w' g], and E_μ'[w'²] = E_μ[w w']. With a mixture, failures and other episodes have few
    different weights, and the line through them explains most of what is left of the variance.

    Args:
        state: before the batch of μ'.
        happened: which episodes failed.
        log_weights: log w of each.
        expected: log w', had μ' run it.
    """
    if not state.counting:
        return 0.0
    weights = np.exp(log_weights)
    both = weights * np.exp(expected)
    spread = both.mean() - 1.0
    return float(np.mean(both * happened - weights * happened)) / max(spread, 0.0) if spread > SPREAD else 0.0


@in_64_bit
def weigh_episodes(policy: Policy, batch: Trajectories) -> Float[NumpyArray, " episodes"]:
    """(N,), log π(H) − log μ(H), with the chance of a chosen start in μ(H)."""
    return np.asarray((_jitted_sums if policy.traceable else _sums)(policy, batch))


def _sums(policy: Policy, batch: Trajectories) -> Array:
    return log_ratios(policy, batch).sum(axis=1)


_jitted_sums = in_turn(jax.jit(_sums))


def _worth(weights: Float[NumpyArray, " episodes"]) -> float:
    """How many equally weighted episodes weighted ones are worth, (Σ w)² / Σ w²."""
    return float(weights.sum() ** 2 / (weights @ weights)) if weights.any() else 0.0
