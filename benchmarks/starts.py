"""What starts save: mean squared error, coverage and width beside Monte Carlo's.

    python -m benchmarks.starts --tasks acrobot pendulum-v1-trained --studies 200 --keep starts.jsonl
    python -m benchmarks.starts --tasks Reacher-v5 Hopper-v5 --sizes 100 300 --studies 10 --keep starts.jsonl
    python -m benchmarks.starts --overhead        # time beside Monte Carlo for the same episodes, Pendulum-v1

With --keep every study is written down when it is done, and the same command goes on where it was stopped.
OPENBLAS_NUM_THREADS=1 keeps small systems from waiting for other cores on a busy machine.

Ratios are to Monte Carlo's exact variance, where a reference is known (`benchmarks/evaluators`), else to that of all
returns; the truth is then the mean of all studies. "expected" is the mean of the values' own variance, less noisy.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import bpsearch as bps
from benchmarks.evaluators.tasks import TASKS, references
from bpsearch.control_variates import Starts, StartStates
from bpsearch.inference.valuation import Valuation
from bpsearch.methods import find_method
from bpsearch.policies.base import Policy
from bpsearch.policies.resolve import load

MODE = ":mode"  # at the end of a task's name: its policy takes its most likely actions


def reach(observation: Any) -> Any:
    """Reacher-v5: turn both joints against the error, by the transpose of the arm's Jacobian."""
    cosines, sines, speeds, error = observation[:2], observation[2:4], observation[6:8], observation[8:10]
    both = np.array([cosines[0] * cosines[1] - sines[0] * sines[1], sines[0] * cosines[1] + cosines[0] * sines[1]])
    outer = 0.11 * np.array([-both[1], both[0]])
    inner = 0.1 * np.array([-sines[0], cosines[0]]) + outer
    return np.clip(-5.0 * np.array([inner @ error, outer @ error]) - 0.05 * speeds, -1.0, 1.0)


def push(observation: Any) -> Any:
    """Pusher-v5: turn the shoulder to the side on which the object lies, and stretch."""
    tip, thing = observation[14:17], observation[17:20]
    turn = np.clip(2.0 * (thing[1] - tip[1]), -1.0, 1.0)
    return np.array([turn, 0.3, 0.0, -0.3, 0.0, 0.2, 0.0]) - 0.1 * observation[7:14]


def balance(observation: Any) -> Any:
    """InvertedPendulum-v5: linear feedback that is too weak: it falls, sooner or later."""
    return np.array([np.clip(observation @ np.array([0.1, 2.0, 0.1, 0.1]), -3.0, 3.0)])


def stand(observation: Any) -> Any:
    """Hopper-v5: damp every joint."""
    return -0.3 * observation[-3:]


def shake(observation: Any) -> Any:
    """HalfCheetah-v5: push with all joints against their speeds."""
    return -0.2 * observation[-6:]


CONTROLLERS: dict[str, Callable[[Any], Any]] = {
    "Reacher-v5": reach,
    "Pusher-v5": push,
    "InvertedPendulum-v5": balance,
    "Hopper-v5": stand,
    "HalfCheetah-v5": shake,
}


def find_task(name: str) -> tuple[str, Any, Policy, tuple[float, float] | None]:
    """Title, environment, policy; value and variance if they are known."""
    if name in CONTROLLERS:
        sampler = bps.environment(name)
        return f"{name}, simple controller", sampler, load(CONTROLLERS[name], lambda: gymnasium.make(name)), None
    short = name.removesuffix(MODE)
    task = TASKS[short]()
    if short != name:
        return f"{task.title}, deterministic", task.env, task.policy.mode(), None
    known = references()[name]
    return task.title, task.env, task.policy, (known.value, known.variance)


def run_study(
    env: Any, policy: Policy, study: int, sizes: list[int], resets: int, valuation: Valuation
) -> list[dict[str, float]]:
    """For each number of episodes what there is to say about one study; smaller ones are parts of the largest."""
    state = valuation.init(policy, 1.0 if getattr(env, "discount", None) is None else env.discount)
    batch = bps.sample(env, policy, max(sizes), seed=20261118, batch=study, resets=resets)
    found = []
    for size in sizes:
        valued = valuation.value(state, batch.take(np.arange(size)))
        values = valuation.conclude(state, [valued])
        half = np.inf if values.error is None else values.error.half_width(0.95)
        own = np.nan if values.tight_error is None else values.tight_error.variance * size
        plain = float(valued.returns.std(ddof=1))
        found.append(
            {
                "size": size,
                "value": values.mean,
                "plain": float(valued.returns.mean()),
                "own": own,
                "variance": plain**2,
                "half": half,
                "width": half / (1.96 * plain / np.sqrt(size)) if plain > 0.0 else np.nan,
            }
        )
    return found


def show(title: str, rows: list[dict[str, float]], known: tuple[float, float] | None) -> list[str]:
    """A line for each number of episodes."""
    largest = max(row["size"] for row in rows)
    if known is None:
        last = [row for row in rows if row["size"] == largest]
        known = float(np.mean([row["value"] for row in last])), float(np.mean([row["variance"] for row in last]))
    value, variance = known
    lines = []
    for size in sorted({row["size"] for row in rows}):
        some = [row for row in rows if row["size"] == size]
        errors = np.array([row["value"] for row in some]) - value
        squares = errors**2 * size / variance
        noise = squares.std() / np.sqrt(len(some))
        covered = np.mean(np.abs(errors) <= [row["half"] for row in some])
        own, width = (np.mean([row[name] for row in some]) for name in ("own", "width"))
        lines.append(
            f"| {title} | {size:.0f} | {len(some)} | {squares.mean():.3f} ± {noise:.3f} | {own / variance:.3f} | "
            f"{covered:.1%} | {width:.2f} |"
        )
    return lines


def measure(
    name: str, studies: int, sizes: list[int], resets: int, valuation: Valuation, label: str, keep: Path | None
) -> list[str]:
    """The lines of one task; studies that were kept are not run again."""
    title, env, policy, known = find_task(name)
    key = {"task": name, "resets": resets, "sizes": sizes, "valuation": label}
    kept = [json.loads(line) for line in keep.read_text().splitlines()] if keep is not None and keep.exists() else []
    done = {entry["study"]: entry["rows"] for entry in kept if all(entry[part] == key[part] for part in key)}
    for study in range(studies):
        if study in done:
            continue
        done[study] = run_study(env, policy, study, sizes, resets, valuation)
        if keep is not None:
            with keep.open("a") as file:
                file.write(json.dumps(key | {"study": study, "rows": done[study]}) + "\n")
    return show(title, [row for study in range(studies) for row in done[study]], known)


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
    parser.add_argument("--tasks", nargs="+", default=choices, help=f"of the evaluators, or {', '.join(CONTROLLERS)}")
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--resets", type=int, default=50)
    parser.add_argument("--auto", action="store_true", help="with scores and models as well, as the default has it")
    parser.add_argument("--keep", type=Path, help="a file in which every study is kept")
    parser.add_argument("--overhead", action="store_true")
    options = parser.parse_args()
    if options.overhead:
        overhead(episodes=500, rounds=7)
        return
    valuation = find_method("auto").valuation if options.auto else Valuation(control_variates=(Starts(), StartStates()))
    label = "auto" if options.auto else "starts"
    print("| task | episodes | studies | ratio | expected | coverage (95%) | width relative to Monte Carlo's |")
    print("|---|---|---|---|---|---|---|")
    for name in options.tasks:
        for line in measure(name, options.studies, options.sizes, options.resets, valuation, label, options.keep):
            print(line, flush=True)


if __name__ == "__main__":
    main()
