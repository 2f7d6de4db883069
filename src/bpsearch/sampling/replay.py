"""Whether an episode comes again from its seed."""

import warnings
from collections import deque

import jax
import numpy as np

from bpsearch.errors import EpisodeCrashError
from bpsearch.policies.base import Policy
from bpsearch.sampling.records import Records
from bpsearch.sampling.slots import Slots, SlotsCrashedError
from bpsearch.sampling.stepping import Stepper
from bpsearch.sampling.trajectories import Trajectories

REPLAYED = 10  # steps of the first episode that are run once more


def warn_of_ignored_seeds(
    slots: Slots, policy: Policy, trajectories: Trajectories, number: tuple[int, int], seed: int, repeats: int
) -> None:
    """Run the begin of the first episode once more, and warn if the environment answers otherwise.

    Args:
        slots: where it ran.
        policy: who acted in it, without a choice among starts.
        trajectories: the batch; its first row is the episode.
        number: its batch, and its number there.
        seed: of the study.
        repeats: neighbors with the same seed.
    """
    length = min(REPLAYED, int(trajectories.mask[0].sum()))
    records = Records(slots.observation_space, 1)
    try:
        Stepper(policy, records, length, seed, [number], repeats, None).run(slots, deque([0]))
    except SlotsCrashedError as crash:
        raise EpisodeCrashError(
            f"the environment failed when episode {number[1]} of batch {number[0]} was run again from its seed, with "
            f"{type(crash.__cause__).__name__}: {crash.__cause__}; resets='never' does without"
        ) from crash.__cause__
    again = records.trajectories(length, [1])[0]
    found = _difference(trajectories, again, min(length, int(again.mask[0].sum())))
    if found is not None:
        warnings.warn(
            f"the environment ignores seeds: episode {number[1]}, run again with the same seed and the same actions, "
            f"has {found}. The result will not come again with its seed, and policies cannot be compared on common "
            f"random numbers. In the environment, let reset(seed=...) seed all random numbers "
            f"(super().reset(seed=seed), then self.np_random)",
            UserWarning,
            stacklevel=2,
        )


def _difference(one: Trajectories, other: Trajectories, length: int) -> str | None:
    """What differs first, in words; None if nothing does as long as the actions are the same."""
    for step in range(length):
        pairs = (jax.tree_util.tree_leaves(batch.observations) for batch in (one, other))
        if any(not np.array_equal(a[0, step], b[0, step]) for a, b in zip(*pairs, strict=True)):
            return f"another observation at step {step}"
        if not np.array_equal(one.actions[0, step], other.actions[0, step]):
            return None  # a policy with random numbers of its own
        if one.rewards[0, step] != other.rewards[0, step]:
            return f"another reward at step {step}"
    return None
