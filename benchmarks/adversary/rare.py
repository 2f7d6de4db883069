"""Attacks on rare events: states that only luck reaches, rare actions, jackpots and disasters, heavy tails.

Most of them are walks: at each step the policy takes one of two common actions, which pay + or − a weight. That is
noise of the actions, and the control variates can explain all of it. The attack is what happens besides.
"""

import numpy as np

from benchmarks.adversary.sketch import Problem, Sketch


def luck_chain(*, length: float, reach: float, stay: float, epsilon: float, actions: float, seed: float) -> Problem:
    """A chain that only luck of the environment completes, with probability about `reach`; the goal pays 1.

    The policy takes one action of each state with probability 1 − ε and the others, which do something else, with ε.
    """
    rng, choices, states = np.random.default_rng(int(seed)), int(actions), int(length)
    sketch = Sketch(choices)
    usual = rng.integers(choices, size=states)
    chain = [
        sketch.state(*np.where(np.arange(choices) == action, 1.0 - epsilon, epsilon / (choices - 1)))
        for action in usual
    ]
    goal, hole = sketch.end(), sketch.end()
    luck = reach ** (1.0 / states)
    for place, state in enumerate(chain):
        onward = chain[place + 1] if place + 1 < states else goal
        for action in range(choices):
            weights = np.array([luck, 1.0 - luck]) if action == usual[place] else rng.dirichlet([0.5, 0.5])
            forward, fail = (1.0 - stay) * weights
            arrows = [(forward, onward, float(onward == goal)), (fail, hole, 0.0), (stay, state, 0.0)]
            sketch.arrow(state, [arrow for arrow in arrows if arrow[0] > 0.0], action)
    return sketch.finish(chain[0], 8 * states)


def rare_effect(
    *,
    probability: float,
    effect: float,
    sign: float,
    ends: float,
    explained: float,
    noise: float,
    steps: float,
    seed: float,
) -> Problem:
    """A rare action pays `effect` for sure, and may end the episode; a coin of the environment pays ± `noise`."""
    sketch, walk, final = _walk(int(steps), probability, explained, noise, int(seed))
    for state, onward in zip(walk, [*walk[1:], final], strict=True):
        sketch.arrow(state, [(1.0, sketch.end() if ends else onward, sign * effect)], 2)
    return sketch.finish(walk[0], len(walk) + 1)


def rare_noise(
    *,
    probability: float,
    size: float,
    skew: float,
    sign: float,
    explained: float,
    noise: float,
    steps: float,
    seed: float,
) -> Problem:
    """A rare action opens a gamble of the environment of mean 0: it has no advantage, and all the variance.

    The gamble is won with probability `skew`; its standard deviation is `size`.
    """
    sketch, walk, final = _walk(int(steps), probability, explained, noise, int(seed))
    for state, onward in zip(walk, [*walk[1:], final], strict=True):
        sketch.arrow(state, _gamble(sketch, skew, sign * size, onward), 2)
    return sketch.finish(walk[0], 2 * len(walk) + 1)


def rare_nothing(*, probability: float, noise: float, luck: float, steps: float, actions: float) -> Problem:
    """Rare actions do what the common one does; the environment makes all the noise, and decides where one goes."""
    sketch, choices = Sketch(int(actions)), int(actions)
    policy = [1.0 - probability, *[probability / (choices - 1)] * (choices - 1)]
    pairs = [(sketch.state(*policy), sketch.state(*policy)) for _ in range(int(steps))]
    ends = sketch.end(), sketch.end()
    for pair, (up, down) in zip(pairs, [*pairs[1:], ends], strict=True):
        for state in pair:
            sketch.arrow(state, [(luck, up, noise), (1.0 - luck, down, -noise)])
    return sketch.finish(pairs[0][0], len(pairs))


def rare_luck(*, probability: float, size: float, sign: float, early: float, steps: float, seed: float) -> Problem:
    """A walk of explainable noise of variance 1, and a rare stroke of the environment that pays `size`.

    The stroke is a jackpot (sign 1) or a disaster (sign −1), before the walk (`early`) or after it.
    """
    walked = int(steps)
    sketch, rng = Sketch(2), np.random.default_rng(int(seed))
    walk = [sketch.state(0.5, 0.5) for _ in range(walked)]
    gate = sketch.state()
    weights = rng.dirichlet(np.ones(walked)) ** 0.5
    after = sketch.end() if early else gate
    for state, onward, weight in zip(walk, [*walk[1:], after], weights, strict=True):
        sketch.arrow(state, [(1.0, onward, weight)], 0)
        sketch.arrow(state, [(1.0, onward, -weight)], 1)
    struck, spared = (sketch.state(), sketch.state()) if early else (sketch.end(), sketch.end())
    sketch.arrow(gate, [(probability, struck, sign * size), (1.0 - probability, spared, 0.0)])
    if early:
        sketch.arrow(struck, [(1.0, walk[0], 0.0)])
        sketch.arrow(spared, [(1.0, walk[0], 0.0)])
    return sketch.finish(gate if early else walk[0], walked + (2 if early else 1))


def heavy_tails(
    *, tail: float, rungs: float, factor: float, sign: float, explained: float, lift: float, steps: float, seed: float
) -> Problem:
    """A ladder of rewards: the environment pays factor^j with a probability that falls as factor^(−tail · j).

    The last action has a say in it: the second of the two reaches higher rungs `lift` times as often.
    """
    count, rng = int(rungs), np.random.default_rng(int(seed))
    sketch = Sketch(2)
    walk = [sketch.state(0.5, 0.5) for _ in range(int(steps))]
    ladder = [sketch.end() for _ in range(count)]
    gate = sketch.state(0.5, 0.5)
    for state, onward in zip(walk, [*walk[1:], gate], strict=True):
        weight = explained * rng.normal()
        sketch.arrow(state, [(1.0, onward, weight)], 0)
        sketch.arrow(state, [(1.0, onward, -weight)], 1)
    for action, times in enumerate((1.0, lift)):
        chances = float(factor) ** (-tail * np.arange(count)) * np.where(np.arange(count) > 0, times, 1.0)
        chances /= chances.sum()
        rewards = sign * float(factor) ** np.arange(count)
        sketch.arrow(gate, list(zip(chances.tolist(), ladder, rewards.tolist(), strict=True)), action)
    return sketch.finish(walk[0], len(walk) + 1)


def _walk(steps: int, probability: float, explained: float, noise: float, seed: int) -> tuple[Sketch, list[int], int]:
    """Two common actions that pay ± a weight, a rare third one without an arrow yet, and a coin of the environment."""
    sketch, rng = Sketch(3), np.random.default_rng(seed)
    common = 0.5 * (1.0 - probability)
    walk = [sketch.state(common, common, probability) for _ in range(steps)]
    final = sketch.state()
    for state, onward in zip(walk, [*walk[1:], final], strict=True):
        weight = explained * rng.normal()
        sketch.arrow(state, [(1.0, onward, weight)], 0)
        sketch.arrow(state, [(1.0, onward, -weight)], 1)
    sketch.arrow(final, [(0.5, sketch.end(), noise), (0.5, sketch.end(), -noise)])
    return sketch, walk, final


def _gamble(sketch: Sketch, chance: float, size: float, onward: int) -> list[tuple[float, int, float]]:
    """Of mean 0 and standard deviation `size`, won with probability `chance`; then one goes on."""
    won, lost = sketch.state(), sketch.state()
    for state in (won, lost):
        sketch.arrow(state, [(1.0, onward, 0.0)])
    odds = (1.0 - chance) / chance
    return [(chance, won, size * odds**0.5), (1.0 - chance, lost, -size / odds**0.5)]
