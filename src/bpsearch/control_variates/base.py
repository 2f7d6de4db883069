"""What may be subtracted from an episode's value: the contract of control variates."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import jax
import numpy as np
from jaxtyping import Float, Int

from bpsearch._core.arrays import NumpyArray, Proxy
from bpsearch.policies.base import Policy
from bpsearch.sampling.trajectories import Trajectories


class Evidence(Protocol):
    """What some episodes teach; that of several groups of episodes adds up."""

    def __add__(self, other: Self, /) -> Self:
        """What both teach together."""
        ...


# The kinds of noise of an episode: where it starts, and which actions the policy draws.
KINDS = ("starts", "actions")

Summary = TypeVar("Summary")
E = TypeVar("E", bound=Evidence)
Fit = TypeVar("Fit")


class ControlVariate(ABC, Generic[Summary, E, Fit]):
    """Gives every episode of the evaluation policy numbers whose expectation is exactly 0, and learns which.

    A valuation deals the episodes into groups, asks for the evidence of each, adds up that of the groups from which
    may be learned, fits, and has the episodes of *other* groups predicted. So a prediction never depends on the episode
    itself, and a control variate cannot bias the estimate as long as it keeps its promise:

    - For every fit, the expectation of `predict` over an episode of the evaluation policy that had no part in the fit
      is 0: a function of the policy's own random choices given the states (scores, advantages), of the start less
      its known mean, of a simulation with a known mean.
    - The evidence of the union of two groups is the sum of theirs, and predictions of an episode depend on the fit and
      on that episode alone.

    `bpsearch.testing.check_control_variate` checks both. How much of which prediction is subtracted, and whether any,
    is chosen by the valuation, on episodes that the choice does not value.
    """

    # Whose noise it explains, one of `KINDS`. Of each kind at most one candidate is subtracted.
    kind: ClassVar[str] = "actions"
    # Whether it needs further starts besides those of the episodes: `Trajectories.resets`.
    needs_resets: ClassVar[bool] = False
    # How many standard errors a prediction must explain of left-out episodes to be used at all.
    doubt: float = 2.0

    def bind(self, policy: Policy, discount: float) -> Self:
        """The control variate for this policy and γ; itself if it needs neither."""
        return self

    def with_proxy(self, proxy: Proxy) -> Self:
        """With a user's own function of starts among what it learns from; itself if it does not learn from starts."""
        return self

    def refuse(self, policy: Policy) -> str:
        """Why it can be of no use for this policy; empty if it can."""
        return ""

    def too_large(self, policy: Policy) -> str:
        """Why it would help but for the size of this policy or its observations; empty if that is not the reason."""
        return ""

    @abstractmethod
    def summarize(self, batch: Trajectories) -> Summary | None:
        """What is kept of a batch: a pytree of arrays, each of which is joined to other batches' along its first axis.

        None if the batch lacks what is needed; then the control variate is not used.
        """

    @abstractmethod
    def evidence(
        self,
        summary: Summary,
        targets: Float[NumpyArray, " episodes"],
        groups: Int[NumpyArray, " episodes"],
        count: int,
    ) -> list[E]:
        """What the episodes of each group teach about the targets.

        Args:
            summary: of N episodes.
            targets: (N,), what is to be predicted: returns, or what is left of them.
            groups: (N,), the group of each episode; a number outside of 0, ..., count − 1 belongs to none.
            count: how many groups.
        """

    @abstractmethod
    def fit(self, evidence: Sequence[E]) -> Fit:
        """C fits, one for each evidence."""

    @abstractmethod
    def predict(self, fit: Fit, summary: Summary) -> Float[NumpyArray, "fits candidates episodes"]:
        """(C, J, N): for each of the C fits, J candidates of what may be subtracted from each of N episodes."""

    def spread(self, fit: Fit, summary: Summary) -> Float[NumpyArray, "fits candidates episodes"] | None:
        """(C, J, N), the expectation of the squared prediction, given the states that the episode has met.

        The policy's own probabilities tell it, of actions too that no episode has shown. None if they do not.
        """
        return None

    def steps(self, fit: Fit, which: int, candidate: int) -> Float[NumpyArray, "steps states actions"] | None:
        """(T, S, A), what a step adds to a prediction of one fit, by time, state and action; T = 1 if time is nothing.

        None where states and actions cannot be counted.
        """
        return None

    def expected_variance(
        self,
        summary: Summary,
        targets: Float[NumpyArray, " episodes"],
        folds: Int[NumpyArray, " episodes"],
        subtracted: Sequence[Float[NumpyArray, "steps states actions"]],
    ) -> float | None:
        """The variance of a value that the policy's own probabilities let one expect; None if they do not tell.

        Args:
            summary: of N episodes.
            targets: (N,), what they were valued by.
            folds: (N,), the fold of each.
            subtracted: for each fold (T, S, A), what is subtracted from its episodes in each step; see `steps`.
        """
        return None


def join(summaries: Sequence[Summary]) -> Summary:
    """The summary of all episodes, in order."""
    joined: Summary = jax.tree_util.tree_map(lambda *parts: np.concatenate(parts), *summaries)
    return joined


AnyControlVariate = ControlVariate[Any, Any, Any]
