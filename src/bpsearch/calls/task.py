"""A policy in an environment, as people name them, made ready to run."""

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bpsearch._core.checks import check_discount, check_integer
from bpsearch.envs.base import CompiledEnv
from bpsearch.envs.registration import FACTORIES, make_compiled
from bpsearch.envs.resolve import GymnasiumSource
from bpsearch.errors import (
    DeterministicPolicyError,
    InvalidArgumentError,
    UnknownProbabilitiesError,
)
from bpsearch.policies.base import Policy
from bpsearch.policies.resolve import PolicySource, load
from bpsearch.runners.base import Runner
from bpsearch.runners.choice import Workers
from bpsearch.runners.in_process import Environment, compiled_env, plugged_env
from bpsearch.sampling import GymnasiumSampler


def environment(
    env: GymnasiumSource | CompiledEnv,
    *,
    env_kwargs: dict[str, Any] | None = None,
    horizon: int | None = None,
    discount: float | None = None,
    num_envs: int | None = None,
    vectorization: Literal["sync", "async"] | None = None,
) -> CompiledEnv | GymnasiumSampler | Runner:
    """An environment with other settings than its own.

    Args:
        env: a Gymnasium id, a factory, an environment or a vector environment; a compiled environment; what another
            package knows by an entry point. The ids of bpsearch's own environments give the compiled ones.
        env_kwargs: what `gymnasium.make`, or bpsearch's own factory, is given besides an id.
        horizon: steps after which episodes are cut; the return up to there is what is estimated.
        discount: γ of a compiled environment.
        num_envs: Gymnasium: how many environments run in parallel; results do not depend on it.
        vectorization: Gymnasium: "sync" (default) or "async", a process for each environment.

    Returns:
        A compiled environment; or a `GymnasiumSampler`, or another package's runner, to be closed after use.
    """
    given = {"num_envs": num_envs, "vectorization": vectorization}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    place = plugged_env(env)
    if isinstance(place, Runner):
        settings = {"env_kwargs": env_kwargs, "horizon": horizon, "discount": discount}
        for name, value in (options | {n: v for n, v in settings.items() if v is not None}).items():
            place.close()
            raise InvalidArgumentError(f"{name} has no meaning for the runner that {env!r} stands for, got {value!r}")
        return place
    env = place if isinstance(place, CompiledEnv) else env
    if isinstance(env, str) and env in FACTORIES:
        env, env_kwargs = make_compiled(env, **(env_kwargs or {})), None
    if not isinstance(env, CompiledEnv):
        if discount is not None:
            raise InvalidArgumentError(
                f"discount belongs to a compiled environment, got {discount}; for Gymnasium give "
                "estimand=bps.Return(discount=...)"
            )
        return GymnasiumSampler(env, env_kwargs=env_kwargs, horizon=horizon, **options)
    for name, value in (options | ({} if env_kwargs is None else {"env_kwargs": env_kwargs})).items():
        raise InvalidArgumentError(f"{name} has no meaning for a compiled environment, got {value!r}")
    changes: dict[str, Any] = {}
    if horizon is not None:
        changes["horizon"] = check_integer("horizon", horizon)
    if discount is not None:
        changes["discount"] = check_discount(discount)
    return dataclasses.replace(env, **changes) if changes else env  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class Task:
    """A policy and where it is to run.

    Attributes:
        policy: the evaluation policy.
        env: where, with the compiled environment in place of its id.
        names: of policy and environment, and what the environment was given, for the record.
        workers: who runs it, see `bpsearch.runners.open_workers`; None for this process.
        episode_timeout: seconds that a worker may take for an episode.
    """

    policy: Policy
    env: Environment
    names: dict[str, Any]
    workers: Workers | None = None
    episode_timeout: float | None = None

    @classmethod
    @contextmanager
    def open(
        cls,
        policy: "PolicySource | Task",
        env: Environment,
        *,
        deterministic: bool = False,
        workers: Workers | None = None,
        episode_timeout: float | None = None,
    ) -> Iterator["Task"]:
        """See `evaluate` for the arguments; what is open stays as it is."""
        if isinstance(policy, Task):
            yield policy
            return
        found = plugged_env(env)
        place: Environment = compiled_env(found) or found
        try:
            loaded = load(policy, place)
            names = {"policy": name_of(policy), **_env_names(env), **({"deterministic": True} if deterministic else {})}
            yield cls(loaded.mode() if deterministic else loaded, place, names, workers, episode_timeout)
        finally:
            if isinstance(found, Runner) and found is not env:  # opened by another package, for this task
                found.close()

    @property
    def compiled(self) -> CompiledEnv | None:
        """The compiled environment, if it is one."""
        return self.env if isinstance(self.env, CompiledEnv) else None

    @property
    def discount(self) -> float:
        """γ of the environment, 1 where it has none."""
        own = self.env.discount if isinstance(self.env, CompiledEnv | Runner) else None
        return 1.0 if own is None else own

    @property
    def noiseless(self) -> bool | None:
        """Whether the policy has no action noise; None if its probabilities are unknown."""
        return True if self.policy.deterministic else None if self.policy.opaque else False

    @property
    def fixed(self) -> dict[str, Any]:
        """What a store holds of the task, so that only the same one goes on with it."""
        kwargs = self.names.get("env_kwargs")
        return {
            "source": self.names["policy"],
            "env": self.names["env"],
            "horizon": getattr(self.env, "horizon", None),
            "env_kwargs": None if kwargs is None else json.dumps(kwargs, sort_keys=True, default=repr),
        }

    @property
    def no_help(self) -> str:
        """Why nothing better than Monte Carlo can be made for this policy; empty if something can."""
        try:
            self.policy.check_searchable()
        except DeterministicPolicyError:
            return "the policy is deterministic: its actions add no variance that another behavior could remove"
        except UnknownProbabilitiesError:
            return (
                "the policy's action probabilities are unknown, so no other behavior could be weighted to evaluate it"
            )
        return ""


def name_of(source: object) -> str:
    """A short name for the record: a text as it is, else what kind of object it was, as in "<SoftmaxTable>"."""
    if isinstance(source, GymnasiumSampler):
        return name_of(source.source)
    if isinstance(source, str | Path):
        return str(source)
    name = str(getattr(source, "__name__", type(source).__name__))
    return name if name.startswith("<") else f"<{name}>"


def _env_names(env: Environment) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if isinstance(env, GymnasiumSampler):
        given = {"env_kwargs": env.env_kwargs, "horizon": env.horizon}
    if isinstance(env, CompiledEnv):
        given = {"horizon": env.horizon, "discount": env.discount}
    return {"env": name_of(env), **{name: value for name, value in given.items() if value is not None}}
