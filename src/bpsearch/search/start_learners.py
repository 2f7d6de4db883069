"""What a start promises, learned from episodes of any behavior: by its margins, or by counting states.

Each kind of starts has one way. What is learned is what the policy itself would do from there.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from jaxtyping import Bool, Float, PyTree

from bpsearch._core.arrays import Array, NumpyArray, Observations
from bpsearch.policies.base import Policy
from bpsearch.policies.chosen_starts import StartWeights
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search.starts import NearStarts, StartSearch, find_margins

SHRINKAGE = 2.0  # how many episodes of the target "this start is like the others" is worth
MEMORY = 0.7  # what earlier episodes count after the target's level has been lowered


@dataclass(frozen=True, eq=False)
class Seen:
    """What a search of behaviors found in a batch.

    Attributes:
        target: which episodes are to become likely.
        risen: 1 if the level of the target is higher than before, −1 if it is lower, else 0.
        of_actions: π_e/μ of each episode's actions.
        of_all: the same with 1/(K p) of its start.
    """

    target: Bool[NumpyArray, " episodes"]
    risen: int
    of_actions: Float[NumpyArray, " episodes"]
    of_all: Float[NumpyArray, " episodes"]


class StartLearner(ABC):
    """How starts of one kind are learned about.

    Attributes:
        search: how many starts are offered, and how many of them are chosen without looking.
    """

    def __init__(self, search: StartSearch) -> None:
        self.search = search

    @abstractmethod
    def refuse(self, policy: Policy) -> str:
        """Why nothing can be learned about the starts; empty if it can."""

    @abstractmethod
    def init(self, policy: Policy, discount: float) -> PyTree[Array]:
        """What is known before the first episode."""

    @abstractmethod
    def learn(self, known: Any, batch: Trajectories, seen: Seen) -> PyTree[Array]:
        """What is known after a batch, and what the search of behaviors found in it."""

    @abstractmethod
    def choose(self, known: Any) -> StartWeights | None:
        """Who chooses starts by it; None as long as nothing is known."""


class ByMargin(StartLearner):
    """Starts that are numbers: the regression of `StartSearch`, weighted to the policy's own actions."""

    def refuse(self, policy: Policy) -> str:
        """Starts of too many numbers."""
        return self.search.source.refuse(policy)

    def init(self, policy: Policy, discount: float) -> dict[str, Any]:
        """Nothing is known about margins, nor about the smallest of the target's."""
        return {"margins": self.search.init(policy, discount), "aim": np.float64(np.inf)}

    def learn(self, known: Any, batch: Trajectories, seen: Seen) -> dict[str, Any]:
        """The margins of a batch, which say the same at every level, and which of them the target has."""
        margins = find_margins(batch) if batch.margins is None else np.asarray(batch.margins)
        aim = np.inf if seen.risen else float(known["aim"])
        return {
            "margins": self.search.learn(known["margins"], batch, margins, seen.of_actions),
            "aim": np.float64(min(aim, margins[seen.target].min()) if seen.target.any() else known["aim"]),
        }

    def choose(self, known: Any) -> NearStarts | None:
        """By sqrt(Φ((f(s) − aim)/σ)), with the smallest margin of the target as aim."""
        aim = float(known["aim"])
        return self.search.choose(known["margins"], aim) if np.isfinite(aim) else None


@dataclass(frozen=True, eq=False)
class LikelyStates(StartWeights):
    """Prefers states from which the target is likely: u(s) = sqrt(P(target|s)).

    Attributes:
        roots: (S,), u of each state.
    """

    roots: NumpyArray
    candidates: int
    uniform_share: float

    def weigh(self, observations: Observations) -> Float[NumpyArray, " starts"]:
        """The u of each start."""
        found: NumpyArray = self.roots[np.asarray(observations, int)]
        return found

    @property
    def parameters(self) -> NumpyArray:
        """The u of each state."""
        return self.roots


class ByState(StartLearner):
    """Starts that are states: in each, how probable the target is under the policy.

    P(target|s) = λ Σ_s w 1{target} / n_s + (1 − λ) p, with λ = h/(h + κ), h the number of the target's episodes from s,
    and p the probability from all starts. A state without such episodes is as good as the others are in the mean: what
    is rare may not have been seen yet.
    """

    def refuse(self, policy: Policy) -> str:
        """Nothing."""
        return ""

    def init(self, policy: Policy, discount: float) -> dict[str, NumpyArray]:
        """By state, nothing counted: episodes; the target's, their weights by actions alone, and by all."""
        space: Any = policy.observation_space
        return {name: np.zeros(int(space.n)) for name in ("number", "hits", "of_actions", "of_all")}

    def learn(self, known: Any, batch: Trajectories, seen: Seen) -> dict[str, NumpyArray]:
        """Count the batch.

        If the level rose, episodes that had not reached the old one have not reached the new one either. Of those that
        had, it is not known.
        """
        if seen.risen > 0:
            nothing = np.zeros(len(known["hits"]))
            known = {"number": known["number"] - known["hits"]} | dict.fromkeys(
                ("hits", "of_actions", "of_all"), nothing
            )
        fade = MEMORY if seen.risen < 0 else 1.0
        first, size = np.asarray(batch.observations)[:, 0].astype(int), len(known["number"])
        counted = {
            "number": np.ones(len(batch)),
            "hits": 1.0 * seen.target,
            "of_actions": seen.of_actions * seen.target,
            "of_all": seen.of_all * seen.target,
        }
        return {name: fade * known[name] + np.bincount(first, by, minlength=size) for name, by in counted.items()}

    def choose(self, known: Any) -> LikelyStates | None:
        """By sqrt(P(target|s))."""
        number, hits = known["number"], known["hits"]
        if not hits.any():
            return None
        trust = hits / (hits + SHRINKAGE)
        chances = (
            trust * known["of_actions"] / np.maximum(number, 1.0) + (1.0 - trust) * known["of_all"].sum() / number.sum()
        )
        return LikelyStates(np.sqrt(chances), self.search.candidates, self.search.uniform_share)


def learner_of(search: StartSearch, policy: Policy) -> StartLearner:
    """How the starts that this policy sees are learned about."""
    return (ByState if isinstance(policy.observation_space, spaces.Discrete) else ByMargin)(search)
