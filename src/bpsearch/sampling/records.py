"""What the Gymnasium sampler has seen, step by step, and how it becomes a batch."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import jax
import numpy as np

from bpsearch._core.arrays import NumpyArray, Observations
from bpsearch.envs.observations import empty_observations, write
from bpsearch.sampling.trajectories import Trajectories


class Records:
    """Steps of all slots in the order of time, sorted into episodes at the end.

    Keeping whole rows of slots and sorting once is what makes recording cheap: a step costs a few copies, however many
    episodes run.
    """

    def __init__(self, observation_space: gymnasium.Space[Any], episodes: int) -> None:
        self._space = observation_space
        self._lengths = np.zeros(episodes, int)
        self._finals = empty_observations(observation_space, episodes)
        self._episode: list[NumpyArray] = []
        self._step: list[NumpyArray] = []
        self._observations: list[Observations] = []
        self._actions: list[NumpyArray] = []
        self._log_probs: list[NumpyArray] = []
        self._rewards: list[NumpyArray] = []

    def before(
        self,
        episode: NumpyArray,
        step: NumpyArray,
        observations: Observations,
        actions: NumpyArray,
        log_probs: NumpyArray,
    ) -> None:
        """Record what the policy saw and drew in every slot; `episode` is −1 where none runs."""
        self._episode.append(episode)
        self._step.append(step)
        self._observations.append(
            jax.tree_util.tree_map(np.copy, observations) if isinstance(observations, dict) else observations.copy()
        )
        self._actions.append(actions)
        self._log_probs.append(log_probs)

    def after(self, rewards: NumpyArray) -> None:
        """Record the rewards of the same step."""
        self._rewards.append(rewards.copy())

    def end(self, episode: int, length: int, observations: Observations, slot: int) -> None:
        """Record that an episode has ended after `length` steps."""
        self._lengths[episode] = length
        write(self._finals, episode, jax.tree_util.tree_map(lambda array: array[slot], observations))

    def forget(self, episodes: Sequence[int]) -> None:
        """Drop the steps of unfinished episodes, and a step that was not completed."""
        del self._episode[len(self._rewards) :]
        self._episode = [np.where(np.isin(episode, episodes), -1, episode) for episode in self._episode]
        for column in (self._step, self._observations, self._actions, self._log_probs):
            del column[len(self._rewards) :]

    def trajectories(self, horizon: int | None, **origin: NumpyArray) -> Trajectories:
        """The batch, checked.

        Its number of steps is the longest episode's rounded up to a power of two (at most the horizon), so that
        whatever is compiled for one batch fits most of the others.
        """
        longest = int(self._lengths.max())
        steps = 1 << (longest - 1).bit_length()
        steps = steps if horizon is None else min(steps, horizon)
        episode = np.concatenate(self._episode)
        recorded = episode >= 0
        index = (episode[recorded], np.concatenate(self._step)[recorded])
        shape = (len(self._lengths), steps)

        def sort(*column: NumpyArray) -> NumpyArray:
            rows = np.concatenate(column)[recorded]
            sorted_rows = np.zeros((*shape, *rows.shape[1:]), rows.dtype)
            sorted_rows[index] = rows
            return sorted_rows

        return Trajectories(
            observations=jax.tree_util.tree_map(sort, *self._observations),
            actions=sort(*self._actions),
            rewards=sort(*self._rewards),
            log_probs=sort(*self._log_probs),
            mask=np.arange(steps) < self._lengths[:, None],
            final_observations=self._finals,
            **origin,
        )
