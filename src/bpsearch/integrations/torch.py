"""Torch modules as policies."""

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import gymnasium
import jax
import numpy as np
import torch
from jaxtyping import PyTree

from bpsearch._core.arrays import Array, NumpyArray, Observations
from bpsearch._core.jaxtools import in_64_bit, pytree, replace
from bpsearch.errors import InvalidArgumentError
from bpsearch.integrations.torch_heads import Head, Output, head_of
from bpsearch.integrations.torch_linear import LinearLayers
from bpsearch.integrations.torch_numpy import InNumpy
from bpsearch.policies.base import Policy, clipped
from bpsearch.sampling.groups import episode_groups, row_bytes

_CHUNK = 8192  # rows per pass through the module when whole batches are differentiated; bounds memory
_CHUNK_BYTES = 2**24  # of observations in them, which a module may turn into four times as many, and more


def from_torch(
    module: torch.nn.Module,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    *,
    adapt: str | Sequence[str] | None = None,
) -> "TorchPolicy":
    """A policy from a torch module whose `forward` gives a `torch.distributions` object.

    The module is copied and put into evaluation mode: what happens to the original later does not matter. It runs in
    the precision of its parameters; in 64 bit (`module.double()`) rounding hardly ever decides an action.

    Args:
        module: called with a tensor of N observations (a dict of tensors for a `Dict` space), floating-point ones in
            the type of the module's parameters; returns a `Categorical` (Discrete; a sequence of them for
            MultiDiscrete), a `Bernoulli` (MultiBinary), or for Box a `Normal`, an `Independent` of one, or a
            `TransformedDistribution` of one.
        observation_space: what the module accepts.
        action_space: what the distribution draws.
        adapt: the parameters that a search may change, by name or by the first part of their dotted names; "last" for
            those of the last registered submodule on which the distribution depends; all of those by default.
    """
    return TorchPolicy.of(Architecture(module, observation_space, action_space, adapt))


def of_module(
    module: torch.nn.Module,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    *,
    adapt: str | None = None,
) -> "TorchPolicy":
    """As `from_torch`."""
    return from_torch(module, observation_space, action_space, adapt=adapt)


@pytree(static=("architecture",))
@dataclass(frozen=True, eq=False)
class TorchPolicy(Policy):
    """A torch module with its own values of the adapted parameters; made by `from_torch`.

    Attributes:
        vector: (P,), the adapted parameters, 64 bit; the module gets them in its own type.
        architecture: the module and all that does not change; shared by all policies that differ in `vector`.
    """

    vector: Array
    architecture: "Architecture"
    traceable: ClassVar[bool] = False

    @classmethod
    def of(cls, architecture: "Architecture") -> Self:
        """The policy of the module as it is."""
        return cls(_read_only(architecture.initial), architecture)

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """What the module accepts."""
        return self.architecture.observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """What the distribution draws."""
        return self.architecture.head.space

    @property
    def parameters(self) -> Array:
        """The adapted parameters, as a vector."""
        return self.vector

    def with_parameters(self, parameters: Array) -> Self:
        """The same module with other values of the adapted parameters."""
        return replace(self, vector=_read_only(parameters))

    @property
    def constants(self) -> dict[str, Array]:
        """The parameters that are not adapted, and the buffers."""
        return self.architecture.constants

    @property
    def flat(self) -> Array:
        """The adapted parameters, as a vector."""
        return self.vector

    def with_flat(self, vector: Array) -> Self:
        """The same module with other values of the adapted parameters."""
        return self.with_parameters(vector)

    @property
    def uniforms(self) -> int:
        """One per component of an action."""
        return self.architecture.head.uniforms

    def act(self, uniforms: NumpyArray, observations: Observations) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
        """Draw by inverting the cumulative distribution function of each component."""
        architecture = self.architecture
        with architecture.at(self.vector) as head, torch.no_grad():
            if architecture.in_numpy is not None:
                arrays = architecture.in_numpy(np.asarray(observations), self.row_multiple)
                actions, log_probs = head.draw_from(arrays, uniforms)
                return actions, log_probs, clipped(head.space, actions)
            output = architecture.module(architecture.tensors(observations))
            actions, log_probs = head.draw(output, uniforms)
            return actions, log_probs, head.executed(output, actions)

    def act_in_blocks(
        self, uniforms: NumpyArray, observations: Observations, memory: PyTree[Array]
    ) -> tuple[NumpyArray, NumpyArray, NumpyArray, PyTree[Array]]:
        """NumPy keeps to the blocks by itself; torch is called for each."""
        if self.architecture.in_numpy is not None:
            return self.act_next(uniforms, observations, memory)
        return super().act_in_blocks(uniforms, observations, memory)

    def act_most_likely(self, observations: Observations, memory: Any) -> tuple[NumpyArray, NumpyArray, Any]:
        """The mode of the distribution, and its transform."""
        architecture = self.architecture
        with architecture.at(self.vector) as head, torch.no_grad():
            output = architecture.module(architecture.tensors(observations))
            actions = head.mode(output)
            return actions, head.executed(output, actions), memory

    @property
    def name(self) -> str:
        """The kind of the module."""
        return f"the policy {self.architecture.name}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known of the module."""
        return (*self.architecture.notes, *((self.architecture.drawn,) if self.architecture.drawn else ()))

    @property
    def mode_notes(self) -> tuple[str, ...]:
        """The same without what is true of drawn actions only."""
        return self.architecture.notes

    @property
    def sees_masks(self) -> bool:  # type: ignore[override]
        """Whether the module takes action masks."""
        return self.architecture.sees_masks

    @in_64_bit
    def sample(self, key: Array, observations: Observations) -> tuple[Array, Array]:
        """Draw one action per observation."""
        leading = self._leading(observations)
        uniforms = jax.random.uniform(key, (int(np.prod(leading)), self.uniforms), dtype=np.float64)
        rows = self._rows(observations, len(leading))
        actions, log_probs, _ = self.act(np.array(uniforms), rows)
        return actions.reshape(*leading, *actions.shape[1:]), log_probs.reshape(leading)

    def log_prob(self, observations: Observations, actions: Array) -> Array:
        """Log π_θ(a|s) of actions as drawn, in 64 bit from the distribution's parameters on."""
        leading = self._leading(observations)
        observations, actions = self._rows(observations, len(leading)), self._rows(actions, len(leading))
        log_probs = np.empty(len(actions))
        with self.architecture.at(self.vector), torch.no_grad():
            for chunk in _chunks(len(actions), observations):
                log_probs[chunk] = self._log_prob(observations, actions, chunk).numpy()
        return log_probs.reshape(leading)

    def score(self, observations: Observations, actions: Array, weights: Array) -> Array:
        """The score by torch's reverse mode; steps of weight 0, such as padding, cost nothing."""
        weights = np.asarray(weights, dtype=np.float64)
        used = weights != 0.0
        observations = jax.tree_util.tree_map(lambda array: np.asarray(array)[used], observations)
        actions, weights = np.asarray(actions)[used], weights[used]
        total = np.zeros_like(self.vector)
        with self.architecture.at(self.vector), torch.enable_grad():
            for chunk in _chunks(len(actions), observations):
                weighted = torch.dot(torch.from_numpy(weights[chunk]), self._log_prob(observations, actions, chunk))
                total += self.architecture.gradient(weighted)
        return total

    def episode_scores(self, observations: Observations, actions: Array, mask: Array) -> Array:
        """The score of each episode: of linear layers by one reverse pass for many, else by one each."""
        mask = np.asarray(mask, dtype=bool)
        groups = [
            self._group_scores(*jax.tree_util.tree_map(lambda array: array[group], (observations, actions, mask)))  # noqa: B023
            for group in episode_groups(observations, mask)
        ]
        return groups[0] if len(groups) == 1 else np.concatenate(groups)

    def _group_scores(self, observations: Observations, actions: Array, mask: NumpyArray) -> NumpyArray:
        layers, lengths = self.architecture.layers, mask.sum(axis=1)
        episode = np.repeat(np.arange(len(mask)), lengths)
        observations, actions = jax.tree_util.tree_map(lambda array: np.asarray(array)[mask], (observations, actions))
        scores = np.zeros((len(mask), len(self.vector)))
        with self.architecture.at(self.vector), torch.enable_grad():
            for chunk in _chunks(len(episode), observations):
                own, steps = np.unique(episode[chunk], return_counts=True)
                log_probs = partial(self._log_prob, observations, actions)
                part = None if layers is None else layers.scores(partial(log_probs, chunk), steps)
                if part is None:
                    ends = chunk.start + np.cumsum(steps)
                    spans = [slice(start, end) for start, end in zip(ends - steps, ends, strict=True)]
                    part = np.stack([self.architecture.gradient(log_probs(span).sum()) for span in spans])
                scores[own] += part
        return scores

    def _log_prob(self, observations: Observations, actions: Array, chunk: slice) -> torch.Tensor:
        architecture = self.architecture
        rows = jax.tree_util.tree_map(lambda array: array[chunk], observations)
        output = architecture.module(architecture.tensors(rows))
        return architecture.head.log_prob(output, as_tensor(np.asarray(actions[chunk])))

    def _leading(self, observations: Observations) -> tuple[int, ...]:
        space: Any = self.observation_space
        while isinstance(observations, dict):
            key = next(iter(observations))
            observations, space = observations[key], space[key]
        shape = np.shape(observations)
        return shape[: len(shape) - len(space.shape)]

    def _rows(self, arrays: Observations, leading: int) -> Any:
        def flatten(array: Array) -> NumpyArray:
            array = np.asarray(array)
            return array.reshape(-1, *array.shape[leading:])

        return jax.tree_util.tree_map(flatten, arrays)


class Architecture:
    """A module, which of its parameters are adapted, and how actions are drawn from what it returns.

    The adapted parameters of a policy are written into the one module when that policy is used, and stay there until
    another is: sampling does not pay for the exchange at every step. `at` is the only door to the module.

    Args:
        module: see `from_torch`, as for the others.
        observation_space: of the environment.
        action_space: of the environment.
        adapt: which parameters.
        cast: whether the module wants floating-point observations in the type of its parameters.
        name: what errors call the policy; the module's class by default.
        notes: what a reader of the policy's value should know.
        drawn: the same, of actions that are drawn rather than the most likely ones.
        sees_masks: whether observations come with action masks.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        adapt: str | Sequence[str] | None,
        *,
        cast: bool = True,
        name: str = "",
        notes: Sequence[str] = (),
        drawn: str = "",
        sees_masks: bool = False,
    ) -> None:
        self.name = name or type(module).__name__
        self.notes, self.drawn, self.sees_masks = tuple(notes), drawn, sees_masks
        self.module = copy.deepcopy(module).cpu().eval().requires_grad_(True)
        self.observation_space = observation_space
        everything = dict(self.module.named_parameters())
        if not everything:
            raise InvalidArgumentError(f"the module has no parameters that a search could adapt: {module}")
        self._dtype = next(iter(everything.values())).dtype if cast else None
        examples = _two_observations(observation_space)
        if sees_masks:
            examples["action_mask"][:] = 1  # every action is allowed
        output = self.module(self.tensors(examples))
        self.head: Head = head_of(output, action_space)
        self._adapted = self._choose(everything, output, adapt)
        self.initial = np.concatenate([p.detach().double().numpy().ravel() for p in self._adapted])
        self.layers = self._linear_layers(examples)
        self.in_numpy = self._numpy_actor(examples)
        self._lock = threading.RLock()
        self._present: Array | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A lock cannot be copied or pickled, and a copied vector is another object.
        # NumPy's views of the module's memory would become copies.
        return self.__dict__ | {"_lock": None, "_present": None, "in_numpy": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()
        self.in_numpy = self._numpy_actor(_two_observations(self.observation_space))

    @contextmanager
    def at(self, vector: Array) -> Iterator[Head]:
        """Hold the module with the adapted parameters of `vector`."""
        with self._lock:
            if self._present is not vector:
                parts = np.split(np.asarray(vector), np.cumsum([p.numel() for p in self._adapted])[:-1])
                with torch.no_grad():
                    for parameter, part in zip(self._adapted, parts, strict=True):
                        parameter.copy_(torch.tensor(part).view_as(parameter))
                self._present = vector
            yield self.head

    @property
    def constants(self) -> dict[str, Array]:
        """The parameters that are not adapted, and the buffers, by torch's names."""
        adapted = {id(parameter) for parameter in self._adapted}
        tensors = [*self.module.named_parameters(), *self.module.named_buffers()]
        return {name: tensor.detach().numpy().copy() for name, tensor in tensors if id(tensor) not in adapted}

    def gradient(self, value: torch.Tensor, *, again: bool = False) -> Array:
        """The gradient of `value` in the adapted parameters, as a vector; `again` if others of its graph follow."""
        gradients = torch.autograd.grad(value, self._adapted, retain_graph=again)
        return np.concatenate([gradient.double().numpy().ravel() for gradient in gradients])

    def tensors(self, observations: Observations) -> Any:
        """Observations as the module takes them."""
        if isinstance(observations, dict):
            return {key: self.tensors(value) for key, value in observations.items()}
        tensor = as_tensor(np.asarray(observations))
        return tensor.to(self._dtype) if self._dtype is not None and tensor.is_floating_point() else tensor

    def _choose(
        self, everything: dict[str, torch.nn.Parameter], output: Output, adapt: str | Sequence[str] | None
    ) -> list[torch.nn.Parameter]:
        actions, _ = self.head.draw(output, np.full((2, self.head.uniforms), 0.5))
        log_prob = self.head.log_prob(output, torch.from_numpy(actions)).sum()
        gradients = torch.autograd.grad(log_prob, list(everything.values()), allow_unused=True)
        # A critic in the same module, for instance, has no part in the distribution.
        used = {name: p for (name, p), g in zip(everything.items(), gradients, strict=True) if g is not None}
        if adapt is None:
            return list(used.values())
        if adapt == "last":
            adapt = list(used)[-1].rpartition(".")[0] or list(used)
        prefixes = (adapt,) if isinstance(adapt, str) else tuple(adapt)
        for prefix in prefixes:
            if not any(_is_under(name, prefix) for name in used):
                raise InvalidArgumentError(
                    f"adapt must name parameters on which the distribution depends, which are {', '.join(used)}; got "
                    f"{prefix!r}"
                )
        return [p for name, p in used.items() if any(_is_under(name, prefix) for prefix in prefixes)]

    def _numpy_actor(self, observations: Observations) -> InNumpy | None:
        """How NumPy computes the distribution, if the module knows, and if it is the same."""
        make = getattr(self.module, "in_numpy", None)
        found: InNumpy | None = None if make is None or isinstance(observations, dict) else make()
        if found is None:
            return None
        with torch.no_grad():
            expected = self.head.arrays(self.module(self.tensors(observations)))
        middle = np.full((2, self.head.uniforms), 0.5)
        drawn = [self.head.draw_from(arrays, middle) for arrays in (found(np.asarray(observations), 2), expected)]
        return found if all(map(np.allclose, *drawn)) else None

    def _linear_layers(self, observations: Observations) -> LinearLayers | None:
        """The layers that own the adapted parameters, if these act through them alone: a module may do as it likes."""
        layers = LinearLayers.of(self.module, self._adapted)
        output = self.module(self.tensors(observations))
        actions = torch.from_numpy(self.head.draw(output, np.full((2, self.head.uniforms), 0.5))[0])

        def log_probs() -> torch.Tensor:
            return self.head.log_prob(self.module(self.tensors(observations)), actions)

        found = None if layers is None else layers.scores(log_probs, np.ones(2, int))
        if found is None:
            return None
        expected = np.stack([self.gradient(log_probs()[row]) for row in range(2)])
        return layers if np.allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max()) else None


def _is_under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def _chunks(rows: int, observations: Observations) -> Iterator[slice]:
    size = max(min(_CHUNK, _CHUNK_BYTES // max(row_bytes(observations, 1), 1)), 1)
    return (slice(start, start + size) for start in range(0, rows, size))


def as_tensors(observations: Observations) -> Any:
    """The same through dicts."""
    if isinstance(observations, dict):
        return {key: as_tensors(value) for key, value in observations.items()}
    return as_tensor(np.asarray(observations))


def as_tensor(array: NumpyArray) -> torch.Tensor:
    """A tensor of the same memory, or of a copy if torch must not write there."""
    # Torch warns of memory that it shares and must not write, which is how JAX gives its arrays away.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _read_only(vector: Array) -> Array:
    copied = np.array(vector, dtype=np.float64)
    copied.flags.writeable = False
    return copied


def _two_observations(space: gymnasium.Space[Any]) -> Any:
    space = copy.deepcopy(space)  # sampling advances the space's own generator
    space.seed(0)
    return jax.tree_util.tree_map(lambda *pair: np.stack(pair), space.sample(), space.sample())
