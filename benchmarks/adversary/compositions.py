"""Tasks made of other tasks: constants on top, other signs and units, discounts, one after the other."""

from collections.abc import Mapping

import numpy as np

import bpsearch as bps
from benchmarks.adversary.family import Family
from benchmarks.adversary.sketch import Problem, branched, chained, changed, paid


def drawn(bases: Mapping[str, Family], base: float, seed: float) -> Problem:
    """A problem of the base with this number, with parameters from this seed."""
    family = list(bases.values())[int(base)]
    return family.make(**family.draw(np.random.default_rng(int(seed))))


def constant(
    bases: Mapping[str, Family], *, base: float, seed: float, when: float, size: float, sign: float
) -> Problem:
    """A constant on top of a task, at a step between the first (`when` = 0) and the last one (1).

    It is `size` standard deviations of the return large. It moves the value, and nothing else.
    """
    problem = drawn(bases, base, seed)
    spread = np.sqrt(max(bps.oracle.variance(*problem, None, "mc"), 0.0)) or 1.0
    return paid(problem, round(when * (problem.mdp.horizon - 1)), sign * size * spread)


def signs_and_discounts(
    bases: Mapping[str, Family], *, base: float, seed: float, scale: float, sign: float, myopia: float
) -> Problem:
    """A task in other units, of both signs, with the discount 1 − myopia."""
    return changed(drawn(bases, base, seed), sign * scale, 1.0 - myopia)


def mixture(
    bases: Mapping[str, Family],
    *,
    first: float,
    first_seed: float,
    second: float,
    second_seed: float,
    scale: float,
    share: float,
) -> Problem:
    """Two tasks, the second one `scale` times as large as it is: one after the other, or one of them by chance.

    By chance means the first with probability `share`; a share of 1 stands for one after the other.
    """
    one, other = drawn(bases, first, first_seed), changed(drawn(bases, second, second_seed), scale)
    return chained(one, other) if share >= 1.0 else branched(one, other, share)
