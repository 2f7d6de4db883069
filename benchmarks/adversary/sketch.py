"""Small problems, arrow by arrow, and what can be made of them: chains, branches, constants on top."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

import bpsearch as bps


class Problem(NamedTuple):
    """A table and the policy to be evaluated on it."""

    mdp: bps.TabularMDP
    policy: bps.SoftmaxTable


Outcomes = Sequence[tuple[float, int, float]]
"""Of an action: probability, successor and reward of each outcome; successors differ."""


class Sketch:
    """A problem in the making: states, ends, and arrows between them."""

    def __init__(self, actions: int) -> None:
        self.actions = actions
        self._policy: list[list[float] | None] = []  # None: an end
        self._arrows: dict[tuple[int, int], Outcomes] = {}

    def state(self, *probabilities: float) -> int:
        """A new state where the policy takes actions with these probabilities; with none given it takes the first."""
        given = list(probabilities) or [1.0]
        self._policy.append(given + [0.0] * (self.actions - len(given)))
        return len(self._policy) - 1

    def end(self) -> int:
        """A new terminal state."""
        self._policy.append(None)
        return len(self._policy) - 1

    def arrow(self, state: int, outcomes: Outcomes, *actions: int) -> None:
        """Where these actions lead; all actions if none is named."""
        if len({successor for _, successor, _ in outcomes}) < len(outcomes):
            raise ValueError(f"outcomes of state {state} must have different successors, got {outcomes}")
        for action in actions or range(self.actions):
            self._arrows[state, action] = outcomes

    def finish(self, initial: dict[int, float] | int, horizon: int, discount: float = 1.0) -> Problem:
        """The problem; actions without an arrow do what the state's first action does."""
        states = len(self._policy)
        transitions, rewards = np.zeros((2, states, self.actions, states))
        for state, policy in enumerate(self._policy):
            if policy is None:
                transitions[state, :, state] = 1.0
                continue
            for action in range(self.actions):
                for probability, successor, reward in self._arrows.get((state, action), self._arrows[state, 0]):
                    transitions[state, action, successor] = probability
                    rewards[state, action, successor] = reward
        starts = np.zeros(states)
        for state, probability in ({initial: 1.0} if isinstance(initial, int) else initial).items():
            starts[state] = probability
        ends = np.array([policy is None for policy in self._policy])
        uniform = [1.0 / self.actions] * self.actions
        table = np.array([uniform if policy is None else policy for policy in self._policy])
        mdp = bps.TabularMDP(transitions, rewards, starts, ends, horizon, discount)
        return Problem(mdp, bps.SoftmaxTable.from_probabilities(table))


def changed(problem: Problem, scale: float = 1.0, discount: float | None = None) -> Problem:
    """The same with all rewards multiplied by `scale`, and with another discount if one is given."""
    mdp, policy = problem
    discount = mdp.discount if discount is None else discount
    rewards = scale * mdp.rewards
    return Problem(bps.TabularMDP(mdp.transitions, rewards, mdp.initial, mdp.terminal, mdp.horizon, discount), policy)


def paid(problem: Problem, step: int, amount: float) -> Problem:
    """The same with `amount` on top of every episode's rewards, paid at one step.

    Time becomes a part of the state, and all episodes get the same length: those that end early wait for the others.
    States that cannot be reached are left out.
    """
    mdp, policy = problem
    over = mdp.terminal[:, None, None]
    transitions = np.where(over, np.eye(mdp.states)[:, None], mdp.transitions)
    rewards = np.where(over, 0.0, mdp.rewards)
    layers = [np.flatnonzero(mdp.initial)]
    for _ in range(mdp.horizon):
        layers.append(np.flatnonzero(transitions[layers[-1]].any(axis=(0, 1))))
    ends = np.cumsum([len(layer) for layer in layers])
    new_transitions, new_rewards = np.zeros((2, ends[-1], mdp.actions, ends[-1]))
    every = np.arange(mdp.actions)
    for t, (here, there) in enumerate(pairwise(layers)):
        old = np.ix_(here, every, there)
        new = np.ix_(ends[t] - len(here) + np.arange(len(here)), every, ends[t] + np.arange(len(there)))
        new_transitions[new] = transitions[old]
        new_rewards[new] = rewards[old] + (amount if t == step else 0.0)
    states = np.concatenate(layers)
    first = np.arange(len(states)) < ends[0]
    return Problem(
        bps.TabularMDP(
            new_transitions,
            new_rewards,
            np.where(first, mdp.initial[states], 0.0),
            np.arange(len(states)) >= ends[-2],
            mdp.horizon,
            mdp.discount,
        ),
        bps.SoftmaxTable(policy.logits[states]),
    )


def chained(first: Problem, second: Problem) -> Problem:
    """Where the first problem ends the second one begins."""
    mdp = first.mdp
    joined, size = _side_by_side(first, second), mdp.states
    transitions, rewards = joined.mdp.transitions.copy(), joined.mdp.rewards.copy()
    # What leads to an end leads to a state that goes on by itself: the reward of the way to the end stays its own.
    for end in np.flatnonzero(mdp.terminal):
        transitions[end] = 0.0
        transitions[end, :, size:] = second.mdp.initial
        rewards[end] = 0.0
    return Problem(
        bps.TabularMDP(
            transitions,
            rewards,
            np.concatenate([mdp.initial, np.zeros(second.mdp.states)]),
            np.concatenate([np.zeros(size, bool), second.mdp.terminal]),
            mdp.horizon + 1 + second.mdp.horizon,
            mdp.discount,
        ),
        joined.policy,
    )


def branched(first: Problem, second: Problem, share: float) -> Problem:
    """An episode is one of the first problem with probability `share`, one of the second else."""
    joined = _side_by_side(first, second)
    mdp = joined.mdp
    initial = np.concatenate([share * first.mdp.initial, (1.0 - share) * second.mdp.initial])
    return Problem(
        bps.TabularMDP(mdp.transitions, mdp.rewards, initial, mdp.terminal, mdp.horizon, mdp.discount), joined.policy
    )


def _side_by_side(first: Problem, second: Problem) -> Problem:
    """Both, without a way from one to the other; actions that one of them lacks are never taken there."""
    mdps = (first.mdp, second.mdp)
    sizes, actions = [mdp.states for mdp in mdps], max(mdp.actions for mdp in mdps)
    transitions, rewards = np.zeros((2, sum(sizes), actions, sum(sizes)))
    logits = np.full((sum(sizes), actions), -np.inf)
    for (mdp, policy), start in zip((first, second), (0, sizes[0]), strict=True):
        own = slice(start, start + mdp.states)
        known = np.minimum(np.arange(actions), mdp.actions - 1)
        transitions[own, :, own], rewards[own, :, own] = mdp.transitions[:, known], mdp.rewards[:, known]
        logits[own, : mdp.actions] = policy.logits
    return Problem(
        bps.TabularMDP(
            transitions,
            rewards,
            np.concatenate([first.mdp.initial, np.zeros(sizes[1])]),
            np.concatenate([first.mdp.terminal, second.mdp.terminal]),
            max(mdp.horizon for mdp in mdps),
            first.mdp.discount,
        ),
        bps.SoftmaxTable(logits),
    )
