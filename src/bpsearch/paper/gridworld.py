"""Figure 1: behavior policy gradient against Monte Carlo on the 4x4 gridworld."""

from pathlib import Path
from typing import Any, Literal

import numpy as np

from bpsearch import oracle
from bpsearch._core.arrays import Array, NumpyArray
from bpsearch.envs import gridworld
from bpsearch.estimators import importance_sampling, log_ratios
from bpsearch.paper.claims import (
    Claim,
    condition_claim,
    mean_interval,
    number_claim,
    reduction,
    reduction_interval,
    significance_claim,
)
from bpsearch.paper.curves import checkpoints, exact_variances, martingale_squared_errors, running_squared_errors
from bpsearch.paper.findings import Experiment, Findings, Results, Table, mse_table
from bpsearch.paper.on_policy import OnPolicyCurve
from bpsearch.paper.runs import Arrays, Run, means_only, record_means_and_parameters
from bpsearch.paper.trials import Trials
from bpsearch.policies import SoftmaxTable, shipped_policy
from bpsearch.report.plots import COLORS, figure, mse_curve, save
from bpsearch.sampling import sample
from bpsearch.search import BPG

ITERATIONS, BATCH = 1000, 100
POLICIES: dict[str, Literal["gridworld-early", "gridworld-converged"]] = {
    "pi_1": "gridworld-early",
    "pi_2": "gridworld-converged",
}
LABELS = {"pi_1": r"$\pi_1$", "pi_2": r"$\pi_2$"}
SYMBOLS = {"pi_1": "π_1", "pi_2": "π_2"}
STEP_SIZES = {"pi_1": 1e-5, "pi_2": 1e-4}
SWEEP = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
SWEEP_ITERATIONS, SWEEP_TRIALS = 250, 5
VARIANCE_TRIALS = 10  # trials whose exact variance is computed at each checkpoint
FINAL_EPISODES = 100
PAPER_REDUCTION = {"pi_1": 0.8548, "pi_2": 0.3102}


def keep_checkpoints(states: Any, records: Any) -> Arrays:
    """The means of all batches, θ at a few iterations spread evenly on a log axis, and the final θ."""
    means, parameters = records
    return {"means": means, "thetas": parameters[:, checkpoints(means.shape[1])], "final": states.parameters}


class Gridworld(Experiment):
    """The experiment: MSE curves, returns, exact variance per iteration, step sizes, the final behaviors."""

    name = "gridworld"
    title = "Figure 1: 4x4 gridworld"

    def __init__(self, trials: int = 100, seed: int = 0) -> None:
        self.trials, self.seed = trials, seed
        self.env = gridworld()
        self.policies: dict[str, SoftmaxTable] = {name: shipped_policy(file) for name, file in POLICIES.items()}

    def runs(self) -> list[Run]:
        """BPG and Monte Carlo for both policies, and the sweep over step sizes for π_1."""
        runs = []
        for number, (name, policy) in enumerate(self.policies.items()):
            search = BPG(STEP_SIZES[name])
            # Other seeds for other methods: their errors are independent.
            bpg = Trials(search, ITERATIONS, BATCH, 4 * self.seed + 2 * number, record_means_and_parameters)
            mc = Trials(OnPolicyCurve(), ITERATIONS, BATCH, 4 * self.seed + 2 * number + 1)
            runs.append(Run(f"{name}-bpg", bpg, self.env, policy, self.trials, keep_checkpoints))
            runs.append(Run(f"{name}-mc", mc, self.env, policy, self.trials, means_only))
        for step_size in SWEEP:
            sweep = Trials(BPG(step_size), SWEEP_ITERATIONS, BATCH, self.seed, record_means_and_parameters)
            count = min(SWEEP_TRIALS, self.trials)
            runs.append(Run(f"sweep-{step_size:g}", sweep, self.env, self.policies["pi_1"], count, keep_checkpoints))
        return runs

    def analyse(self, results: Results, out: Path) -> Findings:
        """Figures, tables and claims from the arrays of all runs."""
        truths = {name: oracle.value(self.env, policy) for name, policy in self.policies.items()}
        errors = {
            f"{name}-{method}": running_squared_errors(results[f"{name}-{method}"]["means"], truths[name])
            for name in self.policies
            for method in ("bpg", "mc")
        }
        variances = {
            name: self._variances(policy, results[f"{name}-bpg"]["thetas"]) for name, policy in self.policies.items()
        }
        sweep = {
            step_size: self._variances(self.policies["pi_1"], results[f"sweep-{step_size:g}"]["thetas"])
            for step_size in SWEEP
        }
        returns = {
            name: np.asarray(sample(self.env, policy, 10_000, seed=self.seed).returns())
            for name, policy in self.policies.items()
        }
        monte_carlo = {name: oracle.variance(self.env, policy, None, "mc") for name, policy in self.policies.items()}
        optima = {name: oracle.optimum(self.env, policy)[1] for name, policy in self.policies.items()}
        claims = []
        for name in self.policies:
            final = results[f"{name}-bpg"]["final"]
            claims += self._mse_claims(name, errors, results, truths[name])
            claims += self._final_claims(name, final, monte_carlo[name], optima[name])
        claims += self._comparisons(returns, variances, monte_carlo, sweep)
        tables = self._tables(errors, variances, sweep, monte_carlo, optima)
        return Findings(self._draw(errors, variances, sweep, returns, monte_carlo, optima, out), tables, claims)

    def _variances(self, policy: SoftmaxTable, thetas: NumpyArray) -> NumpyArray:
        """(trials, checkpoints), exact variance of IS; infinite where the search has diverged."""
        thetas = thetas[:VARIANCE_TRIALS]
        finite = np.isfinite(thetas).all(axis=-1)
        variances = np.full(finite.shape, np.inf)
        variances[finite] = exact_variances(self.env, policy, thetas[finite])
        return variances

    def _mse_claims(self, name: str, errors: Arrays, results: Results, truth: float) -> list[Claim]:
        """BPG against Monte Carlo: by the final estimates, as in the paper, and by the errors of all batches."""
        bpg, mc = errors[f"{name}-bpg"][:, -1], errors[f"{name}-mc"][:, -1]
        by_batch = [martingale_squared_errors(results[f"{name}-{m}"]["means"], truth) for m in ("bpg", "mc")]
        measured = f"reduction of the MSE after {ITERATIONS} iterations"
        text = f"BPG lowers the MSE more than Monte Carlo for {SYMBOLS[name]} (p < 0.05)"
        return [
            significance_claim(f"{name}-mse", text, bpg, mc, measured=f"{measured}, final estimates"),
            significance_claim(f"{name}-mse-by-batch", text, *by_batch, measured=f"{measured}, errors of all batches"),
        ]

    def _final_claims(self, name: str, final: NumpyArray, monte_carlo: float, optimum: float) -> list[Claim]:
        """The final behaviors: with 100 fresh episodes, and exactly."""
        policy, symbol = self.policies[name], SYMBOLS[name]
        fresh, baseline = self._final_errors(name, final)
        exact = exact_variances(self.env, policy, final)
        share = (monte_carlo - exact) / (monte_carlo - optimum)
        estimate, error = self._variance_check(policy, policy.with_flat(final[0]))
        return [
            number_claim(
                f"{name}-final",
                f"with the final behavior and 100 more episodes the MSE for {symbol} is "
                f"{100 * PAPER_REDUCTION[name]:.2f}% lower",
                measured="reduction of the MSE with 100 episodes of the final behaviors",
                ours=reduction(fresh, baseline),
                interval=reduction_interval(fresh, baseline),
                paper=PAPER_REDUCTION[name],
                optimum=1.0 - optimum / monte_carlo,
            ),
            condition_claim(
                f"{name}-achieved",
                f"BPG converges to a behavior policy that locally minimizes the variance, {symbol}",
                measured="share of the achievable variance reduction that the final behavior has, exact",
                ours=float(share.mean()),
                interval=mean_interval(share),
                holds=bool(share.mean() >= 0.75),
                rule="the final behaviors have at least 75% of the exact optimum's variance reduction on average",
                optimum=1.0,
            ),
            condition_claim(
                f"{name}-variance-estimate",
                f"the variance of IS is estimated from 10,000 trajectories, {symbol}",
                measured="such an estimate divided by the exact variance, first trial's final behavior",
                ours=estimate / exact[0],
                interval=((estimate - 2.78 * error) / exact[0], (estimate + 2.78 * error) / exact[0]),
                holds=abs(estimate - exact[0]) < 8.61 * error,
                rule="the mean of 5 such estimates agrees with the exact variance (t test with 4 degrees, p > 0.001)",
            ),
        ]

    def _final_errors(self, name: str, final: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        """Squared errors with 100 fresh episodes per trial: of each trial's final behavior, and of Monte Carlo."""
        policy, truth = self.policies[name], oracle.value(self.env, self.policies[name])

        def error(theta: Array, batch: int) -> float:
            values = self._values(policy, policy.with_flat(theta), FINAL_EPISODES, 1000 + self.seed, batch)
            return float(np.mean(values) - truth) ** 2

        fresh = [error(theta, 2 * i) for i, theta in enumerate(final)]
        baseline = [error(policy.flat, 2 * i + 1) for i in range(len(final))]
        return np.array(fresh), np.array(baseline)

    def _variance_check(self, policy: SoftmaxTable, behavior: SoftmaxTable) -> tuple[float, float]:
        """The paper's estimate of the variance from 10,000 episodes, the mean of 5, and its standard error."""
        seed = 2000 + self.seed
        estimates = [np.var(self._values(policy, behavior, 10_000, seed, batch)) for batch in range(5)]
        return float(np.mean(estimates)), float(np.std(estimates, ddof=1) / np.sqrt(5))

    def _values(self, policy: SoftmaxTable, behavior: SoftmaxTable, count: int, seed: int, batch: int) -> NumpyArray:
        """(count,), importance sampling's values of new episodes of the behavior."""
        episodes = sample(self.env, behavior, count, seed=seed, batch=batch)
        ratios = log_ratios(policy, episodes)
        return np.asarray(importance_sampling(episodes.rewards, ratios, episodes.mask, self.env.discount))

    def _comparisons(
        self, returns: Arrays, variances: Arrays, monte_carlo: dict[str, float], sweep: dict[float, NumpyArray]
    ) -> list[Claim]:
        spread = float(np.abs(returns["pi_1"]).max() / np.abs(returns["pi_2"]).max())
        decrease = {name: monte_carlo[name] - variances[name][:, -1].mean() for name in variances}
        working = [s for s, v in sweep.items() if np.isfinite(v[:, -1]).all() and v[:, -1].mean() < monte_carlo["pi_1"]]
        diverged = [s for s, v in sweep.items() if s not in working]
        return [
            condition_claim(
                "returns-spread",
                "π_1 sometimes samples returns with twice the magnitude of any sampled by π_2",
                measured="largest |return| in 10,000 episodes of π_1, relative to π_2's",
                ours=spread,
                paper=2.0,
                holds=spread >= 2.0,
                rule="the ratio is at least 2",
            ),
            condition_claim(
                "variance-decrease",
                "a substantial decrease in variance for π_1 and a lesser decrease for π_2",
                measured="decrease of the exact variance for π_1, divided by that for π_2",
                ours=float(decrease["pi_1"] / decrease["pi_2"]),
                holds=bool(decrease["pi_1"] > decrease["pi_2"] > 0),
                rule="the variance falls for both, and by more for π_1",
            ),
            condition_claim(
                "step-sizes",
                "BPG in this domain was robust to a variety of step size values; it diverged for high settings",
                measured=f"step sizes of {', '.join(f'{s:g}' for s in SWEEP)} that end below Monte Carlo's variance",
                ours=float(len(working)),
                holds=len(working) >= 2 and bool(diverged) and max(diverged) > max(working),
                rule="at least two step sizes lower the variance in 250 iterations and a higher one fails",
            ),
        ]

    def _tables(
        self,
        errors: Arrays,
        variances: Arrays,
        sweep: dict[float, NumpyArray],
        monte_carlo: dict[str, float],
        optima: dict[str, float],
    ) -> list[Table]:
        points = checkpoints(ITERATIONS)
        exact = {"iteration": points + 1}
        for name, values in variances.items():
            exact[f"{name}-variance"] = values.mean(axis=0)
            exact[f"{name}-monte-carlo"] = np.full(len(points), monte_carlo[name])
            exact[f"{name}-optimum"] = np.full(len(points), optima[name])
        steps = {"iteration": checkpoints(SWEEP_ITERATIONS) + 1}
        steps |= {f"variance-{step_size:g}": values.mean(axis=0) for step_size, values in sweep.items()}
        return [mse_table(errors, BATCH), Table("variance", exact), Table("step-sizes", steps)]

    def _draw(
        self,
        errors: Arrays,
        variances: Arrays,
        sweep: dict[float, NumpyArray],
        returns: Arrays,
        monte_carlo: dict[str, float],
        optima: dict[str, float],
        out: Path,
    ) -> list[Path]:
        points = checkpoints(ITERATIONS)
        colors = {"pi_1": COLORS["blue"], "pi_2": COLORS["green"]}
        with figure(3, 2, width=8.0, height=9.0) as (drawing, axes):
            for column, name in enumerate(self.policies):
                for method, label, color in (("mc", "Monte Carlo", "vermilion"), ("bpg", "BPG", "blue")):
                    squared = errors[f"{name}-{method}"][:, points]
                    mse_curve(axes[0, column], BATCH * (points + 1), squared, label=label, color=COLORS[color])
                axes[0, column].set(
                    title=f"Mean squared error, {LABELS[name]}", xlabel="episodes", ylabel="mean squared error"
                )
                axes[0, column].legend()
                axes[1, column].hist(returns[name], bins=60, color=colors[name])
                axes[1, column].set(
                    title=f"Returns of 10,000 episodes, {LABELS[name]}", xlabel="return g(H)", ylabel="episodes"
                )
            low = min(r.min() for r in returns.values())
            high = max(r.max() for r in returns.values())
            for column in range(2):
                axes[1, column].set_xlim(low - 0.03 * (high - low), high + 0.03 * (high - low))
                axes[1, column].set_yscale("log")
            for name, values in variances.items():
                axes[2, 0].plot(points + 1, values.mean(axis=0), color=colors[name], label=f"BPG, {LABELS[name]}")
                axes[2, 0].axhline(
                    monte_carlo[name], color=colors[name], linestyle=":", label=f"Monte Carlo, {LABELS[name]}"
                )
                axes[2, 0].axhline(
                    optima[name], color=colors[name], linestyle="--", label=f"exact optimum, {LABELS[name]}"
                )
            axes[2, 0].set(
                title="Exact variance of IS", xlabel="iteration", ylabel="variance", xscale="log", yscale="log"
            )
            axes[2, 0].set_ylim(bottom=min(optima.values()) / 8)
            axes[2, 0].legend(fontsize=7, ncols=2, loc="lower left")
            self._draw_sweep(axes[2, 1], sweep, monte_carlo["pi_1"], optima["pi_1"])
            return save(drawing, out, "figure-1-gridworld")

    def _draw_sweep(self, axes: Any, sweep: dict[float, NumpyArray], monte_carlo: float, optimum: float) -> None:
        iterations = checkpoints(SWEEP_ITERATIONS) + 1
        top = 30 * monte_carlo
        palette = ("purple", "orange", "green", "blue", "sky")
        for number, ((step_size, values), color) in enumerate(zip(sweep.items(), palette, strict=True)):
            mean = np.where(np.isfinite(values).all(axis=0), values.mean(axis=0), np.inf)
            gone = np.flatnonzero(~(mean < top))
            if not len(gone):
                axes.plot(iterations, mean, color=COLORS[color], label=f"α = {step_size:g}")
                continue
            axes.plot(iterations[: gone[0]], mean[: gone[0]], color=COLORS[color])
            # Two steps may leave the figure at one point: of a cross upon a plus both are seen.
            marker = "Px"[number % 2]
            label = f"α = {step_size:g} (diverged)"
            style = {"linestyle": "none", "marker": marker, "markersize": 7, "clip_on": False}
            axes.plot(iterations[gone[0]], top, color=COLORS[color], label=label, **style)
        axes.axhline(monte_carlo, color="black", linestyle=":", label="Monte Carlo")
        axes.axhline(optimum, color="black", linestyle="--", label="exact optimum")
        axes.set(title=r"Step sizes, $\pi_1$", xlabel="iteration", ylabel="variance", xscale="log", yscale="log")
        axes.set_ylim(optimum / 3, top)
        axes.legend(fontsize=7, ncols=2, loc="upper right")
