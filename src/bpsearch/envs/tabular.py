"""Finite Markov decision processes given by their arrays."""

from dataclasses import dataclass, field
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np

from bpsearch._core import threefry
from bpsearch._core.arrays import Array, NumpyArray
from bpsearch._core.checks import check_discount, check_integer
from bpsearch._core.foreign import own_array
from bpsearch._core.jaxtools import pytree
from bpsearch.envs.base import CompiledEnv
from bpsearch.errors import InvalidArgumentError


@pytree(static=("horizon", "discount"))
@dataclass(frozen=True, eq=False)
class TabularMDP(CompiledEnv):
    """A finite-horizon MDP with S states and A actions, known exactly.

    The reward is paid on the transition; entering a terminal state ends the episode, and so does step `horizon`.

    Attributes:
        transitions: (S, A, S), P(s'|s, a); rows of terminal states are ignored.
        rewards: (S, A, S), the reward of each transition.
        initial: (S,), the distribution of S_0; no mass on terminal states.
        terminal: (S,) bool.
        horizon: the largest number of steps L.
        discount: γ in [0, 1].
    """

    transitions: Array
    rewards: Array
    initial: Array
    terminal: Array
    horizon: int
    discount: float = 1.0
    # The same dynamics by outcome, for sampling: a state and action lead to one of K successors.
    _successors: Array = field(init=False, repr=False)
    _boundaries: Array = field(init=False, repr=False)
    _outcome_rewards: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        transitions = _finite("transitions", self.transitions, 3)
        states, actions, _ = transitions.shape
        rewards = _finite("rewards", self.rewards, 3)
        initial = _finite("initial", self.initial, 1)
        terminal = np.array(own_array("terminal", self.terminal, kinds="biu"), dtype=bool)
        for name, value, shape in (
            ("transitions", transitions, (states, actions, states)),
            ("rewards", rewards, (states, actions, states)),
            ("initial", initial, (states,)),
            ("terminal", terminal, (states,)),
        ):
            if value.shape != shape:
                raise InvalidArgumentError(
                    f"{name} must have the shape {shape} for {states} states and {actions} actions, got {value.shape}"
                )
            value.flags.writeable = False
            object.__setattr__(self, name, value)
        _check_distributions("transitions", transitions[~terminal], np.flatnonzero(~terminal))
        _check_distributions("initial", initial[None], np.zeros(1, int))
        if initial[terminal].any():
            raise InvalidArgumentError(
                f"initial puts probability on the terminal state {np.flatnonzero(terminal & (initial > 0))[0]}: "
                "an episode has at least one step"
            )
        object.__setattr__(self, "horizon", check_integer("horizon", self.horizon))
        object.__setattr__(self, "discount", check_discount(self.discount))
        for name, outcomes in _outcomes(transitions, rewards).items():
            object.__setattr__(self, name, outcomes)

    @property
    def states(self) -> int:
        """The number of states S."""
        return int(self.initial.shape[0])

    @property
    def actions(self) -> int:
        """The number of actions A."""
        return int(self.transitions.shape[1])

    @property
    def observation_space(self) -> gymnasium.spaces.Discrete:
        """States 0 to S − 1."""
        return gymnasium.spaces.Discrete(self.states)

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        """Actions 0 to A − 1."""
        return gymnasium.spaces.Discrete(self.actions)

    @property
    def return_range(self) -> tuple[float, float] | None:
        """The smallest and the largest return of any possible episode; None if all are the same."""
        states, _, successors = possible = np.nonzero((self.transitions > 0.0) & ~self.terminal[:, None, None])
        rewards, first = self.rewards[possible], np.flatnonzero(np.diff(states, prepend=-1))
        bounds = np.zeros((2, self.states))  # the lowest and the highest return ahead; of terminal states 0
        for _ in range(self.horizon):
            outcomes, before = rewards + self.discount * bounds[:, successors], bounds.copy()
            bounds[0, states[first]] = np.minimum.reduceat(outcomes[0], first)
            bounds[1, states[first]] = np.maximum.reduceat(outcomes[1], first)
            if np.array_equal(bounds, before):
                break
        lowest, highest = bounds
        starts = self.initial > 0.0
        low, high = float(lowest[starts].min()), float(highest[starts].max())
        return (low, high) if low < high else None

    @property
    def varied_starts(self) -> bool:
        """Whether there are several starts."""
        return bool(np.count_nonzero(self.initial) > 1)

    def reset(self, key: Array) -> Array:
        """Draw S_0."""
        boundaries = jnp.cumsum(jnp.asarray(self.initial))[:-1] / jnp.sum(self.initial)
        return jnp.searchsorted(boundaries, threefry.uniform(key, dtype=boundaries.dtype), side="right").astype(
            jnp.int32
        )

    def observe(self, state: Array) -> Array:
        """The state itself."""
        return state

    def step(self, key: Array, state: Array, action: Array) -> tuple[Array, Array, Array]:
        """Draw the outcome of `action` in `state`."""
        index = state * self.actions + action
        boundaries = jnp.asarray(self._boundaries)
        if boundaries.shape[1] == 0:  # deterministic: no random number is drawn
            outcome = index
        else:
            uniform = threefry.uniform(key, dtype=boundaries.dtype)
            drawn = jnp.sum(uniform >= boundaries[index], dtype=jnp.int32)
            outcome = index * (boundaries.shape[1] + 1) + drawn
        successor = jnp.asarray(self._successors)[outcome]
        return successor, jnp.asarray(self._outcome_rewards)[outcome], jnp.asarray(self.terminal)[successor]


def _finite(name: str, value: Any, rank: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    array = np.array(own_array(name, value), dtype=np.float64)
    if array.ndim != rank or 0 in array.shape:
        raise InvalidArgumentError(f"{name} must be an array with {rank} axes, got the shape {array.shape}")
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise InvalidArgumentError(f"{name} must be finite, got {array[where]} at {where}")
    return array


def _check_distributions(name: str, rows: Array, states: Array) -> None:
    bad = (rows < 0).any(axis=-1) | (np.abs(rows.sum(axis=-1) - 1.0) > 1e-9)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        row = f" of state {states[where[0]]}, action {where[1]}" if name == "transitions" else ""
        raise InvalidArgumentError(
            f"{name}{row} must be non-negative and sum to 1, got the smallest entry {rows[where].min():g} and the sum "
            f"{rows[where].sum():.12g}"
        )


def _outcomes(transitions: NumpyArray, rewards: NumpyArray) -> dict[str, NumpyArray]:
    """The successors of positive probability of each (s, a), padded to the largest number K of them.

    Returns flat arrays: successors and rewards (S·A·K,), cumulative boundaries (S·A, K − 1).
    """
    states, actions, _ = transitions.shape
    possible = transitions > 0
    width = max(int(possible.sum(axis=-1).max()), 1)
    order = np.argsort(~possible, axis=-1, kind="stable")[..., :width]
    chosen = np.take_along_axis(transitions, order, axis=-1)
    # Past the last possible successor the boundary is infinite: rounding can never select an impossible one.
    remaining = np.cumsum(chosen[..., ::-1], axis=-1)[..., ::-1]
    exhausted = np.concatenate([remaining[..., 1:] == 0.0, np.ones_like(remaining[..., :1], bool)], axis=-1)
    boundaries = np.where(exhausted, np.inf, np.cumsum(chosen, axis=-1))[..., :-1]
    return {
        "_successors": order.astype(np.int32).ravel(),
        "_boundaries": boundaries.reshape(states * actions, width - 1),
        "_outcome_rewards": np.take_along_axis(rewards, order, axis=-1).ravel(),
    }
