"""The demonstration: one policy evaluated with behavior policy search and with Monte Carlo, same number of episodes."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bpsearch import oracle
from bpsearch._core.arrays import NumpyArray
from bpsearch.envs import TabularMDP, gridworld
from bpsearch.inference.estimate import Estimate
from bpsearch.paper.on_policy import OnPolicyCurve
from bpsearch.paper.trials import AnySearch, Trials
from bpsearch.policies import shipped_policy
from bpsearch.policies.table import SoftmaxTable
from bpsearch.report.plots import COLORS, band, figure, mse_curve, save
from bpsearch.search import BPG, normalized
from bpsearch.study.study import Study

BATCH = 100
SEARCHES: dict[str, AnySearch] = {"Monte Carlo": OnPolicyCurve(), "BPG": BPG(normalized(0.05))}
_COLORS = dict(zip(SEARCHES, (COLORS["vermilion"], COLORS["blue"]), strict=True))


@dataclass(frozen=True)
class Demo:
    """What the demonstration found.

    Attributes:
        truth: the exact value of the policy.
        estimates: one evaluation by each method, from the same number of episodes.
        squared_errors: (repetitions, batches) of each method after each batch, from repeated evaluations.
    """

    truth: float
    estimates: dict[str, Estimate]
    squared_errors: dict[str, NumpyArray]

    def mean_squared_errors(self) -> dict[str, float]:
        """The mean squared error of each method after all episodes."""
        return {name: float(errors[:, -1].mean()) for name, errors in self.squared_errors.items()}


def run_demo(episodes: int = 10_000, repetitions: int = 100, seed: int = 0) -> Demo:
    """Evaluate the paper's π_1 on the 4x4 gridworld once with each method, then many times for the squared errors."""
    env, policy = gridworld(), shipped_policy("gridworld-early")
    truth = oracle.value(env, policy)
    estimates = {
        name: Study(policy, search, seed=seed).run(env, episodes=episodes) for name, search in SEARCHES.items()
    }
    errors = {
        name: _squared_errors(search, env, policy, truth, episodes, repetitions, seed)
        for name, search in SEARCHES.items()
    }
    return Demo(truth, estimates, errors)


def _squared_errors(
    search: AnySearch, env: TabularMDP, policy: SoftmaxTable, truth: float, episodes: int, repetitions: int, seed: int
) -> NumpyArray:
    trials = Trials(search, iterations=-(-episodes // BATCH), batch_size=BATCH, seed=seed + 1)
    _, means = trials.run(env, policy, repetitions)
    running = np.cumsum(means, axis=1) / np.arange(1, means.shape[1] + 1)
    return (running - truth) ** 2


def draw_demo(demo: Demo, directory: Path) -> Path:
    """The running estimates of one evaluation, and the mean squared errors of many."""
    with figure(1, 2, width=9.0, height=3.6) as (drawing, axes):
        left, right = axes[0]
        for name, estimate in demo.estimates.items():
            color, history = _COLORS[name], estimate.history
            left.plot(history.episodes, history.values, color=color, label=name, linewidth=1.4)
            half = 1.96 * history.std_errors
            band(left, history.episodes, history.values - half, history.values + half, color)
            errors = demo.squared_errors[name]
            mse_curve(right, BATCH * np.arange(1, errors.shape[1] + 1), errors, label=name, color=color)
        left.axhline(demo.truth, color="black", linewidth=1.0, linestyle="--", label="exact value")
        spread = 6.0 * next(iter(demo.estimates.values())).history.std_errors[-1]
        left.set_ylim(demo.truth - spread, demo.truth + spread)
        left.set(xlabel="episodes", ylabel="estimated value", title="One evaluation, 95% intervals")
        repetitions = len(next(iter(demo.squared_errors.values())))
        right.set(xlabel="episodes", ylabel="mean squared error", title=f"{repetitions} evaluations, 95% bands")
        left.legend()
        right.legend()
        return save(drawing, directory, "demo")[0]
