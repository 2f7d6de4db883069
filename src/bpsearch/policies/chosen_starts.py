"""A behavior that chooses where its episodes start: of several starts that the environment offers, one is run."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

import numpy as np
from jaxtyping import Float, Int, PyTree

from bpsearch._core.arrays import Array, NumpyArray, Observations
from bpsearch._core.jaxtools import pytree, replace
from bpsearch.policies.base import Policy
from bpsearch.policies.wrapper import Wrapper


@dataclass(frozen=True, eq=False)
class Dealt:
    """Which of the offered starts each of G episodes runs.

    Attributes:
        indices: (G,), among the offered ones.
        log_weights: (G,), the logarithm of what the episode counts for it.
        others: (G, K − 1), for each episode some of those that nobody runs, as its further starts; None if those are
            drawn as ever.
    """

    indices: Int[NumpyArray, " episodes"]
    log_weights: Float[NumpyArray, " episodes"]
    others: Int[NumpyArray, "episodes others"] | None = None


class StartChoice(ABC):
    """Decides which of the starts that the environment offers are run.

    Some episodes of a batch, its members, are offered K starts each, and choose among all of them together. Who they
    are follows from the numbers of the episodes alone, and the choice from what the starts look like and from random
    numbers that belong to the members. So an episode stays a function of seed, batch and its number, wherever it runs.
    """

    @property
    @abstractmethod
    def weight_bound(self) -> float:
        """What no episode counts more than, for its start."""

    @property
    @abstractmethod
    def parameters(self) -> NumpyArray:
        """What tells them apart from others, as a vector."""

    @abstractmethod
    def members(self, episode: int) -> range:
        """The numbers of the episodes that choose together with this one."""

    @abstractmethod
    def offers(self, resets: int) -> int:
        """K, how many starts each of them is offered if so many further starts are wanted for it."""

    @abstractmethod
    def deal(self, members: range, uniforms: Float[NumpyArray, " episodes"], observations: Observations) -> Dealt:
        """Which starts they run.

        Args:
            members: their numbers.
            uniforms: (G,), a random number in [0, 1) of each.
            observations: (G K, ...), what they are offered.
        """


class StartWeights(StartChoice):
    """What decides which of K offered starts is run by an episode alone.

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
    def weight_bound(self) -> float:
        """1/α."""
        return 1.0 / self.uniform_share

    def members(self, episode: int) -> range:
        """Each alone."""
        return range(episode, episode + 1)

    def offers(self, resets: int) -> int:
        """As many candidates, whatever further starts are wanted."""
        return self.candidates

    def deal(self, members: range, uniforms: Float[NumpyArray, " episodes"], observations: Observations) -> Dealt:
        """One of the starts, by its probability."""
        index, log_weight = self.choose(float(uniforms[0]), observations)
        return Dealt(np.array([index]), np.array([log_weight]))

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


class StartStrata(StartChoice):
    """Runs one of every K neighbors, in the order of what starts promise.

    A batch is cut into blocks, and a block into `apart` groups: episodes whose numbers leave the same remainder. Each
    of the `together` episodes of a group is offered K starts. All of these are put in the order of their promise and
    cut into strata of K neighbors. Of each stratum one is run, each with the same chance. So every offered start is run
    with the probability 1/K, and every episode runs each of them with the same probability: the mean of the returns is
    unbiased whatever is promised, and nothing needs a weight.

    Strata are dealt to the episodes at random, two neighbors in that order to two neighbors among the members: the
    differences of such pairs tell the variance within strata. What is not run is dealt to the members, too, as further
    starts. An episode's own start and its further ones are then as likely in any order, and f(S_0) less the mean of f
    over them has mean 0.

    Attributes:
        apart: how many groups a block has: the promise of each may have been learned from its own episodes.
        together: G, how many episodes a group has; an even number.
    """

    apart: int
    together: int

    @abstractmethod
    def promise(self, group: int, observations: Observations) -> Float[NumpyArray, " starts"]:
        """What is promised to a group of each start, in any unit."""

    @property
    def weight_bound(self) -> float:
        """All count the same."""
        return 1.0

    def members(self, episode: int) -> range:
        """Those of the same block and remainder."""
        size = self.apart * self.together
        block = episode // size * size
        return range(block + episode % self.apart, block + size, self.apart)

    def offers(self, resets: int) -> int:
        """Its own start and the further ones."""
        return resets + 1

    def deal(self, members: range, uniforms: Float[NumpyArray, " episodes"], observations: Observations) -> Dealt:
        """One of each stratum."""
        order = np.argsort(self.promise(members.start % self.apart, observations), kind="stable")
        rng = np.random.default_rng((np.asarray(uniforms) * 2.0**53).astype(np.uint64))
        count = len(order) // len(members)
        picks = rng.integers(count, size=len(members))
        pairs, swaps = rng.permutation(len(members) // 2), rng.integers(2, size=len(members) // 2)
        return arrange(order, picks, pairs, swaps, rng.permutation(len(order) - len(members)))


def arrange(order: NumpyArray, picks: NumpyArray, pairs: NumpyArray, swaps: NumpyArray, rest: NumpyArray) -> Dealt:
    """Deal starts to G episodes by random numbers.

    Args:
        order: (G K,), the offered starts in order.
        picks: (G,), which of its K neighbors is run, by stratum.
        pairs: (G / 2,), a permutation: to which pair of episodes each pair of strata goes.
        swaps: (G / 2,), whether a pair of strata is turned around.
        rest: (G (K − 1),), a permutation: how those that are not run are dealt.
    """
    strata = order.reshape(len(picks), -1)
    run = np.zeros(strata.shape, bool)
    run[np.arange(len(picks)), picks] = True
    of_episode = (2 * pairs[:, None] + np.stack([swaps, 1 - swaps], axis=1)).reshape(-1)
    return Dealt(strata[run][of_episode], np.zeros(len(picks)), strata[~run][rest].reshape(len(picks), -1))


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
    choice: StartChoice
    action_bound: float = 1.0

    @property
    def actor(self) -> Policy:
        """The policy."""
        return self.policy

    @property
    def starts(self) -> StartChoice:
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
        """That of the choice times what the actions can weigh."""
        return self.action_bound * self.choice.weight_bound

    @property
    def uniforms(self) -> int:
        """As the policy."""
        return self.policy.uniforms

    def check_support(self, evaluation: Policy) -> None:
        """As the policy; every start has a share."""
        self.policy.check_support(evaluation)

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
