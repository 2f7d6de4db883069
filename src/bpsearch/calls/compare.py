"""compare(): which one is better?"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from bpsearch._core.arrays import Array, Proxy
from bpsearch._core.checks import check_integer
from bpsearch.calls.evaluate import choose_method, describe, find_estimand
from bpsearch.calls.task import Task
from bpsearch.envs.base import CompiledEnv
from bpsearch.errors import InvalidArgumentError
from bpsearch.estimands import Estimand, Return
from bpsearch.inference.comparison import Comparison
from bpsearch.inference.stopping import Target
from bpsearch.methods import AnySearch, Method
from bpsearch.policies.resolve import PolicySource
from bpsearch.runners.base import Runner
from bpsearch.runners.choice import Workers
from bpsearch.runners.in_process import Environment
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.study.comparison import ComparisonStudy, OnRound
from bpsearch.study.resets import Resets


def compare(
    policies: Mapping[str, PolicySource | Task] | PolicySource,
    env: Environment | Mapping[str, Environment],
    episodes: int = 1000,
    method: str | Method | AnySearch = "auto",
    *,
    deterministic: bool = False,
    seed: int | None = None,
    margin: float | None = None,
    level: float = 0.95,
    reference: str | None = None,
    target: float | Target | None = None,
    stop_early: bool = True,
    drop_losers: bool = False,
    kind: Literal["asymptotic", "certified"] = "asymptotic",
    failure: str | Callable[[Trajectories], Array] | None = None,
    estimand: Estimand | None = None,
    store: str | Path | None = None,
    batch_size: int | None = None,
    resets: int | Resets = "auto",
    proxy: Proxy | None = None,
    workers: Workers | None = None,
    episode_timeout: float | None = None,
    on_round: OnRound | None = None,
) -> Comparison:
    """Decide which of two or more policies has the higher expected return, or in which environment one policy has.

    The policies run in rounds of as many episodes each, from the same starts and with the same random numbers, unless
    earlier rounds say that this does harm. Each is valued with its own control variates. The verdict is better, worse,
    equivalent within `margin`, or undecided. It is valid whenever one stops, and the verdicts on several policies are
    right at once.

    Args:
        policies: two or more by name, each as for `evaluate`; or a single one, for several environments.
        env: as for `evaluate`; or several by name: one for each policy, or all for a single one.
        episodes: how many episodes each policy may run.
        method: as for `evaluate`, but that "auto" never moves, and of a failure is "bpg", whose first episodes count.
        deterministic: whether all policies take their most likely actions. To compare a policy with its own mode, give
            both: `{"drawn": policy, "mode": policy.mode()}`.
        seed: the same seed gives the same result; None draws one, which the result records.
        margin: call differences within ± this equivalent.
        level: the confidence that all verdicts are right at once.
        reference: compare all others with this one; by default all pairs are compared.
        target: go on until half the width of each difference's interval is at most this, or a `Target` says so, in
            place of until all is decided. `Target(seconds=...)` only limits the time.
        stop_early: False runs all episodes; then `fixed_interval` holds, too, which is narrower.
        drop_losers: stop running a policy that is clearly worse than another; to find the best of many.
        kind: which intervals decide. "asymptotic" ones take any returns, profit from control variates, and hold for
            many episodes. "certified" ones hold for any number; they need the range of the returns
            (`estimand=bps.Return(return_range=...)`, known for tabular MDPs and failures), and only the same starts
            make them narrower.
        failure: compare probabilities of this event in place of expected returns: as for `evaluate`. The one that
            fails less often is the better one.
        estimand: as for `evaluate`.
        store: a directory that keeps every batch; the same call after a crash goes on from there.
        batch_size: episodes of each policy in a round; by default the method's, 100.
        resets: as for `evaluate`.
        proxy: as for `evaluate`; each policy learns by itself what it says of its returns.
        workers: as for `evaluate`; all policies share them.
        episode_timeout: as for `evaluate`.
        on_round: called after each round, to show progress.

    An interrupt (Ctrl-C) after the first round gives the comparison of all whole rounds, marked as interrupted.
    """
    check_integer("episodes", episodes)
    rule = target if isinstance(target, Target) or target is None else Target(halfwidth=target, kind=kind)
    design: dict[str, Any] = {"margin": margin, "level": level, "reference": reference, "stop_early": stop_early}
    design |= {"drop_losers": drop_losers, "kind": kind}
    with contextlib.ExitStack() as stack:
        tasks = {
            name: stack.enter_context(Task.open(policy, place, deterministic=deterministic))
            for name, (policy, place) in _pairs(policies, env).items()
        }
        asked = {name: find_estimand(failure, estimand, task.discount) for name, task in tasks.items()}
        if kind == "certified":
            asked = {name: _add_range(found, tasks[name]) for name, found in asked.items()}
        chosen = {n: choose_method(method, task, asked[n], proxy, may_move=False) for n, task in tasks.items()}
        study = ComparisonStudy(
            {name: task.policy for name, task in tasks.items()},
            {name: found for name, (found, _) in chosen.items()},
            estimand=asked,
            episodes=episodes,
            seed=seed,
            batch_size=batch_size,
            store=store,
            target=None if rule is None else dataclasses.replace(rule, seconds=None),
            **design,
        )
        stack.enter_context(study)
        if store is not None:
            for name, task in tasks.items():
                study.studies[name].fix(task.fixed)
        found = study.run(
            {name: task.env for name, task in tasks.items()},
            seconds=None if rule is None else rule.seconds,
            resets=resets,
            workers=workers,
            episode_timeout=episode_timeout,
            on_round=on_round,
        )
    first = next(iter(tasks.values()))
    settings: dict[str, Any] = {
        "policies": {name: task.names["policy"] for name, task in tasks.items()},
        **{name: value for name, value in first.names.items() if name != "policy"},
        "episodes": episodes,
        "method": method if isinstance(method, str) else f"<{next(iter(chosen.values()))[0].name}>",
        "seed": study.seed,
    }
    if isinstance(env, Mapping):
        settings["env"] = {name: task.names["env"] for name, task in tasks.items()}
    ordinary = {"level": 0.95, "stop_early": True, "drop_losers": False, "kind": "asymptotic"}
    extra = {name: value for name, value in design.items() if name not in ordinary or value != ordinary[name]}
    extra |= {"resets": None if resets == "auto" else resets, "proxy": proxy}
    extra |= {"target": target, "failure": failure, "estimand": estimand, "store": store, "batch_size": batch_size}
    given = {name: describe(value) for name, value in extra.items() if value is not None}
    estimates = {
        name: dataclasses.replace(
            estimate,
            no_help=chosen[name][1],
            settings={**tasks[name].names, "episodes": episodes, "method": chosen[name][0].name, "seed": study.seed},
        )
        for name, estimate in found.estimates.items()
    }
    return dataclasses.replace(found, estimates=estimates, settings=settings | given)


def _add_range(asked: Estimand, task: Task) -> Estimand:
    """With the range of returns that the environment knows, unless one was given."""
    known = task.env.return_range if isinstance(task.env, CompiledEnv | Runner) else None
    if isinstance(asked, Return) and asked.return_range is None and known is not None:
        return dataclasses.replace(asked, return_range=known)
    return asked


def _pairs(
    policies: Mapping[str, PolicySource | Task] | PolicySource, env: Environment | Mapping[str, Environment]
) -> dict[str, tuple[PolicySource | Task, Environment]]:
    """By name, who runs where."""
    if isinstance(policies, Mapping):
        if not isinstance(env, Mapping):
            return {str(name): (policy, env) for name, policy in policies.items()}
        if set(policies) != set(env):
            raise InvalidArgumentError(
                f"policies and environments must have the same names, got {', '.join(map(str, policies))} and "
                f"{', '.join(map(str, env))}"
            )
        return {str(name): (policy, env[name]) for name, policy in policies.items()}
    if isinstance(env, Mapping):
        return {str(name): (policies, place) for name, place in env.items()}
    raise InvalidArgumentError(
        f"compare takes two or more policies by name, {{'a': ..., 'b': ...}}, or one policy and environments by name, "
        f"got {policies!r} and {env!r}"
    )
