"""Action masks: which actions an environment allows now, as a part of what the policy observes.

The convention is sb3-contrib's: the environment, or a wrapper, has a method `action_masks()`. Masks are recorded with
the observations, because the probabilities of an episode's actions cannot be recomputed without them.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch.envs.observations import write
from bpsearch.errors import InvalidArgumentError, InvalidTrajectoriesError
from bpsearch.sampling.slots import Slots

METHOD = "action_masks"


def masked_space(
    observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
) -> gymnasium.spaces.Dict | None:
    """Observations with their masks: a bit for each action, or each value of each part; None if they are not finite."""
    if isinstance(action_space, gymnasium.spaces.Discrete):
        bits = int(action_space.n)
    elif isinstance(action_space, gymnasium.spaces.MultiDiscrete):
        bits = int(np.sum(action_space.nvec))
    else:
        return None
    return gymnasium.spaces.Dict({"observation": observation_space, "action_mask": gymnasium.spaces.MultiBinary(bits)})


class MaskedSlots(Slots):
    """Slots whose observations come with the masks of the actions that are allowed."""

    def __init__(self, slots: Slots) -> None:
        space = masked_space(slots.observation_space, slots.action_space)
        if space is None:
            raise InvalidArgumentError(f"only finitely many actions can be masked, got {slots.action_space}")
        super().__init__(slots.count, space, slots.action_space)
        self._slots = slots
        self.restarts_single = slots.restarts_single

    @property
    def resets_together(self) -> int:
        """As the slots within."""
        return self._slots.resets_together

    def start(self, slots: Sequence[int], seeds: Sequence[int]) -> None:
        """Start episodes, and ask for their masks."""
        self._slots.start(slots, seeds)
        self._look(slots)

    def step(self, slots: Sequence[int], actions: NumpyArray) -> None:
        """Take a step, and ask for the masks after it."""
        self._slots.step(slots, actions)
        self.rewards, self.ended = self._slots.rewards, self._slots.ended
        self._look([slot for slot in slots if not self.ended[slot]])

    def call(self, method: str, slots: Sequence[int]) -> list[Any]:
        """As the slots within."""
        return self._slots.call(method, slots)

    def close(self) -> None:
        """Close the slots within."""
        self._slots.close()

    def _look(self, slots: Sequence[int]) -> None:
        observations: Any = self.observations
        write(observations["observation"], slice(None), self._slots.observations)
        masks = observations["action_mask"]
        for slot, mask in zip(slots, self._slots.call(METHOD, slots), strict=True):
            found = np.asarray(mask).ravel()
            if found.shape != masks.shape[1:] or not found.any():
                raise InvalidTrajectoriesError(
                    f"{METHOD}() must give {masks.shape[1]} truth values, one at least True, got {mask!r}"
                )
            masks[slot] = found
