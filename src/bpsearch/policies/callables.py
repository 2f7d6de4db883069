"""Functions and objects that act, as people give them: what they need besides the observation is found, not guessed."""

import dis
import functools
import inspect
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
from numpy.typing import ArrayLike

from bpsearch.envs.resolve import GymnasiumSource, HasSpaces, spaces_of
from bpsearch.errors import InvalidArgumentError
from bpsearch.policies.function import FlaggedPolicy, FunctionPolicy, StatefulPolicy

EPISODE_START = "episode_start"
# Policies of sb3-contrib that need more than the observation, by the names of their classes, and what they would lose.
_LOSSES = {"RecurrentActorCriticPolicy": "memory", "MaskableActorCriticPolicy": "masks"}


def from_function(
    function: Callable[..., ArrayLike] | object,
    env: GymnasiumSource | HasSpaces,
    *,
    vectorized: bool = False,
    deterministic: bool = False,
    env_kwargs: dict[str, Any] | None = None,
) -> FunctionPolicy:
    """A policy from a function or an object that acts, for Monte Carlo.

    - A function of the observation.
    - A function with a parameter `episode_start`, for one with a memory: it is True in the first step of an episode.
      Its episodes run one at a time.
    - An object that can be called (or has `predict` or `act`) and has `reset()`: every episode gets its own copy, which
      is reset before the first step.
    - An object with `predict` for a batch, as scikit-learn's.

    Args:
        function: who acts.
        env: where: a function does not know its spaces.
        vectorized: whether it takes (N, ...) observations and gives (N, ...) actions. One call for all environments is
            several times as fast as one for each.
        deterministic: whether it draws no random numbers, which the result then says.
        env_kwargs: what `gymnasium.make` is given besides an id.

    Raises:
        InvalidArgumentError: what the function calls needs more than the observation: a memory or masks.
    """
    return of_callable(function, spaces_of(env, env_kwargs), vectorized=vectorized, deterministic=deterministic)


def of_callable(
    source: Any,
    spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]],
    *,
    vectorized: bool = False,
    deterministic: bool = False,
) -> FunctionPolicy:
    """The same with the spaces; see `from_function`."""
    for model in _reachable(source):
        for kind in type(getattr(model, "policy", model)).__mro__:
            if kind.__name__ in _LOSSES:
                raise InvalidArgumentError(
                    f"{type(model).__name__} in a function would lose its {_LOSSES[kind.__name__]} and be another "
                    f"policy; give the model itself, or its file"
                )
    if callable(getattr(source, "reset", None)) and not isinstance(source, types.FunctionType):
        return StatefulPolicy(_acting(source), spaces, is_deterministic=deterministic)
    if not callable(source):
        if hasattr(source, "predict") or hasattr(source, "act"):
            is_sklearn = hasattr(source, "predict") and hasattr(source, "get_params")
            return FunctionPolicy(
                _Predictor(source, spaces[0]) if is_sklearn else _acting(source),
                spaces,
                vectorized=vectorized or is_sklearn,
                is_deterministic=deterministic or is_sklearn,
            )
        raise InvalidArgumentError(f"a policy must be callable, or have `predict` or `act`, got {source!r}")
    if EPISODE_START in _parameters(source) and not _belongs_to_sb3(source):
        return FlaggedPolicy(source, spaces, is_deterministic=deterministic)
    notes: tuple[str, ...] = ()
    changed = _variables_changed_by(source)
    if changed:
        note = (
            f"the function {getattr(source, '__qualname__', source)} changes {' and '.join(changed)} outside of itself "
            f"and is not told when an episode starts: if that is a memory, the value is of another policy. Give it a "
            f"parameter {EPISODE_START!r}, or an object with `reset()`"
        )
        warnings.warn(note, UserWarning, stacklevel=2)
        notes = (note,)
    return FunctionPolicy(source, spaces, vectorized=vectorized, is_deterministic=deterministic, notes=notes)


class _Acting:
    """An object whose method acts, as a function that still can be reset."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self.method = "__call__" if callable(agent) else "act" if hasattr(agent, "act") else "predict"

    def __call__(self, observation: Any) -> Any:
        return getattr(self.agent, self.method)(observation)

    def reset(self) -> None:
        self.agent.reset()

    def __repr__(self) -> str:
        return f"{type(self.agent).__name__}"


def _acting(agent: Any) -> _Acting:
    return _Acting(agent)


class _Predictor:
    """An estimator of scikit-learn: (N, features) to N predictions."""

    def __init__(self, estimator: Any, space: gymnasium.Space[Any]) -> None:
        self.estimator, self.space = estimator, space

    def __call__(self, observations: Any) -> Any:
        return self.estimator.predict(observations.reshape(len(observations), -1))

    def __repr__(self) -> str:
        return f"{type(self.estimator).__name__}"


def _parameters(function: Any) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


def _belongs_to_sb3(function: Any) -> bool:
    """SB3's `predict` has an `episode_start` of its own, which it needs for memories only."""
    owner = getattr(function, "__self__", None)
    return any(kind.__module__.startswith(("stable_baselines3.", "sb3_contrib.")) for kind in type(owner).__mro__)


def _reachable(source: Any) -> Iterator[Any]:
    """What a function was given besides its arguments: its object, its defaults, and the variables around it."""
    while isinstance(source, functools.partial):
        yield from source.args
        yield from source.keywords.values()
        source = source.func
    yield getattr(source, "__self__", None)
    function = getattr(source, "__func__", source)
    if not isinstance(function, types.FunctionType):
        yield from getattr(source, "__dict__", {}).values()
        return
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    found = inspect.getclosurevars(function)
    yield from found.nonlocals.values()
    yield from found.globals.values()


def _variables_changed_by(function: Any) -> list[str]:
    """The names of variables outside of a function to which it assigns."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None:
        return []
    changed = {
        str(step.argval)
        for step in dis.get_instructions(code)
        if step.opname == "STORE_GLOBAL" or (step.opname == "STORE_DEREF" and step.argval in code.co_freevars)
    }
    return sorted(changed)
