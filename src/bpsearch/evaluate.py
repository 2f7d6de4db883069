"""evaluate(): the one call."""

import dataclasses

from bpsearch.checks import check_discount, check_integer
from bpsearch.envs.base import CompiledEnv
from bpsearch.envs.tabular import TabularMDP
from bpsearch.errors import InvalidArgumentError
from bpsearch.estimate import Estimate
from bpsearch.estimators import advantage_sum, doubly_robust, per_decision
from bpsearch.models import TabularModel
from bpsearch.policies.base import Policy
from bpsearch.search import BPG, OnPolicy, Search, normalized
from bpsearch.study import Study

METHODS = ("mc", "bpg", "pdis-bpg", "as", "dr-bpg")
STEP_SIZE = normalized(0.1)


def evaluate(
    policy: Policy,
    env: CompiledEnv,
    episodes: int = 2000,
    method: str = "bpg",
    batch_size: int = 100,
    horizon: int | None = None,
    discount: float | None = None,
    seed: int = 0,
) -> Estimate:
    """Estimate the expected return of `policy` in `env`.

    Args:
        policy: the evaluation policy.
        env: a compiled environment, a `TabularMDP` for instance.
        episodes: how many episodes may be run, those that serve the search included.
        method: "mc" Monte Carlo; "bpg" behavior policy gradient with importance sampling; "pdis-bpg" with per-decision
            importance sampling; on tabular MDPs also "as", the advantage sum, and "dr-bpg", both with a model learned
            from earlier batches only. All are unbiased.
        batch_size: episodes between two steps of the search.
        horizon: steps after which episodes end; the environment's own if None.
        discount: γ; the environment's own if None.
        seed: the same seed gives the same result.
    """
    changes: dict[str, float] = {}
    if horizon is not None:
        changes["horizon"] = check_integer("horizon", horizon)
    if discount is not None:
        changes["discount"] = check_discount(discount)
    if changes:
        env = dataclasses.replace(env, **changes)  # type: ignore[type-var]
    study = Study(policy, _search(method, env), discount=env.discount, seed=seed)
    return study.run(env, episodes=episodes, batch_size=batch_size)


def _search(method: str, env: CompiledEnv) -> Search:
    if method not in METHODS:
        raise InvalidArgumentError(f"method must be one of {METHODS}, got {method!r}")
    if method == "mc":
        return OnPolicy()
    if method == "bpg":
        return BPG(STEP_SIZE)
    if method == "pdis-bpg":
        return BPG(STEP_SIZE, estimator=per_decision)
    if not isinstance(env, TabularMDP):
        raise InvalidArgumentError(f"method {method!r} learns a tabular model and needs a TabularMDP, got {env}")
    model = TabularModel.like(env)
    return OnPolicy(advantage_sum, model) if method == "as" else BPG(STEP_SIZE, estimator=doubly_robust, model=model)
