"""Tasks drawn at random, and attacks by their shape: many states, long survival, several starts, returns of 0 or 1."""

import numpy as np

import bpsearch as bps
from benchmarks.adversary.sketch import Problem, Sketch


def random_table(
    *, states: float, actions: float, horizon: float, concentration: float, temperature: float, seed: float
) -> Problem:
    """Dirichlet transitions, normal rewards, normal logits divided by the temperature; the last state is terminal."""
    rng = np.random.default_rng(int(seed))
    mdp = _random_mdp(rng, int(states), int(actions), int(horizon), concentration)
    return Problem(mdp, bps.SoftmaxTable(rng.normal(size=(mdp.states, mdp.actions)) / temperature))


def near_deterministic(
    *, states: float, actions: float, horizon: float, concentration: float, epsilon: float, seed: float
) -> Problem:
    """The same with a policy that takes one action of each state with probability 1 − ε."""
    rng = np.random.default_rng(int(seed))
    mdp = _random_mdp(rng, int(states), int(actions), int(horizon), concentration)
    return Problem(mdp, noisy(rng.integers(mdp.actions, size=mdp.states), mdp.actions, epsilon))


def many_states(
    *, states: float, branches: float, horizon: float, temperature: float, noise: float, seed: float
) -> Problem:
    """Hundreds of states with two actions and few successors each: most are visited rarely or never.

    Rewards are those of the action, plus `noise` times those of where it leads.
    """
    rng, count, width = np.random.default_rng(int(seed)), int(states), int(branches)
    transitions, rewards = np.zeros((2, count, 2, count))
    for state in range(count):
        for action in range(2):
            successors = rng.choice(count, size=width, replace=False)
            transitions[state, action, successors] = rng.dirichlet(np.ones(width))
            rewards[state, action, successors] = rng.normal() + noise * rng.normal(size=width)
    terminal = np.arange(count) >= count - max(count // 50, 1)
    initial = np.where(terminal, 0.0, rng.exponential(size=count))
    mdp = bps.TabularMDP(transitions, rewards, initial / initial.sum(), terminal, int(horizon))
    return Problem(mdp, bps.SoftmaxTable(rng.normal(size=(count, 2)) / temperature))


def survival(
    *, horizon: float, states: float, hazard: float, risk: float, epsilon: float, penalty: float, seed: float
) -> Problem:
    """A bonus of 1 for every step that one survives, for hundreds of steps among few states.

    The environment kills with a probability about `hazard` per step, and with `risk` after the rare action.
    """
    rng, count = np.random.default_rng(int(seed)), int(states)
    sketch = Sketch(2)
    alive = [sketch.state(1.0 - epsilon, epsilon) for _ in range(count)]
    dead = sketch.end()
    for state in alive:
        for action, kills in enumerate((min(hazard * rng.exponential(), 0.5), risk)):
            moves = (1.0 - kills) * rng.dirichlet(np.full(count, 0.3))
            outcomes = [(float(move), successor, 1.0) for move, successor in zip(moves, alive, strict=True)]
            sketch.arrow(state, [*outcomes, (kills, dead, -penalty)], action)
    return sketch.finish(alive[0], int(horizon))


def modes(
    *, starts: float, gap: float, rarest: float, explained: float, noise: float, steps: float, seed: float
) -> Problem:
    """Episodes begin in one of several places that have nothing in common; one of them is rare.

    Each start has a reward of its own, about `gap` from the others, and a walk of its own.
    """
    rng, count = np.random.default_rng(int(seed)), int(starts)
    sketch = Sketch(2)
    shares = np.append(rarest, (1.0 - rarest) * rng.dirichlet(np.ones(count - 1)))
    initial = {}
    for share in shares:
        toss = rng.uniform(0.1, 0.9)
        walk = [sketch.state(toss, 1.0 - toss) for _ in range(int(steps))]
        final = sketch.state()
        for state, onward in zip(walk, [*walk[1:], final], strict=True):
            for action in range(2):
                sketch.arrow(state, [(1.0, onward, explained * rng.normal())], action)
        own = gap * rng.normal()
        sketch.arrow(final, [(0.5, sketch.end(), own + noise), (0.5, sketch.end(), own - noise)])
        initial[walk[0]] = float(share)
    return sketch.finish(initial, int(steps) + 1)


def binary(
    *,
    layers: float,
    width: float,
    actions: float,
    success: float,
    flipped: float,
    effect: float,
    epsilon: float,
    seed: float,
) -> Problem:
    """The return is 1 for a success at the end and 0 else; `success` is its probability, roughly, or that of failure.

    Actions decide where one goes, and shift the odds of the last step by factors of about exp(effect).
    """
    rng = np.random.default_rng(int(seed))
    choices, sketch = int(actions), Sketch(int(actions))

    def state() -> int:
        usual = rng.integers(choices)
        return sketch.state(*np.where(np.arange(choices) == usual, 1.0 - epsilon, epsilon / (choices - 1)))

    grid = [[state() for _ in range(int(width))] for _ in range(int(layers))]
    won, lost = sketch.end(), sketch.end()
    for here, there in zip(grid, [*grid[1:], []], strict=True):
        for place in here:
            for action in range(choices):
                if there:
                    moves = rng.dirichlet(np.full(len(there), 0.5))
                    outcomes = [(float(p), onward, 0.0) for p, onward in zip(moves, there, strict=True)]
                else:
                    odds = success / (1.0 - success) * np.exp(effect * rng.normal())
                    chance = float(1.0 / (1.0 + odds) if flipped else odds / (1.0 + odds))
                    outcomes = [(chance, won, 1.0), (1.0 - chance, lost, 0.0)]
                sketch.arrow(place, outcomes, action)
    return sketch.finish(grid[0][0], int(layers))


def zero_variance(
    *, layers: float, width: float, actions: float, kind: float, scale: float, discount: float, seed: float
) -> Problem:
    """All episodes have the same return, whatever happens on the way.

    Kind 0 pays nothing, kind 1 the same at each step, kind 2 φ(s) − γ φ(s'), which adds up to φ of the start.
    """
    rng = np.random.default_rng(int(seed))
    choices, sketch = int(actions), Sketch(int(actions))
    grid = [
        [sketch.state(*rng.dirichlet(np.ones(choices))) for _ in range(int(width) if layer else 1)]
        for layer in range(int(layers))
    ]
    end = sketch.end()
    potential = {state: scale * rng.normal() for layer in grid for state in layer} | {end: 0.0}
    for here, there in zip(grid, [*grid[1:], [end]], strict=True):
        for state in here:
            for action in range(choices):
                moves = rng.dirichlet(np.ones(len(there)))
                rewards = [(0.0, scale, potential[state] - discount * potential[after])[int(kind)] for after in there]
                sketch.arrow(state, list(zip(moves.tolist(), there, rewards, strict=True)), action)
    return sketch.finish(grid[0][0], int(layers), discount)


def noisy(usual: np.ndarray, actions: int, epsilon: float) -> bps.SoftmaxTable:
    """The policy that takes each state's usual action, and with probability ε any action."""
    table = np.full((len(usual), actions), epsilon / actions)
    table[np.arange(len(usual)), usual] += 1.0 - epsilon
    return bps.SoftmaxTable.from_probabilities(table)


def _random_mdp(
    rng: np.random.Generator, states: int, actions: int, horizon: int, concentration: float
) -> bps.TabularMDP:
    transitions = rng.dirichlet(np.full(states, concentration), size=(states, actions))
    terminal = np.arange(states) == states - 1
    initial = np.where(terminal, 0.0, rng.exponential(size=states))
    rewards = rng.normal(size=transitions.shape)
    return bps.TabularMDP(transitions, rewards, initial / initial.sum(), terminal, horizon)
