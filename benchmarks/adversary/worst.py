"""Search the parameters of a family for its worst case: random first, then by mutation of the worst so far.

All candidates get the same random numbers, so that they differ by their parameters alone. The worst of many is worse
than it is, by luck: the case that is found is measured again with other random numbers and more studies.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.adversary.families import FAMILIES
from benchmarks.adversary.measure import Cell
from benchmarks.adversary.report import parameters_text
from benchmarks.adversary.run import Draw, Result, Settings, judge_all, workers
from benchmarks.adversary.verdicts import is_comparable

PARENTS = 4
CHILDREN = 8
CONFIRMATION = 4  # times as many studies for the case that is found
CAUTION = 0.5  # standard errors taken off a ratio: little, because few large errors make many of the worst cases

Parameters = dict[str, float]
Judge = Callable[[Sequence[Parameters]], list[Result]]


def bad_ratio(cells: Sequence[Cell]) -> float:
    """The largest ratio over the numbers of episodes; infinite if the method gave no answer."""
    return max(np.inf if cell.failed == cell.studies else cell.ratio - CAUTION * cell.ratio_error for cell in cells)


def bad_coverage(cells: Sequence[Cell]) -> float:
    """How far the coverage falls below Monte Carlo's, where Monte Carlo's holds."""
    if any(cell.failed == cell.studies for cell in cells):
        return np.inf
    return max(cell.plain_coverage - cell.coverage if is_comparable(cell) else -1.0 for cell in cells)


OBJECTIVES: dict[str, Callable[[Sequence[Cell]], float]] = {"ratio": bad_ratio, "coverage": bad_coverage}


@dataclass(frozen=True)
class Found:
    """The worst case of a search: as it was found, and measured again."""

    first: Result
    again: Result

    def __str__(self) -> str:
        lines = [f"{self.first.family}, parameters {parameters_text(self.first.parameters)}"]
        for cell, confirmed in zip(self.first.cells, self.again.cells, strict=True):
            lines.append(f"  {cell.episodes:5} episodes: {_numbers(confirmed)}; when found: {_numbers(cell)}")
        return "\n".join(lines)


def search(family: str, settings: Settings, tasks: int, objective: str, jobs: int) -> Found:
    """The worst of so many candidates of a family."""

    def result_of(settings: Settings, parameters: Sequence[Parameters]) -> list[Result]:
        return judge_all(pool, settings, [Draw(family, 0, each) for each in parameters])

    with workers(jobs) as pool:
        worst = evolve(family, lambda each: result_of(settings, each), tasks, OBJECTIVES[objective], settings.seed)
        again = replace(settings, studies=CONFIRMATION * settings.studies, seed=settings.seed + 1)
        return Found(worst, *result_of(again, [worst.parameters]))


def evolve(family: str, judge: Judge, tasks: int, badness: Callable[[Sequence[Cell]], float], seed: int) -> Result:
    """Half of the candidates are drawn; the others are mutations of the worst so far, a few at a time."""
    rng, drawn = np.random.default_rng(seed), max(tasks // 2, 1)
    known = judge([FAMILIES[family].draw(rng) for _ in range(drawn)])
    while len(known) < tasks:
        known.sort(key=lambda result: -badness(result.cells))
        children = min(CHILDREN, tasks - len(known))
        parents = [known[number % min(PARENTS, len(known))].parameters for number in range(children)]
        known += judge([FAMILIES[family].mutate(parent, rng) for parent in parents])
    return max(known, key=lambda result: badness(result.cells))


def _numbers(cell: Cell) -> str:
    if cell.failed == cell.studies:
        return cell.message
    return (
        f"ratio {cell.ratio:.3g} ± {cell.ratio_error:.1g}, coverage {cell.coverage:.1%} "
        f"(Monte Carlo's {cell.plain_coverage:.1%}), savings {cell.reported:.3g} to {cell.tight:.3g} reported, "
        f"{cell.realised:.3g} realised"
    )
