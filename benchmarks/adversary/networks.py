"""Tables behind networks: the policy sees numbers in place of states, and the truth stays exact.

Every state gets numbers, drawn once. A network of one hidden layer is drawn as well, and its last layer fitted to the
logarithms of the table's probabilities, so that it acts as like the table as it can. Nobody tells a method that there
are states which could be counted, but the network's probabilities in each of them are a table, whose value is known.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Self

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

import bpsearch as bps
from benchmarks.adversary.family import Family, Task
from benchmarks.adversary.moments import known_moments
from benchmarks.adversary.ranges import Choice, Range, Seed
from benchmarks.adversary.sketch import Problem
from bpsearch._core.jaxtools import pytree
from bpsearch.envs.wrapper import CompiledWrapper

LEAST = 1e-6  # the smallest probability that the network is fitted to
RIDGE = 1e-6
NETWORK: dict[str, Range] = {
    "units": Choice((8, 32, 64)),
    "numbers": Choice((2, 4, 8)),
    "relu": Choice((0.0, 1.0)),
    "network_seed": Seed(),
}


@pytree(static=("horizon", "discount"))
@dataclass(frozen=True, eq=False)
class Seen(CompiledWrapper):
    """A table whose states are seen as the rows of `numbers`."""

    env: bps.TabularMDP
    numbers: np.ndarray
    horizon: int
    discount: float

    @property
    def states(self) -> int:
        """Of the table."""
        return self.env.states

    @property
    def actions(self) -> int:
        """Of the table."""
        return self.env.actions

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        """Any numbers."""
        return gymnasium.spaces.Box(-np.inf, np.inf, self.numbers.shape[1:], np.float64)

    def observe(self, state: jax.Array) -> jax.Array:
        """The numbers of the state."""
        return jnp.asarray(self.numbers)[state]


@dataclass(frozen=True)
class NetworkFamily(Family):
    """A family seen by networks, which are drawn with the other parameters."""

    @classmethod
    def of(cls, family: Family) -> Self:
        """The tasks of a family."""
        name, attack = f"{family.name}-network", f"{family.attack}; seen by a network"
        return cls(name, attack, family.make, {**family.ranges, **NETWORK})

    def build(self, parameters: Mapping[str, float]) -> Task:
        """The task with these parameters."""
        self.check(parameters)
        problem = self.make(**{name: value for name, value in parameters.items() if name not in NETWORK})
        env, policy, table = put_behind(problem, **{name: int(parameters[name]) for name in NETWORK})
        return Task(self.name, dict(parameters), env, policy, **asdict(known_moments(problem.mdp, table)))


def put_behind(
    problem: Problem, *, units: int, numbers: int, relu: int, network_seed: int
) -> tuple[Seen, bps.Policy, bps.SoftmaxTable]:
    """What is seen, by which network, and the same network as a table."""
    rng, mdp = np.random.default_rng(network_seed), problem.mdp
    seen = rng.normal(size=(mdp.states, numbers))
    hidden = {"weights": rng.normal(size=(units, numbers)), "bias": rng.normal(size=units)}
    inputs = np.column_stack([_activate(np, relu, seen @ hidden["weights"].T + hidden["bias"]), np.ones(mdp.states)])
    logits = np.log(np.maximum(problem.policy.probabilities, LEAST))
    acting = inputs[~mdp.terminal]
    wanted = acting.T @ (logits - logits.mean(axis=1, keepdims=True))[~mdp.terminal]
    last = np.linalg.solve(acting.T @ acting + RIDGE * np.eye(units + 1), wanted)
    env = Seen(mdp, seen, mdp.horizon, mdp.discount)
    parameters = {"hidden": hidden, "last": {"weights": last[:-1].T, "bias": last[-1]}}
    policy = bps.from_jax(partial(_apply, relu), parameters, env.observation_space, env.action_space, adapt="last")
    return env, policy, bps.SoftmaxTable(inputs @ last)


def _activate(library: Any, relu: int, values: Any) -> Any:
    return library.maximum(values, 0.0) if relu else library.tanh(values)


def _apply(relu: int, parameters: Mapping[str, Any], observation: jax.Array) -> jax.Array:
    first, last = parameters["hidden"], parameters["last"]
    hidden = _activate(jnp, relu, first["weights"] @ observation + first["bias"])
    return last["weights"] @ hidden + last["bias"]
