"""plan(): a pilot that tells how many episodes an evaluation will need, and whether anything can be saved."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np

from bpsearch.checks import check_integer, check_real
from bpsearch.envs.base import CompiledEnv
from bpsearch.envs.sources import GymnasiumSource
from bpsearch.errors import InvalidArgumentError
from bpsearch.forecast import Plan, judged
from bpsearch.policies.base import Policy
from bpsearch.policies.sources import PolicySource
from bpsearch.problem import Problem
from bpsearch.sampling import sample
from bpsearch.search.auto import SMALLEST, Auto
from bpsearch.search.cross_fitting import FOLDS
from bpsearch.trajectories import Array, Trajectories

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecNormalize

UNIT = 2 * FOLDS  # episodes: a pair for each fold
STREAM = 2**31 - 1  # the pilot's random stream: no batch of a study that may follow has this number


def plan(
    policy: PolicySource,
    env: GymnasiumSource | CompiledEnv,
    pilot: int = 200,
    halfwidth: float | None = None,
    relative_halfwidth: float | None = None,
    level: float = 0.95,
    horizon: int | None = None,
    discount: float | None = None,
    seed: int = 0,
    *,
    env_kwargs: dict[str, Any] | None = None,
    num_envs: int | None = None,
    vectorization: Literal["sync", "async"] | None = None,
    normalize: "VecNormalize | str | Path | None" = None,
    trust: bool = False,
) -> Plan:
    """Run a few episodes of `policy` in `env`, to know what `evaluate` will need and what it can save.

    The episodes run in pairs with the same start and the same random numbers of the environment (in Gymnasium: reset
    with the same seed), and with independent actions; see `variance_split` for what follows from that. In an
    environment whose random numbers depend on what the actions do, a part of its own noise counts to the actions. A
    policy without action noise runs single episodes.

    Args:
        policy: as for `evaluate`.
        env: as for `evaluate`.
        pilot: how many episodes; a multiple of 10.
        halfwidth: half the width of the wanted confidence interval, in units of the return; or
        relative_halfwidth: the same, relative to the size of the expected return.
        level: the level of that interval, and of all that the plan says.
        horizon: steps after which episodes end; the environment's own if None.
        discount: γ; if None a compiled environment's own, 1 for Gymnasium.
        seed: the same seed gives the same result; `evaluate` has other episodes for it.
        env_kwargs: what `gymnasium.make` is given besides an id.
        num_envs: Gymnasium: how many environments run in parallel; the result does not depend on it.
        vectorization: Gymnasium: "sync" (default) or "async", a process for each environment.
        normalize: the frozen statistics of SB3's `VecNormalize`, or the path of their pickle, which needs trust.
        trust: whether code in a policy's file may run.
    """
    smallest = -(-max(SMALLEST, 2 * UNIT) // UNIT) * UNIT
    if check_integer("pilot", pilot, at_least=smallest) % UNIT:
        raise InvalidArgumentError(f"pilot must be a multiple of {UNIT}, a pair for each of {FOLDS} folds, got {pilot}")
    if halfwidth is not None and relative_halfwidth is not None:
        raise InvalidArgumentError("give halfwidth or relative_halfwidth, not both: one interval is wanted")
    for name, wanted in (("halfwidth", halfwidth), ("relative_halfwidth", relative_halfwidth)):
        if wanted is not None:
            check_real(name, wanted, above=0.0)
    check_real("level", level, above=0.0, high=1.0 - 1e-12)
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
    no_help = problem.no_help
    if not no_help:
        Auto().init(problem.policy, problem.discount)  # refuses what `evaluate` would refuse
    repeats = 1 if problem.policy.deterministic else 2
    with problem.opened() as place:
        batch = sample(place, problem.policy, pilot, seed=seed, batch=STREAM, repeats=repeats)
    returns = batch.returns(problem.discount).reshape(-1, repeats)
    values = returns if no_help else paired_values(problem.policy, problem.discount, batch)
    found = judged(
        returns,
        values,
        halfwidth=halfwidth,
        relative_halfwidth=relative_halfwidth,
        level=level,
        no_help=no_help,
        alike=repeats == 1 or _start_alike(batch),
    )
    settings: dict[str, Any] = {
        **problem.names,
        "env_kwargs": problem.env_kwargs,
        "pilot": pilot,
        "horizon": problem.horizon,
        "discount": problem.discount,
        "seed": seed,
    }
    return dataclasses.replace(found, settings=settings)


def paired_values(policy: Policy, discount: float, batch: Trajectories) -> Array:
    """(pairs, 2), what `auto` makes of the returns of paired episodes.

    Both episodes of a pair must be in the same fold: only episodes of other folds are independent of one.
    `cross_fit` deals episode i to fold i mod K, so all firsts come first, then all seconds.
    """
    pairs = np.arange(len(batch)).reshape(-1, 2)
    assert len(pairs) % FOLDS == 0
    fit = Auto().revalued(policy, discount, [batch.take(pairs[:, 0]), batch.take(pairs[:, 1])])
    return fit.values.reshape(2, -1).T


def _start_alike(batch: Trajectories) -> bool:
    """Whether both episodes of all pairs begin with the same observation, as they do if the environment obeys seeds."""
    leaves: list[Array] = jax.tree_util.tree_leaves(batch.observations)
    return all(np.array_equal(leaf[0::2, 0], leaf[1::2, 0]) for leaf in leaves)
