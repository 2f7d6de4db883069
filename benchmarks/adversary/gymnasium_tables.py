"""Gymnasium's own tables: FrozenLake, CliffWalking and Taxi with their real dynamics, optimal policies plus ε."""

from functools import cache
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from scipy.sparse import csr_array

import bpsearch as bps
from benchmarks.adversary.random_tables import noisy
from benchmarks.adversary.sketch import Problem

TIES = 1e-9  # actions whose values differ by less are equally good; the first is taken


class Dynamics(NamedTuple):
    """Transitions and rewards, (S, A, S), the distribution of starts, (S,), and which states end an episode, (S,)."""

    transitions: np.ndarray
    rewards: np.ndarray
    initial: np.ndarray
    terminal: np.ndarray


def frozen_lake(*, size: float, epsilon: float, planning: float) -> Problem:
    """The slippery lake of 4x4 or 8x8, with the step limit that Gymnasium registers for it."""
    name = f"{int(size)}x{int(size)}"
    return _problem("FrozenLake-v", {4: 100, 8: 200}[int(size)], planning, epsilon, map_name=name, is_slippery=True)


def cliff_walking(*, epsilon: float, planning: float, limit: float) -> Problem:
    """CliffWalking, which is deterministic: all noise is the policy's."""
    return _problem("CliffWalking-v", int(limit), planning, epsilon)


def taxi(*, epsilon: float, planning: float, limit: float) -> Problem:
    """Taxi: 500 states, 6 actions, 300 starts; its own limit is 200 steps."""
    return _problem("Taxi-v", int(limit), planning, epsilon)


def _problem(prefix: str, limit: int, planning: float, epsilon: float, **options: object) -> Problem:
    known = dynamics(prefix, **options)
    usual = optimal_actions(known, planning)
    return Problem(bps.TabularMDP(*known, limit), noisy(usual, known.transitions.shape[1], epsilon))


@cache
def dynamics(prefix: str, **options: object) -> Dynamics:
    """Of the newest version of an environment, as Gymnasium's table `P` says."""
    versions = [name for name in gymnasium.registry if name.startswith(prefix)]
    env: Any = gymnasium.make(max(versions, key=lambda name: int(name.removeprefix(prefix))), **options)
    table, initial = env.unwrapped.P, np.array(env.unwrapped.initial_state_distrib)
    env.close()
    states, actions = len(table), len(table[0])
    transitions, rewards, paid = np.zeros((3, states, actions, states))
    ending, passing = np.zeros((2, states, actions, states), bool)
    for state, action in np.ndindex(states, actions):
        for probability, successor, reward, ended in table[state][action]:
            if paid[state, action, successor] and rewards[state, action, successor] != reward:
                raise ValueError(f"{prefix}: one transition of state {state}, action {action} has two rewards")
            transitions[state, action, successor] += probability
            rewards[state, action, successor], paid[state, action, successor] = reward, 1.0
            (ending if ended else passing)[state, action, successor] = True
    terminal = ending.any(axis=(0, 1))
    # Taxi's table also tells of states from which nobody starts and that nobody reaches.
    reached = _reached(transitions, initial, terminal)
    if (passing[reached & ~terminal][:, :, terminal]).any():
        raise ValueError(f"{prefix}: a state that ends some episodes does not end others")
    return Dynamics(transitions, rewards, initial, terminal)


def optimal_actions(known: Dynamics, discount: float, iterations: int = 20_000) -> np.ndarray:
    """(S,), of an optimal policy without a step limit, by value iteration."""
    states, actions, _ = known.transitions.shape
    p = np.where(known.terminal[:, None, None], 0.0, known.transitions)
    expected, sparse = (p * known.rewards).sum(axis=-1), csr_array(p.reshape(states * actions, states))
    v = np.zeros(states)
    for _ in range(iterations):
        q = expected + discount * (sparse @ v).reshape(states, actions)
        before, v = v, q.max(axis=1)
        if np.abs(v - before).max() < 1e-12:
            break
    return np.argmax(q > v[:, None] - TIES, axis=1)


def _reached(transitions: np.ndarray, initial: np.ndarray, terminal: np.ndarray) -> np.ndarray:
    reached = initial > 0.0
    while True:
        further = reached | transitions[reached & ~terminal].any(axis=(0, 1))
        if (further == reached).all():
            return reached
        reached = further
