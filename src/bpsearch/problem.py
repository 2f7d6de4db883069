"""A policy in an environment, as people name them, made ready to run."""

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bpsearch.checks import check_discount, check_integer
from bpsearch.envs.adapter import GymnasiumEnv
from bpsearch.envs.base import CompiledEnv
from bpsearch.envs.registration import FACTORIES
from bpsearch.envs.sources import GymnasiumSource
from bpsearch.errors import DeterministicPolicyError, InvalidArgumentError, UnknownProbabilitiesError
from bpsearch.policies.base import Policy
from bpsearch.policies.sources import PolicySource, policy_of
from bpsearch.sampling import GymnasiumSampler, check_spaces

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecNormalize


@dataclass(frozen=True, eq=False)
class Problem:
    """A policy and where it is to run.

    Attributes:
        policy: the evaluation policy.
        env: a compiled environment with the wanted horizon and discount, or a source of Gymnasium environments.
        discount: γ.
        horizon: steps after which episodes are cut; None if they end as the Gymnasium environment says.
        env_kwargs: what `gymnasium.make` is given besides an id.
        options: of the Gymnasium sampler; only those that were given.
        names: of policy and environment, for the record.
    """

    policy: Policy
    env: GymnasiumSource | CompiledEnv
    discount: float
    horizon: int | None
    env_kwargs: dict[str, Any] | None
    options: dict[str, Any]
    names: dict[str, str]

    @classmethod
    def of(
        cls,
        policy: PolicySource,
        env: GymnasiumSource | CompiledEnv,
        horizon: int | None,
        discount: float | None,
        *,
        env_kwargs: dict[str, Any] | None,
        num_envs: int | None,
        vectorization: Literal["sync", "async"] | None,
        normalize: "VecNormalize | str | Path | None",
        trust: bool,
    ) -> "Problem":
        """See `evaluate` for the arguments."""
        names = {"policy": name_of(policy), "env": name_of(env)}
        if isinstance(env, str) and env in FACTORIES:
            env, env_kwargs = own_env(env, env_kwargs or {}), None
        if isinstance(env, CompiledEnv):
            env = _changed(env, horizon, discount)
            horizon, discount = env.horizon, env.discount
        discount = check_discount(1.0 if discount is None else discount)
        loaded = policy_of(policy, env, env_kwargs=env_kwargs, normalize=normalize, trust=trust)
        options = {"env_kwargs": env_kwargs, "num_envs": num_envs, "vectorization": vectorization}
        given = {name: value for name, value in options.items() if value is not None}
        return cls(loaded, env, discount, horizon, env_kwargs, given, names)

    @contextlib.contextmanager
    def opened(self) -> Iterator[CompiledEnv | GymnasiumSampler]:
        """Where the policy runs: compiled if environment and policy can be, else through Gymnasium."""
        if isinstance(self.env, CompiledEnv) and self.policy.traceable:
            for name, value in self.options.items():
                raise InvalidArgumentError(f"{name} has no meaning for a compiled environment, got {value!r}")
            yield self.env
            return
        compiled = isinstance(self.env, CompiledEnv)
        source = partial(GymnasiumEnv, self.env) if isinstance(self.env, CompiledEnv) else self.env
        with GymnasiumSampler(source, horizon=None if compiled else self.horizon, **self.options) as sampler:
            check_spaces(sampler, self.policy)
            yield sampler

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


def own_env(env_id: str, settings: dict[str, Any]) -> CompiledEnv:
    """The compiled environment of one of bpsearch's own ids."""
    try:
        return FACTORIES[env_id](**settings)
    except TypeError as error:
        raise InvalidArgumentError(f"env_kwargs do not fit {env_id}: {error}") from error


def name_of(source: Any) -> str:
    """A short name for the record: a text as it is, else what kind of object it was."""
    if isinstance(source, str | Path):
        return str(source)
    return getattr(source, "__name__", type(source).__name__)


def _changed(env: CompiledEnv, horizon: int | None, discount: float | None) -> CompiledEnv:
    changes: dict[str, Any] = {}
    if horizon is not None:
        changes["horizon"] = check_integer("horizon", horizon)
    if discount is not None:
        changes["discount"] = check_discount(discount)
    return dataclasses.replace(env, **changes) if changes else env  # type: ignore[type-var]
