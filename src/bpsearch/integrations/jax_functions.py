"""Functions of JAX, of (parameters, observation), as policies: compiled and searched like our own networks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bpsearch._core.arrays import Array, Observations
from bpsearch._core.jaxtools import in_64_bit, pytree, replace
from bpsearch.errors import InvalidArgumentError, SpaceMismatchError
from bpsearch.policies.base import Policy

Apply = Callable[[Any, Any], Any]


def from_jax(
    apply: Apply,
    parameters: PyTree[Array],
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    *,
    adapt: str | Sequence[str] | None = None,
) -> "JaxPolicy":
    """A policy from a JAX function of parameters and *one* observation.

    Args:
        apply: gives the logits of the actions (Discrete); the mean and the log of the standard deviation of a Gaussian
            (Box); or a distribution of distrax with `logits`, or with `loc` and `scale_diag`. Of a tuple with a value,
            as actor-critics give it, the first part counts.
        parameters: a pytree of arrays.
        observation_space: what the function accepts.
        action_space: what the distribution draws.
        adapt: the parameters that a search may change, by the beginnings of their paths in the pytree, as
            "params/Dense_2"; "last" for the last layer whose size is that of the actions; all by default.
    """
    if not isinstance(action_space, gymnasium.spaces.Discrete | gymnasium.spaces.Box):
        raise InvalidArgumentError(f"a function of JAX acts in a Discrete or a Box space, got {action_space}")
    paths = ["/".join(_key(part) for part in path) for path, _ in jax.tree_util.tree_flatten_with_path(parameters)[0]]
    leaves, structure = jax.tree_util.tree_flatten(parameters)
    leaves = [np.asarray(leaf) for leaf in leaves]
    size = int(action_space.n) if isinstance(action_space, gymnasium.spaces.Discrete) else math.prod(action_space.shape)
    chosen = _choose(paths, leaves, size, adapt)
    form = _Form(apply, structure, chosen, observation_space, action_space)
    policy = JaxPolicy(
        tuple(leaf for leaf, adapted in zip(leaves, chosen, strict=True) if adapted),
        tuple(leaf for leaf, adapted in zip(leaves, chosen, strict=True) if not adapted),
        form,
    )
    policy.check_output()
    return policy


class _Form:
    """What does not change: compared and hashed as itself, so that a policy compiles once."""

    def __init__(self, apply: Apply, structure: Any, chosen: list[bool], *spaces: gymnasium.Space[Any]) -> None:
        self.apply, self.structure, self.chosen, self.spaces = apply, structure, chosen, spaces

    def parameters(self, adapted: Sequence[Any], fixed: Sequence[Any]) -> Any:
        """The whole pytree."""
        parts = (iter(fixed), iter(adapted))
        return jax.tree_util.tree_unflatten(self.structure, [next(parts[own]) for own in self.chosen])


@pytree(static=("form",))
@dataclass(frozen=True, eq=False)
class JaxPolicy(Policy):
    """A function of JAX with its own values of the adapted parameters; made by `from_jax`.

    Attributes:
        adapted: the leaves of the parameters that a search may change.
        fixed: the others.
        form: the function and the spaces.
    """

    adapted: tuple[Array, ...]
    fixed: tuple[Array, ...]
    form: _Form

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """What the function accepts."""
        return self.form.spaces[0]

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """What is drawn."""
        return self.form.spaces[1]

    @property
    def parameters(self) -> tuple[Array, ...]:
        """The adapted leaves."""
        return self.adapted

    def with_parameters(self, parameters: PyTree[Array]) -> Self:
        """The same function with other values of them."""
        return replace(self, adapted=tuple(parameters))

    @property
    def constants(self) -> dict[str, Array]:
        """None besides the leaves."""
        return {}

    @in_64_bit
    def sample(self, key: Array, observations: Observations) -> tuple[Array, Array]:
        """Draw one action per observation."""
        outputs, leading = self._outputs(observations)
        if isinstance(self.action_space, gymnasium.spaces.Discrete):
            (logits,) = outputs
            actions = jax.random.categorical(key, logits).astype(jnp.int32) + int(self.action_space.start)
        else:
            mean, log_std = outputs
            noise: Any = jax.random.normal(key, mean.shape, mean.dtype)
            actions = jnp.asarray(mean + jnp.exp(log_std) * noise)
        log_probs = self._log_density(outputs, actions)
        return self._reshape(actions, leading), log_probs.reshape(leading)

    @in_64_bit
    def log_prob(self, observations: Observations, actions: Array) -> Array:
        """Log π_θ(a|s), one per observation."""
        outputs, leading = self._outputs(observations)
        rows = jnp.asarray(actions).reshape(math.prod(leading), *(self.action_space.shape or ()))
        return self._log_density(outputs, rows).reshape(leading)

    def most_likely(self, observations: Observations) -> Array:
        """The largest logit, or the mean."""
        outputs, leading = self._outputs(observations)
        if isinstance(self.action_space, gymnasium.spaces.Discrete):
            actions = jnp.argmax(outputs[0], axis=-1).astype(jnp.int32) + int(self.action_space.start)
            return actions.reshape(leading)
        return self._reshape(outputs[0], leading)

    @in_64_bit
    def check_output(self) -> None:
        """Refuse a function whose output does not fit the action space."""
        space = self.observation_space
        one = jax.tree_util.tree_map(lambda x: np.asarray(x)[None], _example(space))
        outputs, _ = self._outputs(one)
        size = _size(self.action_space)
        if any(part.shape[-1] != size for part in outputs):
            shapes = [part.shape[1:] for part in outputs]
            raise SpaceMismatchError(
                f"the function must give {size} logits, or a mean and a log-std of {size} numbers, for the actions "
                f"{self.action_space}, got the shapes {shapes}"
            )

    def _outputs(self, observations: Observations) -> tuple[tuple[Array, ...], tuple[int, ...]]:
        """The logits, or mean and log-std, with a row for each observation; and the leading axes."""
        leading = _leading(self.observation_space, observations)
        rows = jax.tree_util.tree_map(
            lambda x: jnp.asarray(x).reshape(math.prod(leading), *np.shape(x)[len(leading) :]), observations
        )
        parameters = self.form.parameters(self.adapted, self.fixed)
        is_discrete = isinstance(self.action_space, gymnasium.spaces.Discrete)
        outputs = jax.vmap(lambda row: _parts(self.form.apply(parameters, row), is_discrete))(rows)
        return outputs, leading

    def _log_density(self, outputs: tuple[Array, ...], actions: Array) -> Array:
        if isinstance(self.action_space, gymnasium.spaces.Discrete):
            log_probs = jax.nn.log_softmax(outputs[0], axis=-1)
            chosen = jnp.asarray(actions) - int(self.action_space.start)
            return jnp.take_along_axis(log_probs, chosen[:, None], axis=-1)[:, 0]
        mean, log_std = outputs
        standard = (jnp.asarray(actions, mean.dtype).reshape(mean.shape) - mean) * jnp.exp(-log_std)
        return -jnp.sum(0.5 * standard**2 + log_std + 0.5 * math.log(2.0 * math.pi), axis=-1)

    def _reshape(self, actions: Array, leading: tuple[int, ...]) -> Array:
        return actions.reshape(*leading, *(self.action_space.shape or ()))


def _parts(output: Any, is_discrete: bool) -> tuple[Array, ...]:
    """The logits, or the mean and the log-std, flat, of what the function gave for one observation."""
    if isinstance(output, tuple) and (is_discrete or not _is_array(output[0])):
        output = output[0]  # an actor-critic gives its value as well
    if is_discrete:
        return (jnp.ravel(output if _is_array(output) else output.logits),)
    if isinstance(output, tuple):
        mean, log_std = (jnp.ravel(part) for part in output[:2])
    elif _is_array(output):
        raise SpaceMismatchError(
            "for a Box the function must give a mean and a log-std, or a distribution, got one array"
        )
    else:
        while not hasattr(output, "loc"):  # distrax.Independent and the like
            output = output.distribution
        scale = output.scale_diag if hasattr(output, "scale_diag") else output.scale
        mean, log_std = jnp.ravel(output.loc), jnp.log(jnp.ravel(scale))
    return mean, jnp.broadcast_to(log_std, mean.shape)


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray)


def _key(part: Any) -> str:
    return str(getattr(part, "key", getattr(part, "name", getattr(part, "idx", part))))


def _choose(paths: list[str], leaves: list[Any], size: int, adapt: str | Sequence[str] | None) -> list[bool]:
    if adapt is None:
        return [True] * len(paths)
    if adapt == "last":
        layers = [
            p
            for p, leaf in zip(paths, leaves, strict=True)
            if leaf.ndim == 2 and size in (leaf.shape[0], leaf.shape[1])
        ]
        # A critic's last layer has one output; that of a policy with one action cannot be told from it.
        if not layers or size == 1:
            return [True] * len(paths)
        layer, _, _ = layers[-1].rpartition("/")
        # Parameters that are not grouped by layers: the matrix, and what may be its bias.
        alone = [layers[-1], *(p for p, leaf in zip(paths, leaves, strict=True) if leaf.shape == (size,))]
        adapt = [*([layer] if layer else alone), *(path for path in paths if "log_std" in path)]
    prefixes = (adapt,) if isinstance(adapt, str) else tuple(adapt)
    chosen = [any(path == prefix or path.startswith(f"{prefix}/") for prefix in prefixes) for path in paths]
    if not any(chosen):
        raise InvalidArgumentError(f"adapt must name parameters, which are {', '.join(paths)}; got {adapt!r}")
    return chosen


def _size(space: gymnasium.Space[Any]) -> int:
    return int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else math.prod(space.shape or ())


def _leading(space: Any, observations: Any) -> tuple[int, ...]:
    while isinstance(observations, dict):
        key = next(iter(observations))
        observations, space = observations[key], space[key]
    shape = np.shape(observations)
    return tuple(shape[: len(shape) - len(space.shape or ())])


def _example(space: gymnasium.Space[Any]) -> Any:
    from bpsearch.envs.observations import empty_observations

    return empty_observations(space)
