"""What the asymptotic sequence says after each batch of many studies, as cheaply as each method allows.

Searches that are compiled programs run in groups (`Trials`). Control variates of the policy's own episodes are fitted
study by study, but the episodes of 25 studies come from one large batch: they are independent. All others run as
`bps.Study`. `tests/test_coverage_studies.py` shows that the first two give what a study gives for the same episodes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import bpsearch as bps
from benchmarks.looks import program_of
from bpsearch.inference.confidence_sequence import AsymptoticSequence
from bpsearch.inference.stopping import Target
from bpsearch.methods import Method, find_method, for_policy
from bpsearch.paper.trials import Job, Trials, run_jobs
from bpsearch.runners import InProcess
from bpsearch.search import Info

LOOKS, BATCH, LEVEL = 10, 100, 0.95
EPISODES = LOOKS * BATCH
Course = NDArray[np.float64]  # (looks, 2): the middle and half the width after each look


@dataclass(frozen=True)
class Watch(Target):
    """A target that is never reached and remembers what it was shown."""

    halfwidth: float | None = 1.0
    seen: list[tuple[float, float]] = field(default_factory=list)

    def reached(self, value: float, half_width: float) -> bool:
        """Not yet."""
        self.seen.append((value, half_width))
        return False


def method_of(name: str, env: bps.TabularMDP, policy: bps.Policy) -> Method:
    """The method that `bps.evaluate` takes by this name."""
    return for_policy(find_method(name, env), policy)


def chunk_of(method: Method) -> int:
    """How many studies are collected at once."""
    return 25 if program_of(method) is None else 250


def collect(env: bps.TabularMDP, policy: bps.Policy, method: Method, seed: int, chunk: int) -> list[Course]:
    """The courses of the studies of one chunk."""
    size = chunk_of(method)
    numbers = list(range(chunk * size, (chunk + 1) * size))
    if program_of(method) is not None:
        return list(compiled(env, policy, method, seed, numbers))
    if isinstance(method.search, bps.OnPolicy):
        return list(pooled(env, policy, method, pool(env, policy, method, seed, chunk, size)))
    return [whole(env, policy, method, seed * 10**6 + number) for number in numbers]


def whole(env: bps.TabularMDP, policy: bps.Policy, method: Method, seed: int) -> Course:
    """A study as people run it."""
    study = bps.Study(policy, method, estimand=bps.Return(env.discount), seed=seed)
    resets = study.decide_resets(InProcess(env), "auto")
    batches = (
        bps.sample(env, study.ask().behavior, BATCH, seed=seed, batch=number, resets=resets) for number in range(LOOKS)
    )
    return look(study, batches)


def look(study: bps.Study, batches: Iterable[bps.Trajectories]) -> Course:
    """Tell a study its batches, and look after each as a target does."""
    watch = Watch()
    study.plan_for(EPISODES)
    for number, batch in enumerate(batches):
        study.tell(number, batch)
        study.reached(watch)
    return np.array(watch.seen)


def pool(
    env: bps.TabularMDP, policy: bps.Policy, method: Method, seed: int, chunk: int, studies: int
) -> bps.Trajectories:
    """The episodes of so many studies: those of a study, and of its batches, are neighbors."""
    resets = InProcess(env).resets if method.valuation.needs_resets(policy) else 0
    return bps.sample(env, policy, studies * EPISODES, seed=seed, batch=chunk, resets=resets)


def pooled(env: bps.TabularMDP, policy: bps.Policy, method: Method, episodes: bps.Trajectories) -> Iterator[Course]:
    """Studies of the policy's own episodes, cut out of a pool."""
    valuation = method.valuation
    first = valuation.init(policy, env.discount)
    for study in np.arange(len(episodes)).reshape(-1, LOOKS, BATCH):
        sequence, knowledge, found = AsymptoticSequence(EPISODES), None, []
        for rows in study:
            batch = valuation.value(first, episodes.take(rows))
            values, knowledge = valuation.advance(first, knowledge, batch)
            sequence = sequence.add(values, batch.weight, valuation.plain(batch))
            found.append((sequence.mean, sequence.half_width(LEVEL)))
        yield np.array(found)


def compiled(
    env: bps.TabularMDP, policy: bps.Policy, method: Method, seed: int, numbers: list[int]
) -> Iterator[Course]:
    """Studies of a search that is one program, many at once."""
    program, valuation = program_of(method), method.valuation
    assert program is not None
    trials = Trials(program, LOOKS, BATCH, seed=seed, record=_values_and_returns)
    weights = [program.weight(program.init(policy, env.discount)), *[1.0] * (LOOKS - 1)]
    parts = {group[0]: record for _, group, (_, record) in run_jobs([Job(trials, env, policy, numbers)])}
    for first in sorted(parts):
        for values, returns in zip(*parts[first], strict=True):
            sequence, found = AsymptoticSequence(EPISODES), []
            for x, g, weight in zip(values, returns, weights, strict=True):
                sequence = sequence.add(x, weight, g if valuation.estimator.on_policy else None)
                found.append((sequence.mean, sequence.half_width(LEVEL)))
            yield np.array(found)


def _values_and_returns(search: Any, state: Any, info: Info, batch: bps.Trajectories) -> Any:
    steps = jnp.arange(batch.rewards.shape[1])
    return info.values, jnp.sum(batch.rewards * state.objective.discount**steps, axis=1)
