"""Run studies of a method on a task; finished ones are kept on disk, so that an interrupted run goes on."""

import shutil
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from benchmarks.evaluators.measure import LEVEL, Outcome, Studies
from benchmarks.evaluators.methods import Method
from benchmarks.evaluators.tasks import Task
from bpsearch.experiments.continuous import keep_moments, record_moments
from bpsearch.experiments.runs import Run, execute, fingerprint, is_finished, write_whole
from bpsearch.numerics import in_64_bit, to_numpy
from bpsearch.policies.mlp import MLP
from bpsearch.sampling.compiled import jitted_rollout
from bpsearch.sampling.seeds import batch_key
from bpsearch.trajectories import Array, Trajectories
from bpsearch.trials import Trials

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
    planned = _planned(task, name, method, settings)
    if planned is None:
        return None
    if settings.fresh:
        for kept in settings.store.glob(f"{planned.name}-{'?' * 12}"):
            shutil.rmtree(kept)
    search, size = planned.trials.search, planned.trials.batch_size
    if search.revalues:
        return _revalued(planned, settings)
    moments = execute([planned], settings.store, lambda *_: None)[planned.name]
    if method.every_episode:
        studies = Studies.of_episodes(moments["means"], settings.batch_size)
    else:
        counts = np.array([search.counts(number) for number in range(planned.trials.iterations)])
        studies = Studies(moments["means"], moments["variances"] * size / (size - 1), size, counts)
    return {budget: studies.at(budget) for budget in settings.budgets}


def is_kept(task: Task, name: str, method: Method, settings: Settings) -> bool:
    """Whether the store has all these studies, so that `run` only reads them."""
    planned = _planned(task, name, method, settings)
    if planned is None:
        return False
    if planned.trials.search.revalues:
        return all(path.exists() for paths in _files(planned, settings) for path in paths.values())
    return is_finished(settings.store, planned)


def _planned(task: Task, name: str, method: Method, settings: Settings) -> Run | None:
    search = method.search(task)
    if search is None:
        return None
    policy = task.policy.adapting(method.adapt) if isinstance(task.policy, MLP) else task.policy
    size = 1 if method.every_episode else settings.batch_size
    trials = Trials(
        search,
        iterations=max(settings.budgets) // size,
        batch_size=size,
        seed=zlib.crc32(task.name.encode()) + settings.seed,
        record=record_moments,
        group=min(settings.studies, GROUP_OF_EPISODES if method.every_episode else GROUP),
    )
    return Run(f"{task.name}--{name}", trials, task.env, policy, settings.studies, keep_moments)


def _revalued(planned: Run, settings: Settings) -> dict[int, Outcome]:
    """The same for a search that values all episodes anew with every batch: outside of the compiled program."""
    kept: dict[int, list[tuple[float, float, float]]] = {budget: [] for budget in settings.budgets}
    for study, paths in enumerate(_files(planned, settings)):
        batches: list[Trajectories] = []
        for budget, path in paths.items():
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                batches = batches or collected(planned, study)
                estimate, half_width, plain = _estimated(planned, batches[: budget // planned.trials.batch_size])
                write_whole(path, estimate=estimate, half_width=half_width, plain=plain)
            with np.load(path, allow_pickle=False) as arrays:
                kept[budget].append((float(arrays["estimate"]), float(arrays["half_width"]), float(arrays["plain"])))
    return {
        budget: Outcome(estimates, half_widths, plain=plain)
        for budget, (estimates, half_widths, plain) in ((budget, np.transpose(rows)) for budget, rows in kept.items())
    }


def _files(planned: Run, settings: Settings) -> list[dict[int, Path]]:
    """Where the results of each study are kept, by budget."""
    directory = settings.store / f"{planned.name}-{fingerprint(planned)}"
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


def _estimated(planned: Run, batches: Sequence[Trajectories]) -> tuple[Array, Array, Array]:
    """The estimate and half of its interval, as `Study.estimate` has them, and Monte Carlo's estimate."""
    search, discount = planned.trials.search, planned.env.discount
    valued = search.revalue(search.init(planned.policy, discount), batches)
    half_width = np.nan if valued.error is None else valued.error.half_width(LEVEL)
    returns = np.concatenate([batch.returns(discount) for batch in batches])
    return np.concatenate(valued.batches).mean(), np.asarray(half_width), returns.mean()
