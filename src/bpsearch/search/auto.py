"""The default way to evaluate: the policy's own episodes, and all that can be learned from them without bias."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bpsearch.estimators.base import Estimator
from bpsearch.estimators.on_policy import monte_carlo
from bpsearch.intervals import MeanError
from bpsearch.models.advantages import FoldedAdvantages
from bpsearch.numerics import in_64_bit, to_numpy
from bpsearch.policies.base import Policy
from bpsearch.policies.table import SoftmaxTable
from bpsearch.search.base import Valued
from bpsearch.search.cross_fitting import FOLDS, CrossFit, check_size, cross_fit
from bpsearch.search.on_policy import OnPolicy, OnPolicyState
from bpsearch.trajectories import Array, Trajectories

SMALLEST = 4 * FOLDS  # episodes; fewer teach nothing


@dataclass(frozen=True)
class Auto(OnPolicy):
    """Monte Carlo with cross-fitted control variates: no setting to choose, exactly unbiased.

    The behavior is always the evaluation policy, so all episodes are independent and each may be valued with what all
    others teach, the later ones too: with every new batch all are valued anew. What is learned is how the return
    depends on the policy's own random choices: on the scores of any policy with known probabilities, and on tables also
    on the advantages of a learned model. What the candidates would explain of left-out episodes decides which one is
    used; where none explains anything the values are Monte Carlo's. See `cross_fitting`.

    On tables the error is at least what the policy's own probabilities let one expect: episodes that have not shown a
    rare action yet, although they should have, do not make the interval narrow.
    """

    estimator: Estimator = monte_carlo

    @property
    def label(self) -> str:
        """What results call it."""
        return "Auto, cross-fitted control variates"

    def init(self, policy: Policy, discount: float = 1.0) -> OnPolicyState:
        """Before the first batch."""
        policy.check_searchable()
        check_size(policy)
        return super().init(policy, discount)

    @property
    def revalues(self) -> bool:
        """A new batch changes the values of the earlier ones."""
        return True

    @property
    def unbiased(self) -> bool:
        """Although all batches are valued anew: no episode has a say in its own value."""
        return True

    def revalue(self, state: OnPolicyState, batches: Sequence[Trajectories]) -> Valued:
        """All batches, each episode's value with what all others teach."""
        fit = self.revalued(state.valuation.evaluation, float(state.valuation.discount), batches)
        count = len(fit.values)
        valued = Valued.of(np.split(fit.values, np.cumsum([len(batch) for batch in batches])[:-1]), fit.explained)
        if fit.variance > (0.0 if valued.error is None else valued.error.variance * count):
            return replace(valued, error=MeanError(fit.variance / count, count - 1.0))
        return valued

    @in_64_bit
    def revalued(self, policy: Policy, discount: float, batches: Sequence[Trajectories]) -> CrossFit:
        """The values of all episodes of all batches, in their order."""
        returns = np.concatenate([batch.returns(discount) for batch in batches])
        if len(returns) < SMALLEST:
            return CrossFit.nothing(returns)
        folds = np.arange(len(returns)) % FOLDS
        ends = np.cumsum([len(batch) for batch in batches])[:-1]
        learn = _jitted_features if policy.traceable else _features
        features = [
            to_numpy(learn(policy, batch.observations, batch.actions, batch.mask, own))
            for batch, own in zip(batches, np.split(folds, ends), strict=True)
        ]
        scores = np.concatenate([scores for scores, _ in features])
        spread = None if features[0][1] is None else sum(part for _, part in features)
        if not isinstance(policy, SoftmaxTable) or any(batch.final_observations is None for batch in batches):
            return cross_fit(returns, scores, spread)
        advantages = FoldedAdvantages.of(policy, discount, Trajectories.concatenate(batches), folds)
        fit = cross_fit(returns, scores, spread, advantages)
        return replace(fit, variance=advantages.variance(fit.coefficients, fit.shares))


def _features(
    policy: Policy, observations: Array, actions: Array, mask: Array, folds: Array
) -> tuple[Array, Array | None]:
    """(N, P), the scores of the episodes, and (K, P, P), the spread of each fold's, where the policy tells it."""
    scores = policy.episode_scores(observations, actions, mask)
    spreads: list[Any] = [
        policy.score_covariance(observations, mask, (folds == fold).astype(float)) for fold in range(FOLDS)
    ]
    return scores, None if spreads[0] is None else jnp.stack(spreads)


_jitted_features = jax.jit(_features)
