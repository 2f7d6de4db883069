"""Where an episode starts as a control variate: what starts predict, less its mean over further starts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, Self

import jax
import numpy as np
from gymnasium import spaces
from jaxtyping import Float

from bpsearch._core.arrays import NumpyArray, Observations, Proxy
from bpsearch._core.checks import quote
from bpsearch.control_variates.base import ControlVariate
from bpsearch.control_variates.features import CANDIDATES, WITH_PREDICTION, Moments, Scale, expand, solve_all
from bpsearch.envs.observations import empty_observations, restore
from bpsearch.errors import InvalidArgumentError
from bpsearch.policies.base import Policy
from bpsearch.sampling.trajectories import Trajectories

MAX_NUMBERS = 100  # of one start that can be learned from
CHUNK = 2**11  # starts whose features are held at once: they stay in the cache
SHRINKAGES = (1.0, 5.0)  # how many episodes "this start is like the others" is worth


@dataclass(frozen=True, eq=False)
class StartsOfGroup:
    """Starts (n, d) with what came of them (n,)."""

    starts: NumpyArray
    targets: NumpyArray


@dataclass(frozen=True, eq=False)
class SeenStarts:
    """The starts of some groups of episodes; the sums over them and their further starts, to scale features by.

    Groups are kept apart, so that what several sums have in common is computed once.
    """

    groups: tuple[StartsOfGroup, ...]
    pool: Scale

    def __add__(self, other: "SeenStarts") -> "SeenStarts":
        """Those of both."""
        return SeenStarts(self.groups + other.groups, self.pool + other.pool)


@dataclass(frozen=True, eq=False)
class StartFit:
    """C × J linear functions of the features of scaled starts: (C, J, D)."""

    scale: Scale
    coefficients: NumpyArray


@dataclass(frozen=True)
class Starts(ControlVariate[dict[str, NumpyArray], SeenStarts, StartFit]):
    """f(S_0) − mean_j f(S'_j), with S'_j the further starts of the episode and f a regression of returns on starts.

    All starts are drawn alike, so the difference has mean 0 whatever f is, as long as f did not learn from the episode.
    Its features are scaled by all starts, the episode's own among them: they depend on the set of S_0 and S'_j, not on
    which of them the episode had, and given that set each is as likely. Every episode has further starts of its own, so
    the variance of their mean is part of the spread of the values.

    The candidates for f are linear, quadratic, three kernel regressions (random Fourier features of three widths) and
    the mean of two of these; with a proxy also that alone, scaled.

    Attributes:
        doubt: see `ControlVariate`.
        proxy: a function of many starts (n, ...) that gives a number (n,) for each, as a further feature: the returns
            of a cheap simulator, of an older agent. It stands alone where starts have too many numbers.
    """

    kind: ClassVar[str] = "starts"
    needs_resets: ClassVar[bool] = True

    doubt: float = 2.0
    proxy: Proxy | None = None
    policy: Policy | None = field(default=None, repr=False, compare=False)

    def bind(self, policy: Policy, discount: float) -> Self:
        """The policy's own critic is among the features."""
        return replace(self, policy=policy)

    def refuse(self, policy: Policy) -> str:
        """Starts that are states to be counted, or that have too many numbers."""
        if isinstance(policy.observation_space, spaces.Discrete) and self.proxy is None:
            return "the starts are states to be counted"
        return self.too_large(policy)

    def with_proxy(self, proxy: Proxy) -> Self:
        """With a function of the user's own among the features."""
        if not callable(proxy):
            raise InvalidArgumentError(f"proxy must be a function of many starts, got {quote(proxy)}")
        return replace(self, proxy=proxy)

    def too_large(self, policy: Policy) -> str:
        """Starts with more numbers than can be learned from."""
        return "" if self.proxy is not None else _unfit(policy)

    def summarize(self, batch: Trajectories) -> dict[str, NumpyArray] | None:
        """The starts (N, d), the further starts one after the other, and how many each episode has."""
        if batch.resets is None:
            return None
        count = jax.tree_util.tree_leaves(batch.resets)[0].shape[1]
        further = jax.tree_util.tree_map(lambda array: _flat(np.asarray(array)), batch.resets)
        return {
            "starts": self.numbers(batch.starts),
            "resets": self.numbers(further),
            "counts": np.full(len(batch), count),
        }

    def evidence(
        self, summary: dict[str, NumpyArray], targets: NumpyArray, groups: NumpyArray, count: int
    ) -> list[SeenStarts]:
        """The starts of each group with their targets."""
        starts, resets = summary["starts"], summary["resets"]
        owners = np.repeat(groups, summary["counts"])
        return [
            SeenStarts(
                (StartsOfGroup(starts[groups == group], targets[groups == group]),),
                Scale.of(starts[groups == group]) + Scale.of(resets[owners == group]),
            )
            for group in range(count)
        ]

    def fit(self, evidence: Sequence[SeenStarts]) -> StartFit:
        """Ridge regressions on features of starts that are scaled alike for all."""
        scale = evidence[0].pool
        for seen in evidence[1:]:
            scale = scale + seen.pool
        every = {id(group): group for seen in evidence for group in seen.groups}
        moments = {at: Moments.of(expand(scale(group.starts)), group.targets) for at, group in every.items()}
        candidates, rows = CANDIDATES if self.proxy is None else WITH_PREDICTION, []
        for seen in evidence:
            products, correlation = Moments.add([moments[id(group)] for group in seen.groups]).center()
            rows.append(solve_all(candidates, scale.size, products, correlation))
        return StartFit(scale, np.array(rows))

    def predict(self, fit: StartFit, summary: dict[str, NumpyArray]) -> NumpyArray:
        """f(S_0) − mean_j f(S'_j)."""
        counts, coefficients = summary["counts"], fit.coefficients
        found = np.empty((*coefficients.shape[:2], len(counts)))
        ends = np.cumsum(counts)
        for rows in _runs(counts, CHUNK):
            own = summary["resets"][ends[rows.start] - counts[rows.start] : ends[rows.stop - 1]]
            resets = expand(fit.scale(own)).reshape(rows.stop - rows.start, counts[rows.start], -1)
            found[..., rows] = coefficients @ (expand(fit.scale(summary["starts"][rows])) - resets.mean(axis=1)).T
        return found

    @property
    def size(self) -> int:
        """How many numbers of a start are learned from."""
        assert self.policy is not None
        return int(self.numbers(empty_observations(self.policy.observation_space, 1)).shape[1])

    def numbers(self, observations: Observations) -> Float[NumpyArray, "starts numbers"]:
        """(n, d), the observations as vectors, with the critic's value and, last, the proxy's."""
        assert self.policy is not None
        leaves = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(observations)]
        columns = []
        if not _unfit(self.policy):
            columns = [leaf.reshape(len(leaf), -1).astype(np.float64) for leaf in leaves]
        values = self.policy.critic(observations)
        if values is not None:
            columns.append(np.asarray(values, dtype=np.float64).reshape(-1, 1))
        if self.proxy is not None:
            columns.append(self._predict(restore(self.policy.observation_space, observations), len(leaves[0])))
        return np.concatenate(columns, axis=1)

    def _predict(self, observations: Any, count: int) -> Float[NumpyArray, "starts 1"]:
        assert self.proxy is not None
        found = np.asarray(self.proxy(observations))
        if found.shape not in ((count,), (count, 1)) or found.dtype.kind not in "biuf":
            raise InvalidArgumentError(
                f"proxy must give one number for each of the {count} starts that it is given, got {found.dtype} of the "
                f"shape {found.shape}"
            )
        values = found.reshape(-1, 1).astype(np.float64)
        if not np.isfinite(values).all():
            at = int(np.flatnonzero(~np.isfinite(values))[0])
            raise InvalidArgumentError(
                f"proxy must give finite numbers, got {values[at, 0]} for start {at} of {count}: give a number there "
                f"that says little, the mean of the others for instance"
            )
        return values


def _unfit(policy: Policy) -> str:
    """Why the numbers of a start cannot be learned from; empty if they can."""
    try:
        size = spaces.flatdim(policy.observation_space)
    except NotImplementedError:
        return f"starts: {policy.observation_space} cannot be written as numbers"
    if size > MAX_NUMBERS:
        return f"starts: one has {size} numbers, and at most {MAX_NUMBERS} can be learned from"
    return ""


@dataclass(frozen=True, eq=False)
class CountedStarts:
    """By state, how many episodes started there, and the sum of their targets."""

    counts: NumpyArray
    sums: NumpyArray

    def __add__(self, other: "CountedStarts") -> "CountedStarts":
        """Those of both."""
        return CountedStarts(self.counts + other.counts, self.sums + other.sums)


@dataclass(frozen=True)
class StartStates(ControlVariate[dict[str, NumpyArray], CountedStarts, NumpyArray]):
    """The same for starts that are states to be counted: f is the mean of the returns from each, shrunk to that of all.

    f(s) = (Σ_s Y − n_s Ȳ) / (n_s + k), for k = 1 and 5.
    """

    kind: ClassVar[str] = "starts"
    needs_resets: ClassVar[bool] = True

    doubt: float = 2.0
    states: int = field(default=0, repr=False, compare=False)

    def bind(self, policy: Policy, discount: float) -> Self:
        """For the states of this policy."""
        space = policy.observation_space
        assert isinstance(space, spaces.Discrete)
        return replace(self, states=int(space.n))

    def refuse(self, policy: Policy) -> str:
        """Starts that are no states to be counted."""
        return "" if isinstance(policy.observation_space, spaces.Discrete) else "the starts cannot be counted"

    def summarize(self, batch: Trajectories) -> dict[str, NumpyArray] | None:
        """(N,), the starts; the further starts one after the other; (N,), how many each episode has."""
        if batch.resets is None:
            return None
        resets = np.asarray(batch.resets)
        first = np.asarray(batch.observations)[:, 0]
        return {"starts": first, "resets": resets.reshape(-1), "counts": np.full(len(first), resets.shape[1])}

    def evidence(
        self, summary: dict[str, NumpyArray], targets: NumpyArray, groups: NumpyArray, count: int
    ) -> list[CountedStarts]:
        """Counts and sums of each group."""
        starts = summary["starts"]
        return [
            CountedStarts(
                np.bincount(starts[groups == group], minlength=self.states),
                np.bincount(starts[groups == group], targets[groups == group], minlength=self.states),
            )
            for group in range(count)
        ]

    def fit(self, evidence: Sequence[CountedStarts]) -> NumpyArray:
        """(C, J, S), f of each state."""
        tables = []
        for seen in evidence:
            mean = seen.sums.sum() / max(seen.counts.sum(), 1)
            tables.append([(seen.sums - seen.counts * mean) / (seen.counts + shrinkage) for shrinkage in SHRINKAGES])
        return np.array(tables)

    def predict(self, fit: NumpyArray, summary: dict[str, NumpyArray]) -> NumpyArray:
        """f(S_0) − mean_j f(S'_j)."""
        counts = summary["counts"]
        means = np.add.reduceat(fit[..., summary["resets"]], np.cumsum(counts) - counts, axis=-1) / counts
        return np.asarray(fit[..., summary["starts"]] - means)


def _runs(counts: NumpyArray, most: int) -> Iterator[slice]:
    """Episodes one after the other with the same number of further starts, at most `most` of those together."""
    borders = [0, *(np.flatnonzero(np.diff(counts)) + 1).tolist(), len(counts)]
    for begin, end in pairwise(borders):
        step = max(most // int(counts[begin]), 1) if begin < end else 1
        for first in range(begin, end, step):
            yield slice(first, min(first + step, end))


def _flat(array: NumpyArray) -> NumpyArray:
    """(N, r, ...) as (N r, ...)."""
    return array.reshape(-1, *array.shape[2:])
