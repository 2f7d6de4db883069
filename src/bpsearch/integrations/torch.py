"""Torch modules as policies."""

from collections.abc import Iterator, Sequence
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
from bpsearch.envs.observations import split_space
from bpsearch.integrations.torch_architecture import Architecture, as_tensor
from bpsearch.policies.base import Policy, clip_to
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
        module: called with a tensor of N observations (a dict of tensors for a `Dict` space, a tuple for a `Tuple`),
            floating-point ones in the type of the module's parameters; returns a `Categorical` (Discrete; a sequence of
            them for MultiDiscrete), a `Bernoulli` (MultiBinary), or for Box a `Normal`, an `Independent` of one, or a
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
                return actions, log_probs, clip_to(head.space, actions)
            output = architecture.module(architecture.tensors(observations))
            actions, log_probs = head.draw(output, uniforms)
            return actions, log_probs, head.to_env(output, actions)

    def act_in_blocks(
        self, uniforms: NumpyArray, observations: Observations, memory: PyTree[Array]
    ) -> tuple[NumpyArray, NumpyArray, NumpyArray, PyTree[Array]]:
        """NumPy keeps to the blocks by itself; torch is called for each."""
        if self.architecture.in_numpy is not None:
            return self.act_next(uniforms, observations, memory)
        return super().act_in_blocks(uniforms, observations, memory)

    def log_prob_in_blocks(self, observations: Observations, actions: Array) -> NumpyArray:
        """NumPy keeps to the blocks by itself; torch is called for each."""
        architecture = self.architecture
        if architecture.in_numpy is None:
            return super().log_prob_in_blocks(observations, actions)
        with architecture.at(self.vector) as head:
            arrays = architecture.in_numpy(np.asarray(observations), self.row_multiple)
            return head.log_prob_from(arrays, np.asarray(actions))

    def critic(self, observations: Observations) -> NumpyArray | None:
        """What the module's `critic` expects, if it has one."""
        architecture = self.architecture
        evaluate = getattr(architecture.module, "critic_values", None)
        if evaluate is None:
            return None
        with architecture.at(self.vector), torch.no_grad():
            values: torch.Tensor | None = evaluate(architecture.tensors(observations))
            return None if values is None else values.double().numpy().ravel()

    def act_most_likely(self, observations: Observations, memory: Any) -> tuple[NumpyArray, NumpyArray, Any]:
        """The mode of the distribution, and its transform."""
        architecture = self.architecture
        with architecture.at(self.vector) as head, torch.no_grad():
            output = architecture.module(architecture.tensors(observations))
            actions = head.mode(output)
            return actions, head.to_env(output, actions), memory

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

    def episode_scores(self, observations: Observations, actions: Array, weights: Array) -> Array:
        """The score of each episode: of linear layers by one reverse pass for many, else by one each."""
        weights = np.asarray(weights, dtype=np.float64)
        groups = [
            self._group_scores(*jax.tree_util.tree_map(lambda array: array[group], (observations, actions, weights)))  # noqa: B023
            for group in episode_groups(observations, weights != 0.0)
        ]
        return groups[0] if len(groups) == 1 else np.concatenate(groups)

    def _group_scores(self, observations: Observations, actions: Array, weights: NumpyArray) -> NumpyArray:
        layers, used = self.architecture.layers, weights != 0.0
        episode = np.repeat(np.arange(len(used)), used.sum(axis=1))
        observations, actions = jax.tree_util.tree_map(lambda array: np.asarray(array)[used], (observations, actions))
        counted = torch.from_numpy(weights[used])
        scores = np.zeros((len(used), len(self.vector)))

        def log_probs(chunk: slice) -> torch.Tensor:
            return counted[chunk] * self._log_prob(observations, actions, chunk)

        with self.architecture.at(self.vector), torch.enable_grad():
            for chunk in _chunks(len(episode), observations):
                own, steps = np.unique(episode[chunk], return_counts=True)
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
            observations, space = observations[key], (split_space(space) or {})[key]
        shape = np.shape(observations)
        return shape[: len(shape) - len(space.shape)]

    def _rows(self, arrays: Observations, leading: int) -> Any:
        def flatten(array: Array) -> NumpyArray:
            array = np.asarray(array)
            return array.reshape(-1, *array.shape[leading:])

        return jax.tree_util.tree_map(flatten, arrays)


def _chunks(rows: int, observations: Observations) -> Iterator[slice]:
    size = max(min(_CHUNK, _CHUNK_BYTES // max(row_bytes(observations, 1), 1)), 1)
    return (slice(start, start + size) for start in range(0, rows, size))


def _read_only(vector: Array) -> Array:
    copied = np.array(vector, dtype=np.float64)
    copied.flags.writeable = False
    return copied
