"""The policy's scores as control variates: no model, any policy with known probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import jax
import numpy as np

from bpsearch._core.arrays import Array, NumpyArray, Observations
from bpsearch._core.jaxtools import in_64_bit, in_turn, to_numpy
from bpsearch._core.systems import solve_positive
from bpsearch.control_variates.base import ControlVariate
from bpsearch.control_variates.imagined import imagined_scores
from bpsearch.errors import DeterministicPolicyError, InvalidArgumentError, UnknownProbabilitiesError
from bpsearch.policies.base import Policy
from bpsearch.sampling.trajectories import Trajectories

MAX_PARAMETERS = 2000
STRENGTHS = (0.003, 0.03, 0.3, 3.0)  # of the ridge, relative to what the episodes themselves tell


def check_size(policy: Policy) -> int:
    """The number of parameters of a policy for which a system of that size is to be solved."""
    size = len(policy.flat)
    if size > MAX_PARAMETERS:
        raise InvalidArgumentError(
            f"at most {MAX_PARAMETERS} parameters can be learned at once, got {size}; adapt the last layer of a "
            f"network only (adapt=...), use 'auto' or 'closed-form' for a table, or BPG with a step size of your own"
        )
    return size


@dataclass(frozen=True, eq=False)
class ScoreSums:
    """Over some episodes: n, Σ Y, Σ Z, Σ Z Y, Σ Z Zᵀ, and F, the covariance that the policy itself tells.

    `typical` is the mean of the diagonal of F, 0 where states can be counted.
    """

    count: NumpyArray
    target: NumpyArray
    score: NumpyArray
    correlation: NumpyArray
    products: NumpyArray
    information: NumpyArray
    typical: NumpyArray

    def __add__(self, other: "ScoreSums") -> "ScoreSums":
        """Over both."""
        return ScoreSums(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def ridge(self) -> NumpyArray:
        """(J, P), (Σ Z Zᵀ + κ F + e I)⁻¹ Σ Z (Y − Ȳ) for each strength κ.

        e is as if one more episode, without any effect, had moved every parameter by as much as they are moved on
        average. Else a parameter that hardly acts in these episodes (a unit that is mostly switched off) is learned
        from next to nothing, and throws off the first episode in which it does.
        """
        found = np.zeros((len(STRENGTHS), len(self.score)))
        acting = np.flatnonzero(np.diag(self.products) + np.diag(self.information))  # the others get nothing
        block = np.ix_(acting, acting)
        products, information = self.products[block], self.information[block]
        target = (self.correlation - self.target / max(self.count, 1) * self.score)[acting]
        # Directions without any score (an output that is never taken) would leave the systems singular.
        least = 1e-9 * np.trace(information) / max(len(acting), 1) + 1e-30
        floor = (self.typical / max(self.count, 1) + least) * np.eye(len(acting))
        for coefficients, strength in zip(found, STRENGTHS, strict=True):
            coefficients[acting] = solve_positive(products + strength * information + floor, target)
        return found


@dataclass(frozen=True)
class Scores(ControlVariate[dict[str, NumpyArray], ScoreSums, NumpyArray]):
    """vᵀZ with the scores Z = Σ_t ∇log π_e(A_t|S_t), whose mean is 0; v by ridge regression.

    The ridge shrinks by the covariance of the scores that the policy's own probabilities tell: visited states know the
    variance of actions that no episode has shown. It is exact where states can be counted, and that of imagined actions
    where only actions can (`imagined.py`). Of continuous actions it is the diagonal of what the episodes show.
    """

    doubt: float = 2.0
    policy: Policy | None = field(default=None, repr=False, compare=False)

    def bind(self, policy: Policy, discount: float) -> Self:
        """For the scores of this policy."""
        return replace(self, policy=policy)

    def refuse(self, policy: Policy) -> str:
        """A policy without action noise, or of unknown probabilities, has no scores."""
        try:
            policy.check_searchable()
        except (DeterministicPolicyError, UnknownProbabilitiesError) as error:
            return str(error)
        return self.too_large(policy)

    def too_large(self, policy: Policy) -> str:
        """A system as large as the number of parameters is to be solved."""
        try:
            check_size(policy)
        except InvalidArgumentError as error:
            return f"scores: {error}"
        return ""

    @in_64_bit
    def summarize(self, batch: Trajectories) -> dict[str, NumpyArray]:
        """(N, P), the scores of the free parameters, and how often each episode met each kind of state.

        Where states cannot be counted but actions can, the latter are (N, K, P), the scores of imagined actions.
        """
        assert self.policy is not None
        summarize = _jitted_scores if self.policy.traceable else _scores
        policy, free = self.policy, self.policy.free_parameters
        summary: dict[str, NumpyArray] = to_numpy(summarize(policy, batch.observations, batch.actions, batch.mask))
        summary["scores"] = summary["scores"][:, free]
        imagined = None if "visits" in summary else imagined_scores(policy, batch)
        return summary if imagined is None else summary | {"imagined": imagined[..., free]}

    def evidence(
        self, summary: dict[str, NumpyArray], targets: NumpyArray, groups: NumpyArray, count: int
    ) -> list[ScoreSums]:
        """Sums over the episodes of each group."""
        return [self._sums(summary, targets, groups == group) for group in range(count)]

    def fit(self, evidence: Sequence[ScoreSums]) -> NumpyArray:
        """(C, J, P), the coefficients for each strength of the ridge."""
        return np.stack([sums.ridge() for sums in evidence])

    def predict(self, fit: NumpyArray, summary: dict[str, NumpyArray]) -> NumpyArray:
        """vᵀZ."""
        return np.asarray(fit @ summary["scores"].T)

    def spread(self, fit: NumpyArray, summary: dict[str, NumpyArray]) -> NumpyArray | None:
        """Σ_t Var_{a~π_e(·|S_t)} vᵀ∇log π_e(a|S_t), or by imagined actions a number of that expectation."""
        if "imagined" in summary:
            return np.asarray(sum((fit @ one.T) ** 2 for one in np.moveaxis(summary["imagined"], 1, 0)))
        if "visits" not in summary:
            return None
        assert self.policy is not None
        variances = np.asarray(self.policy.score_variances(self._directions(fit.reshape(-1, fit.shape[-1]))))
        return (variances @ summary["visits"].T).reshape(*fit.shape[:2], -1)

    def steps(self, fit: NumpyArray, which: int, candidate: int) -> NumpyArray | None:
        """(1, S, A), vᵀ∇log π_e(a|s)."""
        assert self.policy is not None
        return self.policy.score_steps(self._directions(fit[which, candidate][None]))

    def _sums(self, summary: dict[str, NumpyArray], targets: NumpyArray, rows: NumpyArray) -> ScoreSums:
        z, y = summary["scores"][rows], targets[rows]
        products = z.T @ z
        sums = (np.asarray(len(y)), y.sum(), z.sum(axis=0), z.T @ y, products)
        if "visits" not in summary:
            imagined = summary["imagined"][rows].reshape(-1, z.shape[1]) if "imagined" in summary else None
            information = np.diag(np.diag(products)) if imagined is None else imagined.T @ imagined
            return ScoreSums(*sums, information, np.diag(information).mean())
        assert self.policy is not None
        free = self.policy.free_parameters
        information = np.asarray(self.policy.score_covariance(summary["visits"][rows].sum(axis=0)))[free][:, free]
        return ScoreSums(*sums, information, np.zeros(()))

    def _directions(self, coefficients: NumpyArray) -> NumpyArray:
        """(J, P), of all parameters, for (J, F) coefficients of the free ones."""
        assert self.policy is not None
        found = np.zeros((len(coefficients), len(self.policy.flat)))
        found[:, self.policy.free_parameters] = coefficients
        return found


def _scores(policy: Policy, observations: Observations, actions: Array, mask: Array) -> dict[str, Array]:
    summary = {"scores": policy.episode_scores(observations, actions, mask)}
    visits = policy.visits(observations, mask)
    return summary if visits is None else summary | {"visits": visits}


_jitted_scores = in_turn(jax.jit(_scores))
