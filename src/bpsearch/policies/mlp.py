"""Neural policies: tanh networks with a Gaussian or a categorical head."""

import itertools
import math
from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from numpy.typing import DTypeLike

from bpsearch._core import threefry
from bpsearch._core.arrays import Array, Observations
from bpsearch._core.checks import check_choice, check_integer, check_seed, check_type
from bpsearch._core.foreign import own_array
from bpsearch._core.jaxtools import pytree, replace
from bpsearch.errors import InvalidArgumentError
from bpsearch.policies.base import Policy

Adapt = Literal["all", "last"]


@dataclass(frozen=True, eq=False)
class MLP(Policy):
    """A policy whose distribution is the output of a network h_k = tanh(W_k h_{k−1} + b_k) with a linear last layer.

    The network computes in the type of its parameters whatever JAX's setting is: 32 bit by default, whose
    rounding is far below the sampling error of a batch's score.

    Attributes:
        weights: W_k of each layer, (outputs, inputs).
        biases: b_k of each layer, (outputs,).
        adapt: which parameters θ stands for: "all", or the "last" layer (and the log-std) only; the others are then
            constants, and no score is propagated through them.
    """

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    adapt: Adapt = field(default="all", kw_only=True)
    _head_names: ClassVar[tuple[str, ...]] = ()  # fields with parameters that belong to no layer

    def __post_init__(self) -> None:
        check_choice("adapt", self.adapt, ("all", "last"))
        for name in ("weights", "biases"):
            check_type(name, getattr(self, name), (tuple, list), "a tuple of arrays, one for each layer")
        if not self.weights or len(self.weights) != len(self.biases):
            raise InvalidArgumentError(
                f"a network needs as many biases as weights and at least one of each, got {len(self.weights)} weights "
                f"and {len(self.biases)} biases"
            )
        dtype = own_array("weights of layer 0", self.weights[0]).dtype
        if dtype not in (np.float32, np.float64):
            raise InvalidArgumentError(f"parameters must be 32-bit or 64-bit floats, got {dtype}")
        inputs = np.shape(self.weights[0])[-1] if np.ndim(self.weights[0]) else 0
        weights, biases = [], []
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            outputs = np.shape(bias)[0] if np.ndim(bias) == 1 else 0
            weights.append(frozen_array(f"weights of layer {layer}", weight, (outputs, inputs), dtype))
            biases.append(frozen_array(f"biases of layer {layer}", bias, (outputs,), dtype))
            inputs = outputs
        object.__setattr__(self, "weights", tuple(weights))
        object.__setattr__(self, "biases", tuple(biases))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type in which the network computes."""
        dtype: np.dtype[Any] = self.biases[-1].dtype
        return dtype

    @property
    def hidden(self) -> tuple[int, ...]:
        """The sizes of the hidden layers."""
        return tuple(int(bias.shape[0]) for bias in self.biases[:-1])

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        """Vectors of the network's input size."""
        return _reals(self.weights[0].shape[1], self.dtype)

    @property
    def parameters(self) -> tuple[PyTree[Array], ...]:
        """((W, b) of each adapted layer, then those of the head): the last layer's are at the end of `flat`."""
        return (
            *tuple(zip(self.weights, self.biases, strict=True))[self._fixed :],
            *(getattr(self, name) for name in self._head_names),
        )

    def with_parameters(self, parameters: tuple[PyTree[Array], ...]) -> Self:
        """The same network with other parameters; layers that do not adapt stay."""
        adapted = len(self.weights) - self._fixed
        weights, biases = zip(*parameters[:adapted], strict=True)
        return replace(
            self,
            weights=self.weights[: self._fixed] + tuple(weights),
            biases=self.biases[: self._fixed] + tuple(biases),
            **dict(zip(self._head_names, parameters[adapted:], strict=True)),
        )

    def adapting(self, adapt: Adapt) -> Self:
        """The same policy with θ standing for "all" parameters or for those of the "last" layer."""
        check_choice("adapt", adapt, ("all", "last"))
        return replace(self, adapt=adapt)

    def log_prob(self, observations: Observations, actions: Array) -> Array:
        """Log π(a|s), one per observation.

        A batch (N, T, ...) is gone through step by step: one step's activations stay in cache.
        """
        observations, actions = jnp.asarray(observations), jnp.asarray(actions)
        if observations.ndim > 2:
            steps = (jnp.moveaxis(observations, 1, 0), jnp.moveaxis(actions, 1, 0))
            return jnp.moveaxis(jax.lax.map(lambda step: self.log_prob(*step), steps), 0, 1)
        return self._log_density(self.outputs(observations), actions)

    def outputs(self, observations: Observations) -> Array:
        """(outputs, B), the last layer's values for the observations (B, inputs), or (outputs,) for (inputs,).

        Feature-major: elementwise work runs along the batch, the long axis, in whole vector registers.
        """
        values: Array = jnp.asarray(observations, self.dtype).T
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = weight @ values + bias.reshape(-1, *(1,) * (values.ndim - 1))
            if layer < len(self.weights) - 1:
                values = jnp.tanh(values)
        return values

    def save(self, path: str | Path) -> None:
        """Write the policy to `path` as NumPy's npz, to be read by `load_policy`."""
        from bpsearch.policies.files import save_policy  # it imports this module

        save_policy(self, path)

    @abstractmethod
    def kl(self, other: Self, observations: Observations) -> Array:
        """KL(π_self(·|s) ‖ π_other(·|s)) in closed form, (B,), for the observations (B, inputs)."""

    @property
    def _fixed(self) -> int:
        return 0 if self.adapt == "all" else len(self.weights) - 1

    @abstractmethod
    def _log_density(self, outputs: Array, actions: Array) -> Array:
        """Log π(a|s) given the network's outputs."""


@pytree(static=("adapt",))
@dataclass(frozen=True, eq=False)
class GaussianMLP(MLP):
    """π(a|s) = N(a; μ(s), diag σ²): μ is the network's output, log σ does not depend on the state.

    Actions are unbounded. An environment with bounds clips what it applies; the recorded action, to which the
    log-probability belongs, is the raw one.

    Attributes:
        log_std: (actions,), log σ.
    """

    log_std: Array
    _head_names: ClassVar[tuple[str, ...]] = ("log_std",)

    def __post_init__(self) -> None:
        super().__post_init__()
        log_std = frozen_array("log_std", self.log_std, self.biases[-1].shape, self.dtype)
        object.__setattr__(self, "log_std", log_std)

    @classmethod
    def init(
        cls,
        seed: int,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        hidden: tuple[int, ...] = (32, 32),
        *,
        dtype: DTypeLike = np.float32,
        adapt: Adapt = "all",
    ) -> Self:
        """A random network (Glorot's uniform weights, biases 0) with σ = 1."""
        if not isinstance(action_space, gymnasium.spaces.Box) or len(action_space.shape) != 1:
            raise InvalidArgumentError(f"a Gaussian policy needs a Box of vectors as action space, got {action_space}")
        weights, biases = _random_layers(seed, observation_space, hidden, action_space.shape[0], dtype)
        return cls(weights, biases, np.zeros(action_space.shape[0], dtype), adapt=adapt)

    @property
    def action_space(self) -> gymnasium.spaces.Box:
        """All real vectors: raw actions, before any clipping."""
        return _reals(self.log_std.shape[0], self.dtype)

    def sample(self, key: Array, observations: Observations) -> tuple[Array, Array]:
        """Draw a = μ(s) + σ ε; the log-probability is that of the rounded sum, as `log_prob` would give it."""
        outputs = self.outputs(observations)
        noise = threefry.normal(key, outputs.shape, self.dtype)
        actions = (outputs + self._along(jnp.exp(self.log_std), outputs) * noise).T
        return actions, self._log_density(outputs, actions)

    def most_likely(self, observations: Observations) -> Array:
        """μ(s)."""
        return self.outputs(observations).T

    def kl(self, other: Self, observations: Observations) -> Array:
        """Σ log(σ'/σ) + (σ² + (μ − μ')²) / 2σ'² − 1/2."""
        mean, other_mean = self.outputs(observations), other.outputs(observations)
        log_std, other_log_std = (self._along(policy.log_std, mean) for policy in (self, other))
        spread = jnp.exp(2.0 * log_std) + (mean - other_mean) ** 2
        return jnp.sum(other_log_std - log_std + 0.5 * spread * jnp.exp(-2.0 * other_log_std) - 0.5, axis=0)

    def _log_density(self, outputs: Array, actions: Array) -> Array:
        z = (jnp.asarray(actions, self.dtype).T - outputs) * self._along(jnp.exp(-self.log_std), outputs)
        constant = jnp.sum(self.log_std) + 0.5 * math.log(2.0 * math.pi) * self.log_std.shape[0]
        return -0.5 * jnp.sum(z * z, axis=0) - constant

    @staticmethod
    def _along(per_action: Array, outputs: Array) -> Array:
        return jnp.reshape(per_action, (-1, *(1,) * (outputs.ndim - 1)))


@pytree(static=("adapt",))
@dataclass(frozen=True, eq=False)
class CategoricalMLP(MLP):
    """π(a|s) = exp z_a(s) / Σ_a' exp z_a'(s): the network's outputs z are the logits of the actions 0 to A − 1."""

    @classmethod
    def init(
        cls,
        seed: int,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        hidden: tuple[int, ...] = (32, 32),
        *,
        dtype: DTypeLike = np.float32,
        adapt: Adapt = "all",
    ) -> Self:
        """A random network (Glorot's uniform weights, biases 0)."""
        if not isinstance(action_space, gymnasium.spaces.Discrete) or action_space.start != 0:
            raise InvalidArgumentError(
                f"a categorical policy needs a Discrete action space that starts at 0, got {action_space}"
            )
        weights, biases = _random_layers(seed, observation_space, hidden, int(action_space.n), dtype)
        return cls(weights, biases, adapt=adapt)

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        """Actions 0 to A − 1."""
        return gymnasium.spaces.Discrete(self.biases[-1].shape[0])

    def sample(self, key: Array, observations: Observations) -> tuple[Array, Array]:
        """Draw actions: the largest logit after adding Gumbel noise."""
        outputs = self.outputs(observations)
        noise = jax.random.gumbel(key, outputs.shape, self.dtype)
        actions = jnp.argmax(outputs + noise, axis=0).astype(jnp.int32)
        return actions, self._log_density(outputs, actions)

    def most_likely(self, observations: Observations) -> Array:
        """The action of the largest logit."""
        return jnp.argmax(self.outputs(observations), axis=0).astype(jnp.int32)

    def noisier(self, temperature: float) -> Self:
        """The logits z / temperature."""
        last = (self.weights[-1] / self.dtype.type(temperature), self.biases[-1] / self.dtype.type(temperature))
        return replace(self, weights=(*self.weights[:-1], last[0]), biases=(*self.biases[:-1], last[1]))

    def kl(self, other: Self, observations: Observations) -> Array:
        """Σ_a π(a|s) (log π(a|s) − log π'(a|s))."""
        log_probs, others = (jax.nn.log_softmax(p.outputs(observations), axis=0) for p in (self, other))
        return jnp.sum(jnp.exp(log_probs) * (log_probs - others), axis=0)

    def _log_density(self, outputs: Array, actions: Array) -> Array:
        log_probs = jax.nn.log_softmax(outputs, axis=0)
        return jnp.take_along_axis(log_probs, jnp.asarray(actions)[None], axis=0)[0]


def frozen_array(name: str, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """`value` as a read-only array, if it has this shape and type and is finite."""
    array = np.array(own_array(name, value))
    if array.shape != shape or 0 in shape or array.dtype != dtype:
        raise InvalidArgumentError(
            f"{name} must be of shape {shape} without empty axes and type {dtype}, got {array.shape} and {array.dtype}"
        )
    if not (np.isfinite(array.min()) and np.isfinite(array.max())):  # without an array of its size
        raise InvalidArgumentError(f"{name} must be finite, got {array[~np.isfinite(array)][0]}")
    array.flags.writeable = False
    return array


def _random_layers(
    seed: int, observation_space: gymnasium.Space[Any], hidden: tuple[int, ...], outputs: int, dtype: DTypeLike
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    if not isinstance(observation_space, gymnasium.spaces.Box) or len(observation_space.shape) != 1:
        raise InvalidArgumentError(f"a network needs a Box of vectors as observation space, got {observation_space}")
    generator = np.random.default_rng(check_seed(seed))
    sizes = [observation_space.shape[0], *(check_integer("a hidden size", size) for size in hidden), outputs]
    pairs = list(itertools.pairwise(sizes))
    limits = [math.sqrt(6.0 / (fan_in + fan_out)) for fan_in, fan_out in pairs]
    weights = [generator.uniform(-w, w, (out, fan_in)) for w, (fan_in, out) in zip(limits, pairs, strict=True)]
    return tuple(w.astype(dtype) for w in weights), tuple(np.zeros(out, dtype) for _, out in pairs)


@cache
def _reals(size: int, dtype: np.dtype[Any]) -> gymnasium.spaces.Box:
    # Made once: samplers ask for a policy's spaces at every step, and a Box takes as long to make as a small network.
    return gymnasium.spaces.Box(-np.inf, np.inf, (size,), dtype.type)
