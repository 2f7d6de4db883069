"""Further starts: what environments show first when they are reset once more, without running an episode."""

import time
from collections.abc import Sequence

import jax
import numpy as np

from bpsearch._core.arrays import Observations
from bpsearch.envs.observations import empty_observations, take, write
from bpsearch.envs.spaces import first, outside, parts_of
from bpsearch.errors import EpisodeCrashError, InvalidTrajectoriesError
from bpsearch.sampling.seeds import episode_numbers, reset_seeds
from bpsearch.sampling.slots import Slots, SlotsCrashedError
from bpsearch.sampling.trajectories import Trajectories

CHECKED = 4  # starts of the first batch that are drawn once more, to see whether they come again
CHEAP = 0.01  # seconds for the further starts of an episode that are never too many, however quick episodes are


class FurtherStarts:
    """Draws further starts, unless they do not come again from their seeds or cost more than episodes.

    Args:
        priced: whether their price is looked at. It depends on the machine, so several that work together do not.

    Attributes:
        refused: why there can be none; empty as long as there can.
    """

    def __init__(self, *, priced: bool = True) -> None:
        self.refused = ""
        self._priced, self._checked = priced, False

    def draw(
        self, slots: Slots, trajectories: Trajectories, episodes: range, stream: tuple[int, int, int], count: int
    ) -> Observations | None:
        """(N, count, ...), `count` further starts for each of the episodes; None if there can be none.

        Args:
            slots: where to reset.
            trajectories: the episodes.
            episodes: their numbers.
            stream: seed, batch and repeats.
            count: how many for each.
        """
        seed, batch, _ = stream
        if not self._checked:
            self._checked = True
            self._check_seeds(slots, trajectories, episodes, stream)
        if self.refused:
            return None
        seeds = [number for episode in episodes for number in reset_seeds(seed, batch, episode, count)]
        found = observe_starts(slots, seeds)
        further: Observations = jax.tree_util.tree_map(
            lambda array: array.reshape(len(episodes), count, *array.shape[1:]), found
        )
        return further

    def ignore_price(self) -> None:
        """Draw further starts however long they take."""
        self._priced = False

    def check_price(self, slots: Slots, seed: int, count: int, per_episode: float) -> None:
        """Find out, once, whether further starts cost less time than an episode of full length."""
        if not self._priced or self.refused:
            return
        self._priced = False
        seconds = []
        for number in reset_seeds(seed, 0, 0, CHECKED):
            began = time.perf_counter()
            observe_starts(slots, [number])
            seconds.append(time.perf_counter() - began)
        # The quickest: on a busy machine one may wait for something else.
        if count * min(seconds) > max(per_episode, CHEAP):
            self.refused = f"{count} resets would take longer than an episode"

    def _check_seeds(
        self, slots: Slots, trajectories: Trajectories, episodes: range, stream: tuple[int, int, int]
    ) -> None:
        seed, batch, repeats = stream
        rows = range(min(CHECKED, len(episodes)))
        again = observe_starts(slots, [episode_numbers(seed, batch, episodes[row], repeats)[0] for row in rows])
        before = take(trajectories.observations, (slice(len(rows)), 0))
        same = jax.tree_util.tree_map(lambda a, b: bool(np.array_equal(a, b)), before, again)
        if not all(jax.tree_util.tree_leaves(same)):
            self.refused = "starts do not come again when the environment is reset with the same seed"


def observe_starts(slots: Slots, seeds: Sequence[int]) -> Observations:
    """(n, ...), what is observed first after a reset with each seed.

    Raises:
        EpisodeCrashError: the environment cannot be reset.
        InvalidTrajectoriesError: what it shows is not of its space.
    """
    found = empty_observations(slots.observation_space, len(seeds))
    together = slots.resets_together
    for begin in range(0, len(seeds), together):
        some = seeds[begin : begin + together]
        try:
            slots.start(range(len(some)), some)
        except SlotsCrashedError as crash:
            raise EpisodeCrashError(
                f"the environment failed when it was reset with one of the seeds {list(some)}, with "
                f"{type(crash.__cause__).__name__}: {crash.__cause__}; resets='never' does without further resets"
            ) from crash.__cause__
        write(found, slice(begin, begin + together), take(slots.observations, slice(len(some))))
    for name, space, values in parts_of(slots.observation_space, found, "observation"):
        bad = outside(space, values, 1)
        at = None if bad is None else first(bad)
        if at is not None:
            raise InvalidTrajectoriesError(
                f"the first {name} after a reset with the seed {seeds[at[0]]} is {values[at[0]]}, which is not one of "
                f"{space}; the batch is not counted"
            )
    return found
