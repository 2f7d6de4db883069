"""Torch modules with a memory, recurrent networks for instance, as policies."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
import torch

from bpsearch._core.arrays import Array, NumpyArray, Observations
from bpsearch._core.jaxtools import pytree
from bpsearch.integrations.torch import TorchPolicy
from bpsearch.integrations.torch_architecture import as_tensor
from bpsearch.integrations.torch_heads import Output

_STEPS = 8192  # steps of whole episodes that are differentiated at once; bounds memory
Memory = tuple[torch.Tensor, ...]


class Cell(torch.nn.Module, ABC):
    """A module whose distribution depends on the observations since the start of the episode.

    π(a_t|s_0, ..., s_t) = decide(h_t), (h_t, m_t) = remember(s_t, m_{t−1}), m_{−1} = 0.
    """

    @abstractmethod
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the parts of the memory of one episode."""

    @abstractmethod
    def remember(self, observations: Any, memory: Memory) -> tuple[torch.Tensor, Memory]:
        """(N, H), what the step is decided by, and the memory after it; each part of the memory is (N, ...)."""

    @abstractmethod
    def decide(self, latent: torch.Tensor) -> Output:
        """The distribution for each row of (rows, H)."""

    def unroll(self, observations: Any) -> torch.Tensor:
        """(N, T, H) of whole episodes, (N, T, ...)."""
        leaves = jax.tree_util.tree_leaves(observations)
        memory, latents = self.begin(len(leaves[0])), []
        for time in range(leaves[0].shape[1]):
            latent, memory = self.remember(jax.tree_util.tree_map(lambda x, t=time: x[:, t], observations), memory)
            latents.append(latent)
        return torch.stack(latents, dim=1)

    def begin(self, rows: int) -> Memory:
        """Before the first step."""
        dtype = next(self.parameters()).dtype
        return tuple(torch.zeros(rows, *shape, dtype=dtype) for shape in self.shapes())

    def forward(self, observations: Any) -> Output:
        """The distribution of the first step of episodes."""
        rows = len(jax.tree_util.tree_leaves(observations)[0])
        return self.decide(self.remember(observations, self.begin(rows))[0])


@pytree(static=("architecture",))
@dataclass(frozen=True, eq=False)
class RecurrentTorchPolicy(TorchPolicy):
    """A `Cell` with its own values of the adapted parameters.

    The second axis of observations is time, wherever whole episodes are given; with one leading axis they are first
    steps.
    """

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        """It does."""
        return True

    def begin(self, uniforms: Array) -> tuple[NumpyArray, ...]:
        """Zeros."""
        cell: Any = self.architecture.module
        return tuple(part.numpy() for part in cell.begin(len(uniforms)))

    def act(self, uniforms: NumpyArray, observations: Observations) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
        """Draw the first actions of episodes."""
        return self.act_next(uniforms, observations, self.begin(np.zeros(len(uniforms))))[:3]

    def act_next(
        self, uniforms: NumpyArray, observations: Observations, memory: Any
    ) -> tuple[NumpyArray, NumpyArray, NumpyArray, Any]:
        """Draw the next actions of episodes."""
        with self.architecture.at(self.vector) as head, torch.no_grad():
            output, memory = self._next(observations, memory)
            actions, log_probs = head.draw(output, uniforms)
            return actions, log_probs, head.to_env(output, actions), memory

    def act_most_likely(self, observations: Observations, memory: Any) -> tuple[NumpyArray, NumpyArray, Any]:
        """The modes of the next actions of episodes."""
        with self.architecture.at(self.vector) as head, torch.no_grad():
            output, memory = self._next(observations, memory)
            actions = head.mode(output)
            return actions, head.to_env(output, actions), memory

    def log_prob(self, observations: Observations, actions: Array) -> NumpyArray:
        """(N, T), log π(a_t|s_0, ..., s_t) of whole episodes; padding at the end does no harm."""
        leading = self._leading(observations)
        if len(leading) == 1:
            observations, actions = jax.tree_util.tree_map(lambda x: np.asarray(x)[:, None], (observations, actions))
        every = np.ones(np.shape(actions)[:2], bool)
        log_probs = np.empty(every.shape)
        with self.architecture.at(self.vector), torch.no_grad():
            for episodes in _groups(every.shape):
                part = self._log_probs(observations, actions, episodes, every)
                log_probs[episodes] = part.numpy().reshape(-1, every.shape[1])
        return log_probs.reshape(leading)

    def score(self, observations: Observations, actions: Array, weights: Array) -> NumpyArray:
        """The score by torch's reverse mode, through time if what is remembered depends on the parameters."""
        weights = np.asarray(weights, dtype=np.float64)
        used = weights != 0.0
        total = np.zeros_like(self.vector)
        with self.architecture.at(self.vector), torch.enable_grad():
            for episodes in _groups(weights.shape):
                if used[episodes].any():
                    part = self._log_probs(observations, actions, episodes, used)
                    weighted = torch.dot(torch.from_numpy(weights[episodes][used[episodes]]), part)
                    total += self.architecture.gradient(weighted)
        return total

    def episode_scores(self, observations: Observations, actions: Array, weights: Array) -> NumpyArray:
        """The score of each episode: of linear layers by one reverse pass for many, else by one each."""
        weights = np.asarray(weights, dtype=np.float64)
        used, layers = weights != 0.0, self.architecture.layers
        scores = np.zeros((len(used), len(self.vector)))

        def log_probs(episodes: slice) -> torch.Tensor:
            counted = torch.from_numpy(weights[episodes][used[episodes]])
            return counted * self._log_probs(observations, actions, episodes, used)

        with self.architecture.at(self.vector), torch.enable_grad():
            for episodes in _groups(used.shape):
                lengths = used[episodes].sum(axis=1)
                part = None if layers is None else layers.scores(partial(log_probs, episodes), lengths)
                if part is None:
                    of_episodes = torch.split(log_probs(episodes), lengths.tolist())
                    part = np.stack([self.architecture.gradient(own.sum(), again=True) for own in of_episodes])
                scores[episodes] = part
        return scores

    def _next(self, observations: Observations, memory: Any) -> tuple[Output, Any]:
        cell: Any = self.architecture.module
        latent, after = cell.remember(self.architecture.tensors(observations), tuple(map(as_tensor, memory)))
        return cell.decide(latent), tuple(part.numpy() for part in after)

    def _log_probs(self, observations: Observations, actions: Array, episodes: slice, used: NumpyArray) -> torch.Tensor:
        """Of the used steps of some episodes, one episode after the other."""
        cell: Any = self.architecture.module
        own = jax.tree_util.tree_map(lambda x: np.asarray(x)[episodes], observations)
        rows = cell.unroll(self.architecture.tensors(own))[torch.from_numpy(used[episodes])]
        chosen = as_tensor(np.asarray(actions)[episodes][used[episodes]])
        return self.architecture.head.log_prob(cell.decide(rows), chosen)


def _groups(shape: tuple[int, ...]) -> Iterator[slice]:
    size = max(_STEPS // max(shape[1], 1), 1)
    return (slice(start, min(start + size, shape[0])) for start in range(0, shape[0], size))
