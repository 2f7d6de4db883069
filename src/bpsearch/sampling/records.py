"""What the Gymnasium sampler has seen, step by step, and how it becomes a batch."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import jax
import numpy as np

from bpsearch._core.arrays import NumpyArray, Observations
from bpsearch.sampling.slots import empty_observations, write
from bpsearch.sampling.trajectories import Trajectories

_GROUP = 256  # recorded steps that are sorted into episodes at once


class Records:
    """Steps of all running slots in the order of time, sorted into episodes at the end.

    Keeping what all slots saw in a step as one array, and sorting once, is what makes recording cheap: a step costs a
    few copies, however many episodes run.

    Args:
        observation_space: of one environment.
        episodes: how many there will be.
        first: the number of the first of them.
    """

    def __init__(self, observation_space: gymnasium.Space[Any], episodes: int, first: int = 0) -> None:
        self._first = first
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
        """Record what the policy saw and drew in every running slot. The arrays are kept, not copied."""
        self._episode.append(episode)
        self._step.append(step)
        self._observations.append(observations)
        self._actions.append(actions)
        self._log_probs.append(log_probs)

    def after(self, rewards: NumpyArray) -> None:
        """Record the rewards of the same step."""
        self._rewards.append(rewards)

    def end(self, episode: int, length: int, observations: Observations, slot: int) -> None:
        """Record that an episode has ended after `length` steps."""
        self._lengths[episode - self._first] = length
        write(self._finals, episode - self._first, jax.tree_util.tree_map(lambda array: array[slot], observations))

    def forget(self, episodes: Sequence[int]) -> None:
        """Drop the steps of unfinished episodes, and a step that was not completed."""
        del self._episode[len(self._rewards) :]
        self._episode = [np.where(np.isin(episode, episodes), -1, episode) for episode in self._episode]
        for column in (self._step, self._observations, self._actions, self._log_probs):
            del column[len(self._rewards) :]

    def trajectories(self, horizon: int | None, **origin: NumpyArray) -> Trajectories:
        """The batch, checked; the records are empty afterwards.

        Its number of steps is the longest episode's rounded up to a power of two (at most the horizon), so that
        whatever is compiled for one batch fits most of the others.
        """
        longest = int(self._lengths.max())
        steps = 1 << (longest - 1).bit_length()
        steps = steps if horizon is None else min(steps, horizon)
        columns: dict[str, list[Any]] = {
            "observations": self._observations,
            "actions": self._actions,
            "rewards": self._rewards,
            "log_probs": self._log_probs,
        }
        shape = (len(self._lengths), steps)
        sorted_columns: dict[str, Any] = {
            name: jax.tree_util.tree_map(lambda rows: np.zeros((*shape, *rows.shape[1:]), rows.dtype), column[0])
            for name, column in columns.items()
        }
        while self._episode:
            episode = np.concatenate(self._episode[:_GROUP])
            kept = episode >= 0
            index = (episode[kept] - self._first, np.concatenate(self._step[:_GROUP])[kept])
            for name, column in columns.items():
                jax.tree_util.tree_map(
                    lambda whole, *rows: whole.__setitem__(index, np.concatenate(rows)[kept]),  # noqa: B023
                    sorted_columns[name],
                    *column[:_GROUP],
                )
            # Sorted steps are let go at once: images need not be in memory twice.
            for done in (self._episode, self._step, *columns.values()):
                del done[:_GROUP]
        return Trajectories(
            **sorted_columns,
            mask=np.arange(steps) < self._lengths[:, None],
            final_observations=self._finals,
            **origin,
        )
