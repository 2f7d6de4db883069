"""What is checked of episodes that come from outside before they may count."""

from typing import Any

import gymnasium
import jax
import numpy as np

from bpsearch._core.arrays import Array
from bpsearch._core.checks import quote
from bpsearch.envs.spaces import MisfitError, first, outside, parts_of
from bpsearch.errors import InvalidTrajectoriesError
from bpsearch.estimators.base import ON_POLICY_TOLERANCE, log_ratios
from bpsearch.policies.base import Policy
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.study.requests import Request


def check_answer(policy: Policy, request: Request, trajectories: Trajectories, identity: str) -> None:
    """Refuse episodes of which the policy does not speak, those of another request, or of another behavior.

    Args:
        policy: the evaluation policy.
        request: the request.
        trajectories: the episodes.
        identity: that came with them; empty if none did.

    Raises:
        InvalidTrajectoriesError: they are not its own.
    """
    if identity and identity != request.identity:
        raise InvalidTrajectoriesError(
            f"the episodes answer another request: request {request.number} of this study has the identity "
            f"{request.identity}, got {identity}"
        )
    told = trajectories.behavior_parameters
    if told is not None and not np.array_equal(np.asarray(request.behavior.flat), told):
        raise InvalidTrajectoriesError(f"the episodes were not collected by the behavior of request {request.number}")
    check_fit(policy, trajectories)
    if identity:
        check_log_probs(request.behavior, trajectories, request.number)


def check_fit(policy: Policy, trajectories: Trajectories) -> None:
    """Refuse observations and actions of which the policy does not speak.

    A table looks up whatever index it is given: an action that does not exist would be valued as another.

    Raises:
        InvalidTrajectoriesError: naming the episode and the step.
    """
    mask = trajectories.mask
    _check("observation", policy.observation_space, trajectories.observations, mask)
    _check("action", policy.action_space, trajectories.actions, mask)
    if trajectories.final_observations is not None:
        _check("final observation", policy.observation_space, trajectories.final_observations, None)
    if trajectories.resets is not None:
        count = jax.tree_util.tree_leaves(trajectories.resets)[0].shape[1]
        _check("reset", policy.observation_space, trajectories.resets, np.ones((len(trajectories), count), bool))


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


def _check(what: str, space: gymnasium.Space[Any], values: Any, mask: Array | None) -> None:
    """Refuse values of another space; (episodes, steps, ...) with a mask, else (episodes, ...)."""
    leading = 1 if mask is None else 2
    try:
        for name, part, array in parts_of(space, values, what):
            try:
                bad = outside(part, np.asarray(array), leading)
            except MisfitError as misfit:
                raise MisfitError(f"each {name} {misfit}") from misfit
            at = None if bad is None else first(bad, mask)
            if at is not None:
                step = f", step {at[1]}" if mask is not None else ""
                raise MisfitError(f"the {name} of episode {at[0]}{step} must be one of {part}, got {quote(array[at])}")
    except MisfitError as misfit:
        raise InvalidTrajectoriesError(str(misfit)) from misfit
