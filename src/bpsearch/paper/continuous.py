"""Figure 2: behavior policy gradient against Monte Carlo on cart-pole swing-up and acrobot."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jax.numpy as jnp
import numpy as np

from bpsearch._core.arrays import Array
from bpsearch.envs import CompiledEnv, acrobot, cartpole_swingup
from bpsearch.estimators import Estimator, importance_sampling, per_decision
from bpsearch.inference.variance_split import VarianceSplit, split_variance
from bpsearch.paper import start_curve
from bpsearch.paper.claims import Claim, Verdict, condition_claim, significance_claim
from bpsearch.paper.continuous_figure import Curve, Panel, draw, mse_table
from bpsearch.paper.findings import Experiment, Findings, Results, Table
from bpsearch.paper.on_policy import OnPolicyCurve
from bpsearch.paper.runs import Arrays, Run
from bpsearch.paper.starts import returns_by_start
from bpsearch.paper.step_choice import Reference, choose_step, find_diverged
from bpsearch.paper.trials import AnySearch, Trials
from bpsearch.policies import GaussianMLP, shipped_policy
from bpsearch.policies.mlp import Adapt
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search import BPG, Info, normalized

TRUTH_ITERATIONS = 50  # batches per trial of the roll-outs that give the truth: 25,000 episodes
TRUTH_TRIALS = 40  # 1,000,000 episodes; with few trials of the figure, four of these for each
SPLIT_REPEATS = 50


@dataclass(frozen=True)
class Domain:
    """An environment with its shipped policy, and the step sizes among which a sweep chooses.

    The paper swept 1e-2 to 1e-6. The gradient of E[X²] has the unit of squared returns: with ours, 4e4 and 1.5e4 on
    average, even 1e-6 leaves π_e at once, and steps that serve are smaller. It stands in the sweep to show that.
    """

    name: str
    title: str
    make: Callable[[], CompiledEnv]
    constant_steps: tuple[float, ...]
    normalized_steps: tuple[float, ...]


DOMAINS = (
    Domain(
        "cartpole-swingup",
        "Cart-pole swing-up",
        cartpole_swingup,
        (1e-6, 1e-7, 3e-8, 1e-8, 3e-9, 1e-9),
        (1e-2, 3e-3, 1e-3, 3e-4, 1e-4),
    ),
    Domain(
        "acrobot",
        "Acrobot",
        acrobot,
        (1e-6, 3e-8, 1e-8, 3e-9, 1e-9, 3e-10, 1e-10),
        (1e-4, 3e-5, 1e-5, 3e-6, 1e-6),
    ),
)


@dataclass(frozen=True)
class Variant:
    """A form of BPG: one curve in each panel."""

    label: str
    estimator: Estimator = importance_sampling
    normalized: bool = False
    adapt: Adapt = "all"

    def search(self, step: float) -> BPG:
        """The search with this step size; values that carry no single weight are centered, see `BPG.center`."""
        step_size = normalized(step) if self.normalized else step
        return BPG(step_size, self.estimator, center=self.estimator is per_decision)


VARIANTS = {
    "bpg": Variant("BPG, constant step"),
    "normalized": Variant("BPG, normalized step", normalized=True),
    "per-decision": Variant("BPG, per-decision IS", per_decision),
    "last-layer": Variant("BPG, last layer only", adapt="last"),
}


def record_moments(search: AnySearch, state: Any, info: Info, batch: Trajectories) -> tuple[Array, Array]:
    """The mean and the variance of the batch's values."""
    return jnp.mean(info.values), jnp.var(info.values)


def keep_moments(states: Any, records: Any) -> Arrays:
    """Both, of all batches."""
    return {"means": records[0], "variances": records[1]}


class Continuous(Experiment):
    """The figure proper: Monte Carlo and BPG with a constant step, as in the paper, on both domains.

    All runs of a domain share the compiled program of their method: the truth is many batches of Monte Carlo, and a
    sweep differs from a curve in numbers only.
    """

    name = "continuous"
    title = "Figure 2: continuous control"
    figure_name = "figure-2-continuous"
    variants: tuple[str, ...] = ("bpg",)

    def __init__(
        self,
        trials: int = 100,
        seed: int = 0,
        *,
        iterations: int = 200,
        batch_size: int = 500,
        sweep_iterations: int = 50,
        sweep_trials: int = 4,
        split_starts: int = 2000,
        domains: tuple[Domain, ...] = DOMAINS,
    ) -> None:
        self.trials, self.seed, self.iterations, self.batch_size = trials, seed, iterations, batch_size
        self.sweep_iterations, self.sweep_trials = sweep_iterations, min(sweep_trials, trials)
        self.split_starts = split_starts
        self.domains = {domain.name: domain for domain in domains}
        self.envs = {domain.name: domain.make() for domain in domains}
        self.policies: dict[str, GaussianMLP] = {
            domain.name: cast(GaussianMLP, shipped_policy(domain.name)) for domain in domains
        }

    def runs(self) -> list[Run]:
        """The truth, Monte Carlo, and for each form of BPG a sweep over step sizes."""
        runs = []
        for domain in self.domains:
            truth = min(TRUTH_TRIALS, max(TRUTH_TRIALS // 4, 4 * self.trials))
            runs.append(self._run(domain, "truth", OnPolicyCurve(), TRUTH_ITERATIONS, truth))
            runs.append(self._run(domain, "mc", OnPolicyCurve(), self.iterations, self.trials))
            for variant in self.variants:
                for step in self._steps(domain, variant):
                    search = VARIANTS[variant].search(step)
                    name = f"{variant}-sweep-{step:g}"
                    runs.append(self._run(domain, name, search, self.sweep_iterations, self.sweep_trials, variant))
        return runs

    def next_runs(self, results: Results) -> list[Run]:
        """Each form of BPG with the step size that its sweep has chosen."""
        runs = []
        for domain in self.domains:
            for variant, step in self._chosen(domain, results).items():
                search = VARIANTS[variant].search(step)
                runs.append(self._run(domain, variant, search, self.iterations, self.trials, variant))
        return runs

    def cost(self) -> float:
        """Of both stages: the second has as many runs as there are curves."""
        horizons = sum(env.horizon for env in self.envs.values())
        steps = float(horizons * self.trials * self.iterations * self.batch_size)
        return super().cost() + len(self.variants) * steps

    def analyse(self, results: Results, out: Path) -> Findings:
        """Figure, tables and claims."""
        panels = {domain: self._panel(domain, results, out / "trials") for domain in self.domains}
        figures = draw(list(panels.values()), out, self.figure_name)
        tables = [mse_table(panels), self._sweep_table(results), self._truth_table(panels)]
        return Findings(figures, tables, self._claims(panels))

    def _run(
        self, domain: str, name: str, search: AnySearch, iterations: int, count: int, variant: str | None = None
    ) -> Run:
        # Methods have seeds of their own, so that their errors are independent; steps of a sweep share theirs, so that
        # they are compared on the same episodes.
        methods = ("truth", "mc", *VARIANTS)
        is_sweep = variant is not None and name != variant
        number = len(methods) if is_sweep else methods.index(name)
        seed = 100 * self.seed + 10 * list(self.domains).index(domain) + number
        policy = self.policies[domain]
        if variant is not None:
            policy = policy.adapting(VARIANTS[variant].adapt)
        # Few trials at a time on each device: more would push a network's activations out of the cache.
        trials = Trials(search, iterations, self.batch_size, seed, record_moments, group=2)
        return Run(f"{domain}-{name}", trials, self.envs[domain], policy, count, keep_moments, Continuous.name)

    def _steps(self, domain: str, variant: str) -> tuple[float, ...]:
        settings = self.domains[domain]
        return settings.normalized_steps if VARIANTS[variant].normalized else settings.constant_steps

    def _sweep(self, domain: str, variant: str, results: Results) -> dict[float, Arrays]:
        return {step: results[f"{domain}-{variant}-sweep-{step:g}"] for step in self._steps(domain, variant)}

    def _chosen(self, domain: str, results: Results) -> dict[str, float]:
        reference = Reference.of(results[f"{domain}-truth"], self.batch_size)
        return {
            variant: choose_step(self._sweep(domain, variant, results), reference, self.batch_size)
            for variant in self.variants
        }

    def _panel(self, domain: str, results: Results, kept: Path) -> Panel:
        reference = Reference.of(results[f"{domain}-truth"], self.batch_size)
        curves = {"mc": Curve.of("Monte Carlo", results[f"{domain}-mc"], reference, self.batch_size)}
        for variant, step in self._chosen(domain, results).items():
            label = f"{VARIANTS[variant].label} {step:g}"
            curves[variant] = Curve.of(label, results[f"{domain}-{variant}"], reference, self.batch_size, step)
        trials = min(self.trials, start_curve.TRIALS)
        ours = start_curve.start_curve(
            self.envs[domain],
            self.policies[domain],
            trials,
            self.iterations,
            self.batch_size,
            2000 + self.seed,
            kept / Continuous.name / f"{domain}-starts",
        )
        curves["starts"] = Curve.of("Monte Carlo less what starts explain (ours)", ours, reference, self.batch_size)
        returns = returns_by_start(
            self.envs[domain], self.policies[domain], self.split_starts, SPLIT_REPEATS, 1000 + self.seed
        )
        return Panel(self.domains[domain].title, self.batch_size, reference, split_variance(returns), curves)

    def _claims(self, panels: dict[str, Panel]) -> list[Claim]:
        claims = []
        for domain, panel in panels.items():
            claims += [_mse_claim(domain, panel, "bpg", by_batch=by_batch) for by_batch in (False, True)]
            claims.append(_bound_claim(domain, panel))
        if len(panels) == 2:
            claims.append(_gap_claim(*panels.values()))
        return claims

    def _sweep_table(self, results: Results) -> Table:
        rows = []
        for domain in self.domains:
            reference = Reference.of(results[f"{domain}-truth"], self.batch_size)
            for variant, chosen in self._chosen(domain, results).items():
                for step, arrays in self._sweep(domain, variant, results).items():
                    gone = find_diverged(arrays, reference, self.batch_size)
                    final = arrays["variances"][~gone, -20:].mean() / reference.variance if not gone.all() else np.inf
                    rows.append((domain, variant, step, int(gone.sum()), len(gone), final, step == chosen))
        names = ("domain", "method", "step", "diverged", "trials", "final-variance-ratio", "chosen")
        return Table(
            "steps", {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
        )

    def _truth_table(self, panels: dict[str, Panel]) -> Table:
        references = [panel.reference for panel in panels.values()]
        splits: list[VarianceSplit] = [panel.split for panel in panels.values()]
        columns = {
            "domain": list(panels),
            "value": [r.value for r in references],
            "std-error": [r.std_error for r in references],
            "episodes": [r.episodes for r in references],
            "variance": [r.variance for r in references],
            "start-state-variance": [s.start for s in splits],
            "action-noise-variance": [s.action for s in splits],
            "action-noise-share": [s.share for s in splits],
            "action-noise-share-std-error": [s.std_errors[2] for s in splits],
        }
        return Table("truth", {name: np.array(column) for name, column in columns.items()})


class ContinuousExtras(Continuous):
    """Our additions to the figure: the normalized step, per-decision IS, and a search over the last layer only.

    Truth, Monte Carlo and BPG with a constant step are those of the figure proper: what it has run is not run again.
    """

    name = "continuous-extras"
    title = "Figure 2, our additions: normalized step, per-decision IS, last layer"
    figure_name = "figure-2-continuous-extras"
    variants = tuple(VARIANTS)

    def _claims(self, panels: dict[str, Panel]) -> list[Claim]:
        added = [variant for variant in self.variants if variant not in Continuous.variants]
        return [
            _mse_claim(domain, panel, variant, by_batch=True) for domain, panel in panels.items() for variant in added
        ]


def _mse_claim(domain: str, panel: Panel, variant: str, *, by_batch: bool) -> Claim:
    """BPG against Monte Carlo, by the squared errors of the final estimates or by those of all batches.

    The errors of batches are martingale differences, so Σ_i (X̄_i − ρ)² / n² has the final estimate's MSE as its mean
    too, with the noise of hundreds of batches averaged out, and hardly any share of the truth's own error.
    """
    curve, baseline = panel.curves[variant], panel.curves["mc"]
    how = "from the squared errors of all batches" if by_batch else "from those of the final estimates"
    name = f"{domain}-{'mse' if variant == 'bpg' else variant}{'-by-batch' if by_batch and variant == 'bpg' else ''}"
    lost = f"; {curve.diverged} of {curve.trials} trials diverged and are left out" if curve.diverged else ""
    text = (
        "BPG reduces the MSE faster than Monte Carlo"
        if variant == "bpg"
        else f"our addition: {VARIANTS[variant].label}"
    )
    text = f"{text} on {panel.title.lower()} (p < 0.05)"
    rule = "and no trial has diverged"
    if curve.trials - curve.diverged < 2:
        measured = f"no reduction: {curve.diverged} of {curve.trials} trials diverged"
        return condition_claim(name, text, measured=measured, ours=0.0, holds=False, rule=f"p < 0.05 {rule}")
    lower, higher = (c.final_errors(by_batch=by_batch) for c in (curve, baseline))
    claim = significance_claim(
        name,
        text,
        lower,
        higher,
        measured=f"reduction of the MSE after {curve.iterations} iterations, {how}; the truth's squared standard error "
        f"is {panel.reference.std_error**2 / float(higher.mean()):.2g} of Monte Carlo's MSE{lost}",
    )
    return dataclasses.replace(
        claim,
        optimum=panel.split.share,
        verdict=Verdict.NOT_REPRODUCED if curve.diverged else claim.verdict,
        rule=f"{claim.rule} {rule}",
    )


def _bound_claim(domain: str, panel: Panel) -> Claim:
    split, claim = panel.split, _mse_claim(domain, panel, "bpg", by_batch=True)
    lowest = claim.interval[0] if claim.interval else claim.ours
    error = 1.96 * split.std_errors[2]
    return condition_claim(
        f"{domain}-action-noise",
        "explanation: a behavior policy can remove only what action noise contributes to the variance of returns",
        measured=f"share of action noise in the returns' variance; the search has removed {100 * claim.ours:.1f}% of "
        f"the variance, {100 * claim.ours / split.share:.0f}% of this share",
        ours=split.share,
        interval=(split.share - error, split.share + error),
        holds=lowest <= split.share + error,
        rule="the reduction's interval does not lie above the share's",
    )


def _gap_claim(cartpole: Panel, acrobot: Panel) -> Claim:
    large, small = (_mse_claim("", panel, "bpg", by_batch=True) for panel in (cartpole, acrobot))
    highest = small.interval[1] if small.interval else small.ours
    return condition_claim(
        "acrobot-gap",
        "the gap between BPG and Monte Carlo is much smaller in acrobot than in cart-pole swing-up",
        measured=f"reduction of the MSE in cart-pole, {large.ours:.3f}, less that in acrobot, {small.ours:.3f}",
        ours=large.ours - small.ours,
        holds=highest < 0.5 * large.ours,
        rule="the interval of acrobot's reduction lies below half of cart-pole's reduction",
    )
