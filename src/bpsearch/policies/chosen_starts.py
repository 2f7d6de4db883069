"""A behavior that chooses where its episodes start: of several starts that the environment offers, one is run."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

import numpy as np
from jaxtyping import Float, PyTree

from bpsearch._core.arrays import Array, NumpyArray, Observations
from bpsearch._core.jaxtools import pytree, replace
from bpsearch.policies.base import Policy
from bpsearch.policies.wrapper import Wrapper


class StartWeights(ABC):
    """What decides which of K offered starts is run.

    The environment offers K independent starts s_1, ..., s_K, and s_j is run with the probability

        p_j = α/K + (1 − α) u(s_j) / Σ_k u(s_k),

    which must not depend on anything else than what the starts look like. An episode from s_j counts 1/(K p_j) times.
    Given the offered starts the expectation of what it counts is the mean of their returns, and each of them is drawn
    as the environment draws starts: the mean over episodes is unbiased for every u ≥ 0. No weight exceeds 1/α.

    Attributes:
        candidates: K.
        uniform_share: α.
    """

    candidates: int
    uniform_share: float

    @abstractmethod
    def weigh(self, observations: Observations) -> Float[NumpyArray, " starts"]:
        """The u of each start, at least 0."""

    @property
    @abstractmethod
    def parameters(self) -> NumpyArray:
        """What tells them apart from others, as a vector."""

    def probabilities(self, observations: Observations) -> Float[NumpyArray, " starts"]:
        """(K,), p of the starts that one episode is offered."""
        weights = np.maximum(np.asarray(self.weigh(observations), dtype=np.float64), 0.0)
        total, count = weights.sum(), len(weights)
        if not total > 0.0 or not np.isfinite(total):
            return np.full(count, 1.0 / count)
        chances: NumpyArray = self.uniform_share / count + (1.0 - self.uniform_share) * weights / total
        return chances

    def choose(self, uniform: float, observations: Observations) -> tuple[int, float]:
        """Which of the starts is run, by a number in [0, 1), and the logarithm of 1/(K p)."""
        chances = self.probabilities(observations)
        index = min(int(np.searchsorted(np.cumsum(chances), uniform, side="right")), len(chances) - 1)
        return index, -float(np.log(len(chances) * chances[index]))


@dataclass(frozen=True, eq=False)
class Squared(StartWeights):
    """u² of another choice, which trusts it more.

    The best u(s) is the root of the second moment of what an episode from s counts. If actions are drawn by the policy
    itself that is the root of the probability of the event. If a behavior makes the event likely from every start, an
    episode from s counts nearly the same each time, and the best u(s) is the probability itself.
    """

    choice: StartWeights

    @property
    def candidates(self) -> int:  # type: ignore[override]
        """As the other."""
        return self.choice.candidates

    @property
    def uniform_share(self) -> float:  # type: ignore[override]
        """As the other."""
        return self.choice.uniform_share

    def weigh(self, observations: Observations) -> Float[NumpyArray, " starts"]:
        """The u² of each start."""
        return np.asarray(self.choice.weigh(observations)) ** 2

    @property
    def parameters(self) -> NumpyArray:
        """The other's."""
        return self.choice.parameters


@pytree(static=("choice", "action_bound"))
@dataclass(frozen=True, eq=False)
class ChosenStarts(Wrapper):
    """Acts as `policy`, in episodes whose starts are chosen.

    Samplers record the chance of the chosen start, relative to how the environment draws it, with the log-probability
    of the first action: log π(A_0|S_0) + log(K p). So the weight of an episode is the product of the start's and of the
    actions'.

    Attributes:
        policy: who acts.
        choice: who chooses.
        action_bound: what no weight of the actions alone can exceed; 1 if the evaluation policy acts.
    """

    policy: Policy
    choice: StartWeights
    action_bound: float = 1.0

    @property
    def actor(self) -> Policy:
        """The policy."""
        return self.policy

    @property
    def starts(self) -> StartWeights:
        """Who chooses."""
        return self.choice

    @property
    def opaque(self) -> bool:  # type: ignore[override]
        """As the policy."""
        return self.policy.opaque

    @property
    def parameters(self) -> PyTree[Array]:
        """The policy's, and those of the choice."""
        return {"policy": self.policy.parameters, "starts": self.choice.parameters}

    def with_parameters(self, parameters: PyTree[Array]) -> Self:
        """Of another policy; who chooses stays."""
        return replace(self, policy=self.policy.with_parameters(parameters["policy"]))

    @property
    def deterministic(self) -> bool:
        """Whether the policy is."""
        return self.policy.deterministic

    @property
    def name(self) -> str:
        """What errors call it."""
        return f"{self.policy.name} from chosen starts"

    @property
    def weight_bound(self) -> float:
        """1/α times what the actions can weigh."""
        return self.action_bound / self.choice.uniform_share

    @property
    def row_multiple(self) -> int:  # type: ignore[override]
        """As the policy."""
        return self.policy.row_multiple

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        """As the policy."""
        return self.policy.remembers

    @property
    def uniforms(self) -> int:
        """As the policy."""
        return self.policy.uniforms

    def check_support(self, evaluation: Policy) -> None:
        """As the policy; every start has a share."""
        self.policy.check_support(evaluation)

    def begin(self, uniforms: Array) -> PyTree[Array]:
        """As the policy."""
        return self.policy.begin(uniforms)

    def sample_next(
        self, key: Array, observations: Observations, memory: PyTree[Array]
    ) -> tuple[Array, Array, PyTree[Array]]:
        """As the policy."""
        return self.policy.sample_next(key, observations, memory)

    def act(self, uniforms: NumpyArray, observations: Observations) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
        """As the policy."""
        return self.policy.act(uniforms, observations)

    def act_next(
        self, uniforms: NumpyArray, observations: Observations, memory: PyTree[Array]
    ) -> tuple[NumpyArray, NumpyArray, NumpyArray, PyTree[Array]]:
        """As the policy."""
        return self.policy.act_next(uniforms, observations, memory)

    def sample(self, key: Array, observations: Observations) -> tuple[Array, Array]:
        """As the policy."""
        return self.policy.sample(key, observations)

    def log_prob(self, observations: Observations, actions: Array) -> Array:
        """As the policy: that of the start is not known from the episode alone."""
        return self.policy.log_prob(observations, actions)
