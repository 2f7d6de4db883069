"""Small networks of torch, evaluated by NumPy: for a few rows torch itself takes longer than the arithmetic."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from bpsearch._core.arrays import NumpyArray


def _tanh(values: NumpyArray) -> NumpyArray:
    """1 − 2 / (exp(2x) + 1): to within rounding `np.tanh`, in half its time."""
    found: NumpyArray = np.exp(np.minimum(values + values, 700.0))
    found += 1.0
    np.divide(-2.0, found, out=found)
    found += 1.0
    return found


_ACTIVATIONS: dict[type[torch.nn.Module], Callable[[NumpyArray], NumpyArray]] = {
    torch.nn.Tanh: _tanh,
    torch.nn.ReLU: lambda values: np.maximum(values, 0.0),
}


@dataclass(frozen=True, eq=False)
class Perceptron:
    """Linear layers and activations, one after the other, in 64 bit.

    The weights are torch's own memory: what is written into the module is seen here. The rows are multiplied in blocks
    of a fixed size, so that a row has the same bits beside any number of others.

    Attributes:
        layers: weights (inputs, outputs) with biases, or activations.
    """

    layers: Sequence[tuple[NumpyArray, NumpyArray | None] | Callable[[NumpyArray], NumpyArray]]

    @classmethod
    def of(cls, *modules: torch.nn.Module) -> Self | None:
        """That of these modules in turn; None if one of them is of another kind, or not in 64 bit."""
        layers: list[Any] = []
        for module in modules:
            for part in module if isinstance(module, torch.nn.Sequential) else (module,):
                if type(part) in _ACTIVATIONS:
                    layers.append(_ACTIVATIONS[type(part)])
                elif type(part) is torch.nn.Linear and part.weight.dtype == torch.float64:
                    bias = None if part.bias is None else part.bias.detach().numpy()
                    layers.append((part.weight.detach().numpy().T, bias))
                elif type(part) is not torch.nn.Identity:
                    return None
        return cls(layers)

    def __call__(self, rows: NumpyArray, block: int) -> NumpyArray:
        """(N, outputs) for (N, inputs): N a multiple of `block`, or fewer."""
        count = len(rows)
        values = rows.astype(np.float64).reshape(-1, block if count % block == 0 else count, rows.shape[1])
        for layer in self.layers:
            if callable(layer):
                values = layer(values)
            else:
                values = values @ layer[0]  # NumPy multiplies block by block
                if layer[1] is not None:
                    values += layer[1]
        return values.reshape(count, -1)


class InNumpy:
    """What a policy module may give as `in_numpy`: how NumPy computes the parameters of its distribution.

    Args:
        features: from raw observations to (N, inputs).
        network: from there to logits or means.
        log_scale: the logarithms of a Gaussian's standard deviations; None for logits.
    """

    def __init__(
        self, features: Callable[[NumpyArray], NumpyArray], network: Perceptron, log_scale: torch.Tensor | None = None
    ) -> None:
        self.features, self.network, self.log_scale = features, network, log_scale

    def __call__(self, observations: NumpyArray, block: int) -> tuple[NumpyArray, ...]:
        """The arrays from which the head draws: logits, or means and standard deviations."""
        output = self.network(self.features(observations), block)
        if self.log_scale is None:
            return (output,)
        return output, np.broadcast_to(np.exp(self.log_scale.detach().numpy()), output.shape)
