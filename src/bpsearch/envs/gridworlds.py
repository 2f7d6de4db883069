"""The paper's three gridworlds (appendix C and section 5.4).

The reward is that of the cell occupied after the step. Moving into a wall stays in place and pays that cell's
reward again, so a policy may camp beside a wall on the +1 cell.
"""

import numpy as np

from bpsearch.envs.tabular import TabularMDP

UP, DOWN, LEFT, RIGHT = range(4)
_MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
_SIDES = {UP: (LEFT, RIGHT), DOWN: (LEFT, RIGHT), LEFT: (UP, DOWN), RIGHT: (UP, DOWN)}
HORIZON = 100


def gridworld() -> TabularMDP:
    """The deterministic 4x4 gridworld: terminal +10 at (3, 3), −10 at (1, 1), +1 at (1, 3), else −1; L = 100."""
    return _grid(size=4, slip=0.0)


def stochastic_gridworld() -> TabularMDP:
    """The 10x10 gridworld, terminal (9, 9), +1 at (1, 9): a move slips to each side with probability 0.05."""
    return _grid(size=10, slip=0.05)


def rare_event_gridworld() -> TabularMDP:
    """The 4x4 gridworld in which UP in the start state (0, 0) ends the episode with +50.

    How rare the event is belongs to the policy: `policy.with_probability(0, UP, p)`.
    """
    base = gridworld()
    goal = base.states - 1
    transitions, rewards = base.transitions.copy(), base.rewards.copy()
    transitions[0, UP] = np.eye(base.states)[goal]
    rewards[0, UP] = 50.0
    return TabularMDP(transitions, rewards, base.initial, base.terminal, base.horizon)


def _grid(size: int, slip: float) -> TabularMDP:
    states = size * size
    cell_rewards = np.full((size, size), -1.0)
    cell_rewards[size - 1, size - 1] = 10.0
    cell_rewards[1, 1] = -10.0
    cell_rewards[1, size - 1] = 1.0
    transitions = np.zeros((states, len(_MOVES), states))
    for state in range(states):
        for action in range(len(_MOVES)):
            sideways = [(side, slip) for side in _SIDES[action]]
            for move, probability in [(action, 1.0 - 2.0 * slip), *sideways]:
                cell = np.clip(np.add(divmod(state, size), _MOVES[move]), 0, size - 1)
                transitions[state, action, cell[0] * size + cell[1]] += probability
    return TabularMDP(
        transitions,
        rewards=np.broadcast_to(cell_rewards.ravel(), transitions.shape),
        initial=np.eye(states)[0],
        terminal=np.arange(states) == states - 1,
        horizon=HORIZON,
    )
