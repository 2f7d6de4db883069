"""evaluate(): the one call."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bpsearch.checks import check_integer
from bpsearch.envs.base import CompiledEnv
from bpsearch.envs.sources import GymnasiumSource
from bpsearch.envs.tabular import TabularMDP
from bpsearch.errors import InvalidArgumentError
from bpsearch.estimate import Estimate
from bpsearch.estimators import advantage_sum, doubly_robust, importance_sampling, per_decision
from bpsearch.models import TabularModel
from bpsearch.outcomes import Outcome
from bpsearch.policies.sources import PolicySource
from bpsearch.problem import Problem, name_of
from bpsearch.search import AdaptiveBPG, Auto, Info, OnPolicy, Search
from bpsearch.search.base import check_defensive
from bpsearch.study import Study
from bpsearch.trajectories import Array, Trajectories

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecNormalize

METHODS = ("auto", "mc", "bpg", "pdis-bpg", "as", "dr-bpg")
ON_POLICY = ("auto", "mc", "as")


def evaluate(
    policy: PolicySource,
    env: GymnasiumSource | CompiledEnv,
    episodes: int = 2000,
    method: str | None = None,
    batch_size: int = 100,
    horizon: int | None = None,
    discount: float | None = None,
    seed: int = 0,
    *,
    env_kwargs: dict[str, Any] | None = None,
    num_envs: int | None = None,
    vectorization: Literal["sync", "async"] | None = None,
    normalize: "VecNormalize | str | Path | None" = None,
    trust: bool = False,
    failure: str | Callable[[Trajectories], Array] | None = None,
    outcome: Callable[[Trajectories], Array] | None = None,
    return_range: tuple[float, float] | None = None,
    target_halfwidth: float | None = None,
    time_limit: float | None = None,
    defensive: float = 0.0,
    store: str | Path | None = None,
    on_batch: Callable[[Study, Info], None] | None = None,
) -> Estimate:
    """Estimate the expected return of `policy` in `env`.

    Args:
        policy: the evaluation policy: a policy of bpsearch, a Stable-Baselines3 model or the path of its .zip, a torch
            module that gives `torch.distributions`, an .npz of bpsearch, or a function from observation to action.
        env: a Gymnasium id, a factory, an environment or a vector environment; a `TabularMDP` or another compiled
            environment. The ids of bpsearch's own environments give the compiled ones.
        episodes: how many episodes may be run, those that serve the search included.
        method: "auto" episodes of the policy itself with all that can be learned from them, without any setting;
            "mc" Monte Carlo; "bpg" behavior policy search with importance sampling; "pdis-bpg" with per-decision
            importance sampling; on tabular MDPs also "as", the advantage sum, and "dr-bpg", both with a model learned
            from earlier batches only. All are unbiased. By default "auto"; "bpg" for failures and with `defensive`;
            "mc" for a policy without action noise or without known probabilities, and the estimate then says why.
        batch_size: episodes between two steps of the search.
        horizon: steps after which episodes end; the environment's own if None.
        discount: γ; if None a compiled environment's own, 1 for Gymnasium.
        seed: the same seed gives the same result.
        env_kwargs: what `gymnasium.make` is given besides an id.
        num_envs: Gymnasium: how many environments run in parallel; the result does not depend on it.
        vectorization: Gymnasium: "sync" (default) or "async", a process for each environment.
        normalize: the frozen statistics of SB3's `VecNormalize`, or the path of their pickle, which needs trust.
        trust: whether code in a policy's file may run. Say True only for files whose author you trust.
        failure: estimate the probability of this event in place of the expected return: a comparison of `return` or
            `length` with a number, "return < -100", or a function of a batch of episodes that gives a truth value for
            each.
        outcome: estimate the expectation of this function of a batch of episodes, a number for each, in place of the
            expected return.
        return_range: two numbers between which every return (or outcome) lies; the anytime-valid interval needs them.
            Known for tabular MDPs and for failures.
        target_halfwidth: stop when half the width of the 95% anytime-valid interval is at most this.
        time_limit: start no batch after this many seconds.
        defensive: the share of episodes that the policy itself runs while its behavior is searched: no importance
            weight then exceeds 1/defensive.
        store: the path of a file in which every batch is kept; the same call after a crash goes on from there, up to
            the same number of episodes, and gives the same result.
        on_batch: called after each batch, to show progress.

    An interrupt (Ctrl-C) after the first batch gives the estimate of all whole batches, marked as interrupted.
    """
    if method is not None and method not in METHODS:
        raise InvalidArgumentError(f"method must be one of {METHODS}, got {method!r}")
    check_integer("episodes", episodes)
    check_integer("batch_size", batch_size)
    problem = Problem.of(
        policy,
        env,
        horizon,
        discount,
        env_kwargs=env_kwargs,
        num_envs=num_envs,
        vectorization=vectorization,
        normalize=normalize,
        trust=trust,
    )
    env, discount, env_kwargs, no_help = problem.env, problem.discount, problem.env_kwargs, problem.no_help
    # Where episodes of the policy itself may never show what is asked for, another behavior has to look for it.
    searches = failure is not None or defensive > 0.0
    chosen = method or ("mc" if no_help else "bpg" if searches else "auto")
    measured = _outcome(failure, outcome, discount)
    known = return_range
    if known is None and measured is None and isinstance(env, CompiledEnv):
        known = env.return_range
    search = search_for(chosen, env, defensive if method or not no_help else 0.0)
    with Study(
        problem.policy, search, discount=discount, seed=seed, return_range=known, outcome=measured, store=store
    ) as study:
        if store is not None:
            arguments = None if env_kwargs is None else json.dumps(env_kwargs, sort_keys=True, default=repr)
            named = {"source": problem.names["policy"], "env": problem.names["env"]}
            study.fix({**named, "horizon": problem.horizon, "env_kwargs": arguments})
        with problem.opened() as place:
            estimate = study.run(
                place,
                total=episodes,
                batch_size=batch_size,
                on_batch=on_batch,
                target_halfwidth=target_halfwidth,
                time_limit=time_limit,
            )
    settings: dict[str, Any] = {
        **problem.names,
        "env_kwargs": env_kwargs,
        "episodes": episodes,
        "method": chosen,
        "batch_size": batch_size,
        "horizon": problem.horizon,
        "discount": discount,
        "seed": seed,
    }
    extra: dict[str, Any] = {
        "target_halfwidth": target_halfwidth,
        "time_limit": time_limit,
        "return_range": return_range,
    }
    extra |= {"defensive": defensive or None, "failure": failure, "outcome": outcome}
    settings |= {
        name: name_of(value) if callable(value) else value for name, value in extra.items() if value is not None
    }
    return dataclasses.replace(estimate, settings=settings, no_help="" if method else no_help)


def _outcome(
    failure: str | Callable[[Trajectories], Array] | None,
    outcome: Callable[[Trajectories], Array] | None,
    discount: float,
) -> Outcome | None:
    if failure is not None and outcome is not None:
        raise InvalidArgumentError("give failure or outcome, not both: one thing is estimated at a time")
    if outcome is not None:
        return Outcome(outcome, name_of(outcome))
    return None if failure is None else Outcome.failure(failure, discount)


def search_for(method: str, env: GymnasiumSource | CompiledEnv | None, defensive: float = 0.0) -> Search:
    """The search of a method; see `evaluate`. Methods with a model need the tabular environment."""
    if method not in METHODS:
        raise InvalidArgumentError(f"method must be one of {METHODS}, got {method!r}")
    if check_defensive(defensive) and method in ON_POLICY:
        raise InvalidArgumentError(f"defensive has no meaning for method {method!r}, whose weights are all 1")
    if method == "mc":
        return OnPolicy()
    if method == "auto":
        return Auto()
    if method in ("bpg", "pdis-bpg"):
        return AdaptiveBPG(importance_sampling if method == "bpg" else per_decision, defensive=defensive)
    if not isinstance(env, TabularMDP):
        raise InvalidArgumentError(f"method {method!r} learns a tabular model and needs a TabularMDP, got {env}")
    model = TabularModel.like(env)
    return OnPolicy(advantage_sum, model) if method == "as" else AdaptiveBPG(doubly_robust, model, defensive=defensive)
