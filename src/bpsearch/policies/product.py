"""Several policies that act side by side: an agent, and nature, who draws the environment's noise."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bpsearch._core.arrays import Array, NumpyArray, Observations
from bpsearch._core.jaxtools import at_the_edge, in_64_bit, in_turn, pytree, replace
from bpsearch.envs.exposed import Joint
from bpsearch.errors import InvalidArgumentError
from bpsearch.policies.base import Policy

V = TypeVar("V")


@pytree(static=("fixed", "notes"))
@dataclass(frozen=True, eq=False)
class Product(Policy):
    """Draws one action of each part, independently given the observation; see `Joint` for how they make one.

        log π(a_1, ..., a_K|s) = Σ_k log π_k(a_k|s)    over the parts that may change

    A part that is `fixed` is the same in every behavior, and its probabilities cancel in every importance weight. So
    they are not counted, and need not be known: such a part may be a plain function.

    Attributes:
        parts: the policies; all see the same observation.
        fixed: of each part, whether a search must leave it as it is.
        notes: what a reader of its value should know.
    """

    parts: tuple[Policy, ...]
    fixed: tuple[bool, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.parts) != len(self.fixed) or all(self.fixed):
            raise InvalidArgumentError(f"of {len(self.parts)} parts one at least must not be fixed, got {self.fixed}")
        for part in self.parts:
            if part.remembers or part.sees_masks:
                raise InvalidArgumentError(
                    f"policies that act side by side must depend on the observation alone, and {part.name} "
                    f"{'has a memory' if part.remembers else 'needs to know which actions are allowed'}"
                )

    @property
    def traceable(self) -> bool:  # type: ignore[override]
        """Whether all parts are."""
        return all(part.traceable for part in self.parts)

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """The first part's."""
        return self.parts[0].observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Of all parts."""
        return self._joint.space

    @property
    def name(self) -> str:
        """What errors call it."""
        return f"{self.parts[0].name} with declared noise"

    @property
    def constants(self) -> dict[str, Array]:
        """Of all parts."""
        return {f"{at}.{name}": array for at, part in enumerate(self.parts) for name, array in part.constants.items()}

    @property
    def parameters(self) -> PyTree[Array]:
        """Of the parts that may change."""
        return tuple(part.parameters for part in self._searched)

    def with_parameters(self, parameters: PyTree[Array]) -> Self:
        """Other parameters for the parts that may change."""
        given = iter(parameters)
        return self._change(lambda part: part.with_parameters(next(given)))

    @property
    def uniforms(self) -> int:
        """Of all parts."""
        return sum(part.uniforms for part in self.parts)

    def sample(self, key: Array, observations: Observations) -> tuple[Array, Array]:
        """Draw an action of each part."""
        if not self.traceable:
            return super().sample(key, observations)
        drawn = [
            part.sample(own, observations)
            for part, own in zip(self.parts, jax.random.split(key, len(self.parts)), strict=True)
        ]
        actions = self._joint.join([jnp.asarray(action) for action, _ in drawn])
        return actions, _add(self._of_searched([log_prob for _, log_prob in drawn]))

    @in_64_bit
    def act(self, uniforms: NumpyArray, observations: Observations) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
        """Draw an action of each part by its own random numbers."""
        ends = np.cumsum([part.uniforms for part in self.parts])
        columns = np.split(uniforms, ends[:-1], axis=1)
        drawn = [part.act(own, observations) for part, own in zip(self.parts, columns, strict=True)]
        actions, executed = (np.asarray(self._joint.join([np.asarray(d[at]) for d in drawn])) for at in (0, 2))
        return actions, np.sum(self._of_searched([found[1] for found in drawn]), axis=0), executed

    @in_64_bit
    def log_prob(self, observations: Observations, actions: Array) -> Array:
        """Σ log π_k(a_k|s) over the parts that may change."""
        find = self._compiled(_log_prob)
        return at_the_edge(_add(find(part, observations, own) for part, own in self._split(actions)))

    @in_64_bit
    def score(self, observations: Observations, actions: Array, weights: Array) -> Array:
        """Those of the parts, one after the other."""
        found = [part.score(observations, own, weights) for part, own in self._split(actions)]
        return at_the_edge(jnp.concatenate([jnp.asarray(vector) for vector in found]))

    @in_64_bit
    def episode_scores(self, observations: Observations, actions: Array, weights: Array) -> Array:
        """Those of the parts, one after the other."""
        find = self._compiled(_scores)
        found = [jnp.asarray(find(part, observations, own, weights)) for part, own in self._split(actions)]
        return at_the_edge(jnp.concatenate(found, axis=1))

    def noisier(self, temperature: float) -> Self:
        """With more noise in the parts that may change."""
        return self._change(lambda part: part.noisier(temperature))

    @property
    def _joint(self) -> Joint:
        return Joint(tuple(part.action_space for part in self.parts))

    @property
    def _searched(self) -> list[Policy]:
        return self._of_searched(self.parts)

    def _of_searched(self, values: Sequence[V]) -> list[V]:
        """Those of the parts that may change."""
        return [value for value, fixed in zip(values, self.fixed, strict=True) if not fixed]

    def _split(self, actions: Array) -> list[tuple[Policy, Array]]:
        """Each part that may change, with its actions."""
        return self._of_searched(list(zip(self.parts, self._joint.split(actions), strict=True)))

    def _change(self, change: Callable[[Policy], Policy]) -> Self:
        parts = zip(self.parts, self.fixed, strict=True)
        return replace(self, parts=tuple(part if fixed else change(part) for part, fixed in parts))

    def _compiled(self, function: Callable[..., Array]) -> Callable[..., Array]:
        """Of a part that JAX can trace, in a whole that it cannot: nobody else compiles it."""
        apart = not self.traceable and all(part.traceable for part in self._searched)
        return _COMPILED[function] if apart else function


def _add(values: Iterable[Array]) -> Array:
    total: Array = sum(jnp.asarray(value, jnp.float64) for value in values)  # type: ignore[assignment]
    return total


def _log_prob(policy: Policy, observations: Observations, actions: Array) -> Array:
    return policy.log_prob(observations, actions)


def _scores(policy: Policy, observations: Observations, actions: Array, weights: Array) -> Array:
    return policy.episode_scores(observations, actions, weights)


_COMPILED: dict[Callable[..., Array], Callable[..., Array]] = {
    function: in_turn(jax.jit(function)) for function in (_log_prob, _scores)
}
