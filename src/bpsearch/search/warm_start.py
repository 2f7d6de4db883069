"""A search that begins with old episodes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import PyTree

from bpsearch._core.arrays import Array, Scalar
from bpsearch._core.checks import check_type
from bpsearch._core.jaxtools import pytree, replace
from bpsearch.estimators.base import Estimator, log_ratios
from bpsearch.estimators.importance import per_decision
from bpsearch.policies.base import Policy
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search.base import Info, Search


@pytree()
@dataclass(frozen=True, eq=False)
class WarmState:
    """The state of the search that goes on, and what is known of old episodes.

    Attributes:
        inner: of the search.
        policy: the evaluation policy.
        discount: γ.
        told: how many batches.
        worth: what an old episode is worth beside one of the policy itself; 0 before the first batch.
        center: the mean return that the first batch tells.
    """

    inner: PyTree[Array]
    policy: Policy
    discount: Scalar
    told: Scalar
    worth: Scalar
    center: Scalar


@dataclass(frozen=True)
class WarmStart(Search[WarmState]):
    """The first two batches are old episodes, of another behavior; then `search` goes on with what they taught it.

    Old episodes may be worth much less than new ones. How much must be fixed before they are valued, or the estimate is
    biased: large weights would choose how much they count. So the first batch is not counted. It tells what an episode
    of the second is worth beside one of the policy itself, and where to center its values (`judge_worth`).

    Attributes:
        search: chooses the behaviors of all later batches.
    """

    search: Search[Any]

    def __post_init__(self) -> None:
        check_type("search", self.search, Search, "a Search")

    @property
    def estimator(self) -> Estimator:
        """That of the search that goes on."""
        return self.search.estimator

    def init(self, policy: Policy, discount: float = 1.0) -> WarmState:
        """Nothing told."""
        zero = np.float64(0.0)
        return WarmState(self.search.init(policy, discount), policy, np.float64(discount), np.int64(0), zero, zero)

    def behavior(self, state: WarmState) -> Policy:
        """What the search would run."""
        return self.search.behavior(state.inner)

    def step(self, state: WarmState, batch: Trajectories) -> tuple[WarmState, Info]:
        """Weigh the first batch; let the search learn from the others."""
        told = np.int64(state.told + 1)
        if state.told:
            inner, info = self.search.step(state.inner, batch)
            return replace(state, inner=inner, told=told), info
        ratios = np.asarray(log_ratios(state.policy, batch))
        estimator = per_decision if self.estimator.needs_model else self.estimator  # there is no model yet
        values = np.asarray(estimator(batch.rewards, ratios, batch.mask, float(state.discount)))
        worth, center = judge_worth(values, np.asarray(batch.returns(float(state.discount))), ratios.sum(axis=1))
        return replace(state, told=told, worth=np.float64(worth), center=np.float64(center)), Info(
            values, np.float64(np.mean(values**2))
        )

    def shift(self, state: WarmState) -> float:
        """The mean return that the first batch tells for the second, then that of the search."""
        return self.search.shift(state.inner) if state.told > 1 else float(state.center)

    def weight(self, state: WarmState) -> float:
        """Nothing for the first batch, its worth for the second, both beside what the search says of its batches."""
        return self.search.weight(state.inner) * (1.0 if state.told > 1 else float(state.worth))


def judge_worth(values: Array, returns: Array, log_weights: Array) -> tuple[float, float]:
    """What old episodes are worth, Σ w (g − ḡ)² / Σ w over the variance of X + ḡ (1 − w), and ḡ = Σ w g / Σ w.

    They are worth at most 1, and nothing if there are fewer than two, which tell nothing.
    """
    if len(values) < 2 or not np.isfinite(log_weights).any():
        return 0.0, 0.0
    shares = np.exp(log_weights - np.max(log_weights))
    shares = shares / shares.sum()
    center = float(shares @ returns)
    spread = float(shares @ (returns - center) ** 2)
    variance = float(np.var(values + center * (1.0 - np.exp(log_weights)), ddof=1))
    return (min(spread / variance, 1.0) if variance > 0.0 else 1.0), center
