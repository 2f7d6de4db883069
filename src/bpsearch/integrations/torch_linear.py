"""The scores of many episodes by one reverse pass, where the adapted parameters are those of linear layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from bpsearch._core.arrays import NumpyArray


@dataclass(frozen=True, eq=False)
class LinearLayers:
    """The linear layers of a module that own its adapted parameters.

    A layer computes y_t = W x_t + b for every step. With δ_t = ∂ log π(a_t|s_t) / ∂ y_t, its part of an episode's score
    is Σ_t δ_t x_tᵀ for W and Σ_t δ_t for b: one reverse pass gives the δ of all episodes, where torch by itself would
    give nothing but the sum of their scores.

    Attributes:
        parts: for each adapted parameter its layer, and whether it is the weight or the bias.
    """

    parts: Sequence[tuple[torch.nn.Linear, str]]

    @classmethod
    def of(cls, module: torch.nn.Module, parameters: Sequence[torch.nn.Parameter]) -> Self | None:
        """The layers, or None if some parameter does not belong to a linear layer, and to nothing else."""
        owners: dict[int, list[tuple[torch.nn.Module, str]]] = {}
        for owner in module.modules():
            for name, parameter in owner.named_parameters(recurse=False):
                owners.setdefault(id(parameter), []).append((owner, name))
        parts = []
        for parameter in parameters:
            (owner, name), *others = owners[id(parameter)]
            if others or type(owner) is not torch.nn.Linear:
                return None
            parts.append((owner, name))
        return cls(parts)

    def scores(self, log_probs: Callable[[], torch.Tensor], lengths: NumpyArray) -> NumpyArray | None:
        """(N, P), the scores of N episodes whose steps follow each other in what `log_probs` computes.

        None if the module does not apply each layer once to each of the steps.
        """
        layers = list(dict.fromkeys(layer for layer, _ in self.parts))
        calls: dict[torch.nn.Module, list[tuple[torch.Tensor, torch.Tensor]]] = {layer: [] for layer in layers}
        hooks = [layer.register_forward_hook(lambda own, x, y: calls[own].append((x[0], y))) for layer in layers]
        try:
            total = log_probs().sum()
        finally:
            for hook in hooks:
                hook.remove()
        steps = lengths.sum()
        if any(len(seen) != 1 or seen[0][0].ndim != 2 or len(seen[0][0]) != steps for seen in calls.values()):
            return None
        gradients = torch.autograd.grad(total, [calls[layer][0][1] for layer in layers])
        inputs = {layer: calls[layer][0][0].detach().double().numpy() for layer in layers}
        deltas = {layer: delta.double().numpy() for layer, delta in zip(layers, gradients, strict=True)}
        scores = np.empty((len(lengths), sum(getattr(layer, name).numel() for layer, name in self.parts)))
        ends = np.cumsum(lengths)
        for row, (start, end) in enumerate(zip(ends - lengths, ends, strict=True)):
            parts = [
                deltas[layer][start:end].T @ inputs[layer][start:end]
                if name == "weight"
                else deltas[layer][start:end].sum(axis=0)
                for layer, name in self.parts
            ]
            scores[row] = np.concatenate([part.ravel() for part in parts])
        return scores
