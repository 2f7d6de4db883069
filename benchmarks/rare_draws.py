"""Rare failures on tasks that nobody had seen when the constants of the searches were fixed: drawn by a seed.

    python -m benchmarks.rare_draws --seed 20261118 --tables 8 --networks 2 --studies 20 --out draws.json

Each draw is a kind of task with random numbers of levels, probabilities and lengths:

- stairs: down L levels, each by an action of its own probability, while a third action stays where it is and the
  environment refuses some steps down;
- walk: a walk up and down that must end K or more above its start;
- one action: at one of T steps a rare action is the failure;
- lane: the network of examples/lane_keeping.py with another noise, gusts and barrier.

Every table is evaluated as `evaluate(..., failure=...)` does by default, a network by "levels". All draws are printed,
the worst last. Truths of tables are exact, those of networks are Monte Carlo's.
"""

import argparse
import json
import runpy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import bpsearch as bps
from benchmarks.rare_levels import EXAMPLES, Task

RARE, COMMON = 1e-7, 0.02  # between which the probability of a table's failure must lie, else it is drawn again


def stairs(rng: np.random.Generator) -> tuple[str, Task]:
    """L levels, with waiting and refusals."""
    levels, waits = int(rng.integers(1, 9)), float(rng.choice([0.0, 0.3, 0.6]))
    down = 10.0 ** rng.uniform(-1.7, -0.4, levels)
    noise, horizon = float(rng.choice([0.0, rng.uniform(0.05, 0.4)])), levels + int(waits * 10)
    states, out = levels + 2, levels + 1
    transitions, rewards = np.zeros((states, 3, states)), np.zeros((states, 3, states))
    for level in range(levels):
        transitions[level, 0, out] = transitions[level, 2, level] = 1.0
        transitions[level, 1, level + 1], transitions[level, 1, out] = 1.0 - noise, noise
        rewards[level, 1, level + 1] = 1.0
    policy = np.tile([1.0, 0.0, 0.0], (states, 1))
    policy[:levels, 1], policy[:levels, 2] = down, waits * (1.0 - down)
    policy[:, 0] = 1.0 - policy[:, 1] - policy[:, 2]
    mdp = bps.TabularMDP(transitions, rewards, np.eye(states)[0], np.arange(states) >= levels, horizon)
    reached, there = np.zeros(states), np.eye(states)[0]
    for _ in range(horizon):
        there = np.einsum("s,sa,sat->t", np.where(mdp.terminal, 0.0, there), policy, transitions)
        reached += np.where(mdp.terminal, there, 0.0)
    name = f"stairs, {levels} levels, waits {waits:g}, noise {noise:.2f}"
    table = bps.SoftmaxTable.from_probabilities(policy)
    return name, Task(mdp, table, bps.Failure(f"return >= {levels}"), float(reached[levels]))


def walk(rng: np.random.Generator) -> tuple[str, Task]:
    """T steps up or down; the failure is a sum of K or more."""
    steps, up = int(rng.integers(8, 31)), float(rng.uniform(0.2, 0.5))
    sums = np.arange(-steps, steps + 1, 2)
    chances = np.exp([_log_binomial(steps, (total + steps) // 2, up) for total in sums])
    tails = np.cumsum(chances[::-1])[::-1]
    wanted = 10.0 ** rng.uniform(-6.0, -2.0)
    bound = int(sums[np.argmin(np.abs(np.log(tails / wanted)))])
    states = 2 * steps + 1
    transitions, rewards = np.zeros((states, 2, states)), np.zeros((states, 2, states))
    for state in range(states):
        for action, step in enumerate((-1, 1)):
            onward = min(max(state + step, 0), states - 1)
            transitions[state, action, onward], rewards[state, action, onward] = 1.0, float(step)
    mdp = bps.TabularMDP(transitions, rewards, np.eye(states)[steps], np.zeros(states, bool), steps)
    table = bps.SoftmaxTable.from_probabilities(np.tile([1.0 - up, up], (states, 1)))
    truth = float(tails[np.searchsorted(sums, bound)])
    return f"walk, {steps} steps, up {up:.2f}, to {bound}", Task(mdp, table, bps.Failure(f"return >= {bound}"), truth)


def _log_binomial(number: int, successes: int, p: float) -> float:
    ways = sum(np.log(np.arange(number - successes + 1, number + 1)) - np.log(np.arange(1, successes + 1)))
    return float(ways + successes * np.log(p) + (number - successes) * np.log1p(-p))


def one_action(rng: np.random.Generator) -> tuple[str, Task]:
    """Of T steps with several actions one has an action that is the failure."""
    steps, actions, p = int(rng.integers(3, 21)), int(rng.integers(2, 6)), 10.0 ** rng.uniform(-5.0, -2.0)
    where, states = int(rng.integers(steps)), steps + 2
    transitions, rewards = np.zeros((states, actions, states)), np.zeros((states, actions, states))
    for step in range(steps):
        transitions[step, :, step + 1] = 1.0
    transitions[where, -1] = np.eye(states)[steps + 1]
    rewards[where, -1, steps + 1] = -100.0
    usual = rng.dirichlet(np.full(actions - 1, 2.0), size=states)
    probabilities = np.hstack([(1.0 - p) * usual, np.full((states, 1), p)])
    mdp = bps.TabularMDP(transitions, rewards, np.eye(states)[0], np.arange(states) >= steps, steps)
    table = bps.SoftmaxTable.from_probabilities(probabilities)
    return f"one action of {p:.1e}, {steps} steps", Task(mdp, table, bps.Failure("return < -50"), p)


def lane(rng: np.random.Generator, episodes: int = 400_000) -> tuple[str, Task]:
    """Another noise, gusts and network; the barrier is where 400,000 episodes of the policy let 1e-4 expect."""
    example = runpy.run_path(str(EXAMPLES / "lane_keeping.py"))
    gusts, noise, hidden = float(rng.choice([0.0, rng.uniform(0.5, 2.0)])), float(rng.uniform(2.0, 4.0)), (8,)
    env, policy, offsets = (
        example["Lane"](gusts=gusts, barrier=1e9),
        example["driver"](hidden, noise),
        example["offsets"],
    )
    seen = [offsets(bps.sample(env, policy, 20_000, seed=77, batch=batch)) for batch in range(episodes // 20_000)]
    barrier = round(float(np.quantile(np.concatenate(seen), 1.0 - 10.0 ** rng.uniform(-4.3, -3.3))), 3)
    truth = float(np.mean(np.concatenate(seen) > barrier))
    asked = bps.Failure(lambda batch: offsets(batch) > barrier, 1.0, offsets)
    place = example["Lane"](gusts=gusts, barrier=barrier)
    return f"lane, gusts {gusts:.2f}, noise {noise:.2f}, barrier {barrier:.2f}", Task(place, policy, asked, truth)


TABLES: tuple[Callable[[np.random.Generator], tuple[str, Task]], ...] = (stairs, walk, one_action)


def draw_tables(seed: int, count: int) -> list[tuple[str, Task]]:
    """The first `count` draws of this seed whose failures are rare enough; each kind in turn."""
    found: list[tuple[str, Task]] = []
    for number in range(1000):
        if len(found) == count:
            break
        drawn = TABLES[len(found) % len(TABLES)](np.random.default_rng((seed, number)))
        if RARE <= (drawn[1].truth or 0.0) <= COMMON:
            found.append(drawn)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=20261118)
    parser.add_argument("--tables", type=int, default=9)
    parser.add_argument("--networks", type=int, default=2)
    parser.add_argument("--studies", type=int, default=20)
    parser.add_argument("--episodes", type=int, default=3000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tasks = draw_tables(options.seed, options.tables)
    tasks += [lane(np.random.default_rng((options.seed, 10_000 + number))) for number in range(options.networks)]
    rows: list[dict[str, Any]] = []
    print("| task | probability | Monte Carlo | found | mean |\n|---|---|---|---|---|")
    for name, task in tasks:
        truth, start = float(task.truth or 0.0), time.perf_counter()
        values = np.array(
            [
                bps.evaluate(task.policy, task.env, options.episodes, estimand=task.asked, seed=seed).value
                for seed in range(options.studies)
            ]
        )
        squares = (values / truth - 1.0) ** 2
        error = float(np.sqrt(squares.mean()))
        noise = float(squares.std(ddof=1) / np.sqrt(len(squares)) / 2.0 / error)
        plain = float(np.sqrt((1.0 - truth) / truth / options.episodes))
        rows.append({"task": name, "truth": truth, "mc": plain, "error": error, "noise": noise})
        rows[-1] |= {"mean": float(values.mean() / truth), "seconds": time.perf_counter() - start}
        print(_line(rows[-1]), flush=True)
    print("\nthe worst, relative to Monte Carlo and by itself:")
    for key in (lambda row: row["error"] / row["mc"], lambda row: row["error"]):
        print(_line(max(rows, key=key)))
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")


def _line(row: dict[str, Any]) -> str:
    cells = f"{row['truth']:.2g} | {row['mc']:.2g} | {row['error']:.2g} ± {row['noise']:.1g} | {row['mean']:.2f} |"
    return f"| {row['task']} | {cells}"


if __name__ == "__main__":
    main()
