"""Chosen starts in Gymnasium: environments are reset to see what they offer, and a chosen start is a chosen seed."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from bpsearch._core.arrays import NumpyArray, Observations
from bpsearch.envs.observations import take
from bpsearch.errors import InvalidTrajectoriesError
from bpsearch.policies.chosen_starts import StartChoice
from bpsearch.sampling.resets import observe_starts
from bpsearch.sampling.seeds import offered_starts
from bpsearch.sampling.slots import Slots
from bpsearch.sampling.trajectories import Trajectories


@dataclass(frozen=True, eq=False)
class ChosenSeeds:
    """Where N episodes are to start.

    Attributes:
        seeds: (N,), with which the environment is reset.
        log_weights: (N,), the logarithm of what each counts for it.
        starts: (N, ...), what is seen there.
        others: (N, r, ...), further starts; None if the choice leaves none.
    """

    seeds: list[int]
    log_weights: NumpyArray
    starts: Observations
    others: Observations | None

    def check(self, trajectories: Trajectories, numbers: Sequence[tuple[int, int]], rows: slice) -> None:
        """Refuse episodes that did not start where they were to.

        Args:
            trajectories: some of the episodes.
            numbers: batch and number of each of all.
            rows: which of them they are.
        """
        found, expected = take(trajectories.observations, (slice(None), 0)), take(self.starts, rows)
        same = np.ones(len(trajectories), bool)
        leaves = (jax.tree_util.tree_leaves(part) for part in (found, expected))
        for one, other in zip(*leaves, strict=True):
            same &= np.all((one == other).reshape(len(one), -1), axis=1)
        if not same.all():
            batch, episode = numbers[rows][int(np.argmin(same))]
            raise InvalidTrajectoriesError(
                f"episode {episode} of batch {batch} does not start again where the environment started it before "
                f"with the same seed, so no start can be chosen; use a method that chooses none, 'mc' for instance"
            )


def choose_seeds(
    slots: Slots, choice: StartChoice, seed: int, numbers: Sequence[tuple[int, int]], resets: int
) -> ChosenSeeds:
    """Reset environments to see what is offered, and choose.

    Args:
        slots: where to reset; none may be running.
        choice: who chooses.
        seed: of the study.
        numbers: batch and number of each episode.
        resets: how many further starts are wanted for each.
    """
    groups: dict[tuple[int, int], tuple[range, list[int]]] = {}
    for place, (batch, episode) in enumerate(numbers):
        members = choice.members(episode)
        groups.setdefault((batch, members.start), (members, []))[1].append(place)
    count = choice.offers(resets)
    seeds, log_weights = [0] * len(numbers), np.zeros(len(numbers))
    starts: dict[int, Observations] = {}
    others: dict[int, Observations] = {}
    for (batch, _), (members, places) in groups.items():
        drawn = [offered_starts(seed, batch, episode, count) for episode in members]
        offered = [number for some, _ in drawn for number in some]
        seen = observe_starts(slots, offered)
        dealt = choice.deal(members, np.array([uniform for _, uniform in drawn]), seen)
        for place in places:
            at = members.index(numbers[place][1])
            index = int(dealt.indices[at])
            seeds[place], log_weights[place], starts[place] = offered[index], dealt.log_weights[at], take(seen, index)
            if dealt.others is not None:
                others[place] = take(seen, dealt.others[at])
    return ChosenSeeds(seeds, log_weights, _stack(starts), _stack(others) if others else None)


def _stack(parts: dict[int, Observations]) -> Observations:
    in_order = [parts[place] for place in range(len(parts))]
    stacked: Observations = jax.tree_util.tree_map(lambda *leaves: np.stack(leaves), *in_order)
    return stacked
