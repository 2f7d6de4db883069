"""plan(): a pilot that tells how many episodes an evaluation will need, and whether anything can be saved."""

import dataclasses
import secrets

import jax
import numpy as np

from bpsearch._core.arrays import NumpyArray, Proxy
from bpsearch._core.checks import check_integer, check_real, check_seed
from bpsearch.calls.task import Task
from bpsearch.errors import InvalidArgumentError
from bpsearch.estimands import Return
from bpsearch.inference.cross_fitting import FOLDS, SMALLEST
from bpsearch.inference.pilot import Plan, judge
from bpsearch.inference.valuation import Valuation
from bpsearch.methods import find_method, with_proxy
from bpsearch.policies.base import Policy
from bpsearch.policies.resolve import PolicySource
from bpsearch.runners.choice import Workers, runner_for
from bpsearch.runners.in_process import Environment
from bpsearch.sampling.trajectories import Trajectories

UNIT = 2 * FOLDS  # episodes: a pair for each fold
STREAM = 2**31 - 1  # the pilot's random stream: no batch of a study that may follow has this number


def plan(
    policy: PolicySource,
    env: Environment,
    pilot: int = 200,
    halfwidth: float | None = None,
    *,
    relative_halfwidth: float | None = None,
    level: float = 0.95,
    deterministic: bool = False,
    seed: int | None = None,
    estimand: Return | None = None,
    proxy: Proxy | None = None,
    workers: Workers | None = None,
    episode_timeout: float | None = None,
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
        deterministic: as for `evaluate`.
        seed: the same seed gives the same result, None draws one; `evaluate` has other episodes for it.
        estimand: the return with another discount than the environment's: `bps.Return(discount=0.9)`.
        proxy: as for `evaluate`.
        workers: as for `evaluate`.
        episode_timeout: as for `evaluate`.
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
    if estimand is not None and not isinstance(estimand, Return):
        raise InvalidArgumentError(f"estimand must be a Return: a pilot plans for an expected return, got {estimand}")
    seed = secrets.randbits(31) if seed is None else check_seed(seed)
    with (
        Task.open(policy, env, deterministic=deterministic) as task,
        runner_for(task.env, task.policy, workers, episode_timeout) as runner,
    ):
        discount = task.discount if estimand is None else estimand.discount
        no_help = task.no_help
        repeats = 1 if task.policy.deterministic else 2
        method = find_method("auto") if proxy is None else with_proxy(find_method("auto"), proxy)
        further = {"resets": runner.resets} if method.valuation.needs_resets(task.policy) else {}
        batch = runner.run(task.policy, pilot, seed=seed, batch=STREAM, repeats=repeats, **further)
    returns = np.asarray(batch.returns(discount)).reshape(-1, repeats)
    values, alone = value_groups(method.valuation, task.policy, discount, batch, repeats)
    drawn = 0 if batch.resets is None else int(jax.tree_util.tree_leaves(batch.resets)[0].shape[1])
    if not np.array_equal(values, returns):
        no_help = ""  # what actions cannot do, starts did
    found = judge(
        returns,
        values,
        halfwidth=halfwidth,
        relative_halfwidth=relative_halfwidth,
        level=level,
        no_help=no_help,
        alike=repeats == 1 or _start_alike(batch),
        alone=alone,
        resets=drawn,
    )
    settings = {**task.names, "pilot": pilot, "discount": discount, "seed": seed}
    return dataclasses.replace(found, settings=settings, deterministic=task.noiseless, notes=task.policy.notes)


def value_groups(
    valuation: Valuation, policy: Policy, discount: float, batch: Trajectories, repeats: int
) -> tuple[NumpyArray, dict[str, NumpyArray]]:
    """(groups, repeats), what the returns of episodes that share all but their actions are valued.

    All episodes of a group must be in the same fold: only episodes of other folds are independent of one.
    `cross_fit` deals episode i to fold i mod K, so all firsts come first, then all seconds.

    Returns:
        The values with all control variates, and by kind of noise those with the control variates of that kind alone.
    """
    groups = np.arange(len(batch)).reshape(-1, repeats)
    assert len(groups) % FOLDS == 0
    state = valuation.init(policy, discount)
    parts = [valuation.value(state, batch.take(groups[:, part])) for part in range(repeats)]
    used = valuation.used_kinds(policy, parts)
    alone = {kind: np.stack(valuation.conclude_alone(state, parts, kind).batches, axis=1) for kind in used}
    return np.stack(valuation.conclude(state, parts).batches, axis=1), alone


def grouped_values(policy: Policy, discount: float, batch: Trajectories, repeats: int) -> NumpyArray:
    """(groups, repeats), what `auto` makes of the returns of episodes that share all but their actions."""
    return value_groups(find_method("auto").valuation, policy, discount, batch, repeats)[0]


def _start_alike(batch: Trajectories) -> bool:
    """Whether both episodes of all pairs begin with the same observation, as they do if the environment obeys seeds."""
    leaves: list[NumpyArray] = jax.tree_util.tree_leaves(batch.observations)
    return all(np.array_equal(leaf[0::2, 0], leaf[1::2, 0]) for leaf in leaves)
