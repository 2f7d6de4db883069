"""Rare failures from 3,000 episodes: levels beside Monte Carlo, the paper's BPG, plain cross-entropy and splitting.

    python -m benchmarks.rare_levels measure --studies 100 --out rare.json
    python -m benchmarks.rare_levels coverage --studies 1000 --methods auto --at 300 1000 --out coverage.json
    python -m benchmarks.rare_levels draw rare.json docs/rare-failures.svg

`measure` prints the relative root mean squared error of each method on each task, `coverage` how often the intervals
and one-sided bounds hold. Truths of tables are exact. Those of networks are Monte Carlo's, from as many
episodes as `--reference` says, and have their own error. Plain cross-entropy and splitting are short references of this
file, with 500 episodes for each level; they are for tables, and splitting needs a simulator whose states can be copied.
"""

import argparse
import json
import runpy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy import stats

import bpsearch as bps
from benchmarks import closed_form
from bpsearch.methods import find_method, for_event, for_policy
from bpsearch.search import normalized

EXAMPLES = Path(__file__).parents[1] / "examples"
PER_LEVEL, QUANTILE, SMOOTH = 500, 0.1, 0.7
PAPER_STEP = 0.1  # of the paper's gradient; divided by the mean X², so that no task needs another
Floats = NDArray[np.float64]
Place = tuple[jax.Array, jax.Array, jax.Array]


KINDS = ("fixed n", "fixed n, without room", "anytime-valid", "certified", "one-sided")


@dataclass(frozen=True)
class Task:
    """A failure of a policy; the truth is None if only a long run knows it."""

    env: Any
    policy: bps.Policy
    asked: bps.Failure
    truth: float | None = None


def chain(levels: int, p: float = 0.1, noise: float = 0.0) -> Task:
    """Down a level with probability p by an action, or the episode ends; the environment refuses some with `noise`."""
    shape = (levels + 2, 2, levels + 2)
    transitions, rewards = np.zeros(shape), np.zeros(shape)
    for level in range(levels):
        transitions[level, 0, levels + 1] = 1.0
        transitions[level, 1, level + 1], transitions[level, 1, levels + 1] = 1.0 - noise, noise
        rewards[level, 1, level + 1] = 1.0
    terminal = np.arange(levels + 2) >= levels
    mdp = bps.TabularMDP(transitions, rewards, np.eye(levels + 2)[0], terminal, horizon=levels)
    policy = bps.SoftmaxTable.from_probabilities(np.tile([1.0 - p, p], (levels + 2, 1)))
    return Task(mdp, policy, bps.Failure(f"return >= {levels}"), (p * (1.0 - noise)) ** levels)


def courier(p: float) -> Task:
    """The ridge of examples/rare_failure.py: one rare action at the narrowest step."""
    env = runpy.run_path(str(EXAMPLES / "rare_failure.py"))["ridge"]()
    policy = bps.SoftmaxTable.from_probabilities(np.tile([0.5 - p / 2, 0.5 - p / 2, p], (env.states, 1)))
    return Task(env, policy, bps.Failure("return < -100"), p)


def slips() -> Task:
    """A slip at one of five steps fails half of the time, one in a hundred in all."""
    drawn = closed_form.failure()
    return Task(drawn.mdp, drawn.policy, bps.Failure("return >= 1"), float(bps.oracle.value(*drawn)))


def two_ways() -> Task:
    """Three levels of 0.1 (1e-3) on one side, one action of 5e-4 at the start on the other."""
    states, p, rare = 6, 0.1, 5e-4
    transitions, rewards = np.zeros((states, 3, states)), np.zeros((states, 3, states))
    for level in range(3):
        transitions[level, 0, 5] = 1.0
        transitions[level, 1, level + 1] = 1.0
        rewards[level, 1, level + 1] = 1.0
        transitions[level, 2, 4 if level == 0 else 5] = 1.0
    rewards[0, 2, 4] = 3.0
    terminal = np.arange(states) >= 3
    mdp = bps.TabularMDP(transitions, rewards, np.eye(states)[0], terminal, horizon=3)
    policy = bps.SoftmaxTable.from_probabilities(np.tile([1.0 - p - rare, p, rare], (states, 1)))
    return Task(mdp, policy, bps.Failure("return >= 3"), p**3 + rare)


def grid(bound: float) -> Task:
    """The early policy of the 4x4 gridworld falls below a return."""
    return Task(bps.envs.gridworld(), bps.shipped_policy("gridworld-early"), bps.Failure(f"return < {bound}"))


def lane(gusts: float, barrier: float, hidden: tuple[int, ...] = (16,)) -> Task:
    """The network of examples/lane_keeping.py touches the barrier."""
    example = runpy.run_path(str(EXAMPLES / "lane_keeping.py"))
    offsets = example["offsets"]
    asked = bps.Failure(lambda batch: offsets(batch) > barrier, 1.0, offsets)
    return Task(example["Lane"](gusts=gusts, barrier=barrier), example["driver"](hidden), asked)


def hover() -> Task:
    """The deterministic controller of examples/wind_gusts.py touches the wall; behaviors may tilt the gusts."""
    example = runpy.run_path(str(EXAMPLES / "wind_gusts.py"))
    pair, env = bps.expose_noise(example["spring_and_damper"](), example["Hover"]())
    return Task(env, pair, bps.Failure(example["crashes"], 1.0, example["nearest"]))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Slope(bps.envs.CompiledEnv):
    """Rolls from where it starts, pushed by five actions; the return is where it ends.

    An action is noise of mean 0 and variance 1. So the end is normal, of variance 1; starts make `starts` of it. The
    second number of a start means nothing.
    """

    starts: float = 0.5
    horizon: int = field(default=5, metadata={"static": True})
    discount: float = field(default=1.0, metadata={"static": True})

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def reset(self, key: bps.Array) -> Place:
        """Place, a number that means nothing, and time."""
        place, other = jax.random.normal(key, (2,), jnp.float32)
        return jnp.sqrt(jnp.float32(self.starts)) * place, other, jnp.float32(0.0)

    def observe(self, state: Place) -> jax.Array:
        """All of it."""
        return jnp.stack(state)

    def step(self, key: bps.Array, state: Place, action: bps.Array) -> tuple[Place, jax.Array, jax.Array]:
        """A push; at the end it pays."""
        place, other, time_ = state
        push = jnp.sqrt(jnp.float32(1.0 - self.starts) / self.horizon)
        place, last = place + push * jnp.asarray(action, jnp.float32)[0], time_ + 1.0 >= self.horizon
        return (place, other, time_ + 1.0), jnp.where(last, place, 0.0), last


def slope(starts: float, p: float = 1e-4) -> Task:
    """A network that acts by nothing but noise rolls too far, with probability p."""
    env = Slope(starts)
    network = bps.GaussianMLP.init(0, env.observation_space, env.action_space, (4,))
    policy = bps.GaussianMLP((network.weights[0], 0.0 * network.weights[1]), network.biases, np.zeros(1, np.float32))
    return Task(env, policy, bps.Failure(f"return > {float(stats.norm.isf(p))!r}"), p)


def doors(bad: float, p: float, levels: int = 2, states: int = 20) -> Task:
    """Many doors to start at: behind the last, of probability `bad`, some levels of p each lead to a failure.

    Behind the others nothing happens. With bad = 1 all doors are alike.
    """
    count = states * (levels + 1)
    transitions, rewards = np.zeros((count, 2, count)), np.zeros((count, 2, count))
    for door, level in product(range(states), range(levels)):
        here, end = door * (levels + 1) + level, door * (levels + 1) + levels
        transitions[here, 0, end], transitions[here, 1, here + 1] = 1.0, 1.0
        rewards[here, 1, here + 1] = float(bad == 1.0 or door == states - 1)
    first = np.arange(states) * (levels + 1)
    initial, terminal = np.zeros(count), np.isin(np.arange(count), first + levels)
    initial[first] = 1.0 / states if bad == 1.0 else np.append(np.full(states - 1, (1.0 - bad) / (states - 1)), bad)
    transitions[terminal] = np.eye(count)[terminal][:, None]
    mdp = bps.TabularMDP(transitions, rewards, initial, terminal, horizon=levels)
    policy = bps.SoftmaxTable.from_probabilities(np.tile([1.0 - p, p], (count, 1)))
    return Task(mdp, policy, bps.Failure(f"return >= {levels}"), bad * p**levels)


def exposed(task: Task) -> Task:
    """The same with transitions that behaviors may tilt."""
    table, env = bps.expose_noise(task.policy, task.env)
    return Task(env, table, task.asked, task.truth)


TASKS: dict[str, Callable[[], Task]] = {
    "six levels of 0.1": lambda: chain(6),
    "six levels, noise": lambda: chain(6, 0.125, 0.2),
    "six levels, noise, exposed": lambda: exposed(chain(6, 0.125, 0.2)),
    "one action of 1e-4": lambda: courier(1e-4),
    "one action of 0.004": lambda: courier(0.004),
    "one action of 0.05": lambda: courier(0.05),
    "slips, 0.01": slips,
    "two levels of 0.1": lambda: chain(2),
    "two ways to fail": two_ways,
    "environment decides, 0.05": lambda: chain(1, 0.5, 0.9),
    "gridworld, return < -80": lambda: grid(-80.0),
    "gridworld, return < -150": lambda: grid(-150.0),
    "gridworld, return < -200": lambda: grid(-200.0),
    "lane, no gusts": lambda: lane(0.0, 0.83),
    "lane, gusts": lambda: lane(1.0, 0.88),
    "hover, gusts exposed": hover,
    "slope, starts and actions": lambda: slope(0.5),
    "slope, actions": lambda: slope(0.0),
    "slope, starts": lambda: slope(1.0, 1e-3),
    "doors, starts and actions": lambda: doors(0.01, 0.1),
    "doors, actions": lambda: doors(1.0, 0.03),
    "doors, starts": lambda: doors(0.005, 0.9),
    "lane, gusts, (32, 32)": lambda: lane(1.0, 0.88, (32, 32)),
}


def cross_entropy(task: Task, episodes: int, seed: int) -> float:
    """The textbook: levels at the worst tenth, weighted counts, smoothed; the last behavior alone, no mixture."""
    evaluation = task.policy.probabilities  # type: ignore[attr-defined]
    behavior, used, batch_number = evaluation.copy(), 0, 0
    while True:
        size = min(PER_LEVEL, episodes - used)
        policy = bps.SoftmaxTable.from_probabilities(behavior)
        batch = bps.sample(task.env, policy, size, seed=seed, batch=batch_number)
        used, batch_number = used + size, batch_number + 1
        paid = task.asked.pay(batch)
        weights = np.exp(np.asarray(bps.estimators.log_ratios(task.policy, batch)).sum(axis=1))
        failed, margins = np.asarray(paid.returns()) > 0.0, np.asarray(paid.margins)
        common = failed.mean() >= QUANTILE
        if common or used >= episodes:
            break
        elite = np.where(failed, np.inf, margins) >= np.quantile(margins, 1.0 - QUANTILE)
        behavior = _imitate(behavior, batch, weights * elite)
    if common and used < episodes:
        policy = bps.SoftmaxTable.from_probabilities(_imitate(behavior, batch, weights * failed))
        batch = bps.sample(task.env, policy, episodes - used, seed=seed, batch=batch_number)
        weights = np.exp(np.asarray(bps.estimators.log_ratios(task.policy, batch)).sum(axis=1))
        failed = np.asarray(task.asked.pay(batch).returns()) > 0.0
    return float(np.mean(weights * failed))


def _imitate(behavior: Floats, batch: bps.Trajectories, weights: Floats) -> Floats:
    counts = np.zeros_like(behavior)
    np.add.at(counts, (np.asarray(batch.observations), batch.actions), weights[:, None] * batch.mask)
    total = counts.sum(axis=1, keepdims=True)
    fitted = np.divide(counts, total, out=behavior.copy(), where=total > 0.0)
    return SMOOTH * fitted + (1.0 - SMOOTH) * behavior


def splitting(task: Task, episodes: int, seed: int) -> float:
    """Fixed effort: 500 walks from copies of the states in which the best tenth first reached its level."""
    mdp, policy, rng = task.env, task.policy.probabilities, np.random.default_rng(seed)  # type: ignore[attr-defined]
    wanted = float(str(task.asked.condition).split()[-1])
    sign = 1.0 if ">" in str(task.asked.condition) else -1.0
    starts = [(int(rng.choice(mdp.states, p=mdp.initial)), 0.0, 0) for _ in range(PER_LEVEL)]
    estimate, used = 1.0, 0
    while True:
        walks = [_walk(mdp, policy, rng, start, sign) for start in starts]
        used += len(walks)
        best = np.array([max(near for near, _ in walk) for walk in walks])
        level = min(np.quantile(best, 1.0 - QUANTILE), sign * wanted)
        reached = best >= level
        estimate *= float(reached.mean())
        if level >= sign * wanted or not reached.any() or used + PER_LEVEL > episodes:
            return estimate if level >= sign * wanted else 0.0
        entries = [
            next(at for near, at in walk if near >= level) for walk, ok in zip(walks, reached, strict=True) if ok
        ]
        if all(entry[2] == start[2] for entry, start in zip(entries, starts, strict=False)) and reached.all():
            return 0.0
        starts = [entries[at] for at in rng.integers(len(entries), size=PER_LEVEL)]


def _walk(
    mdp: bps.TabularMDP, policy: Floats, rng: np.random.Generator, start: tuple[int, float, int], sign: float
) -> list[tuple[float, tuple[int, float, int]]]:
    """Nearness after each step, with the place where it was: state, return so far, steps so far."""
    state, total, steps = start
    path = [(sign * total, start)]
    while steps < mdp.horizon and not (steps and mdp.terminal[state]):
        action = rng.choice(mdp.actions, p=policy[state])
        successor = int(rng.choice(mdp.states, p=mdp.transitions[state, action]))
        total, state, steps = total + float(mdp.rewards[state, action, successor]), successor, steps + 1
        path.append((sign * total, (state, total, steps)))
    return path


@cache
def truth_of(name: str, episodes: int) -> tuple[float, float]:
    """The probability, and its standard error if it is Monte Carlo's."""
    task = TASKS[name]()
    if task.truth is not None:
        return task.truth, 0.0
    failed = 0.0
    for batch in range(max(1, episodes // 20_000)):
        sampled = bps.sample(task.env, task.policy, 20_000, seed=10**6, batch=batch)
        failed += float(task.asked.pay(sampled).returns().sum())
    total = max(1, episodes // 20_000) * 20_000
    p = failed / total
    return p, float(np.sqrt(p * (1.0 - p) / total))


def run(task: Task, method: str, episodes: int, seed: int) -> float:
    """One estimate."""
    if method == "cross-entropy":
        return cross_entropy(task, episodes, seed)
    if method == "splitting":
        return splitting(task, episodes, seed)
    chosen = bps.BPG(normalized(PAPER_STEP)) if method == "paper-bpg" else method
    return bps.evaluate(task.policy, task.env, episodes, chosen, estimand=task.asked, seed=seed).value


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every method on every task."""
    rows: list[dict[str, Any]] = []
    for name in options.tasks:
        task, (truth, error) = TASKS[name](), truth_of(name, options.reference)
        exact = np.sqrt((1.0 - truth) / truth / options.episodes)
        rows.append({"task": name, "truth": truth, "truth_error": error, "method": "mc", "error": exact})
        print(f"{name}: {truth:.4g} +- {error:.1g}; Monte Carlo {exact:.3g} (exact)", flush=True)
        for method in options.methods:
            table = isinstance(task.policy, bps.SoftmaxTable)
            if method in ("cross-entropy", "splitting") and (not table or task.truth is None):
                continue
            start = time.perf_counter()
            values = np.array([run(task, method, options.episodes, seed) for seed in range(options.studies)]) / truth
            squares = (values - 1.0) ** 2
            found = float(np.sqrt(squares.mean()))
            noise = float(squares.std(ddof=1) / np.sqrt(len(squares)) / 2.0 / found)
            rows.append({"task": name, "method": method, "error": found, "noise": noise, "mean": values.mean()})
            seconds = (time.perf_counter() - start) / options.studies
            print(f"  {method}: {found:.3g} +- {noise:.1g}, mean {values.mean():.3f}, {seconds:.2f} s", flush=True)
    return rows


def coverage(options: argparse.Namespace) -> list[dict[str, Any]]:
    """How often the 95% intervals and the one-sided bound hold, in studies that are looked at after each size.

    And the median width of the first two, with room for failures that the search has not found and without.
    """
    rows = []
    for name in options.tasks:
        task, (truth, _) = TASKS[name](), truth_of(name, options.reference)
        for method in options.methods:
            own = for_event(task.policy, task.asked.graded) if method == "auto" else method
            chosen = for_policy(find_method(own, task.env), task.policy)
            held = {size: dict.fromkeys(KINDS, 0) for size in options.at}
            widths: dict[int, list[tuple[float, float]]] = {size: [] for size in options.at}
            for seed in range(options.studies):
                study = bps.Study(task.policy, chosen, estimand=task.asked, seed=seed)
                for size, counts in held.items():
                    found = study.run(task.env, total=size)
                    ends = (
                        found.interval(),
                        found.tight_interval(),
                        found.anytime_interval(),
                        found.certified_interval(),
                        (0.0, found.upper_bound()),
                    )
                    lows, highs = np.array([(0.0, 1.0) if pair is None or pair[1] is None else pair for pair in ends]).T
                    for kind, low, high in zip(KINDS, lows, highs, strict=True):
                        counts[kind] += bool(low <= truth <= high)
                    widths[size].append(tuple((highs - lows)[:2]))
                if (seed + 1) % 100 == 0:
                    print(f"  {name}, {own}: {seed + 1} studies {held}", flush=True)
            for size, counts in held.items():
                shares = {kind: count / options.studies for kind, count in counts.items()}
                rows.append({"task": name, "method": own, "studies": options.studies, "episodes": size, **shares})
                rows[-1] |= {"widths": np.median(widths[size], axis=0).tolist()}
                print(rows[-1], flush=True)
    return rows


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Relative errors of all methods, a row for each task."""
    import matplotlib.pyplot as plt

    names = [*dict.fromkeys(row["task"] for row in rows)]
    methods = [*dict.fromkeys(row["method"] for row in rows)]
    figure, axes = plt.subplots(figsize=(7.0, 0.42 * len(names) + 1.2), layout="constrained")
    for method, marker in zip(methods, "osD^vXP", strict=False):
        points = [(row["error"], names.index(row["task"])) for row in rows if row["method"] == method]
        axes.plot(*zip(*points, strict=True), marker, label=method, markersize=6)
    axes.set(xscale="log", xlabel="relative root mean squared error", yticks=range(len(names)), yticklabels=names)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.legend(ncols=len(methods), loc="upper center", bbox_to_anchor=(0.35, -0.12), frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("measure", "coverage"):
        command = commands.add_parser(name)
        command.add_argument("--studies", type=int, default=100)
        command.add_argument("--episodes", type=int, default=3000)
        command.add_argument("--at", type=int, nargs="+", default=[300, 1000], help="coverage: numbers of episodes")
        command.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
        command.add_argument(
            "--methods", nargs="+", default=["paper-bpg", "cross-entropy", "splitting", "levels", "auto"]
        )
        command.add_argument("--reference", type=int, default=2_000_000)
        command.add_argument("--out", type=Path)
    drawing = commands.add_parser("draw")
    drawing.add_argument("rows", type=Path, nargs="+")
    drawing.add_argument("path", type=Path)
    options = parser.parse_args()
    if options.command == "draw":
        draw([row for path in options.rows for row in json.loads(path.read_text())], options.path)
        return
    rows = measure(options) if options.command == "measure" else coverage(options)
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
