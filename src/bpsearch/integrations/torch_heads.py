"""How actions are drawn from `torch.distributions` objects, by given numbers, and what their log-probabilities are.

Log-probabilities are computed in 64 bit from the distribution's parameters, and from logits: torch's own
`Categorical(probs=...)` clamps probabilities and gives an impossible action a finite log-probability.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from scipy.special import ndtri
from torch.distributions import (
    Bernoulli,
    Categorical,
    ComposeTransform,
    Distribution,
    Independent,
    IndependentTransform,
    Normal,
    Transform,
    TransformedDistribution,
)

from bpsearch._core.arrays import NumpyArray
from bpsearch.errors import SpaceMismatchError
from bpsearch.policies.base import clip_to

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
Output = Distribution | Sequence[Distribution]  # what a policy module returns


class Head(ABC):
    """One kind of distribution over one kind of action space.

    `draw` serves the sampler's inner loop and is written in NumPy, whose operations on a few rows cost a tenth of
    torch's; `log_prob` serves whole batches and can be differentiated.

    Attributes:
        space: the action space.
        uniforms: how many uniform numbers select an action.
    """

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        self.space = space
        self.uniforms = int(np.prod(space.shape or (), dtype=int))

    def draw(self, output: Output, uniforms: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        """(N, ...), the actions that `uniforms`, (N, U) in [0, 1), select, and (N,), their log-probabilities."""
        return self.draw_from(self.arrays(output), uniforms)

    @abstractmethod
    def arrays(self, output: Output) -> Sequence[NumpyArray]:
        """The parameters of the distribution, 64 bit."""

    @abstractmethod
    def draw_from(self, arrays: Sequence[NumpyArray], uniforms: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        """`draw`, by the parameters of the distribution."""

    @abstractmethod
    def log_prob_from(self, arrays: Sequence[NumpyArray], actions: NumpyArray) -> NumpyArray:
        """`log_prob`, by the parameters of the distribution."""

    @abstractmethod
    def log_prob(self, output: Output, actions: torch.Tensor) -> torch.Tensor:
        """(N,), log-probabilities in 64 bit."""

    @abstractmethod
    def mode(self, output: Output) -> NumpyArray:
        """(N, ...), the most likely actions."""

    def to_env(self, output: Output, actions: NumpyArray) -> NumpyArray:
        """What the environment is given for the actions as drawn."""
        return clip_to(self.space, actions)

    def _reshape(self, actions: NumpyArray) -> NumpyArray:
        return actions.reshape(len(actions), *(self.space.shape or ()))


class CategoricalHead(Head):
    """Discrete: a `Categorical`. MultiDiscrete: a sequence of them, or one with a row of logits per part."""

    def __init__(self, space: gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete) -> None:
        super().__init__(space)
        self._start = np.atleast_1d(np.asarray(space.start, dtype=np.int64))

    def arrays(self, output: Output) -> Sequence[NumpyArray]:
        """The logits of each part."""
        return [_array(logits) for logits in _logits_of(output)]

    def draw_from(self, arrays: Sequence[NumpyArray], uniforms: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        """Invert the cumulative distribution of each part."""
        actions = np.empty(uniforms.shape, np.int64)
        total = np.zeros(len(uniforms))
        rows = np.arange(len(uniforms))
        for part, raw in enumerate(arrays):
            logits = np.array(raw.T, order="C")  # actions first: NumPy is slow along short last axes
            logits -= logits.max(axis=0)
            cumulative = np.exp(logits).cumsum(axis=0)
            # Divided by the total, every boundary past the last possible action is exactly 1, which no number reaches.
            boundaries = cumulative[:-1] / cumulative[-1]
            chosen = (uniforms[:, part] >= boundaries).sum(axis=0)
            actions[:, part] = chosen
            total += logits[chosen, rows] - np.log(cumulative[-1])
        return self._reshape(actions + self._start), total

    def log_prob_from(self, arrays: Sequence[NumpyArray], actions: NumpyArray) -> NumpyArray:
        """The sum over parts."""
        indices, total = actions.reshape(len(actions), -1) - self._start, np.zeros(len(actions))
        for part, raw in enumerate(arrays):
            logits = np.array(raw.T, order="C")
            logits -= logits.max(axis=0)
            total += logits[indices[:, part], np.arange(len(actions))] - np.log(np.exp(logits).sum(axis=0))
        return total

    def log_prob(self, output: Output, actions: torch.Tensor) -> torch.Tensor:
        """The sum over parts."""
        indices = actions.reshape(len(actions), -1) - torch.from_numpy(self._start)
        parts = [
            logits.double().log_softmax(-1).gather(-1, indices[:, part, None])[:, 0]
            for part, logits in enumerate(_logits_of(output))
        ]
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)

    def mode(self, output: Output) -> NumpyArray:
        """The largest logit of each part; of several, the first."""
        largest = [_array(logits).argmax(axis=-1) for logits in _logits_of(output)]
        return self._reshape(np.stack(largest, axis=-1) + self._start)


class BernoulliHead(Head):
    """MultiBinary: a `Bernoulli` per bit."""

    def arrays(self, output: Output) -> Sequence[NumpyArray]:
        """The logits of the bits."""
        return (_array(self._logits(output)),)

    def draw_from(self, arrays: Sequence[NumpyArray], uniforms: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        """A bit is set if its number is below its probability."""
        (logits,) = arrays
        bits = uniforms < 1.0 / (1.0 + np.exp(-logits))
        return self._reshape(bits.astype(np.int8)), self.log_prob_from(arrays, bits)

    def log_prob_from(self, arrays: Sequence[NumpyArray], actions: NumpyArray) -> NumpyArray:
        """The sum over bits."""
        (logits,) = arrays
        found: NumpyArray = -np.logaddexp(0.0, np.where(actions.reshape(logits.shape), -logits, logits)).sum(axis=-1)
        return found

    def log_prob(self, output: Output, actions: torch.Tensor) -> torch.Tensor:
        """The sum over bits."""
        logits = self._logits(output).double()
        signs = 2.0 * actions.reshape(logits.shape).double() - 1.0
        return torch.nn.functional.logsigmoid(signs * logits).sum(-1)

    def mode(self, output: Output) -> NumpyArray:
        """The bits that are more likely set than not."""
        return self._reshape((_array(self._logits(output)) > 0.0).astype(np.int8))

    def _logits(self, output: Output) -> torch.Tensor:
        base = _without_independent(output)
        assert isinstance(base, Bernoulli)
        return base.logits.flatten(1)


class GaussianHead(Head):
    """Box: a `Normal` per component, plain, `Independent` or under transforms (`TanhTransform`, ...).

    The action as drawn is the one *before* the transforms. They do not depend on the parameters, so their Jacobian
    cancels from every importance weight and every score; and an action that a tanh has rounded to ±1, whose
    log-probability cannot be recovered, does no harm.
    """

    def arrays(self, output: Output) -> Sequence[NumpyArray]:
        """Means and standard deviations, before the transforms."""
        gaussian = _gaussian(output)
        return _array(gaussian.loc.flatten(1)), _array(gaussian.scale.flatten(1))

    def draw_from(self, arrays: Sequence[NumpyArray], uniforms: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        """Invert the cumulative distribution; the log-probability is that of the action as rounded to its type."""
        loc, scale = arrays
        normal = ndtri(np.maximum(uniforms, 2.0**-54))  # 0 would give −inf
        actions = (loc + scale * normal).astype(self.space.dtype)
        return self._reshape(actions), self.log_prob_from(arrays, actions)

    def log_prob_from(self, arrays: Sequence[NumpyArray], actions: NumpyArray) -> NumpyArray:
        """The sum over components."""
        loc, scale = arrays
        standard = (actions.reshape(loc.shape) - loc) / scale
        found: NumpyArray = -(0.5 * standard**2 + np.log(scale)).sum(axis=-1) - _HALF_LOG_TWO_PI * loc.shape[-1]
        return found

    def log_prob(self, output: Output, actions: torch.Tensor) -> torch.Tensor:
        """The sum over components, of the action as drawn."""
        gaussian = _gaussian(output)
        loc, scale = gaussian.loc.double().flatten(1), gaussian.scale.double().flatten(1)
        standard = (actions.reshape(loc.shape).double() - loc) / scale
        return -(0.5 * standard**2 + scale.log()).sum(-1) - _HALF_LOG_TWO_PI * loc.shape[-1]

    def mode(self, output: Output) -> NumpyArray:
        """The mean before the transforms, as SB3 and CleanRL take it."""
        return self._reshape(_array(_gaussian(output).loc.flatten(1)).astype(self.space.dtype))

    def to_env(self, output: Output, actions: NumpyArray) -> NumpyArray:
        """The transformed action, clipped to the box."""
        if isinstance(output, TransformedDistribution):
            transformed = torch.from_numpy(actions)
            for transform in output.transforms:
                transformed = transform(transformed)
            actions = transformed.numpy()
        return clip_to(self.space, actions)


def _array(tensor: torch.Tensor) -> NumpyArray:
    return tensor.detach().numpy().astype(np.float64)


def head_of(output: Output, space: gymnasium.Space[Any]) -> Head:
    """The head for what a module returned for two observations, computed with parameters that require gradients.

    Raises:
        SpaceMismatchError: the distribution does not fit the action space.
    """
    head, shape = _match(output, space)
    expected = (2, *(space.shape or ()))
    if head is None or int(np.prod(shape)) != int(np.prod(expected)) or shape[:1] != (2,):
        raise SpaceMismatchError(
            f"the module must return, for a batch of N observations, a torch.distributions Categorical (Discrete; "
            f"MultiDiscrete: a sequence of them), Bernoulli (MultiBinary), or Normal, Independent Normal or a "
            f"TransformedDistribution of one (Box), one per component of the action space {space}; got {output} for "
            f"N = 2"
        )
    if isinstance(output, TransformedDistribution):
        for tensor in _tensors_of(output.transforms):
            if tensor.requires_grad:
                raise SpaceMismatchError(
                    "the transforms of a TransformedDistribution must not depend on the module's parameters; put the "
                    "parameters into the base distribution"
                )
    return head


def _match(output: Output, space: gymnasium.Space[Any]) -> tuple[Head | None, tuple[int, ...]]:
    if isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete):
        parts = output if isinstance(output, Sequence) else (output,)
        counts = np.atleast_1d(space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec)
        if counts.ndim == 1 and all(isinstance(part, Categorical) for part in parts):
            logits = list(_logits_of(output))
            if [part.shape[-1] for part in logits] == counts.tolist():
                return CategoricalHead(space), (len(logits[0]), len(logits))
    if isinstance(output, Distribution):
        base = _without_independent(output)
        if isinstance(space, gymnasium.spaces.MultiBinary) and isinstance(base, Bernoulli):
            return BernoulliHead(space), tuple(base.batch_shape)
        if isinstance(space, gymnasium.spaces.Box) and isinstance(_gaussian(output), Normal):
            return GaussianHead(space), tuple(_gaussian(output).batch_shape)
    return None, ()


def _logits_of(output: Output) -> Iterator[torch.Tensor]:
    """(N, A) for each part of a discrete action."""
    for part in output if isinstance(output, Sequence) else (output,):
        assert isinstance(part, Categorical)
        yield from (part.logits,) if part.logits.ndim == 2 else part.logits.unbind(1)


def _without_independent(output: Output) -> Output:
    while isinstance(output, Independent):
        output = output.base_dist
    return output


def _gaussian(output: Output) -> Normal:
    output = _without_independent(output)
    if isinstance(output, TransformedDistribution):
        output = _without_independent(output.base_dist)
    return output  # type: ignore[return-value]


def _tensors_of(transforms: Sequence[Transform]) -> Iterator[torch.Tensor]:
    for transform in transforms:
        if isinstance(transform, ComposeTransform):
            yield from _tensors_of(transform.parts)
        elif isinstance(transform, IndependentTransform):
            yield from _tensors_of([transform.base_transform])
        else:
            yield from (value for value in vars(transform).values() if isinstance(value, torch.Tensor))
