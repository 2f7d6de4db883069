"""A torch module as it is shared by all policies that differ in their adapted parameters."""

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import gymnasium
import jax
import numpy as np
import torch

from bpsearch._core.arrays import Array, NumpyArray, Observations
from bpsearch.envs.observations import split_space
from bpsearch.errors import InvalidArgumentError
from bpsearch.integrations.torch_heads import Head, Output, head_of
from bpsearch.integrations.torch_linear import LinearLayers
from bpsearch.integrations.torch_numpy import InNumpy


class Architecture:
    """A module, which of its parameters are adapted, and how actions are drawn from what it returns.

    The adapted parameters of a policy are written into the one module when that policy is used, and stay there until
    another is: sampling does not pay for the exchange at every step. `at` is the only door to the module.

    Args:
        module: see `from_torch`, as for the others.
        observation_space: of the environment.
        action_space: of the environment.
        adapt: which parameters.
        copies: whether the module stays the caller's, who may train it on.
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
        copies: bool = True,
        cast: bool = True,
        name: str = "",
        notes: Sequence[str] = (),
        drawn: str = "",
        sees_masks: bool = False,
    ) -> None:
        self.name = name or type(module).__name__
        self.notes, self.drawn, self.sees_masks = tuple(notes), drawn, sees_masks
        self.module = (copy.deepcopy(module) if copies else module).cpu().eval().requires_grad_(True)
        self.observation_space = observation_space
        everything = dict(self.module.named_parameters())
        if not everything:
            raise InvalidArgumentError(f"the module has no parameters that a search could adapt: {module}")
        self._dtype = next(iter(everything.values())).dtype if cast else None
        examples = self._examples()
        output = self.module(self.tensors(examples))
        self.head: Head = head_of(output, action_space)
        self._adapted = self._choose(everything, output, adapt)
        self.initial = np.concatenate([p.detach().double().numpy().ravel() for p in self._adapted])
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
        self.in_numpy = self._numpy_actor(self._examples())

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
        """Observations as the module takes them: tuples of tensors where the environment gives tuples."""
        return self._tensors(observations, self.observation_space)

    def _tensors(self, observations: Observations, space: gymnasium.Space[Any] | None) -> Any:
        if isinstance(observations, dict):
            parts = (split_space(space) if space is not None else None) or {}
            found = {key: self._tensors(value, parts.get(key)) for key, value in observations.items()}
            return tuple(found.values()) if isinstance(space, gymnasium.spaces.Tuple) else found
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

    @cached_property
    def layers(self) -> LinearLayers | None:
        """The layers that own the adapted parameters, if these act through them alone: a module may do as it likes.

        Found when they are first needed: that takes several times the memory of the parameters.
        """
        layers, observations = LinearLayers.of(self.module, self._adapted), self._examples()
        with self._lock:
            output = self.module(self.tensors(observations))
            actions = torch.from_numpy(self.head.draw(output, np.full((2, self.head.uniforms), 0.5))[0])

            def log_probs() -> torch.Tensor:
                return self.head.log_prob(self.module(self.tensors(observations)), actions)

            found = None if layers is None else layers.scores(log_probs, np.ones(2, int))
            if found is None:
                return None
            expected = np.stack([self.gradient(log_probs()[row]) for row in range(2)])
        return layers if np.allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max()) else None

    def _examples(self) -> Any:
        """Two observations; every action is allowed."""
        examples = _two_observations(self.observation_space)
        if self.sees_masks:
            examples["action_mask"][:] = 1
        return examples


def _is_under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def as_tensors(observations: Observations) -> Any:
    """The same through dicts."""
    if isinstance(observations, dict):
        return {key: as_tensors(value) for key, value in observations.items()}
    return as_tensor(np.asarray(observations))


def as_tensor(array: NumpyArray) -> torch.Tensor:
    """A tensor of the same memory, or of a copy if torch must not write there."""
    # Torch warns of memory that it shares and must not write, which is how JAX gives its arrays away.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _two_observations(space: gymnasium.Space[Any]) -> Any:
    space = copy.deepcopy(space)  # sampling advances the space's own generator
    space.seed(0)
    return jax.tree_util.tree_map(lambda *pair: np.stack(pair), space.sample(), space.sample())
