"""Which starts to run for a mean: one of every few neighbors, in the order of what they promise."""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from bpsearch._core.arrays import Array, NumpyArray, Observations
from bpsearch._core.checks import check_integer
from bpsearch._core.jaxtools import pytree, replace
from bpsearch.control_variates.starts import Starts
from bpsearch.errors import InvalidArgumentError
from bpsearch.policies.base import Policy
from bpsearch.policies.chosen_starts import ChosenStarts, StartStrata
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search.base import Info, Search

FLAT = 1e-7  # of its mean; a number of starts that varies less does not vary


@dataclass(frozen=True, eq=False)
class LinearPromise(StartStrata):
    """Promises each group a linear function of its own of the numbers of a start: (F, d) slopes."""

    source: Starts
    slopes: NumpyArray
    together: int

    @property
    def apart(self) -> int:  # type: ignore[override]
        """F."""
        return len(self.slopes)

    def promise(self, group: int, observations: Observations) -> Float[NumpyArray, " starts"]:
        """By the slopes of the group."""
        found: NumpyArray = self.source.numbers(observations) @ self.slopes[group]
        return found

    @property
    def parameters(self) -> NumpyArray:
        """The slopes."""
        return self.slopes.reshape(-1)


@pytree()
@dataclass(frozen=True, eq=False)
class SystematicState:
    """What is known about the returns from starts.

    Attributes:
        evaluation: who acts.
        discount: γ.
        sums: (F, d + 2, d + 2), of the episodes of each fold Σ z zᵀ with z = (1, numbers of the start, return).
    """

    evaluation: Policy
    discount: Array
    sums: Array


@dataclass(frozen=True)
class SystematicStarts(Search[SystematicState]):
    """Episodes of the policy itself, from starts that are spread along a prediction of their returns.

    The first batch starts wherever the environment says. From then on a linear regression orders the starts that are
    offered, and one of every K neighbors is run (`StartStrata`). An order without any meaning does no harm, so that
    nothing is gated, and more than a linear function was not found to gain anything.

    Folds of a batch are kept apart: what orders the starts of an episode was learned from earlier episodes of the same
    fold. So nothing that happens in a fold has a part in the other folds, neither in what is run nor in what comes of
    it, and control variates may be cross-fitted between them without any bias.

    Attributes:
        folds: F, those of the valuation.
        together: how many episodes of a fold choose together; with more the strata are finer, and more starts have to
            be drawn before any of those episodes can run.
    """

    folds: int = 5
    together: int = 20
    source: Starts = field(default_factory=Starts, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_integer("folds", self.folds, at_least=2)
        if check_integer("together", self.together, at_least=2) % 2:
            raise InvalidArgumentError(f"together must be even, got {self.together}")

    def init(self, policy: Policy, discount: float = 1.0) -> SystematicState:
        """Nothing is known."""
        size = 1 if self.source.refuse(policy) else self.source.bind(policy, discount).size
        return SystematicState(policy, np.array(discount, np.float64), np.zeros((self.folds, size + 2, size + 2)))

    def behavior(self, state: SystematicState) -> Policy:
        """The policy, from chosen starts once something is known about them."""
        slopes = np.stack([_slope(sums) for sums in np.asarray(state.sums)])
        if not slopes.any():
            return state.evaluation
        source = self.source.bind(state.evaluation, float(state.discount))
        return ChosenStarts(state.evaluation, LinearPromise(source, slopes, self.together))

    def step(self, state: SystematicState, batch: Trajectories) -> tuple[SystematicState, Info]:
        """Learn from a batch; nothing without further starts, of which none could be chosen."""
        returns = np.asarray(batch.returns(float(state.discount)))
        info = Info(returns, np.float64(np.mean(returns**2)))
        if batch.resets is None or self.source.refuse(state.evaluation):
            return state, info
        numbers = self.source.bind(state.evaluation, float(state.discount)).numbers(batch.starts)
        rows = np.column_stack([np.ones(len(returns)), numbers, returns])
        seen = np.stack([rows[fold :: self.folds].T @ rows[fold :: self.folds] for fold in range(self.folds)])
        return replace(state, sums=np.asarray(state.sums) + seen), info


def _slope(sums: NumpyArray) -> NumpyArray:
    """(d,), by a ridge regression on numbers with standard deviation 1; 0 for those that do not vary."""
    count = max(sums[0, 0], 1.0)
    mean = sums[0, 1:-1] / count
    products = sums[1:-1, 1:-1] - np.outer(mean, mean) * count
    correlation = sums[1:-1, -1] - mean * sums[0, -1]
    deviation = np.sqrt(np.maximum(np.diag(products) / count, 0.0))
    varies = deviation > FLAT * np.abs(mean)
    unit = np.where(varies, deviation, np.inf)
    slope: NumpyArray = np.linalg.solve(products / np.outer(unit, unit) + np.eye(len(unit)), correlation / unit) / unit
    return slope
