"""Run studies of a method on a task; finished ones are kept on disk, so that an interrupted run goes on."""

import shutil
import zlib
from pathlib import Path

from benchmarks.evaluators.measure import Studies
from benchmarks.evaluators.methods import Method
from benchmarks.evaluators.tasks import Task
from bpsearch.experiments.continuous import keep_moments, record_moments
from bpsearch.experiments.runs import Run, execute
from bpsearch.policies.mlp import MLP
from bpsearch.trials import Trials

GROUP = 10  # studies per compiled call
GROUP_OF_EPISODES = 50  # where a call works on one episode of each study at a time


def run(
    task: Task,
    name: str,
    method: Method,
    *,
    studies: int,
    episodes: int,
    batch_size: int,
    seed: int,
    store: Path,
    fresh: bool = False,
) -> Studies | None:
    """`studies` studies of `episodes` episodes each; None where the method cannot be used.

    All methods of a task begin with the same random numbers: as long as two of them do the same, they have the same
    errors, and only what they do differently tells them apart.

    Args:
        task: the task.
        name: the method's name.
        method: the method.
        studies: how many.
        episodes: of each study, a multiple of `batch_size`.
        batch_size: episodes per batch.
        seed: other seeds give other studies.
        store: the directory of kept studies.
        fresh: whether to throw away those kept of this task and method: what is kept knows a search's settings, not
            its code.
    """
    search = method.search(task)
    if search is None:
        return None
    policy = task.policy.adapting(method.adapt) if isinstance(task.policy, MLP) else task.policy
    size = 1 if method.every_episode else batch_size
    trials = Trials(
        search,
        iterations=episodes // size,
        batch_size=size,
        seed=zlib.crc32(task.name.encode()) + seed,
        record=record_moments,
        group=min(studies, GROUP_OF_EPISODES if method.every_episode else GROUP),
    )
    run_name = f"{task.name}--{name}"
    if fresh:
        for kept in store.glob(f"{run_name}-{'?' * 12}"):
            shutil.rmtree(kept)
    kept = execute(Run(run_name, trials, task.env, policy, studies, keep_moments), store, lambda *_: None)
    if method.every_episode:
        return Studies.of_episodes(kept["means"], batch_size)
    return Studies(kept["means"], kept["variances"] * size / (size - 1), size)
