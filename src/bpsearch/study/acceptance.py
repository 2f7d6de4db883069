"""What is checked of episodes that come from outside before they may count."""

from typing import Any

import gymnasium
import numpy as np

from bpsearch._core.arrays import Array
from bpsearch.errors import InvalidTrajectoriesError
from bpsearch.estimators.base import ON_POLICY_TOLERANCE, log_ratios
from bpsearch.policies.base import Policy
from bpsearch.sampling.trajectories import Trajectories


def check_fit(policy: Policy, trajectories: Trajectories) -> None:
    """Refuse observations and actions of which the policy does not speak.

    A table looks up whatever index it is given: an action that does not exist would be valued as another.

    Raises:
        InvalidTrajectoriesError: naming the episode and the step.
    """
    mask = trajectories.mask
    _check("observation", policy.observation_space, trajectories.observations, mask)
    _check("action", policy.action_space, trajectories.actions, mask)


def check_log_probs(behavior: Policy, trajectories: Trajectories, number: int) -> None:
    """Refuse log-probabilities that are not those of the behavior that was asked for, up to rounding.

    Raises:
        InvalidTrajectoriesError: naming the episode and the step.
    """
    differences = np.asarray(log_ratios(behavior, trajectories))
    wrong = np.abs(differences) > ON_POLICY_TOLERANCE
    if wrong.any():
        episode, step = np.argwhere(wrong)[0]
        recorded = trajectories.log_probs[episode, step]
        expected = recorded + differences[episode, step]
        raise InvalidTrajectoriesError(
            f"the log-probability of episode {episode}, step {step} is {recorded:.6g}, but the behavior of request "
            f"{number} gives the action {expected:.6g}: the episodes are another behavior's, or the log-probabilities "
            f"are not those of the actions as they were drawn"
        )


def _check(what: str, space: gymnasium.Space[Any], values: Any, mask: Array) -> None:
    if isinstance(space, gymnasium.spaces.Dict):
        keys = sorted(values) if isinstance(values, dict) else type(values).__name__
        if keys != sorted(space.spaces):
            raise InvalidTrajectoriesError(f"the {what}s must have the keys {sorted(space.spaces)}, got {keys}")
        for key, part in space.spaces.items():
            _check(f"{what} {key!r}", part, values[key], mask)
        return
    values = np.asarray(values)
    if space.shape is not None and values.shape[2:] != space.shape:
        raise InvalidTrajectoriesError(
            f"each {what} must have the shape {space.shape} of {space}, got {values.shape[2:]}"
        )
    if isinstance(space, gymnasium.spaces.Discrete):
        whole = np.issubdtype(values.dtype, np.integer)
        bad = mask & ~((values >= space.start) & (values < space.start + space.n) & whole)
        if bad.any():
            episode, step = np.argwhere(bad)[0]
            raise InvalidTrajectoriesError(
                f"the {what} of episode {episode}, step {step} must be one of {space}, got {values[episode, step]!r}"
            )
