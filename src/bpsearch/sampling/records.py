"""What the Gymnasium sampler has seen, step by step, and how it becomes batches."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import jax
import numpy as np

from bpsearch._core.arrays import NumpyArray, Observations
from bpsearch.envs.observations import empty_observations, take, write
from bpsearch.sampling.groups import row_bytes
from bpsearch.sampling.trajectories import Trajectories

_GROUP = 256  # recorded steps that are sorted into episodes at once, or fewer:
_GROUP_BYTES = 2**25  # of observations
_LARGE = 2**16  # bytes of one step from which on observations are kept in blocks


class Records:
    """Steps of all running slots in the order of time, sorted into episodes at the end.

    Keeping what all slots saw in a step as one array, and sorting once, is what makes recording cheap: a step costs a
    few copies, however many episodes run.

    Args:
        observation_space: of one environment.
        episodes: how many there will be; each has a place from 0 on.
    """

    def __init__(self, observation_space: gymnasium.Space[Any], episodes: int) -> None:
        self._lengths = np.zeros(episodes, int)
        self._start_weights = np.zeros(episodes)
        self._finals = empty_observations(observation_space, episodes)
        self._episode: list[NumpyArray] = []
        self._step: list[NumpyArray] = []
        self._observations: list[Observations] = []
        self._blocks = _Blocks()
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
        """Record what the policy saw and drew in every running slot. The arrays must not change later."""
        self._episode.append(episode)
        self._step.append(step)
        self._observations.append(self._blocks.keep(observations))
        self._actions.append(actions)
        self._log_probs.append(log_probs)

    def after(self, rewards: NumpyArray) -> None:
        """Record the rewards of the same step."""
        self._rewards.append(rewards)

    def end(self, episode: int, length: int, observations: Observations, slot: int) -> None:
        """Record that an episode has ended after `length` steps."""
        self._lengths[episode] = length
        write(self._finals, episode, take(observations, slot))

    def weigh_starts(self, log_weights: NumpyArray) -> None:
        """Record what each episode counts for its start, as a logarithm."""
        self._start_weights = log_weights

    def forget(self, episodes: Sequence[int]) -> None:
        """Drop the steps of unfinished episodes, and a step that was not completed."""
        del self._episode[len(self._rewards) :]
        self._episode = [np.where(np.isin(episode, episodes), -1, episode) for episode in self._episode]
        for column in (self._step, self._observations, self._actions, self._log_probs):
            del column[len(self._rewards) :]

    def trajectories(self, horizon: int | None, counts: Sequence[int]) -> list[Trajectories]:
        """Batches of so many episodes each, in the order of their places, checked; the records are empty afterwards.

        The number of steps of a batch is its longest episode's rounded up to a power of two (at most the horizon), so
        that whatever is compiled for one batch fits most of the others.
        """
        whole, finals = self._sort(_round_up(self._lengths, horizon)), self._finals
        if len(counts) == 1:
            return [Trajectories(**whole, final_observations=finals)]
        ends = np.cumsum(counts).tolist()
        batches = []
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            rows, steps = slice(start, end), slice(_round_up(self._lengths[start:end], horizon))
            part = jax.tree_util.tree_map(lambda array: array[rows, steps].copy(), whole)  # noqa: B023
            last = jax.tree_util.tree_map(lambda array: array[rows].copy(), finals)  # noqa: B023
            batches.append(Trajectories(**part, final_observations=last))
        return batches

    def _sort(self, steps: int) -> dict[str, Any]:
        """The recorded steps by episode and time, (episodes, steps, ...), and the mask of those that there are."""
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
        largest = max(len(episode) for episode in self._episode) * row_bytes(self._finals, 1)
        group = max(min(_GROUP, _GROUP_BYTES // max(largest, 1)), 1)
        while self._episode:
            episode = np.concatenate(self._episode[:group])
            kept = episode >= 0
            index = (episode[kept], np.concatenate(self._step[:group])[kept])
            for name, column in columns.items():
                jax.tree_util.tree_map(
                    lambda whole, *rows: whole.__setitem__(index, np.concatenate(rows)[kept]),  # noqa: B023
                    sorted_columns[name],
                    *column[:group],
                )
            # Sorted steps are let go at once: images need not be in memory twice.
            for done in (self._episode, self._step, *columns.values()):
                del done[:group]
        self._blocks = _Blocks()
        sorted_columns["log_probs"][:, 0] -= self._start_weights
        return {**sorted_columns, "mask": np.arange(steps) < self._lengths[:, None]}


def _round_up(lengths: NumpyArray, horizon: int | None) -> int:
    steps = 1 << (int(lengths.max()) - 1).bit_length()
    return steps if horizon is None else min(steps, horizon)


class _Blocks:
    """Large observations of many steps, copied into blocks of memory that go back to the system when they are let go.

    Arrays of about a megabyte would stay in the heap, and their place be lost for the batch that is made of them.
    """

    def __init__(self) -> None:
        self._open: dict[int, tuple[NumpyArray, int]] = {}

    def keep(self, observations: Observations) -> Observations:
        """The same, in a block if it is large."""
        if not isinstance(observations, dict) and observations.nbytes < _LARGE:
            return observations
        leaves, structure = jax.tree_util.tree_flatten(observations)
        if all(leaf.nbytes < _LARGE for leaf in leaves):
            return observations
        kept: Observations = jax.tree_util.tree_unflatten(
            structure, [self._put(i, leaf) for i, leaf in enumerate(leaves)]
        )
        return kept

    def _put(self, number: int, leaf: NumpyArray) -> NumpyArray:
        block, used = self._open.get(number, (leaf[:0], 0))
        if used + len(leaf) > len(block):
            rows = max(_GROUP_BYTES // (leaf.nbytes // len(leaf)), 1) + len(leaf)
            block, used = np.empty((rows, *leaf.shape[1:]), leaf.dtype), 0
        self._open[number] = (block, used + len(leaf))
        block[used : used + len(leaf)] = leaf
        return block[used : used + len(leaf)]
