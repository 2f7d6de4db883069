"""A policy of another framework: a linear softmax in plain NumPy, which JAX cannot trace.

bpsearch asks four things of it: the probability of an action (`log_prob`), an action for given random numbers (`act`),
its parameters, and the gradient of log-probabilities (`score`). Any framework can give these.

    python examples/extending/own_policy.py
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import gymnasium
import jax
import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

import bpsearch as bps
from bpsearch.testing import check_policy

Floats = NDArray[np.float64]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class LinearSoftmax(bps.Policy):
    """π(a|s) ∝ exp f(s)ᵀw_a: `features` (S, D) stay, `weights` (D, A) are the parameters."""

    features: Floats
    weights: Floats
    traceable: ClassVar[bool] = False

    observation_space = property(lambda self: gymnasium.spaces.Discrete(len(self.features)))
    action_space = property(lambda self: gymnasium.spaces.Discrete(self.weights.shape[1]))
    parameters = property(lambda self: self.weights)
    table = property(lambda self: log_softmax(self.features @ self.weights, axis=1))

    def with_parameters(self, parameters: Floats) -> Self:
        """The same features with other weights."""
        return replace(self, weights=np.asarray(parameters))

    def log_prob(self, observations: Any, actions: bps.Array) -> Floats:
        """Log π(a|s)."""
        return np.asarray(self.table[observations, actions])

    def act(self, uniforms: bps.Array, observations: Any) -> tuple[Any, Floats, Any]:
        """The action whose slice of [0, 1) holds the number."""
        slices = np.cumsum(np.exp(self.table[observations]), axis=-1)
        actions = np.sum(uniforms >= slices[:, :-1], axis=-1)
        return actions, self.log_prob(observations, actions), actions

    def score(self, observations: Any, actions: bps.Array, weights: bps.Array) -> Floats:
        """Σ c f(s) (1_a − π(·|s))ᵀ."""
        surprise = np.eye(self.weights.shape[1])[actions] - np.exp(self.table[observations])
        return np.ravel(np.einsum("nt,ntd,nta->da", weights, self.features[observations], surprise))


def main() -> None:
    env = bps.envs.gridworld()
    features = np.column_stack([np.ones(16), *np.divmod(np.arange(16), 4)])  # 1, row and column of each cell
    policy = LinearSoftmax(features, np.random.default_rng(0).normal(scale=0.3, size=(3, 4)))
    check_policy(policy, np.arange(16))
    print(bps.evaluate(policy, env, episodes=300, method="bpg", seed=0))
    print(f"exact value: {bps.oracle.value(env, bps.SoftmaxTable(policy.table)):.4g}")


if __name__ == "__main__":
    main()
