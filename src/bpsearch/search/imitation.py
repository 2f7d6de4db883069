"""Policies that make some weighted episodes likely: maximum likelihood with a prior toward the evaluation policy.

What episodes teach is kept as sums of a fixed size. Each of a few candidates trusts them more or less than the prior.
"""

from abc import ABC, abstractmethod
from typing import Any

import jax
import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float, PyTree

from bpsearch._core.arrays import Array, NumpyArray, Observations
from bpsearch._core.jaxtools import in_turn
from bpsearch.control_variates.scores import MAX_PARAMETERS, check_size
from bpsearch.policies.base import Policy
from bpsearch.sampling.trajectories import Trajectories

STRENGTHS = (0.5, 2.0, 8.0, 32.0)  # of the prior on tables, in visits of each state
RIDGES = (3.0, 10.0, 30.0, 100.0)  # of the prior on other policies, in episodes
LARGEST_STEP = 3.0  # the divergence, in nats, by which a candidate may leave the policy that ran the last episodes


class Imitation(ABC):
    """How a kind of policies is fitted to weighted episodes.

    Attributes:
        candidates: how many fits it gives.
        enough: how many equally weighted episodes a target should be worth.
        failures_at_once: whether a single failure tells more than many episodes that came near.
    """

    candidates: int
    enough: float
    failures_at_once: bool

    @abstractmethod
    def init(self, policy: Policy) -> PyTree[NumpyArray]:
        """What is known before the first episode."""

    @abstractmethod
    def add(
        self,
        known: PyTree[NumpyArray],
        component: Policy,
        batch: Trajectories,
        target: Bool[NumpyArray, " episodes"],
        weights: Float[NumpyArray, " episodes"],
        drawn: Float[NumpyArray, " episodes"],
        fade: tuple[float, float],
    ) -> PyTree[NumpyArray]:
        """What is known after a batch.

        Args:
            known: before it.
            component: π_θ, the searched part of the behavior that ran it.
            batch: the episodes.
            target: which episodes are to become likely.
            weights: w = π_e/μ of each episode.
            drawn: how probable each episode is under π_θ, relative to the behavior.
            fade: what earlier episodes of the target count now, and what all earlier ones do.
        """

    @abstractmethod
    def fit(self, known: PyTree[NumpyArray], policy: Policy, component: Policy) -> Float[NumpyArray, "candidates P"]:
        """The flat parameters of each candidate, from the one that trusts the episodes most."""


class ByCounts(Imitation):
    """Tables, in closed form: π(a|s) ∝ π_e(a|s) h(s, a), h the share of the visits to (s, a) that are the target's.

    That is where cross-entropy has its minimum. Counting the target's actions alone would give the same with many
    episodes; with few, an action that none of them took would seem to lead away from the target. Here it is as good as
    the others of its state: h is shrunk toward the share of all visits to s, as if κ more of them had been seen.
    """

    candidates = len(STRENGTHS)
    enough = 5.0
    failures_at_once = True

    def init(self, policy: Policy) -> dict[str, NumpyArray]:
        """Nothing counted: weighted visits of the target and of all episodes, and their number."""
        return {name: np.zeros(len(policy.flat)) for name in ("target", "all", "number")}

    def add(
        self,
        known: Any,
        component: Policy,
        batch: Trajectories,
        target: NumpyArray,
        weights: NumpyArray,
        drawn: NumpyArray,
        fade: tuple[float, float],
    ) -> dict[str, NumpyArray]:
        """Count the steps."""
        counted = {"target": weights * target, "all": weights, "number": np.ones(len(weights))}
        found = {}
        for name, by in counted.items():
            counts = component.count_actions(batch.observations, batch.actions, by[:, None] * np.asarray(batch.mask))
            found[name] = fade[name != "target"] * known[name] + np.asarray(counts)
        return found

    def fit(self, known: Any, policy: Policy, component: Policy) -> NumpyArray:
        """With each strength κ of the prior."""
        space: Any = policy.action_space
        target, every, number = (known[name].reshape(-1, space.n) for name in ("target", "all", "number"))
        of_state = _divide(target.sum(axis=1, keepdims=True), every.sum(axis=1, keepdims=True))
        of_action = _divide(target, every)
        found = []
        for strength in STRENGTHS:
            share = (number * of_action + strength * of_state) / (number + strength)
            found.append(np.asarray(policy.flat) + np.log(np.where(of_state > 0.0, share, 1.0)).ravel())
        return np.stack(found)


def _divide(part: NumpyArray, whole: NumpyArray) -> NumpyArray:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0.0)


class ByScores(Imitation):
    """Any policy with scores: Gauss-Newton steps on the weighted log-likelihood, limited by their divergence.

    About the θ that ran a batch the mean log-likelihood of the target's episodes is gᵀδ − δᵀFδ/2, with g their mean
    score and F = E[ZZᵀ] the information of an episode. As a function of θ − θ_e these forms add up over batches: their
    sum is known by Σ n F and Σ n (g + F (θ − θ_e)), n the number of episodes that a batch's target is worth. A ridge,
    the diagonal of F times a number of episodes, holds the directions that few episodes tell about.
    """

    candidates = len(RIDGES)
    enough = 10.0
    failures_at_once = False  # the noise of its steps would be taken for what failures have in common

    def init(self, policy: Policy) -> dict[str, NumpyArray]:
        """Nothing known; refuses a policy whose information does not fit."""
        size = check_size(policy)
        return {
            "origin": np.asarray(policy.flat, np.float64),
            "count": np.zeros(()),
            "information": np.zeros((size, size)),
            "linear": np.zeros(size),
        }

    def add(
        self,
        known: Any,
        component: Policy,
        batch: Trajectories,
        target: NumpyArray,
        weights: NumpyArray,
        drawn: NumpyArray,
        fade: tuple[float, float],
    ) -> dict[str, NumpyArray]:
        """Add the quadratic form of the batch; what led to lower levels fades, for it leads on."""
        find = _jitted_scores if component.traceable else _scores
        scores = np.asarray(find(component, batch.observations, batch.actions, batch.mask))
        # Of the episodes that π_θ itself could have drawn: those of the other part of a mixture weigh what is due.
        information = (scores * (drawn / drawn.sum())[:, None]).T @ scores
        if not target.any():
            return dict(known)
        shares = weights * target / (weights @ target)
        count = 1.0 / float(shares @ shares)  # how many equally weighted episodes the target's are worth
        away = np.asarray(component.flat, np.float64) - known["origin"]
        return {
            "origin": known["origin"],
            "count": np.asarray(fade[1] * known["count"] + count),
            "information": fade[1] * known["information"] + count * information,
            "linear": fade[1] * known["linear"] + count * (scores.T @ shares + information @ away),
        }

    def fit(self, known: Any, policy: Policy, component: Policy) -> NumpyArray:
        """With each ridge, the step from π_θ shortened to the trust region."""
        origin, information, count = known["origin"], known["information"], max(float(known["count"]), 1e-300)
        now = np.asarray(component.flat, np.float64) - origin
        diagonal = np.diag(information) / count
        floor = 1e-9 * diagonal.mean() + 1e-30
        found = []
        for ridge in RIDGES:
            system = information + np.diag(ridge * diagonal + floor)
            step = scipy.linalg.solve(system, known["linear"], assume_a="pos") - now
            divergence = 0.5 * float(step @ information @ step) / count
            found.append(origin + now + min(1.0, np.sqrt(LARGEST_STEP / max(divergence, 1e-300))) * step)
        return np.stack(found).astype(np.asarray(policy.flat).dtype)


def _scores(policy: Policy, observations: Observations, actions: Array, mask: Array) -> Array:
    return policy.episode_scores(observations, actions, mask)


_jitted_scores = in_turn(jax.jit(_scores))


def can_imitate(policy: Policy) -> bool:
    """Whether policies of this kind can be fitted: those without a memory, of no more than so many numbers."""
    return not policy.remembers and (policy.counts_actions or len(policy.flat) <= MAX_PARAMETERS)


def imitation_of(policy: Policy) -> Imitation:
    """How policies of this kind are fitted."""
    return ByCounts() if policy.counts_actions else ByScores()
