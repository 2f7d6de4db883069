"""Studies as people run them: looked at on the way, beside Monte Carlo with the same random numbers, many at once."""

from collections.abc import Sequence

import numpy as np

import bpsearch as bps
from bpsearch._core.arrays import NumpyArray
from bpsearch.methods import Method
from bpsearch.paper.on_policy import OnPolicyCurve
from bpsearch.paper.trials import AnySearch
from bpsearch.search import CompiledSearch, Info, OnPolicy

BATCH = 100  # episodes, as `evaluate` has it


def look(
    policy: bps.Policy, env: bps.envs.CompiledEnv, sizes: Sequence[int], method: str | Method, seed: int
) -> list[bps.Estimate]:
    """What `bps.evaluate` says after each of these numbers of episodes; all but the last are whole batches."""
    found: list[bps.Estimate] = []

    def keep(study: bps.Study, info: Info) -> None:
        if study.episodes in sizes[:-1]:
            found.append(study.estimate())

    last = bps.evaluate(policy, env, sizes[-1], method, seed=seed, on_batch=keep)
    return [*found, last]


def own_returns(
    policy: bps.Policy, env: bps.envs.CompiledEnv, episodes: int, seed: int, batch: int = BATCH
) -> NumpyArray:
    """The returns of the policy's own episodes: those that a study has for as long as the policy acts."""
    batches = (bps.sample(env, policy, batch, seed=seed, batch=n) for n in range(-(-episodes // batch)))
    return np.concatenate([np.asarray(found.returns(env.discount)) for found in batches])[:episodes]


def study_seed(seed: int, study: int) -> int:
    """Of one study among many."""
    return int(np.random.default_rng((seed, study)).integers(2**31))


def program_of(method: Method) -> AnySearch | None:
    """The one program that runs many studies of a method; None if there is none."""
    search, valuation = method.search, method.valuation
    if isinstance(search, CompiledSearch):
        return search
    plain = isinstance(search, OnPolicy) and not valuation.control_variates
    return OnPolicyCurve(valuation.estimator, valuation.model) if plain else None
