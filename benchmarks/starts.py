"""What starts save: mean squared error, coverage and width beside Monte Carlo's, on tasks of the evaluators' suite.

    python benchmarks/starts.py --tasks acrobot pendulum-v1-trained --studies 200
    python benchmarks/starts.py --overhead        # time beside Monte Carlo for the same episodes, Pendulum-v1

OPENBLAS_NUM_THREADS=1 keeps small systems from waiting for other cores on a busy machine.

Ratios are to Monte Carlo's exact variance; "expected" is the mean of the values' own variance, which is less noisy.
"""

import argparse
import time

import numpy as np

import bpsearch as bps
from benchmarks.evaluators.tasks import TASKS, references
from bpsearch.control_variates import Starts, StartStates
from bpsearch.inference.valuation import Valuation
from bpsearch.methods import find_method

SIZES = (100, 300, 1000)


def measure(name: str, studies: int, resets: int, valuation: Valuation) -> list[str]:
    """A line for each number of episodes."""
    task, truth = TASKS[name](), references()[name]
    state = valuation.init(task.policy, task.env.discount)
    found: dict[int, list[tuple[float, float, float, float]]] = {size: [] for size in SIZES}
    for study in range(studies):
        batch = bps.sample(task.env, task.policy, max(SIZES), seed=20261118, batch=study, resets=resets)
        for size in SIZES:
            valued = valuation.value(state, batch.take(np.arange(size)))
            values = valuation.conclude(state, [valued])
            error = values.mean - truth.value
            half = np.inf if values.error is None else values.error.half_width(0.95)
            plain = 1.96 * valued.returns.std(ddof=1) / np.sqrt(size)
            own = np.nan if values.tight_error is None else values.tight_error.variance * size / truth.variance
            found[size].append((error**2 * size / truth.variance, own, float(abs(error) <= half), half / plain))
    lines = []
    for size, rows in found.items():
        ratio, own, covered, width = np.mean(rows, axis=0)
        noise = np.std([row[0] for row in rows]) / np.sqrt(studies)
        lines.append(f"| {task.title} | {size} | {ratio:.3f} ± {noise:.3f} | {own:.3f} | {covered:.1%} | {width:.2f} |")
    return lines


def overhead(episodes: int, rounds: int) -> None:
    """Seconds of `auto` and of Monte Carlo for the same episodes of Pendulum-v1, in turn."""
    with bps.environment("Pendulum-v1") as sampler:
        policy = bps.load_policy("benchmarks/evaluators/data/pendulum-v1-trained.npz")
        bps.evaluate(policy, sampler, 200, seed=0)
        clocks = {"wall": time.perf_counter, "processor": time.process_time}
        times: dict[str, list[list[float]]] = {"mc": [], "auto": []}
        for turn in range(rounds):
            for method, found in times.items():
                began = [clock() for clock in clocks.values()]
                bps.evaluate(policy, sampler, episodes, method, seed=turn)
                found.append([clock() - start for clock, start in zip(clocks.values(), began, strict=True)])
    ratios = np.median(np.array(times["auto"]) / np.array(times["mc"]), axis=0)
    print(
        f"Pendulum-v1, {episodes} episodes, median of {rounds} rounds: auto takes "
        + " and ".join(f"{ratio:.2f} of mc's {clock} time" for clock, ratio in zip(clocks, ratios, strict=True))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choices = ["acrobot", "cartpole-swingup", "pendulum-v1-half", "pendulum-v1-trained"]
    parser.add_argument("--tasks", nargs="+", default=choices)
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--resets", type=int, default=50)
    parser.add_argument("--auto", action="store_true", help="with scores and models as well, as the default has it")
    parser.add_argument("--overhead", action="store_true")
    options = parser.parse_args()
    if options.overhead:
        overhead(episodes=500, rounds=7)
        return
    valuation = find_method("auto").valuation if options.auto else Valuation(control_variates=(Starts(), StartStates()))
    print("| task | episodes | ratio to Monte Carlo | expected | coverage (95%) | width relative to Monte Carlo's |")
    print("|---|---|---|---|---|---|")
    for name in options.tasks:
        for line in measure(name, options.studies, options.resets, valuation):
            print(line, flush=True)


if __name__ == "__main__":
    main()
