"""Figure 3b: how the improvement depends on the probability of a rare, high-magnitude event."""

from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from bpsearch import oracle
from bpsearch._core.arrays import NumpyArray
from bpsearch.envs import rare_event_gridworld
from bpsearch.envs.gridworlds import UP
from bpsearch.paper.claims import Claim, condition_claim, mean_interval
from bpsearch.paper.curves import exact_variances
from bpsearch.paper.findings import Experiment, Findings, Results, Table
from bpsearch.paper.runs import Arrays, Run, record_means_and_parameters
from bpsearch.paper.trials import Trials
from bpsearch.policies import SoftmaxTable, shipped_policy
from bpsearch.report.plots import COLORS, figure, save
from bpsearch.search import BPG

PROBABILITIES = (0.005, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.99)
ITERATIONS, BATCH, STEP_SIZE = 500, 100, 1e-5


def keep_parameters(states: Any, records: Any) -> Arrays:
    """The final θ."""
    return {"final": states.parameters}


class RareEvent(Experiment):
    """The experiment: relative decrease of the exact variance after 500 iterations, for each p."""

    name = "rare-event"
    title = "Figure 3b: rare events"

    def __init__(self, trials: int = 100, seed: int = 0) -> None:
        self.trials, self.seed = trials, seed
        self.env = rare_event_gridworld()
        early: SoftmaxTable = shipped_policy("gridworld-early")
        self.policies = {p: early.with_probability(0, UP, p) for p in PROBABILITIES}

    def runs(self) -> list[Run]:
        """One run per probability."""
        return [
            Run(
                f"p-{p:g}",
                # Figure 1's record: with it both figures run the same compiled program.
                Trials(BPG(STEP_SIZE), ITERATIONS, BATCH, 100 * self.seed + number, record_means_and_parameters),
                self.env,
                policy,
                self.trials,
                keep_parameters,
            )
            for number, (p, policy) in enumerate(self.policies.items())
        ]

    def analyse(self, results: Results, out: Path) -> Findings:
        """Figure, table and claims."""
        initial = np.array([oracle.variance(self.env, policy, None, "mc") for policy in self.policies.values()])
        optima = np.array([oracle.optimum(self.env, policy)[1] for policy in self.policies.values()])
        decreases = np.array(
            [
                1.0 - exact_variances(self.env, policy, results[f"p-{p:g}"]["final"]) / before
                for (p, policy), before in zip(self.policies.items(), initial, strict=True)
            ]
        )
        best = 1.0 - optima / initial
        table = {
            "p": np.array(PROBABILITIES),
            "initial-variance": initial,
            "relative-decrease": decreases.mean(axis=1),
            "std-error": decreases.std(axis=1, ddof=1) / np.sqrt(decreases.shape[1]),
            "optimum": best,
        }
        return Findings(
            self._draw(decreases, best, out),
            [Table("relative-decrease", table)],
            self._claims(decreases, best, initial),
        )

    def _claims(self, decreases: NumpyArray, best: NumpyArray, initial: NumpyArray) -> list[Claim]:
        means = decreases.mean(axis=1)
        rank = float(stats.spearmanr(PROBABILITIES, means).statistic)
        absolute = means * initial
        return [
            condition_claim(
                "falls-with-p",
                "as p grows, the relative decrease in variance becomes smaller",
                measured="rank correlation (Spearman) between p and the mean relative decrease",
                ours=rank,
                holds=rank < 0.0 and means[0] > means[-1],
                rule="the rank correlation is negative and the rarest event has a larger decrease than the most common",
            ),
            condition_claim(
                "rarest",
                "when π_e rarely takes the high rewarding action, BPG improves policy evaluation by increasing its "
                "probability",
                measured=f"relative decrease at p = {PROBABILITIES[0]:g}",
                ours=float(means[0]),
                interval=mean_interval(decreases[0]),
                holds=mean_interval(decreases[0])[0] > 0.0,
                rule="the 95% interval of the decrease lies above 0",
                optimum=float(best[0]),
            ),
            condition_claim(
                "common",
                "as p becomes closer to 1, in terms of absolute variance there is no improvement",
                measured=f"absolute decrease at p = {PROBABILITIES[-1]:g}, relative to the largest over all p",
                ours=float(absolute[-1] / absolute.max()),
                holds=bool(absolute[-1] < 0.05 * absolute.max()),
                rule="it is below 5% of the largest",
            ),
        ]

    def _draw(self, decreases: NumpyArray, best: NumpyArray, out: Path) -> list[Path]:
        mean = decreases.mean(axis=1)
        half = mean - np.array([mean_interval(row)[0] for row in decreases])
        with figure(1, 1, width=5.2, height=3.8) as (drawing, axes):
            panel = axes[0, 0]
            panel.errorbar(
                PROBABILITIES, mean, yerr=half, color=COLORS["blue"], marker="o", markersize=4, capsize=3, label="BPG"
            )
            panel.plot(PROBABILITIES, best, color="black", linestyle="--", label="exact optimum")
            panel.axhline(0.0, color="black", linewidth=0.8)
            panel.set(
                xlabel="probability p of the rare action",
                ylabel=r"relative decrease $(v_i - v_f) / v_i$",
                title=f"Variance after {ITERATIONS} iterations, 95% intervals",
            )
            panel.set_ylim(top=1.05)
            panel.legend()
            return save(drawing, out, "figure-3b-rare-event")
