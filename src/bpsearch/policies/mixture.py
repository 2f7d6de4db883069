"""The defensive mixture: a behavior that runs the evaluation policy for whole episodes now and then."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Self

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bpsearch._core.arrays import Array, NumpyArray, Observations, Scalar
from bpsearch._core.checks import check_real, check_type
from bpsearch._core.jaxtools import at_the_edge, in_64_bit, pytree, replace, to_numpy
from bpsearch.errors import InvalidArgumentError
from bpsearch.policies.base import Policy

Shares = tuple[Scalar, ...]


@pytree()
@dataclass(frozen=True, eq=False)
class Mixture(Policy):
    """With probability α an episode is run by π_e from its first step to its last, else by π_θ.

    An observer who sees the episode but not the draw sees a behavior that depends on the history,

        μ(A_0, ..., A_t|S_0, ..., S_t) = α Π_{i≤t} π_e(A_i|S_i) + (1 − α) Π_{i≤t} π_θ(A_i|S_i),

    whose conditional log-probabilities are the differences of log μ from step to step. They are what is recorded, so
    that every estimator that takes log π_e − log π_b step by step stays unbiased, and every prefix has the weight

        ρ_{0:t} = Π π_e / μ ≤ 1/α.

    A mixture in every single step would bound the weight of an episode by (1/α)^L only. The parameters are those of
    π_θ; time is the second axis wherever whole episodes are given.

    A third policy may have a share of its own, β: what π_θ does not know and π_e hardly ever does comes with moderate
    weights then, ρ ≤ Π π_e / (β Π π_explorer). It counts in μ as the other two, with 1 − α − β for π_θ.

    Attributes:
        evaluation: π_e.
        component: π_θ, the same policy with other parameters.
        share: α in (0, 1).
        explorer: the third policy, with parameters of its own; None if there is none.
        explored: β, in (0, 1 − α); None if there is none.
    """

    evaluation: Policy
    component: Policy
    share: Scalar
    explorer: Policy | None = None
    explored: Scalar | None = None

    def __post_init__(self) -> None:
        for name, policy in (("evaluation", self.evaluation), ("component", self.component)):
            check_type(name, policy, Policy, "a policy of bpsearch")
        share = _known("share", self.share, 1.0)
        if self.explorer is not None or self.explored is not None:
            check_type("explorer", self.explorer, Policy, "a policy of bpsearch")
            _known("explored", self.explored, 1.0 - share)

    @property
    def traceable(self) -> bool:  # type: ignore[override]
        """As the evaluation policy."""
        return self.evaluation.traceable

    @property
    def row_multiple(self) -> int:  # type: ignore[override]
        """As the evaluation policy."""
        return self.evaluation.row_multiple

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        """It does: which of the two runs the episode, and how probable the episode is under each."""
        return True

    @property
    def sees_masks(self) -> bool:  # type: ignore[override]
        """As the evaluation policy."""
        return self.evaluation.sees_masks

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """The evaluation policy's."""
        return self.evaluation.observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The evaluation policy's."""
        return self.evaluation.action_space

    @property
    def parameters(self) -> PyTree[Array]:
        """θ."""
        return self.component.parameters

    def with_parameters(self, parameters: PyTree[Array]) -> Self:
        """The mixture with another π_θ."""
        return replace(self, component=self.component.with_parameters(parameters))

    @property
    def flat(self) -> Array:
        """θ as a vector."""
        return self.component.flat

    def with_flat(self, vector: Array) -> Self:
        """The mixture with another π_θ."""
        return replace(self, component=self.component.with_flat(vector))

    @property
    def uniforms(self) -> int:
        """As the evaluation policy: the draw of the episode is made in `begin`."""
        return self.evaluation.uniforms

    @property
    def weight_bound(self) -> float:
        """1/α."""
        return 1.0 / float(self.share)

    def check_support(self, evaluation: Policy) -> None:
        """Nothing to refuse: the evaluation policy is part of the mixture."""

    def begin(self, uniforms: Array) -> tuple[Array, ...]:
        """The number of who runs each episode, and for each policy log Π π of the steps so far."""
        if self.evaluation.remembers:
            raise InvalidArgumentError(
                f"a defensive mixture needs a policy whose actions depend on the observation alone, and "
                f"{self.evaluation.name} has a memory; search without one (defensive=0)"
            )
        chosen = 1 * (uniforms >= self.share)
        if self.explored is not None:
            chosen = chosen + 1 * (uniforms >= 1.0 - self.explored)
        return chosen, *(uniforms * 0.0 for _ in self._policies)

    @in_64_bit
    def sample(self, key: Array, observations: Observations) -> tuple[Array, Array]:
        """Draw the first action of an episode for each observation."""
        draw, key = jax.random.split(key)
        rows = np.shape(jax.tree_util.tree_leaves(observations)[0])[:1]
        memory = self.begin(jax.random.uniform(draw, rows, dtype=jnp.float64))
        return at_the_edge(self.sample_next(key, observations, memory)[:2])

    def sample_next(
        self, key: Array, observations: Observations, memory: PyTree[Array]
    ) -> tuple[Array, Array, PyTree[Array]]:
        """Draw by the policy that runs the episode; the log-probability is the mixture's, given the history."""
        actions = _rowwise(jnp.where, memory[0], [p.sample(key, observations)[0] for p in self._policies])
        log_probs, memory = self._record(observations, actions, memory)
        return actions, log_probs, memory

    @in_64_bit
    def act_next(
        self, uniforms: NumpyArray, observations: Observations, memory: PyTree[Array]
    ) -> tuple[NumpyArray, NumpyArray, NumpyArray, PyTree[Array]]:
        """As `sample_next`, by given random numbers."""
        actions, executed = self._pick(memory, *(p.act(uniforms, observations) for p in self._policies))
        if self.traceable:
            log_probs, memory = to_numpy(_jitted_record(self, observations, actions, memory))
        else:
            steps = (p.log_prob(observations, actions) for p in self._policies)
            log_probs, memory = _advance(np, self._shares, memory, *map(np.asarray, steps))
        return actions, log_probs, executed, memory

    @in_64_bit
    def act_in_blocks(
        self, uniforms: NumpyArray, observations: Observations, memory: PyTree[Array]
    ) -> tuple[NumpyArray, NumpyArray, NumpyArray, PyTree[Array]]:
        """`act_next` for whole blocks, to which each policy keeps as it does alone."""
        if self.traceable:
            return super().act_in_blocks(uniforms, observations, memory)
        drawn = (p.act_in_blocks(uniforms, observations, ()) for p in self._policies)
        actions, executed = self._pick(memory, *drawn)
        steps = (p.log_prob_in_blocks(observations, actions) for p in self._policies)
        log_probs, memory = _advance(np, self._shares, memory, *steps)
        return actions, log_probs, executed, memory

    @in_64_bit
    def log_prob(self, observations: Observations, actions: Array) -> Array:
        """(N, T), log μ(a_t|s_t and the steps before it) of whole episodes; padding at the end does no harm."""
        return at_the_edge(_increments(self._shares, *self._log_probs(observations, actions)))

    @property
    def _policies(self) -> tuple[Policy, ...]:
        return self.evaluation, self.component, *(() if self.explorer is None else (self.explorer,))

    @property
    def _shares(self) -> tuple[Scalar, ...]:
        """Of each policy."""
        if self.explored is None:
            return self.share, 1.0 - self.share
        return self.share, 1.0 - self.share - self.explored, self.explored

    def _pick(self, memory: Any, *drawn: Sequence[Any]) -> tuple[NumpyArray, NumpyArray]:
        """Actions, and what is executed, of the policy that runs the episode."""
        actions, executed = (_rowwise(np.where, memory[0], [by[i] for by in drawn]) for i in (0, 2))
        return actions, executed

    @in_64_bit
    def score(self, observations: Observations, actions: Array, weights: Array) -> Array:
        """Σ_nt c_nt ∇θ log μ(a_nt|history), by the chain rule through the log-probabilities of π_θ."""
        of_evaluation, of_component, *others = self._log_probs(observations, actions)
        _, pullback = jax.vjp(lambda found: _increments(self._shares, of_evaluation, found, *others), of_component)
        (by_step,) = pullback(jnp.asarray(weights, jnp.float64))
        return self.component.score(observations, actions, at_the_edge(by_step))

    def _log_probs(self, observations: Observations, actions: Array) -> tuple[Array, ...]:
        found = (jnp.asarray(p.log_prob(observations, actions), jnp.float64) for p in self._policies)
        return _without_padding(jnp, *found)

    def _record(self, observations: Observations, actions: Array, memory: Any) -> tuple[Array, Any]:
        """The mixture's log-probabilities of the next actions, and the memory after them."""
        return _advance(jnp, self._shares, memory, *self._log_probs(observations, actions))


def _known(name: str, share: Any, high: float) -> float:
    """A share below `high`; `high` itself where it is traced and nothing can be known."""
    if isinstance(share, jax.Array):
        return high
    return check_real(name, share[()] if isinstance(share, np.ndarray) else share, above=0.0, high=high)


# In what follows `library` is NumPy or JAX's, and log-probabilities are those of each policy, in their order.


def _without_padding(library: Any, *log_probs: Array) -> tuple[Array, ...]:
    """0 at a step that no policy could take: padding, whose infinities would spoil the gradient before it."""
    possible = reduce(or_, (library.isfinite(found) for found in log_probs))
    return tuple(library.where(possible, found, 0.0) for found in log_probs)


def _advance(library: Any, shares: Shares, memory: Any, *steps: Array) -> tuple[Any, Any]:
    """Log μ of the next actions, given those before, and the memory after them."""
    chosen, *before = memory
    after = [total + step for total, step in zip(before, _without_padding(library, *steps), strict=True)]
    return _joint(library, shares, *after) - _joint(library, shares, *before), (chosen, *after)


def _joint(library: Any, shares: Shares, *log_probs: Array) -> Any:
    """Log μ of the actions so far, from the log-probabilities of all of them under each policy."""
    parts = (library.log(library.asarray(share)) + found for share, found in zip(shares, log_probs, strict=True))
    return reduce(library.logaddexp, parts)


def _increments(shares: Shares, *log_probs: Array) -> Array:
    """(N, T), how log μ changes with each step."""
    joint = _joint(jnp, shares, *(jnp.cumsum(found, axis=1) for found in log_probs))
    return jnp.diff(joint, axis=1, prepend=0.0)


def _rowwise(where: Callable[[Array, Array, Array], Any], chosen: Array, drawn: Sequence[Any]) -> Any:
    """In each row what the chosen policy has drawn."""
    rows = chosen.reshape(chosen.shape + (1,) * (np.ndim(drawn[0]) - chosen.ndim))
    return reduce(lambda found, at: where(rows == at, drawn[at], found), range(1, len(drawn)), drawn[0])


_jitted_record = jax.jit(Mixture._record)
