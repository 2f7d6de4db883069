"""A search of your own: cross-entropy towards the episodes that matter, with a floor.

The best behavior for importance sampling draws an episode H in proportion to π_e(H) |g(H)|. This search counts actions
with those weights over all batches so far. It mixes the result with the evaluation policy, so that no action gets rare.

    python examples/extending/own_search.py
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import bpsearch as bps
from bpsearch.estimators import log_ratios
from bpsearch.search import Info
from bpsearch.testing import check_search


class State(NamedTuple):
    """The evaluation policy, γ, and Σ w |g| of the visits to each state and action."""

    policy: bps.SoftmaxTable
    discount: np.float64
    counts: NDArray[np.float64]


@dataclass(frozen=True)
class CrossEntropy(bps.Search[State]):
    """π(a|s) ∝ counts, with at least the share `floor` of the evaluation policy in every state."""

    floor: float = 0.2

    def init(self, policy: bps.Policy, discount: float = 1.0) -> State:
        """Nothing counted."""
        assert isinstance(policy, bps.SoftmaxTable)
        return State(policy, np.float64(discount), np.zeros(policy.logits.shape))

    def behavior(self, state: State) -> bps.SoftmaxTable:
        """The counts' own policy and the evaluation policy, mixed in every state."""
        evaluation = state.policy.probabilities
        total = state.counts.sum(axis=1, keepdims=True)
        tilted = np.divide(state.counts, total, out=evaluation.copy(), where=total > 0.0)
        return bps.SoftmaxTable.from_probabilities(self.floor * evaluation + (1.0 - self.floor) * tilted)

    def step(self, state: State, batch: bps.Trajectories) -> tuple[State, Info]:
        """Count the visits of the batch."""
        weights = np.exp(log_ratios(state.policy, batch).sum(axis=1))
        values = weights * batch.returns(float(state.discount))
        counts = state.counts.copy()
        visited = (np.asarray(batch.observations), batch.actions)
        np.add.at(counts, visited, np.where(batch.mask, np.abs(values)[:, None], 0.0))
        return state._replace(counts=counts), Info(values, np.mean(values**2))


def main() -> None:
    env, policy, search = bps.envs.gridworld(), bps.shipped_policy("gridworld-early"), CrossEntropy()
    check_search(search, policy, [bps.sample(env, policy, 50, seed=0, batch=number) for number in range(2)])
    study = bps.Study(policy, search, seed=0)
    print(study.run(env, episodes=2000))
    print(f"exact value: {bps.oracle.value(env, policy):.4g}")
    for name, behavior in (("policy", policy), ("search", search.behavior(study.state))):
        print(f"exact variance of an episode of the {name}: {bps.oracle.variance(env, policy, behavior, 'is'):.3g}")


if __name__ == "__main__":
    main()
