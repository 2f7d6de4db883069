"""A plain Python function as a policy: for Monte Carlo only."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import gymnasium
import numpy as np
from jaxtyping import PyTree
from numpy.typing import ArrayLike

from bpsearch._core.arrays import Array, NumpyArray, Observations
from bpsearch._core.checks import quote
from bpsearch._core.jaxtools import pytree
from bpsearch.envs.observations import restore
from bpsearch.errors import InvalidActionError, InvalidArgumentError, UnknownProbabilitiesError
from bpsearch.policies.base import Policy, clip_to


@pytree(static=("function", "spaces", "vectorized", "is_deterministic", "notes"))
@dataclass(frozen=True, eq=False)
class FunctionPolicy(Policy):
    """A function from observation to action, whose action probabilities are unknown.

    It can be evaluated by its own episodes; a search refuses it, since no importance weight can be computed. If the
    function draws random numbers of its own, the episodes are not reproducible.

    Attributes:
        function: observation -> action, or, if `vectorized`, (N, ...) observations -> (N, ...) actions.
        spaces: the observation space and the action space.
        vectorized: whether the function takes a batch of observations.
        is_deterministic: whether the function is known to draw no random numbers.
        notes: what a reader of the policy's value should know.
    """

    function: Callable[[Any], ArrayLike]
    spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
    vectorized: bool = False
    is_deterministic: bool = False
    notes: tuple[str, ...] = ()
    traceable: ClassVar[bool] = False
    opaque: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidArgumentError(f"function must be callable, got {quote(self.function)}")
        spaces = self.spaces
        if not (isinstance(spaces, tuple) and len(spaces) == 2 and all(isinstance(s, gymnasium.Space) for s in spaces)):
            raise InvalidArgumentError(f"spaces must be an observation space and an action space, got {quote(spaces)}")

    @property
    def row_multiple(self) -> int:  # type: ignore[override]
        """A function of single observations is not called for padding."""
        return Policy.row_multiple if self.vectorized else 1

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """The observations that the function accepts."""
        return self.spaces[0]

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The actions that the function gives."""
        return self.spaces[1]

    @property
    def parameters(self) -> NumpyArray:
        """None that could be changed: an empty vector."""
        return np.zeros(0)

    def with_parameters(self, parameters: PyTree[Array]) -> Self:
        """The policy itself."""
        return self

    @property
    def deterministic(self) -> bool:
        """Whether the function is known to draw no random numbers."""
        return self.is_deterministic

    @property
    def name(self) -> str:
        """The function's own."""
        return f"the policy {getattr(self.function, '__qualname__', None) or repr(self.function)}"

    def mode(self) -> Policy:
        """Itself if it draws no random numbers; else what its most likely actions are is unknown."""
        if self.is_deterministic:
            return self
        raise UnknownProbabilitiesError(
            f"what actions {self.name} takes most likely is unknown, so deterministic=True has no meaning for it; give "
            "a function that takes them, or a policy with probabilities (from_torch, from_sb3)"
        )

    def check_searchable(self) -> None:
        """Refuse a search: without action probabilities there are no importance weights."""
        super().check_searchable()
        raise UnknownProbabilitiesError(
            f"the action probabilities of the function {self.function!r} are unknown, so no other behavior can be "
            "weighted to evaluate it; evaluate it by Monte Carlo (method='mc', or OnPolicy()), or give a policy with "
            "probabilities (from_torch, from_sb3)"
        )

    def sample(self, key: Array | None, observations: Observations) -> tuple[NumpyArray, NumpyArray]:
        """The function's actions; their log-probabilities are recorded as 0."""
        given = (
            self.function(restore(self.spaces[0], observations)) if self.vectorized else self._one_by_one(observations)
        )
        actions = self._actions(given)
        return actions, np.zeros(len(actions))

    def _one_by_one(self, observations: Observations) -> list[Any]:
        seen = restore(self.spaces[0], observations)
        return [_action_of(self.function(row_of(seen, i))) for i in range(rows_of(observations))]

    def _actions(self, given: Any) -> NumpyArray:
        """What the function gave, as an array of actions with a row for each observation."""
        try:
            actions = np.asarray(_action_of(given))
        except ValueError as error:
            raise InvalidActionError(f"{self.name} gave {given!r}, which are no actions of {self.spaces[1]}") from error
        shape = self.spaces[1].shape or ()
        if (
            actions.ndim > 0
            and actions.shape != (len(actions), *shape)
            and actions.size == len(actions) * math.prod(shape)
        ):
            actions = actions.reshape(len(actions), *shape)  # [a] for a, as many libraries give it
        if actions.ndim == 0 or actions.shape[1:] != shape or actions.dtype == object:
            raise InvalidActionError(
                f"{self.name} gave {given!r}: each action must have the shape {shape} of {self.spaces[1]}"
            )
        if not isinstance(self.spaces[1], gymnasium.spaces.Box) and actions.dtype.kind in "bf":
            whole = actions.astype(np.int64)
            actions = whole if np.array_equal(whole, actions) else actions  # 1.0 and True for 1
        return actions

    def act(self, uniforms: NumpyArray, observations: Observations) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
        """The function's actions, whatever the numbers."""
        actions, log_probs = self.sample(None, observations)
        return actions, log_probs, clip_to(self.action_space, actions)

    def act_in_blocks(
        self, uniforms: NumpyArray, observations: Observations, memory: PyTree[Array]
    ) -> tuple[NumpyArray, NumpyArray, NumpyArray, PyTree[Array]]:
        """A function of single observations is the same beside any number of others."""
        if self.vectorized:
            return super().act_in_blocks(uniforms, observations, memory)
        return self.act_next(uniforms, observations, memory)

    def log_prob(self, observations: Observations, actions: Array) -> NumpyArray:
        """0, as recorded: the ratio of the policy to itself is 1."""
        return np.zeros(np.shape(actions)[: np.ndim(actions) - len(self.action_space.shape or ())])


@pytree(static=("function", "spaces", "vectorized", "is_deterministic", "notes"))
@dataclass(frozen=True, eq=False)
class StatefulPolicy(FunctionPolicy):
    """An object with a memory of its own: every episode gets a copy, which is `reset()` before its first step.

    Attributes:
        function: an object that can be called with an observation, and has `reset`.
    """

    remembers: ClassVar[bool] = True

    def begin(self, uniforms: Array) -> NumpyArray:
        """(N,), a fresh copy for each episode."""
        copies = np.empty(len(uniforms), dtype=object)
        for row in range(len(uniforms)):
            try:
                copies[row] = copy.deepcopy(self.function)
            except Exception as error:
                raise InvalidArgumentError(
                    f"{self.name} has `reset`, so each episode needs a copy of it, but it cannot be copied: {error}; "
                    "give a function of (observation, episode_start) instead"
                ) from error
            copies[row].reset()
        return copies

    def act_next(
        self, uniforms: NumpyArray, observations: Observations, memory: Any
    ) -> tuple[NumpyArray, NumpyArray, NumpyArray, Any]:
        """Each copy acts in its own episode."""
        seen = restore(self.spaces[0], observations)
        actions = self._actions([_action_of(own(row_of(seen, row))) for row, own in enumerate(memory)])
        return actions, np.zeros(len(actions)), clip_to(self.action_space, actions), memory


@pytree(static=("function", "spaces", "vectorized", "is_deterministic", "notes"))
@dataclass(frozen=True, eq=False)
class FlaggedPolicy(FunctionPolicy):
    """A function of the observation and of whether an episode starts; its memory is its own, so episodes run alone.

    Attributes:
        function: (observation, episode_start) -> action.
    """

    remembers: ClassVar[bool] = True
    alone: ClassVar[bool] = True

    def begin(self, uniforms: Array) -> NumpyArray:
        """(N,), that the next step is an episode's first."""
        return np.ones(len(uniforms), bool)

    def act_next(
        self, uniforms: NumpyArray, observations: Observations, memory: Any
    ) -> tuple[NumpyArray, NumpyArray, NumpyArray, Any]:
        """The first row's action, for all: no other episode runs."""
        function: Any = self.function
        given = function(row_of(restore(self.spaces[0], observations), 0), episode_start=bool(memory[0]))
        actions = np.repeat(self._actions([_action_of(given)]), len(memory), axis=0)
        return actions, np.zeros(len(actions)), clip_to(self.action_space, actions), np.zeros(len(memory), bool)


def _action_of(given: Any) -> Any:
    """The action in (action, None), which is what SB3's `predict` gives."""
    return given[0] if isinstance(given, tuple) and len(given) == 2 and given[1] is None else given


def rows_of(observations: Observations) -> int:
    """How many observations there are."""
    first = next(iter(observations.values())) if isinstance(observations, dict) else observations
    return rows_of(first) if isinstance(first, dict) else len(first)


def row_of(observations: Any, row: int) -> Any:
    """One observation of many."""
    if isinstance(observations, dict):
        return {key: row_of(value, row) for key, value in observations.items()}
    if isinstance(observations, tuple):
        return tuple(row_of(value, row) for value in observations)
    return observations[row]
