"""Trajectories: the frozen batch of episodes that crosses from sampling to estimation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Shaped

from bpsearch._core.arrays import Array, NumpyArray, Observations
from bpsearch._core.checks import check_discount, quote
from bpsearch._core.foreign import own_array
from bpsearch._core.jaxtools import pytree, to_numpy
from bpsearch.errors import InvalidTrajectoriesError, SupportError


@pytree()
@dataclass(frozen=True, eq=False)
class Trajectories:
    """A batch of N episodes of at most T steps, with everything that estimation needs.

    Steps after an episode's end are padding: `mask` is False there and rewards and log-probabilities are 0.
    Constructing a batch checks it: a number that no episode can have is refused with its episode and step.

    Attributes:
        observations: (N, T, ...), S_t; a dict of such arrays for dict observations.
        actions: (N, T, ...), A_t as the policy drew it (not as clipped for the environment).
        rewards: (N, T), R_t, 64 bit.
        log_probs: (N, T), log π_b(A_t|S_t) of the behavior policy as recorded when sampling, 64 bit. Where the behavior
            chose the start, that of the first step holds its chance relative to the environment's own, too.
        mask: (N, T) bool, True while the episode runs; each row is True for a prefix of at least one step.
        final_observations: (N, ...), the observation after the last step, or None if it was not recorded.
        behavior_parameters: (P,), flat parameters of the behavior policy, or None if unknown.
        seed: integers that identify the random stream that made the batch, or None if unknown.
        resets: (N, r, ...), what was observed in r further resets for each episode, drawn as its own start was and from
            random numbers of their own; or None. Their number must not depend on what happens in the episode.
        margins: (N,), how near each episode came to the event that is asked about, larger is nearer; or None. An
            `Estimand` adds them for the search; no store or file keeps them.
    """

    observations: Observations
    actions: Shaped[Array, "episodes steps ..."]
    rewards: Float64[Array, "episodes steps"]
    log_probs: Float64[Array, "episodes steps"]
    mask: Bool[Array, "episodes steps"]
    final_observations: Observations | None = None
    behavior_parameters: Float[Array, " parameters"] | None = None
    seed: Int[Array, " numbers"] | None = None
    resets: Observations | None = None
    margins: Float64[Array, " episodes"] | None = None

    def __post_init__(self) -> None:
        mask = _own("mask", self.mask)
        if mask.ndim != 2 or 0 in mask.shape:
            raise InvalidTrajectoriesError(
                f"mask must have the shape (episodes, steps) with at least one of each, got {mask.shape}"
            )
        if mask.dtype != bool:
            if not np.isin(mask, (0, 1)).all():
                raise InvalidTrajectoriesError("mask must be True or False for every step, got other numbers")
            mask = mask.astype(bool)
        for name in ("observations", "actions", "rewards", "log_probs"):
            value = _own(name, getattr(self, name), nested=name == "observations")
            for array in _arrays(value):
                if array.shape[:2] != mask.shape or (name in ("rewards", "log_probs") and array.ndim != 2):
                    raise InvalidTrajectoriesError(
                        f"{name} must have the leading shape {mask.shape} of the mask, got {array.shape}"
                    )
            object.__setattr__(self, name, value)
        if self.final_observations is not None:
            finals = _own("final_observations", self.final_observations, nested=True)
            if _paths(finals) != _paths(self.observations):
                raise InvalidTrajectoriesError("final_observations must have the same keys as the observations")
            for final, array in zip(_arrays(finals), _arrays(self.observations), strict=True):
                expected = (mask.shape[0], *array.shape[2:])
                if final.shape != expected:
                    raise InvalidTrajectoriesError(
                        f"final_observations must have the shape {expected}, got {final.shape}"
                    )
            object.__setattr__(self, "final_observations", finals)
        if self.resets is not None:
            object.__setattr__(self, "resets", self._checked_resets(_own("resets", self.resets, nested=True)))
        if self.margins is not None:
            object.__setattr__(self, "margins", _checked_margins(self.margins, len(mask)))
        _check_prefix(mask)
        rewards = np.asarray(self.rewards, dtype=np.float64)
        log_probs = np.asarray(self.log_probs, dtype=np.float64)
        _check_finite("reward", rewards, mask)
        for array in _arrays(self.observations):
            _check_finite("observation", array, mask)
        _check_finite("action", np.asarray(self.actions), mask)
        for array in _arrays(self.final_observations):
            _check_finals(array)
        _own_origin(self)
        _check_log_probs(log_probs, mask, self.actions)
        object.__setattr__(self, "mask", mask)
        object.__setattr__(self, "rewards", np.where(mask, rewards, 0.0))
        object.__setattr__(self, "log_probs", np.where(mask, log_probs, 0.0))

    def _checked_resets(self, resets: Observations) -> Observations:
        if _paths(resets) != _paths(self.observations):
            raise InvalidTrajectoriesError("resets must have the same keys as the observations")
        for further, array in zip(_arrays(resets), _arrays(self.observations), strict=True):
            expected = (len(array), *array.shape[2:])
            if further.ndim < 2 or further.shape[1] < 1 or (len(further), *further.shape[2:]) != expected:
                raise InvalidTrajectoriesError(
                    f"resets must have the shape {(expected[0], 'r', *expected[1:])} with at least one reset for each "
                    f"episode, got {further.shape}"
                )
            _check_finite("reset", further, np.ones(further.shape[:2], bool))
        return resets

    def __len__(self) -> int:
        return int(self.mask.shape[0])

    @property
    def lengths(self) -> Int[Array, " episodes"]:
        """(N,), the number of steps of each episode."""
        return self.mask.sum(axis=1)

    @property
    def starts(self) -> Observations:
        """(N, ...), what was observed first in each episode."""
        found: Observations = jax.tree_util.tree_map(lambda array: np.asarray(array)[:, 0], self.observations)
        return found

    @property
    def successors(self) -> Int[Array, "episodes steps"]:
        """(N, T), the observation after each step of a tabular batch with final observations, which padding repeats."""
        arrays = self.mask.__array_namespace__()  # NumPy's or JAX's
        finals = arrays.asarray(self.final_observations)[:, None]
        continues = arrays.concat([self.mask[:, 1:], arrays.zeros_like(self.mask[:, :1])], axis=1)
        states = arrays.concat([arrays.asarray(self.observations)[:, 1:], finals], axis=1)
        successors: Array = arrays.where(continues, states, finals)
        return successors

    def returns(self, discount: float = 1.0) -> Float64[Array, " episodes"]:
        """(N,), g(H) = Σ_t γ^t R_t."""
        check_discount(discount)
        returns: Array = self.rewards @ (discount ** np.arange(self.mask.shape[1], dtype=np.float64))
        return returns

    def take(self, episodes: Int[NumpyArray, " taken"]) -> "Trajectories":
        """A batch of the episodes with these numbers, in this order."""
        episodes = own_array("episodes", episodes, kinds="iu", error=InvalidTrajectoriesError)
        if episodes.ndim != 1 or not len(episodes) or episodes.min() < 0 or episodes.max() >= len(self):
            raise InvalidTrajectoriesError(
                f"episodes must be a vector of numbers from 0 to {len(self) - 1}, got {quote(episodes)}"
            )

        def rows(name: str) -> Any:
            return jax.tree_util.tree_map(lambda array: array[episodes], getattr(self, name))

        return Trajectories(
            **{name: rows(name) for name in ("observations", "actions", "rewards", "log_probs", "mask")},
            final_observations=None if self.final_observations is None else rows("final_observations"),
            behavior_parameters=self.behavior_parameters,
            resets=None if self.resets is None else rows("resets"),
            margins=None if self.margins is None else rows("margins"),
        )

    @staticmethod
    def concatenate(batches: Sequence["Trajectories"]) -> "Trajectories":
        """One batch of all episodes of `batches`, in order; the origin is kept only where all batches share it."""
        if not isinstance(batches, list | tuple) or not all(isinstance(batch, Trajectories) for batch in batches):
            raise InvalidTrajectoriesError(f"batches must be a list of Trajectories, got {quote(batches)}")
        if not batches:
            raise InvalidTrajectoriesError("cannot concatenate an empty list of batches")
        if (
            len({(str(_paths(b.observations)), b.actions.shape[2:]) for b in batches}) > 1
            or len({tuple(array.shape[2:] for array in _arrays(b.observations)) for b in batches}) > 1
        ):
            raise InvalidTrajectoriesError("the batches must have observations and actions of the same shapes")
        horizon = max(batch.mask.shape[1] for batch in batches)

        def join(name: str) -> Any:
            values = [_pad(getattr(batch, name), horizon) for batch in batches]
            return jax.tree_util.tree_map(lambda *arrays: np.concatenate(arrays), *values)

        def stack(name: str) -> Any:
            values = [getattr(batch, name) for batch in batches]
            if any(value is None for value in values):
                return None
            return jax.tree_util.tree_map(lambda *arrays: np.concatenate(arrays), *values)

        resets = {None if b.resets is None else _arrays(b.resets)[0].shape[1] for b in batches}
        parameters = [batch.behavior_parameters for batch in batches]
        first = parameters[0]
        same = first is not None and all(p is not None and np.array_equal(p, first) for p in parameters)
        return Trajectories(
            **{name: join(name) for name in ("observations", "actions", "rewards", "log_probs", "mask")},
            final_observations=stack("final_observations"),
            behavior_parameters=first if same else None,
            seed=batches[0].seed if len(batches) == 1 else None,
            resets=stack("resets") if len(resets) == 1 else None,
            margins=stack("margins"),
        )


def _arrays(observations: Observations | None) -> list[NumpyArray]:
    return jax.tree_util.tree_leaves(observations)


def _paths(observations: Observations) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(observations)]


def _own(name: str, value: Any, *, nested: bool = False) -> Any:
    """An array as ours, or, where they may be nested, a dict of such arrays."""
    if nested and isinstance(value, dict):
        if not value or not all(isinstance(key, str) for key in value):
            raise InvalidTrajectoriesError(f"the keys of {name} must be texts, got {quote(list(value))}")
        return {key: _own(f"{name}[{key!r}]", part, nested=True) for key, part in value.items()}
    return own_array(name, value, error=InvalidTrajectoriesError)


def _own_origin(trajectories: Trajectories) -> None:
    for name, kinds in (("behavior_parameters", "f"), ("seed", "iu")):
        value = getattr(trajectories, name)
        if value is None:
            continue
        array = own_array(name, value, kinds=kinds, error=InvalidTrajectoriesError)
        if array.ndim != 1:
            raise InvalidTrajectoriesError(f"{name} must be a vector, got the shape {array.shape}")
        object.__setattr__(trajectories, name, array)


def _checked_margins(value: Any, episodes: int) -> NumpyArray:
    margins = own_array("margins", value, kinds="biuf", error=InvalidTrajectoriesError).astype(np.float64)
    if margins.shape != (episodes,):
        raise InvalidTrajectoriesError(f"margins must be {episodes} numbers, one per episode, got {margins.shape}")
    if not np.isfinite(margins).all():
        episode = int(np.argmax(~np.isfinite(margins)))
        raise InvalidTrajectoriesError(f"the margin of episode {episode} is {margins[episode]}, but must be finite")
    return margins


def _pad(tree: Observations, horizon: int) -> Any:
    def pad(array: NumpyArray) -> NumpyArray:
        if array.shape[1] == horizon:
            return array
        return np.pad(array, [(0, 0), (0, horizon - array.shape[1])] + [(0, 0)] * (array.ndim - 2))

    return jax.tree_util.tree_map(pad, to_numpy(tree))


def _check_prefix(mask: NumpyArray) -> None:
    resumed = mask[:, 1:] & ~mask[:, :-1]
    for bad, what in ((~mask[:, :1], "has no step"), (resumed, "resumes after its end")):
        if bad.any():
            raise InvalidTrajectoriesError(
                f"each row of mask must be True for a prefix of at least one step, but episode "
                f"{np.argwhere(bad)[0][0]} {what}"
            )


def _check_finite(what: str, values: NumpyArray, mask: NumpyArray) -> None:
    if not np.issubdtype(values.dtype, np.inexact):
        return
    finite = np.isfinite(values).reshape(*mask.shape, -1).all(axis=-1)
    bad = mask & ~finite
    if bad.any():
        episode, step = np.argwhere(bad)[0]
        raise InvalidTrajectoriesError(
            f"{what} of episode {episode}, step {step} is {quote(values[episode, step])}: every {what} must be "
            f"finite; the batch is not counted"
        )


def _check_finals(finals: NumpyArray) -> None:
    if finals.dtype.kind == "f" and not np.isfinite(finals).all():
        episode = np.argwhere(~np.isfinite(finals))[0][0]
        raise InvalidTrajectoriesError(
            f"the final observation of episode {episode} is {quote(finals[episode])}: every observation must be "
            f"finite; the batch is not counted"
        )


def _check_log_probs(log_probs: NumpyArray, mask: NumpyArray, actions: Array) -> None:
    impossible = mask & np.isneginf(log_probs)
    if impossible.any():
        episode, step = np.argwhere(impossible)[0]
        raise SupportError(
            f"the behavior policy gives probability 0 to action {actions[episode, step]} of episode {episode}, "
            f"step {step}, which it is recorded to have taken; record the log-probabilities when sampling"
        )
    _check_finite("log-probability", log_probs, mask)
