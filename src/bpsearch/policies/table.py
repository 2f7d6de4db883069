"""Softmax policy over a table of logits."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from bpsearch._core import threefry
from bpsearch._core.arrays import Array, NumpyArray, Observations
from bpsearch._core.checks import check_integer, check_real
from bpsearch._core.foreign import MAX_BYTES, own_array
from bpsearch._core.jaxtools import at_the_edge, in_64_bit, pytree, replace
from bpsearch.errors import InvalidArgumentError, SupportError
from bpsearch.policies.base import Policy


@pytree()
@dataclass(frozen=True, eq=False)
class SoftmaxTable(Policy):
    """π(a|s) = exp θ_sa / Σ_a' exp θ_sa': one logit per state and action, temperature 1 (the paper, appendix C).

    A logit of −inf gives its action probability 0 exactly; each state needs at least one finite logit.

    Attributes:
        logits: (S, A), 64 bit.
    """

    logits: Array
    counts_actions: ClassVar[bool] = True

    def __post_init__(self) -> None:
        logits = np.array(own_array("logits", self.logits), dtype=np.float64)
        if logits.ndim != 2 or 0 in logits.shape:
            raise InvalidArgumentError(f"logits must have the shape (states, actions), got {logits.shape}")
        largest = logits.max(axis=1)  # of each state; no array of the table's size, which may be large, is made
        empty = np.isneginf(largest)
        if not np.isfinite(largest[~empty]).all():
            state = np.argmax(np.isnan(largest) | np.isposinf(largest))
            action = np.argmax(np.isnan(logits[state]) | np.isposinf(logits[state]))
            raise InvalidArgumentError(
                f"logits must be finite or -inf, got {logits[state, action]} for state {state}, action {action}"
            )
        if empty.any():
            raise InvalidArgumentError(
                f"every state needs an action of positive probability, state {np.argmax(empty)} has none"
            )
        logits.flags.writeable = False
        object.__setattr__(self, "logits", logits)

    @classmethod
    def uniform(cls, states: int, actions: int) -> Self:
        """The policy that takes every action with the same probability."""
        shape = check_integer("states", states), check_integer("actions", actions)
        if 8 * math.prod(shape) > MAX_BYTES:
            raise InvalidArgumentError(
                f"a table of {shape[0]} states and {shape[1]} actions takes more than {MAX_BYTES} bytes"
            )
        return cls(np.zeros(shape))

    @classmethod
    def from_probabilities(cls, probabilities: Array) -> Self:
        """The policy with these action probabilities, (S, A); a probability of 0 is kept as exactly 0."""
        p = np.asarray(own_array("probabilities", probabilities), dtype=np.float64)
        if p.ndim != 2 or not np.isfinite(p).all() or (p < 0).any() or not np.allclose(p.sum(axis=-1), 1.0):
            raise InvalidArgumentError("probabilities must be an array (S, A) of non-negative rows that sum to 1")
        with np.errstate(divide="ignore"):
            return cls(np.log(p))

    @property
    def probabilities(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """(S, A), π(a|s)."""
        weights = np.exp(self.logits - self.logits.max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def with_probability(self, state: int, action: int, probability: float) -> Self:
        """The same policy but for π(action|state); the state's other actions keep their proportions."""
        check_real("probability", probability, low=0.0, high=1.0)
        for name, value, count in zip(("state", "action"), (state, action), self.logits.shape, strict=True):
            if check_integer(name, value, at_least=0) >= count:
                raise InvalidArgumentError(f"{name} must be below {count}, got {value}")
        p = self.probabilities
        rest = 1.0 - p[state, action]
        if rest == 0.0 and probability < 1.0:
            raise InvalidArgumentError(
                f"state {state} has no other action than {action} whose probability could be raised to "
                f"{1.0 - probability:g}"
            )
        p[state] *= (1.0 - probability) / rest if rest > 0.0 else 0.0
        p[state, action] = probability
        return type(self).from_probabilities(p)

    @property
    def observation_space(self) -> gymnasium.spaces.Discrete:
        """States 0 to S − 1."""
        return gymnasium.spaces.Discrete(self.logits.shape[0])

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        """Actions 0 to A − 1."""
        return gymnasium.spaces.Discrete(self.logits.shape[1])

    @property
    def parameters(self) -> Array:
        """The logits."""
        return self.logits

    def with_parameters(self, parameters: Array) -> Self:
        """The same table with other logits."""
        return replace(self, logits=parameters)

    @property
    def deterministic(self) -> bool:
        """Whether every state has a single possible action."""
        return bool((np.isfinite(self.logits).sum(axis=1) == 1).all())

    def mode(self) -> Self:
        """The table that takes the most likely action of each state; of several, the first."""
        return self.from_probabilities(np.eye(self.logits.shape[1])[np.argmax(self.logits, axis=1)])

    def check_support(self, evaluation: "Policy") -> None:
        """Refuse an evaluation policy that may take an action to which this table gives probability 0."""
        if isinstance(evaluation, SoftmaxTable):
            missing = (evaluation.probabilities > 0.0) & (self.probabilities == 0.0)
            if missing.any():
                state, action = np.argwhere(missing)[0]
                raise SupportError(
                    f"the behavior policy gives probability 0 to action {action} in state {state}, which the "
                    f"evaluation policy takes with probability {evaluation.probabilities[state, action]:.6g}: no "
                    f"importance weight can make up for episodes that never happen"
                )

    @in_64_bit
    def sample(self, key: Array, observations: Observations) -> tuple[Array, Array]:
        """Draw actions by inverting the cumulative distribution: one 64-bit uniform each."""
        log_table = jax.nn.log_softmax(self.logits, axis=-1)
        table = jnp.exp(log_table)
        # Past the last action of positive probability the boundary is infinite, so that rounding in the
        # cumulative sum can never select an impossible action.
        exhausted = jnp.cumsum(table[:, ::-1], axis=-1)[:, ::-1][:, 1:] == 0.0
        boundaries = jnp.where(exhausted, jnp.inf, jnp.cumsum(table, axis=-1)[:, :-1])
        states = jnp.asarray(observations)
        uniforms = threefry.uniform(key, states.shape, table.dtype)
        actions = jnp.sum(uniforms[..., None] >= boundaries[states], axis=-1, dtype=jnp.int32)
        return at_the_edge((actions, _lookup(log_table, observations, actions)))

    @in_64_bit
    def log_prob(self, observations: Observations, actions: Array) -> Array:
        """Log π(a|s)."""
        return at_the_edge(_lookup(jax.nn.log_softmax(self.logits, axis=-1), observations, actions))

    @in_64_bit
    def score(self, observations: Observations, actions: Array, weights: Array) -> Array:
        """Closed form: C_sa − π(a|s) Σ_a' C_sa', where C_sa sums the weights of the visits to (s, a)."""
        states, n_actions = self.logits.shape

        def accumulate(totals: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            indices, weights_t = step
            return totals.at[indices].add(weights_t), None

        indices = jnp.asarray(observations) * n_actions + jnp.asarray(actions)
        totals, _ = jax.lax.scan(
            accumulate, jnp.zeros(states * n_actions, weights.dtype), (indices.T, jnp.asarray(weights).T)
        )
        totals = totals.reshape(states, n_actions)
        table = jax.nn.softmax(self.logits, axis=-1)
        return at_the_edge((totals - totals.sum(axis=-1, keepdims=True) * table).ravel())

    def count_actions(self, observations: Observations, actions: Array, weights: Array) -> Array:
        """Σ of the weights of the visits to (s, a)."""
        indices = np.asarray(observations) * self.logits.shape[1] + np.asarray(actions)
        return np.bincount(indices.ravel(), np.asarray(weights, np.float64).ravel(), minlength=self.logits.size)

    def noisier(self, temperature: float) -> Self:
        """θ / temperature."""
        return replace(self, logits=np.asarray(self.logits) / temperature)

    @in_64_bit
    def visits(self, observations: Observations, mask: Array) -> Array:
        """(N, S), how often each episode was in each state."""
        episodes = jnp.arange(mask.shape[0])[:, None]
        counts = jnp.zeros((mask.shape[0], self.logits.shape[0]))
        return at_the_edge(counts.at[episodes, jnp.asarray(observations)].add(jnp.where(mask, 1.0, 0.0)))

    @property
    def free_parameters(self) -> NumpyArray:
        """All but that of the likeliest action of each state: the scores of a state add up to 0."""
        states, actions = self.logits.shape
        likeliest = np.arange(states) * actions + np.argmax(np.asarray(self.logits), axis=-1)
        return np.delete(np.arange(states * actions), likeliest)

    @in_64_bit
    def score_covariance(self, visits: Array) -> Array:
        """Blocks V_s (diag π(·|s) − π(·|s) π(·|s)ᵀ), with V_s the visits to s."""
        covariance: Array = _score_covariance(self.logits, visits)
        return at_the_edge(covariance)

    def score_steps(self, directions: Array) -> NumpyArray:
        """(J, S, A), v_sa − Σ_a' π(a'|s) v_sa'."""
        probabilities = self.probabilities
        logits = np.asarray(directions).reshape(len(directions), *probabilities.shape)
        return np.asarray(logits - np.sum(probabilities * logits, axis=-1, keepdims=True))

    def score_variances(self, directions: Array) -> Array:
        """(J, S), the variance of v_sA with A drawn in s."""
        return np.asarray(np.sum(self.probabilities * self.score_steps(directions) ** 2, axis=-1))


def _lookup(table: Array, observations: Observations, actions: Array) -> Array:
    return table.ravel()[jnp.asarray(observations) * table.shape[1] + jnp.asarray(actions)]


@jax.jit
def _score_covariance(logits: Array, visits: Array) -> Array:
    table = jax.nn.softmax(logits, axis=-1)
    states, actions = table.shape
    blocks = visits[:, None, None] * (table[:, :, None] * jnp.eye(actions) - table[:, :, None] * table[:, None])
    whole = jnp.zeros((states, actions, states, actions))
    each = jnp.arange(states)
    return whole.at[each, :, each, :].set(blocks).reshape(logits.size, -1)
