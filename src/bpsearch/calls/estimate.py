"""estimate(): what do episodes that are there already say?"""

import dataclasses
from typing import Any

import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch.calls.task import name_of
from bpsearch.errors import InvalidArgumentError, PoorOverlapError
from bpsearch.estimands import Estimand, Return
from bpsearch.estimators import (
    Estimator,
    importance_sampling,
    monte_carlo,
    per_decision,
    weighted_importance_sampling,
)
from bpsearch.estimators.base import ON_POLICY_TOLERANCE, log_ratios
from bpsearch.inference.estimate import Estimate
from bpsearch.inference.looks import Looks
from bpsearch.inference.stopping import Ended
from bpsearch.inference.valuation import Valuation
from bpsearch.methods import Method, find_method
from bpsearch.policies.base import Policy
from bpsearch.policies.resolve import PolicySource, load
from bpsearch.runners.in_process import Environment
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search import OnPolicy
from bpsearch.study.acceptance import check_fit
from bpsearch.study.conclusion import conclude
from bpsearch.study.progress import Progress

ESTIMATORS = {
    "mc": monte_carlo,
    "is": importance_sampling,
    "pdis": per_decision,
    "wis": weighted_importance_sampling,
}
FEWEST = 10.0  # equally weighted episodes: with fewer, a mean of weighted ones says nothing
PARTS = 10  # of the episodes, where a model learns from those before


def estimate(
    policy: PolicySource,
    trajectories: Trajectories,
    estimator: str | Estimator | Valuation = "auto",
    *,
    env: Environment | None = None,
    behavior: Policy | None = None,
    estimand: Estimand | None = None,
    insist: bool = False,
) -> Estimate:
    """Estimate the expected return of `policy` from episodes that another, or the same, has collected before.

    Each episode counts by the importance weight Π_t π_e(A_t|S_t) / π_b(A_t|S_t). The result is unbiased if the
    recorded probabilities are those by which the actions were drawn, the episodes are independent, none was left out
    for what happened in it, and π_b gives every action of π_e a positive probability: none of these can be seen in the
    episodes.

    Args:
        policy: the evaluation policy, as for `evaluate`.
        trajectories: the episodes, `load_minari(...)` or `Trajectories.load(...)` for instance.
        estimator: "auto" (per-decision importance sampling, or all of `evaluate`'s "auto" if the episodes are the
            policy's own), "mc", "is", "pdis", "wis"; an `Estimator`; or a `Valuation`, with a model for
            `doubly_robust`. A model learns from earlier tenths of the episodes only.
        env: where the policy would run; needed to load a file, a module or a function.
        behavior: who collected the episodes, if the recorded log-probabilities are not to be used: they are then
            computed again.
        estimand: what is estimated; the return without discount by default.
        insist: whether to give a number even if the episodes hardly overlap with the policy.

    Raises:
        PoorOverlapError: the weights are worth fewer than 10 equally weighted episodes.
    """
    loaded, trajectories, ratios = weigh(policy, trajectories, env, behavior)
    method = _method(estimator, on_policy=is_own(ratios))
    check_overlap(ratios.sum(axis=1), insist)
    asked = Return(1.0) if estimand is None else estimand
    progress = Progress(loaded, method, asked, None)
    state: Any = progress.states.valuation
    valuation = method.valuation
    parts = PARTS if valuation.model is not None and len(trajectories) >= 2 * PARTS else 1
    for number, rows in enumerate(np.array_split(np.arange(len(trajectories)), parts)):
        batch = asked.pay(trajectories.take(rows))
        progress.batches[number] = valuation.value(state, batch)
        state = valuation.learn(state, batch)
    looks = Looks(valuation, progress.first.valuation)
    known = getattr(asked, "return_range", None)
    found = conclude(progress, looks, len(trajectories), return_range=known, ended=Ended.BUDGET)
    settings = {"policy": name_of(policy), "episodes": len(trajectories), "method": method.name}
    return dataclasses.replace(found, settings=settings, deterministic=loaded.deterministic, notes=loaded.mode_notes)


def weigh(
    policy: PolicySource, trajectories: Trajectories, env: Environment | None, behavior: Policy | None
) -> tuple[Policy, Trajectories, NumpyArray]:
    """The policy, the episodes with the log-probabilities that count, and (n, L), the log-ratios of their steps."""
    if isinstance(policy, Policy):
        loaded = policy
    elif env is None:
        raise InvalidArgumentError(f"env is needed to load the policy {policy!r}: a file does not know its spaces")
    else:
        loaded = load(policy, env)
    if loaded.opaque:
        raise InvalidArgumentError(
            f"{loaded.name} gives no probabilities, so episodes cannot be weighted for it; run it with bps.evaluate"
        )
    check_fit(loaded, trajectories)
    if behavior is not None:
        log_probs = np.where(trajectories.mask, behavior.log_prob(trajectories.observations, trajectories.actions), 0.0)
        trajectories = dataclasses.replace(trajectories, log_probs=log_probs)
    return loaded, trajectories, np.asarray(log_ratios(loaded, trajectories))


def is_own(ratios: NumpyArray) -> bool:
    """Whether episodes are the policy's own, up to rounding."""
    return bool(np.abs(ratios).max() <= ON_POLICY_TOLERANCE)


def _method(estimator: str | Estimator | Valuation, *, on_policy: bool) -> Method:
    if isinstance(estimator, Valuation):
        return Method(OnPolicy(), estimator, name=estimator.estimator.name)
    if isinstance(estimator, Estimator):
        return Method(OnPolicy(), Valuation(estimator), name=estimator.name)
    if estimator == "auto":
        return find_method("auto") if on_policy else Method(OnPolicy(), Valuation(per_decision), name="pdis")
    if estimator in ESTIMATORS:
        return Method(OnPolicy(), Valuation(ESTIMATORS[estimator]), name=estimator)
    names = ", ".join(("auto", *ESTIMATORS))
    raise InvalidArgumentError(f"estimator must be one of {names}, an Estimator or a Valuation, got {estimator!r}")


def check_overlap(log_weights: NumpyArray, insist: bool) -> None:
    """Refuse episodes that say next to nothing of the policy, unless somebody insists.

    Raises:
        PoorOverlapError: the weights are worth fewer than 10 equally weighted episodes.
    """
    possible = log_weights[np.isfinite(log_weights)]
    if len(possible) == 0:
        raise PoorOverlapError(
            "none of the episodes could have been the policy's: it never takes some of their actions"
        )
    weights = np.exp(possible - possible.max())
    effective = float(weights.sum() ** 2 / np.sum(weights**2))
    if effective < min(FEWEST, 0.5 * len(log_weights)) and not insist:
        share = float(weights.max() / weights.sum())
        raise PoorOverlapError(
            f"{len(log_weights)} episodes overlap too little with the policy: their importance weights are worth "
            f"{effective:.1f} equally weighted episodes, and one has {share:.0%} of all weight; the log of the weights "
            f"spreads by {float(np.std(possible)):.1f}. Collect episodes of a policy that is closer (bps.evaluate), or "
            f"say insist=True"
        )
