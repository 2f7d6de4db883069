"""The shortcuts of benchmarks/coverage_studies give what a study gives for the same episodes."""

from collections.abc import Iterable
from pathlib import Path

import jax
import numpy as np
import pytest

import bpsearch as bps
from benchmarks.coverage_studies.__main__ import problem_of
from benchmarks.coverage_studies.collect import BATCH, EPISODES, LOOKS, Told, compiled, method_of, pooled, whole
from benchmarks.looks import program_of
from bpsearch._core.jaxtools import in_64_bit, to_numpy
from bpsearch.inference.difference import Turn
from bpsearch.sampling.compiled import rollout
from bpsearch.sampling.seeds import batch_key

pytestmark = pytest.mark.slow


def tell(study: bps.Study, batches: Iterable[bps.Trajectories]) -> list[Turn]:
    """Tell a study its batches."""
    study.plan_for(EPISODES)
    for number, batch in enumerate(batches):
        study.tell(number, batch)
    turns = study.turns()
    return [turns[number] for number in sorted(turns)]


@pytest.mark.parametrize("name", ["mc", "as", "bpg", "pdis-bpg", "dr-bpg"])
def test_searches_that_run_together_say_what_a_study_says(name: str) -> None:
    task = problem_of("random-2")
    method = method_of(name, task)
    assert program_of(method) is not None
    found = Told.of(compiled(task.env, task.policy, method, 5, [3]))
    study = bps.Study(task.policy, method, seed=0)

    @in_64_bit
    def run(number: int) -> bps.Trajectories:
        key = jax.random.fold_in(jax.random.fold_in(batch_key(5), 3), number)
        return to_numpy(rollout(task.env, study.ask().behavior, key, BATCH))

    told = Told.of([tell(study, (run(number) for number in range(LOOKS)))])
    for ours, theirs in zip(found, told, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    estimate = study.estimate()
    sequence = estimate.sequence
    *_, last = found.courses()[0]
    np.testing.assert_allclose(last[:2], [sequence.mean, sequence.half_width()], 1e-6)
    assert last[2] <= last[1], "without the room it is no wider"


def test_studies_from_a_pool_say_what_studies_say() -> None:
    task = problem_of("gridworld-early")
    method = method_of("auto", task)
    episodes = bps.sample(task.env, task.policy, 2 * EPISODES, seed=1)
    for number, found in enumerate(pooled(task.env, task.policy, method, episodes)):
        study = bps.Study(task.policy, method, seed=0)
        for _ in range(LOOKS):
            study.ask()
        rows = np.arange(number * EPISODES, (number + 1) * EPISODES).reshape(LOOKS, BATCH)
        told = Told.of([tell(study, (episodes.take(part) for part in rows))])
        for ours, theirs in zip(Told.of([found]), told, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9)


@pytest.mark.parametrize(("name", "method"), [("gridworld, return < -200", "failures"), ("random-0", "starts")])
def test_other_studies_are_those_of_evaluate(name: str, method: str) -> None:
    problem = problem_of(name)
    found = Told.of([whole(problem, method_of(method, problem), 2)])
    estimate = bps.evaluate(problem.policy, problem.env, EPISODES, method, estimand=problem.estimand, seed=2)
    middle, half_width, tight = found.courses()[0, -1]
    assert middle == pytest.approx(estimate.sequence.mean)
    assert half_width == pytest.approx(estimate.sequence.half_width())
    assert tight < half_width if method == "failures" else tight == half_width


def test_what_is_told_comes_back_from_its_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    turns = [
        Turn(rng.normal(size=5), rng.normal(size=5), plain, weight) for plain, weight in ((True, 0.0), (False, 2.0))
    ]
    told = Told.of([turns])
    told.write(tmp_path / "new" / "told.npz")
    for ours, theirs in zip(Told.read(tmp_path / "new" / "told.npz"), told, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert np.isnan(told.courses()[0, 0, 0]), "a batch that does not count claims nothing"
    assert told.courses()[0, 1, 0] == turns[1].values.mean()
