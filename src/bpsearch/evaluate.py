"""evaluate(): the one call."""

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bpsearch.checks import check_discount, check_integer
from bpsearch.envs.adapter import GymnasiumEnv
from bpsearch.envs.base import CompiledEnv
from bpsearch.envs.registration import FACTORIES
from bpsearch.envs.sources import GymnasiumSource
from bpsearch.envs.tabular import TabularMDP
from bpsearch.errors import DeterministicPolicyError, InvalidArgumentError, UnknownProbabilitiesError
from bpsearch.estimate import Estimate
from bpsearch.estimators import advantage_sum, doubly_robust, importance_sampling, per_decision
from bpsearch.models import TabularModel
from bpsearch.outcomes import Outcome
from bpsearch.policies.base import Policy
from bpsearch.policies.sources import PolicySource, policy_of
from bpsearch.sampling import GymnasiumSampler, check_spaces
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
    names = {"policy": _named(policy), "env": _named(env)}
    if isinstance(env, str) and env in FACTORIES:
        env, env_kwargs = own_env(env, env_kwargs or {}), None
    if isinstance(env, CompiledEnv):
        env = _changed(env, horizon, discount)
        discount = env.discount
    discount = check_discount(1.0 if discount is None else discount)
    loaded = policy_of(policy, env, env_kwargs=env_kwargs, normalize=normalize, trust=trust)
    no_help = _no_help(loaded)
    # Where episodes of the policy itself may never show what is asked for, another behavior has to look for it.
    searches = failure is not None or defensive > 0.0
    chosen = method or ("mc" if no_help else "bpg" if searches else "auto")
    measured = _outcome(failure, outcome, discount)
    known = return_range
    if known is None and measured is None and isinstance(env, CompiledEnv):
        known = env.return_range
    search = search_for(chosen, env, defensive if method or not no_help else 0.0)
    with Study(
        loaded, search, discount=discount, seed=seed, return_range=known, outcome=measured, store=store
    ) as study:
        cut = env.horizon if isinstance(env, CompiledEnv) else horizon
        if store is not None:
            arguments = None if env_kwargs is None else json.dumps(env_kwargs, sort_keys=True, default=repr)
            study.fix({"source": names["policy"], "env": names["env"], "horizon": cut, "env_kwargs": arguments})
        run = partial(
            study.run,
            total=episodes,
            batch_size=batch_size,
            on_batch=on_batch,
            target_halfwidth=target_halfwidth,
            time_limit=time_limit,
        )
        options = {"env_kwargs": env_kwargs, "num_envs": num_envs, "vectorization": vectorization}
        estimate = _run(run, env, loaded, horizon, {k: v for k, v in options.items() if v is not None})
    settings: dict[str, Any] = {
        **names,
        "env_kwargs": env_kwargs,
        "episodes": episodes,
        "method": chosen,
        "batch_size": batch_size,
        "horizon": cut,
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
        name: _named(value) if callable(value) else value for name, value in extra.items() if value is not None
    }
    return dataclasses.replace(estimate, settings=settings, no_help="" if method else no_help)


def _run(
    run: Callable[..., Estimate],
    env: GymnasiumSource | CompiledEnv,
    policy: Policy,
    horizon: int | None,
    options: dict[str, Any],
) -> Estimate:
    """Run a study where it belongs: compiled if environment and policy can be, else through Gymnasium."""
    if isinstance(env, CompiledEnv) and policy.traceable:
        for name, value in options.items():
            raise InvalidArgumentError(f"{name} has no meaning for a compiled environment, got {value!r}")
        return run(env)
    compiled = isinstance(env, CompiledEnv)
    source = partial(GymnasiumEnv, env) if isinstance(env, CompiledEnv) else env
    with GymnasiumSampler(source, horizon=None if compiled else horizon, **options) as sampler:
        check_spaces(sampler, policy)
        return run(sampler)


def own_env(env_id: str, settings: dict[str, Any]) -> CompiledEnv:
    """The compiled environment of one of bpsearch's own ids."""
    try:
        return FACTORIES[env_id](**settings)
    except TypeError as error:
        raise InvalidArgumentError(f"env_kwargs do not fit {env_id}: {error}") from error


def _changed(env: CompiledEnv, horizon: int | None, discount: float | None) -> CompiledEnv:
    changes: dict[str, Any] = {}
    if horizon is not None:
        changes["horizon"] = check_integer("horizon", horizon)
    if discount is not None:
        changes["discount"] = check_discount(discount)
    return dataclasses.replace(env, **changes) if changes else env  # type: ignore[type-var]


def _no_help(policy: Policy) -> str:
    """Why no behavior search can be made for this policy; empty if one can."""
    try:
        policy.check_searchable()
    except DeterministicPolicyError:
        return "the policy is deterministic: its actions add no variance that another behavior could remove"
    except UnknownProbabilitiesError:
        return "the policy's action probabilities are unknown, so no other behavior could be weighted to evaluate it"
    return ""


def _outcome(
    failure: str | Callable[[Trajectories], Array] | None,
    outcome: Callable[[Trajectories], Array] | None,
    discount: float,
) -> Outcome | None:
    if failure is not None and outcome is not None:
        raise InvalidArgumentError("give failure or outcome, not both: one thing is estimated at a time")
    if outcome is not None:
        return Outcome(outcome, _named(outcome))
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


def _named(source: Any) -> str:
    """A short name for the record: a text as it is, else what kind of object it was."""
    if isinstance(source, str | Path):
        return str(source)
    return getattr(source, "__name__", type(source).__name__)
