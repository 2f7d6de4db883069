"""The demonstration: one policy evaluated by Monte Carlo, by the paper's method and by the default of this package."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bpsearch import oracle
from bpsearch._core.arrays import NumpyArray
from bpsearch.calls.evaluate import evaluate
from bpsearch.envs import TabularMDP, gridworld
from bpsearch.inference.estimate import Estimate
from bpsearch.paper.on_policy import OnPolicyCurve
from bpsearch.paper.trials import AnySearch, Trials
from bpsearch.policies import shipped_policy
from bpsearch.policies.table import SoftmaxTable
from bpsearch.report.plots import COLORS, figure, save
from bpsearch.search import BPG, normalized
from bpsearch.study.study import Study

BATCH = 100
MONTE_CARLO, PAPER, DEFAULT = "Monte Carlo", "BPG (paper)", "auto (default)"
SEARCHES: dict[str, AnySearch] = {MONTE_CARLO: OnPolicyCurve(), PAPER: BPG(normalized(0.05))}
_COLORS = dict(zip((*SEARCHES, DEFAULT), (COLORS["vermilion"], COLORS["orange"], COLORS["blue"]), strict=True))


@dataclass(frozen=True)
class Curve:
    """Squared errors of repeated evaluations.

    Attributes:
        episodes: (points,), the numbers of episodes after which the error was taken.
        squared_errors: (repetitions, points).
    """

    episodes: NumpyArray
    squared_errors: NumpyArray

    @property
    def means(self) -> NumpyArray:
        """The mean squared error at each number of episodes."""
        return np.asarray(self.squared_errors.mean(axis=0))


@dataclass(frozen=True)
class Demo:
    """What the demonstration found.

    Attributes:
        truth: the exact value of the policy.
        courses: one evaluation by each method, looked at after several numbers of episodes; the last are all.
        curves: the squared errors of repeated evaluations by each method.
    """

    truth: float
    courses: dict[str, list[Estimate]]
    curves: dict[str, Curve]

    @property
    def estimates(self) -> dict[str, Estimate]:
        """Of each method after all episodes."""
        return {name: course[-1] for name, course in self.courses.items()}

    def mean_squared_errors(self) -> dict[str, float]:
        """The mean squared error of each method after all episodes."""
        return {name: float(curve.means[-1]) for name, curve in self.curves.items()}


def run_demo(episodes: int = 10_000, repetitions: int = 100, default_repetitions: int = 10, seed: int = 0) -> Demo:
    """Evaluate the paper's π_1 on the 4x4 gridworld once with each method, then many times for the squared errors.

    Args:
        episodes: of each evaluation.
        repetitions: evaluations by Monte Carlo and by BPG, which run as one compiled program.
        default_repetitions: evaluations by `auto`, which run one after the other, as a user's would.
        seed: of everything.
    """
    env, policy = gridworld(), shipped_policy("gridworld-early")
    truth = oracle.value(env, policy)
    looks = _counts((1000, 3000), episodes)
    courses = {}
    for name, search in SEARCHES.items():
        study = Study(policy, search, seed=seed)
        courses[name] = [study.run(env, total=count) for count in looks]
    courses[DEFAULT] = [evaluate(policy, env, count, seed=seed) for count in looks]
    curves = {
        name: _search_curve(search, env, policy, truth, episodes, repetitions, seed)
        for name, search in SEARCHES.items()
    }
    curves[DEFAULT] = _default_curve(env, policy, truth, episodes, default_repetitions, seed)
    return Demo(truth, courses, curves)


def _search_curve(
    search: AnySearch, env: TabularMDP, policy: SoftmaxTable, truth: float, episodes: int, repetitions: int, seed: int
) -> Curve:
    trials = Trials(search, iterations=-(-episodes // BATCH), batch_size=BATCH, seed=seed + 1)
    _, means = trials.run(env, policy, repetitions)
    batches = np.arange(1, means.shape[1] + 1)
    return Curve(BATCH * batches, (np.cumsum(means, axis=1) / batches - truth) ** 2)


def _default_curve(
    env: TabularMDP, policy: SoftmaxTable, truth: float, episodes: int, repetitions: int, seed: int
) -> Curve:
    """At few numbers of episodes: `auto` learns from all that there are, so each number is a run of its own."""
    counts = _counts((100, 1000), episodes)
    errors = [
        [evaluate(policy, env, count, seed=seed + 1 + repetition).value - truth for count in counts]
        for repetition in range(repetitions)
    ]
    return Curve(np.array(counts), np.square(errors))


def _counts(some: tuple[int, ...], episodes: int) -> list[int]:
    return [*(count for count in some if count < episodes), episodes]


def draw_demo(demo: Demo, directory: Path) -> Path:
    """The intervals of one evaluation, and the mean squared errors of many."""
    with figure(1, 2, width=9.0, height=3.6) as (drawing, axes):
        left, right = axes[0]
        left.axhline(demo.truth, color="black", linewidth=1.0, linestyle="--", label="exact value")
        for shift, (name, course) in zip((-0.2, 0.0, 0.2), demo.courses.items(), strict=True):
            color, curve = _COLORS[name], demo.curves[name]
            values = np.array([estimate.value for estimate in course])
            ends = np.array([estimate.interval() for estimate in course])
            left.errorbar(
                np.arange(len(course)) + shift, values, np.abs(ends.T - values), color=color, label=name,
                fmt="o", markersize=4, capsize=4, linewidth=1.4,
            )  # fmt: skip
            marker = "o" if len(curve.episodes) < 10 else ""
            right.loglog(curve.episodes, curve.means, color=color, label=name, linewidth=1.4, marker=marker, ms=4)
        looks = [f"{estimate.episodes:,}" for estimate in demo.courses[DEFAULT]]
        left.set_xticks(range(len(looks)), looks)
        left.grid(visible=False, axis="x")
        seed = demo.estimates[DEFAULT].settings["seed"]
        left.set(xlabel="episodes", ylabel="estimated value", title=f"One evaluation each, 95% intervals, seed {seed}")
        right.set(xlabel="episodes", ylabel="mean squared error", title="Errors of repeated evaluations")
        left.legend(loc="upper right")
        right.legend(loc="lower left")
        return save(drawing, directory, "demo")[0]
