"""A control variate of your own: how often each action was taken, less how often it was to be expected.

The policy draws its actions itself. So the count of an action, less its probability summed over the visited states, has
mean 0 under the policy. A regression on these counts tells how much of the return they explain.

    python examples/extending/own_control_variate.py
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

import bpsearch as bps
from bpsearch.testing import check_control_variate

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ActionCounts(bps.ControlVariate[Floats, Floats, Floats]):
    """Σ_t 1{A_t = a} − π_e(a|S_t) for each action a, times coefficients from a regression."""

    policy: Any = None

    def bind(self, policy: bps.Policy, discount: float) -> Self:
        """For the probabilities of this policy."""
        return replace(self, policy=policy)

    def summarize(self, batch: bps.Trajectories) -> Floats:
        """(N, A), the counts."""
        counts = []
        for action in range(self.policy.action_space.n):
            log_probs = self.policy.log_prob(batch.observations, np.full_like(batch.actions, action))
            surprise = (batch.actions == action) - np.exp(log_probs)
            counts.append(np.sum(surprise, axis=1, where=batch.mask))
        return np.stack(counts, axis=1)

    def evidence(self, summary: Floats, targets: bps.Array, groups: bps.Array, count: int) -> list[Floats]:
        """ZᵀZ of each group, with the rows Z = (1, target, counts): it adds up, and a regression needs no more."""
        rows = np.column_stack([np.ones(len(targets)), targets, summary])
        return [rows[groups == group].T @ rows[groups == group] for group in range(count)]

    def fit(self, evidence: Sequence[Floats]) -> Floats:
        """(C, A), least squares of the targets' deviations on the counts."""
        targets = [sums[2:, 1] - sums[0, 1] / sums[0, 0] * sums[2:, 0] for sums in evidence]
        return np.stack([np.linalg.pinv(s[2:, 2:], 1e-9) @ y for s, y in zip(evidence, targets, strict=True)])

    def predict(self, fit: Floats, summary: Floats) -> Floats:
        """(C, 1, N): one candidate for each fit."""
        return (fit @ summary.T)[:, None]


def main() -> None:
    check_control_variate(ActionCounts())
    env, policy = bps.envs.gridworld(), bps.shipped_policy("gridworld-early")
    method = bps.Method(bps.OnPolicy(), bps.Valuation(control_variates=(ActionCounts(),)))
    print(bps.evaluate(policy, env, episodes=1000, method=method, seed=0))
    print(f"exact value: {bps.oracle.value(env, policy):.4g}")


if __name__ == "__main__":
    main()
