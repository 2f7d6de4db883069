"""The shortcuts of benchmarks/coverage_studies give what a study gives for the same episodes."""

import jax
import numpy as np
import pytest

import bpsearch as bps
from benchmarks.coverage_studies.collect import BATCH, EPISODES, LOOKS, compiled, look, method_of, pooled
from benchmarks.evaluators.tasks import TASKS
from benchmarks.looks import program_of
from bpsearch._core.jaxtools import in_64_bit, to_numpy
from bpsearch.sampling.compiled import rollout
from bpsearch.sampling.seeds import batch_key

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["mc", "as", "bpg", "pdis-bpg", "dr-bpg"])
def test_searches_that_run_together_say_what_a_study_says(name: str) -> None:
    task = TASKS["random-2"]()
    method = method_of(name, task.env, task.policy)
    assert program_of(method) is not None
    (found,) = compiled(task.env, task.policy, method, 5, [3])
    study = bps.Study(task.policy, method, seed=0)

    @in_64_bit
    def run(number: int) -> bps.Trajectories:
        key = jax.random.fold_in(jax.random.fold_in(batch_key(5), 3), number)
        return to_numpy(rollout(task.env, study.ask().behavior, key, BATCH))

    told = look(study, (run(number) for number in range(LOOKS)))
    np.testing.assert_allclose(found, told, rtol=1e-6)


def test_studies_from_a_pool_say_what_studies_say() -> None:
    task = TASKS["gridworld-early"]()
    method = method_of("auto", task.env, task.policy)
    episodes = bps.sample(task.env, task.policy, 2 * EPISODES, seed=1)
    for number, found in enumerate(pooled(task.env, task.policy, method, episodes)):
        study = bps.Study(task.policy, method, seed=0)
        for _ in range(LOOKS):
            study.ask()
        rows = np.arange(number * EPISODES, (number + 1) * EPISODES).reshape(LOOKS, BATCH)
        told = look(study, (episodes.take(part) for part in rows))
        np.testing.assert_allclose(found, told, rtol=1e-9)
