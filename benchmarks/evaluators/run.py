"""Run studies of a method on a task; finished ones are kept on disk, so that an interrupted run goes on."""

import hashlib
import shutil
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.evaluators.measure import LEVEL, Outcome, Studies
from benchmarks.evaluators.methods import Entry, Method
from benchmarks.evaluators.tasks import Task
from benchmarks.looks import look, own_returns, study_seed
from bpsearch._core.arrays import NumpyArray
from bpsearch.methods import Method as LibraryMethod
from bpsearch.paper.continuous import keep_moments, record_moments
from bpsearch.paper.runs import Run, execute, fingerprint, is_finished, write_whole
from bpsearch.paper.trials import Trials
from bpsearch.policies.mlp import MLP

GROUP = 10  # studies per compiled call
GROUP_OF_EPISODES = 50  # where a call works on one episode of each study at a time


@dataclass(frozen=True)
class Settings:
    """How the studies are run.

    Attributes:
        studies: how many.
        budgets: episodes of a study, multiples of `batch_size`; the smaller ones are beginnings of the largest.
        batch_size: episodes per batch.
        seed: other seeds give other studies.
        store: the directory of kept studies.
        fresh: whether to throw away those kept of this task and method: what is kept knows a search's settings, not
            its code.
    """

    studies: int
    budgets: tuple[int, ...]
    batch_size: int
    seed: int
    store: Path
    fresh: bool = False


def run(task: Task, name: str, method: Method, settings: Settings) -> dict[int, Outcome] | None:
    """What the studies say, by budget; None where the method cannot be used.

    The programs of a task begin with the same random numbers: as long as two of them do the same, they have the same
    errors, and only what they do differently tells them apart. Studies of `bps.evaluate` have others.
    """
    entry = method.enter(task)
    if entry is None:
        return None
    planned = _planned(task, name, method, entry, settings)
    if settings.fresh:
        for kept in settings.store.glob(f"{planned.name}-{'?' * 12}"):
            shutil.rmtree(kept)
    if entry.method is not None:
        return _evaluated(planned, entry.method, settings)
    search, size = planned.trials.search, planned.trials.batch_size
    moments = execute([planned], settings.store, lambda *_: None)[planned.name]
    if method.every_episode:
        studies = Studies.of_episodes(moments["means"], settings.batch_size)
    else:
        counts = np.ones(planned.trials.iterations)
        counts[0] = search.weight(search.init(planned.policy))
        studies = Studies(moments["means"], moments["variances"] * size / (size - 1), size, counts)
    return {budget: studies.at(budget) for budget in settings.budgets}


def is_kept(task: Task, name: str, method: Method, settings: Settings) -> bool:
    """Whether the store has all these studies, so that `run` only reads them."""
    entry = method.enter(task)
    if entry is None:
        return False
    planned = _planned(task, name, method, entry, settings)
    if entry.method is not None:
        return all(path.exists() for paths in _files(planned, entry.method, settings) for path in paths.values())
    return is_finished(settings.store, planned)


def _planned(task: Task, name: str, method: Method, entry: Entry, settings: Settings) -> Run:
    policy = task.policy.adapting(method.adapt) if isinstance(task.policy, MLP) else task.policy
    size = 1 if method.every_episode else settings.batch_size
    trials = Trials(
        entry.search,
        iterations=max(settings.budgets) // size,
        batch_size=size,
        seed=zlib.crc32(task.name.encode()) + settings.seed,
        record=record_moments,
        group=min(settings.studies, GROUP_OF_EPISODES if method.every_episode else GROUP),
    )
    return Run(f"{task.name}--{name}", trials, task.env, policy, settings.studies, keep_moments)


def _evaluated(planned: Run, method: LibraryMethod, settings: Settings) -> dict[int, Outcome]:
    """The same of studies that `bps.evaluate` runs, one after the other."""
    kept: dict[int, list[dict[str, NumpyArray]]] = {budget: [] for budget in settings.budgets}
    for study, paths in enumerate(_files(planned, method, settings)):
        if not all(path.exists() for path in paths.values()):
            for path, row in zip(paths.values(), _answers(planned, method, settings, study), strict=True):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, **row)
        for budget, path in paths.items():
            with np.load(path, allow_pickle=False) as arrays:
                kept[budget].append(dict(arrays))
    return {budget: _outcome(rows) for budget, rows in kept.items()}


def _outcome(rows: Sequence[dict[str, NumpyArray]]) -> Outcome:
    return Outcome(**{name: np.array([row[name] for row in rows]) for name in rows[0]})


def _files(planned: Run, method: LibraryMethod, settings: Settings) -> list[dict[int, Path]]:
    """Where the results of each study are kept, by budget."""
    what = f"{fingerprint(planned)} {method}"
    directory = settings.store / f"{planned.name}-{hashlib.sha256(what.encode()).hexdigest()[:12]}"
    return [
        {budget: directory / f"{study:05d}-{budget}.npz" for budget in settings.budgets}
        for study in range(settings.studies)
    ]


def _answers(planned: Run, method: LibraryMethod, settings: Settings, study: int) -> Iterator[dict[str, NumpyArray]]:
    """By budget the estimate, half of its intervals, and what Monte Carlo says with the same random numbers."""
    policy, env, seed = planned.policy, planned.env, study_seed(planned.trials.seed, study)
    method = replace(method, batch_size=settings.batch_size)
    estimates = look(policy, env, settings.budgets, method, seed)
    returns = own_returns(policy, env, settings.budgets[-1], seed, settings.batch_size)
    for budget, estimate in zip(settings.budgets, estimates, strict=True):
        intervals = estimate.interval(LEVEL), estimate.tight_interval(LEVEL)
        honest, tight = (np.nan if ends is None else 0.5 * (ends[1] - ends[0]) for ends in intervals)
        plain = returns[:budget].mean()
        found = {"estimates": estimate.value, "half_widths": honest, "tight_half_widths": tight, "plain": plain}
        yield {name: np.asarray(number) for name, number in found.items()}
