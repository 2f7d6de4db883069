"""Run studies of a method on a task; finished ones are kept on disk, so that an interrupted run goes on."""

import hashlib
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from benchmarks.evaluators.measure import LEVEL, Outcome, Studies
from benchmarks.evaluators.methods import Entry, Method
from benchmarks.evaluators.tasks import Task
from bpsearch._core.arrays import NumpyArray
from bpsearch._core.jaxtools import in_64_bit, to_numpy
from bpsearch.inference.valuation import Valuation, ValuedBatch
from bpsearch.paper.continuous import keep_moments, record_moments
from bpsearch.paper.runs import Run, execute, fingerprint, is_finished, write_whole
from bpsearch.paper.trials import Trials
from bpsearch.policies.mlp import MLP
from bpsearch.sampling.compiled import jitted_rollout
from bpsearch.sampling.seeds import batch_key
from bpsearch.sampling.trajectories import Trajectories

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

    All methods of a task begin with the same random numbers: as long as two of them do the same, they have the same
    errors, and only what they do differently tells them apart.
    """
    entry = method.enter(task)
    if entry is None:
        return None
    planned = _planned(task, name, method, entry, settings)
    if settings.fresh:
        for kept in settings.store.glob(f"{planned.name}-{'?' * 12}"):
            shutil.rmtree(kept)
    if entry.valuation is not None:
        return _cross_fitted(planned, entry.valuation, settings)
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
    if entry.valuation is not None:
        return all(path.exists() for paths in _files(planned, entry.valuation, settings) for path in paths.values())
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


def _cross_fitted(planned: Run, valuation: Valuation, settings: Settings) -> dict[int, Outcome]:
    """The same for a valuation that values all episodes anew with every batch: outside of the compiled program."""
    kept: dict[int, list[dict[str, NumpyArray]]] = {budget: [] for budget in settings.budgets}
    for study, paths in enumerate(_files(planned, valuation, settings)):
        valued: list[ValuedBatch] = []
        for budget, path in paths.items():
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                valued = valued or _valued(planned, valuation, study)
                write_whole(path, **_estimate(planned, valuation, valued[: budget // planned.trials.batch_size]))
            with np.load(path, allow_pickle=False) as arrays:
                kept[budget].append(dict(arrays))
    return {budget: _outcome(rows) for budget, rows in kept.items()}


def _outcome(rows: Sequence[dict[str, NumpyArray]]) -> Outcome:
    return Outcome(**{name: np.array([row[name] for row in rows]) for name in rows[0]})


def _files(planned: Run, valuation: Valuation, settings: Settings) -> list[dict[int, Path]]:
    """Where the results of each study are kept, by budget."""
    what = f"{fingerprint(planned)} {valuation.control_variates}"
    directory = settings.store / f"{planned.name}-{hashlib.sha256(what.encode()).hexdigest()[:12]}"
    return [
        {budget: directory / f"{study:05d}-{budget}.npz" for budget in settings.budgets}
        for study in range(settings.studies)
    ]


@in_64_bit
def collected(planned: Run, study: int) -> list[Trajectories]:
    """The batches of a study of the evaluation policy, as `Trials` would run them."""
    trials = planned.trials
    key = jax.random.fold_in(batch_key(trials.seed), study)
    keys = [jax.random.fold_in(key, iteration) for iteration in range(trials.iterations)]
    return [to_numpy(jitted_rollout(planned.env, planned.policy, key, trials.batch_size)) for key in keys]


def _valued(planned: Run, valuation: Valuation, study: int) -> list[ValuedBatch]:
    state = valuation.init(planned.policy, planned.env.discount)
    return [valuation.value(state, batch) for batch in collected(planned, study)]


def _estimate(planned: Run, valuation: Valuation, batches: Sequence[ValuedBatch]) -> dict[str, NumpyArray]:
    """The estimate and half of its intervals, as `Study.estimate` has them, and Monte Carlo's estimate."""
    values = valuation.conclude(valuation.init(planned.policy, planned.env.discount), batches)
    honest, tight = (np.nan if e is None else e.half_width(LEVEL) for e in (values.error, values.tight_error))
    plain = np.concatenate([batch.returns for batch in batches]).mean()
    found = {"estimates": values.mean, "half_widths": honest, "tight_half_widths": tight, "plain": plain}
    return {name: np.asarray(number) for name, number in found.items()}
