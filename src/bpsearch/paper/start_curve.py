"""Our curve in Figure 2: Monte Carlo less what starts explain, as the default has it, batch by batch."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from bpsearch.control_variates import Starts
from bpsearch.control_variates.base import join
from bpsearch.envs.base import CompiledEnv
from bpsearch.inference.cross_fitting import Knowledge
from bpsearch.inference.valuation import Valuation, ValuedBatch
from bpsearch.paper.runs import Arrays, digest, write_whole
from bpsearch.policies.base import Policy
from bpsearch.sampling import sample

RESETS = 20  # further starts of each episode
TRIALS = 20  # at most; the variances, which say more, need few


def start_curve(
    env: CompiledEnv, policy: Policy, trials: int, iterations: int, batch_size: int, seed: int, directory: Path
) -> Arrays:
    """Means and variances of the values of each batch, (trials, iterations) both.

    The first batch is cross-fitted. Then what starts explain is learned again whenever the number of batches has
    doubled, and later batches are valued with what was known before them: no value is touched again, as with BPG.

    Args:
        env: where.
        policy: the evaluation policy.
        trials: how many studies.
        iterations: batches of each.
        batch_size: episodes of each batch.
        seed: the trials have the seeds from here on.
        directory: finished trials are read from below it, new ones are written there.
    """
    store = directory / digest((iterations, batch_size, RESETS, env.horizon, env.discount), env, policy)
    store.mkdir(parents=True, exist_ok=True)
    found = []
    for number in range(seed, seed + trials):
        path = store / f"{number:05d}.npz"
        if not path.exists():
            means, variances = _trial(env, policy, iterations, batch_size, number)
            write_whole(path, means=np.array(means), variances=np.array(variances))
        with np.load(path, allow_pickle=False) as kept:
            found.append({name: kept[name] for name in ("means", "variances")})
    return {name: np.stack([trial[name] for trial in found]) for name in found[0]}


def _trial(
    env: CompiledEnv, policy: Policy, iterations: int, batch_size: int, seed: int
) -> tuple[Sequence[float], Sequence[float]]:
    valuation = Valuation(control_variates=(Starts(),))
    state = valuation.init(policy, env.discount)
    knowledge: Knowledge | None = None
    means, variances = [], []
    for begin, end in pairwise(doublings(iterations)):
        told = [
            valuation.value(state, sample(env, policy, batch_size, seed=seed, batch=number, resets=RESETS))
            for number in range(begin, end)
        ]
        values, knowledge = valuation.advance(state, knowledge, _together(told))
        batches = values.reshape(end - begin, batch_size)
        means += batches.mean(axis=1).tolist()
        variances += batches.var(axis=1).tolist()
    return means, variances


def doublings(iterations: int) -> list[int]:
    """0, 1, 2, 4, 8, ..., iterations."""
    powers = [2**power for power in range(iterations.bit_length()) if 2**power < iterations]
    return [0, *powers, iterations]


def _together(batches: Sequence[ValuedBatch]) -> ValuedBatch:
    """Several batches as one."""
    return ValuedBatch(
        np.concatenate([batch.values for batch in batches]),
        np.concatenate([batch.log_weights for batch in batches]),
        np.concatenate([batch.returns for batch in batches]),
        join([batch.summaries for batch in batches]),
    )
