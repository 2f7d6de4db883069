"""What the batches of many studies say, as cheaply as each method allows, and what a sequence makes of them.

Searches that are compiled programs run in groups (`Trials`). Control variates of the policy's own episodes are fitted
study by study, but the episodes of 25 studies come from one large batch: they are independent. All others, and those of
failures, run as `bps.Study`. `tests/test_coverage_studies.py` shows that the first two give what a study gives for the
same episodes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import bpsearch as bps
from benchmarks.looks import program_of
from bpsearch.inference.confidence_sequence import AsymptoticSequence
from bpsearch.inference.difference import Turn
from bpsearch.methods import Method, find_method, for_policy
from bpsearch.paper.trials import Job, Trials, run_jobs
from bpsearch.runners import InProcess
from bpsearch.search import Info

LOOKS, BATCH, LEVEL = 10, 100, 0.95
EPISODES = LOOKS * BATCH


@dataclass(frozen=True, eq=False)
class Problem:
    """What is asked of which policy, where, and the truth."""

    env: bps.TabularMDP
    policy: bps.Policy
    estimand: bps.Return | bps.Failure
    truth: float

    @property
    def plain(self) -> bool:
        """Whether returns are asked for, as the environment pays them."""
        return isinstance(self.estimand, bps.Return)


@dataclass(frozen=True, eq=False)
class Told:
    """What sequences are told of S studies: a `Turn` for each look.

    Attributes:
        values: (S, looks, batch).
        returns: (S, looks, batch), as they came.
        plain: (S, looks), whether the policy itself has run the batch.
        weights: (S, looks), what an episode counts.
        missing: (S, looks), how far an event may lie that the search has not found.
        log_weights: (S, looks, batch), of other behaviors, where the policy itself has run batches, too; else 0.
    """

    values: NDArray[np.float64]
    returns: NDArray[np.float64]
    plain: NDArray[np.bool_]
    weights: NDArray[np.float64]
    missing: NDArray[np.float64]
    log_weights: NDArray[np.float64]

    @classmethod
    def of(cls, studies: Iterable[Iterable[Turn]]) -> "Told":
        """Of the turns of each study."""
        every = [list(turns) for turns in studies]
        columns = ([[getattr(turn, name) for turn in turns] for turns in every] for name in _COLUMNS[:-1])
        log_weights = [
            [0.0 * t.values if t.plain or t.log_weights is None or not own else t.log_weights for t in turns]
            for turns, own in ((turns, any(turn.plain for turn in turns)) for turns in every)
        ]
        return cls(*map(np.array, (*columns, log_weights)))

    @classmethod
    def read(cls, path: Path) -> "Told":
        """What `write` wrote."""
        with np.load(path) as stored:
            return cls(*(stored[name] for name in _COLUMNS))

    def write(self, path: Path) -> None:
        """As one file, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(".half.npz")
        np.savez(half, **dict(zip(_COLUMNS, self, strict=True)))
        half.replace(path)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.values, self.returns, self.plain, self.weights, self.missing, self.log_weights))

    def courses(self, tightest: int = EPISODES) -> NDArray[np.float64]:
        """(S, looks, 3): of the asymptotic sequence of each study after each look.

        Its middle, half its width, and half its width without room for unseen events.
        """
        return np.array([list(_course(tightest, *rows)) for rows in zip(*self, strict=True)])


_COLUMNS = ("values", "returns", "plain", "weight", "missing", "log_weights")


def _course(
    tightest: int,
    values: NDArray[np.float64],
    returns: NDArray[np.float64],
    plain: NDArray[np.bool_],
    weights: NDArray[np.float64],
    missing: NDArray[np.float64],
    log_weights: NDArray[np.float64],
) -> Iterator[tuple[float, float, float]]:
    sequence = AsymptoticSequence(tightest)
    for x, g, own, weight, distance, logs in zip(values, returns, plain, weights, missing, log_weights, strict=True):
        sequence = sequence.add(x, float(weight), g if own else None, float(distance))
        if not own:
            sequence = sequence.learn(g, logs)
        tight = replace(sequence, own=0, missing=0.0)
        yield sequence.mean, sequence.half_width(LEVEL), tight.half_width(LEVEL)


def method_of(name: str, problem: Problem) -> Method:
    """The method that `bps.evaluate` takes by this name."""
    return for_policy(find_method(name, problem.env), problem.policy)


def chunk_of(problem: Problem, method: Method) -> int:
    """How many studies are collected at once."""
    return 50 if problem.plain and program_of(method) is not None else 25


def collect(problem: Problem, method: Method, seed: int, chunk: int) -> Told:
    """The studies of one chunk."""
    env, policy, size = problem.env, problem.policy, chunk_of(problem, method)
    numbers = list(range(chunk * size, (chunk + 1) * size))
    if problem.plain and program_of(method) is not None:
        return Told.of(compiled(env, policy, method, seed, numbers))
    if problem.plain and isinstance(method.search, bps.OnPolicy):
        return Told.of(pooled(env, policy, method, pool(env, policy, method, seed, chunk, size)))
    return Told.of(whole(problem, method, seed * 10**6 + number) for number in numbers)


def whole(problem: Problem, method: Method, seed: int) -> list[Turn]:
    """A study as people run it, without the estimate in the end."""
    study = bps.Study(problem.policy, method, estimand=problem.estimand, seed=seed)
    resets = study.decide_resets(InProcess(problem.env), "auto")
    study.plan_for(EPISODES)
    for number in range(LOOKS):
        behavior = study.ask().behavior
        study.tell(number, bps.sample(problem.env, behavior, BATCH, seed=seed, batch=number, resets=resets))
    turns = study.turns()
    return [turns[number] for number in sorted(turns)]


def pool(
    env: bps.TabularMDP, policy: bps.Policy, method: Method, seed: int, chunk: int, studies: int
) -> bps.Trajectories:
    """The episodes of so many studies: those of a study, and of its batches, are neighbors."""
    resets = InProcess(env).resets if method.valuation.needs_resets(policy) else 0
    return bps.sample(env, policy, studies * EPISODES, seed=seed, batch=chunk, resets=resets)


def pooled(env: bps.TabularMDP, policy: bps.Policy, method: Method, episodes: bps.Trajectories) -> Iterator[list[Turn]]:
    """Studies of the policy's own episodes, cut out of a pool."""
    valuation = method.valuation
    first = valuation.init(policy, env.discount)
    for study in np.arange(len(episodes)).reshape(-1, LOOKS, BATCH):
        knowledge, turns = None, []
        for rows in study:
            batch = valuation.value(first, episodes.take(rows))
            values, knowledge = valuation.advance(first, knowledge, batch)
            turns.append(Turn(values, batch.returns, weight=batch.weight))
        yield turns


def compiled(
    env: bps.TabularMDP, policy: bps.Policy, method: Method, seed: int, numbers: list[int]
) -> Iterator[list[Turn]]:
    """Studies of a search that is one program, many at once."""
    program, plain = program_of(method), method.valuation.estimator.on_policy
    assert program is not None
    trials = Trials(program, LOOKS, BATCH, seed=seed, record=_values_and_returns)
    weights = [program.weight(program.init(policy, env.discount)), *[1.0] * (LOOKS - 1)]
    parts = {group[0]: record for _, group, (_, record) in run_jobs([Job(trials, env, policy, numbers)])}
    for first in sorted(parts):
        for values, returns in zip(*parts[first], strict=True):
            yield [Turn(x, g, plain, weight) for x, g, weight in zip(values, returns, weights, strict=True)]


def _values_and_returns(search: Any, state: Any, info: Info, batch: bps.Trajectories) -> Any:
    steps = jnp.arange(batch.rewards.shape[1])
    return info.values, jnp.sum(batch.rewards * state.objective.discount**steps, axis=1)
