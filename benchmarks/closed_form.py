"""Who acts on tables: the closed form, and `auto`, which may move to it, beside the policy's own episodes.

Mean squared error relative to Monte Carlo's exact Var(g)/n, with its standard error over the studies; how often the 95%
interval holds; in how many studies another behavior has acted; and, after a semicolon, the difference of the ratio from
that of the first method in the same studies.

    python -m benchmarks.closed_form --studies 200 --episodes 1000
    python -m benchmarks.closed_form --studies 60 --episodes 300 1000 --tasks rare-0.005 gridworld-noisy --methods auto

"stay" is `auto` without a choice: the policy itself runs every episode.
"""

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np

import bpsearch as bps
from benchmarks.adversary.families import FAMILIES
from benchmarks.adversary.run import draws
from benchmarks.adversary.sketch import Problem, Sketch
from benchmarks.evaluators.tasks import TASKS
from bpsearch.methods import Method, find_method, for_policy

TABLES = tuple(name for name, make in TASKS.items() if isinstance(make().env, bps.TabularMDP))


def rare_noise(probability: float = 0.02) -> Problem:
    """A rare action opens a coin of the environment; nothing else happens."""
    sketch = Sketch(2)
    start, usual, won, lost = sketch.state(1.0 - probability, probability), *(sketch.end() for _ in range(3))
    sketch.arrow(start, [(1.0, usual, 0.0)], 0)
    sketch.arrow(start, [(0.5, won, 1.0), (0.5, lost, -1.0)], 1)
    return sketch.finish(start, 1)


def failure(probability: float = 0.01, steps: int = 5) -> Problem:
    """A slip, at any of five steps, ends in a failure half of the time; the other two actions go on."""
    slip = 1.0 - (1.0 - 2.0 * probability) ** (1.0 / steps)
    sketch = Sketch(3)
    walk = [sketch.state(*[0.5 * (1.0 - slip)] * 2, slip) for _ in range(steps)]
    safe, failed = sketch.end(), sketch.end()
    for state, onward in zip(walk, [*walk[1:], safe], strict=True):
        sketch.arrow(state, [(1.0, onward, 0.0)], 0, 1)
        sketch.arrow(state, [(0.5, failed, 1.0), (0.5, onward, 0.0)], 2)
    return sketch.finish(walk[0], steps)


def two_slips(probability: float = 0.01) -> Problem:
    """A slip of 4% leads to a narrow place, where another one is the failure; nothing is random but the policy."""
    sketch, second = Sketch(2), probability / 0.04
    start, narrow = sketch.state(0.96, 0.04), sketch.state(1.0 - second, second)
    safe, failed = sketch.end(), sketch.end()
    sketch.arrow(start, [(1.0, safe, 0.0)], 0)
    sketch.arrow(start, [(1.0, narrow, 0.0)], 1)
    sketch.arrow(narrow, [(1.0, safe, 0.0)], 0)
    sketch.arrow(narrow, [(1.0, failed, 1.0)], 1)
    return sketch.finish(start, 2)


OWN: dict[str, Callable[[], Problem]] = {"rare-noise": rare_noise, "failure-0.01": failure, "two-slips": two_slips}


def problem(name: str) -> Problem:
    """One of `OWN`, a table of the evaluators' suite, or a task of the adversary: its family and number, "modes:1"."""
    if name in OWN:
        return OWN[name]()
    if name in TABLES:
        task = TASKS[name]()
        return Problem(task.env, task.policy)
    family, _, number = name.partition(":")
    drawn = draws([family], int(number or 0) + 1, seed=0)[-1]
    task_ = FAMILIES[family].build(drawn.parameters)
    return Problem(task_.mdp, task_.policy)


def method(name: str, policy: bps.SoftmaxTable) -> Method:
    return find_method("auto") if name == "stay" else for_policy(find_method(name), policy)


def measure(
    task: Problem, name: str, sizes: Sequence[int], studies: int, beside: np.ndarray | None
) -> tuple[list[str], np.ndarray]:
    """A cell for each number of episodes, and (sizes, studies), the squared errors relative to Monte Carlo's.

    The episodes of a smaller study are the first ones of the larger. `beside` are the squared errors of another method
    in studies with the same seeds, if there is one.
    """
    truth, variance = bps.oracle.value(*task), bps.oracle.variance(task.mdp, task.policy, None, "mc")
    asked = bps.Return(discount=task.mdp.discount)
    errors, held, moved = np.zeros((3, len(sizes), studies))
    for number in range(studies):
        study = bps.Study(task.policy, method(name, task.policy), seed=number, estimand=asked)
        for place, size in enumerate(sorted(sizes)):
            result = study.run(task.mdp, total=size)
            low, high = result.interval() or (result.value, result.value)
            rounding = 1e-9 * (abs(truth) + np.sqrt(variance))
            errors[place, number] = result.value - truth
            held[place, number] = low - rounding <= truth <= high + rounding
            moved[place, number] = result.data.weighted
    ratios = errors**2 / (variance / np.sort(sizes)[:, None])
    cells = []
    for place in range(len(sizes)):
        cell = f"{_mean(ratios[place])} ({held[place].mean():.0%}"
        cell += f", moved {moved[place].mean():.0%})" if moved[place].any() else ")"
        cells.append(cell if beside is None else f"{cell}; {_mean(ratios[place] - beside[place], '+')}")
    return cells, ratios


def _mean(values: np.ndarray, sign: str = "") -> str:
    return f"{values.mean():{sign}.3g} ± {values.std(ddof=1) / np.sqrt(len(values)):.2g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--episodes", type=int, nargs="+", default=[1000])
    parser.add_argument("--tasks", nargs="+", default=list(OWN), help=f"{', '.join((*OWN, *TABLES))}, modes:1, ...")
    parser.add_argument("--methods", nargs="+", default=["stay", "bpg", "closed-form", "auto"])
    options = parser.parse_args()
    print(f"| task | method |{''.join(f' {size:,} |' for size in sorted(options.episodes))}")
    print(f"|---|---|{'---|' * len(options.episodes)}")
    for name in options.tasks:
        task = problem(name)
        first = None
        for each in options.methods:
            start = time.perf_counter()
            cells, ratios = measure(task, each, options.episodes, options.studies, first)
            first = ratios if first is None else first
            print(f"| {name} | {each} | {' | '.join(cells)} |  {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
