"""A search with a lag: workers need not wait for it, and the numbers depend on the lag alone."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.control_variates import TabularModel
from bpsearch.errors import InvalidArgumentError, SettingsMismatchError
from bpsearch.estimators import doubly_robust
from bpsearch.methods import find_method
from bpsearch.runners import Processes
from enumeration import enumerate_trajectories, random_mdp, random_policy
from test_workers import bits

POLICY, ENV = bps.shipped_policy("gridworld-early"), bps.envs.gridworld()


@pytest.fixture(scope="module")
def two() -> Iterator[Processes]:
    with Processes(2) as workers:
        yield workers


class Listed(bps.Runner):
    """Runs the episodes that it is told, one in each batch, and knows how likely they were."""

    def __init__(self, mdp: bps.TabularMDP) -> None:
        self.mdp, self.everything = mdp, enumerate_trajectories(mdp)
        self.chosen: tuple[int, ...] = ()
        self.behaviors: list[Any] = []
        self.probability = 1.0

    observation_space = property(lambda self: self.mdp.observation_space)
    action_space = property(lambda self: self.mdp.action_space)

    def run(self, behavior: Any, episodes: int, *, seed: int, batch: int, **_: Any) -> bps.Trajectories:
        row = slice(self.chosen[batch], self.chosen[batch] + 1)
        found = self.everything.under(behavior)
        names = ("observations", "actions", "rewards", "log_probs", "mask", "final_observations")
        one = bps.Trajectories(**{name: getattr(found, name)[row] for name in names})
        self.behaviors.append(behavior.logits)
        self.probability *= float(self.everything.env_probs[row][0] * np.exp(one.log_probs.sum()))
        return one


def test_every_study_of_three_batches_with_a_lag_of_one_is_unbiased() -> None:
    """All of them, each weighed by its probability, with a model that learns and a behavior that moves."""
    mdp = random_mdp(5, (2, 2, 1), 1.0)
    evaluation = random_policy(1, mdp)
    model = TabularModel.like(mdp)
    search = bps.BPG(0.3, doubly_robust, model=model)
    method = bps.Method(search, bps.Valuation(doubly_robust, model), batch_size=1, lag=1)
    runner = Listed(mdp)
    total = probability = moved = 0.0
    for chosen in product(range(len(runner.everything.env_probs)), repeat=3):
        runner.chosen, runner.probability, runner.behaviors = chosen, 1.0, []
        estimate = bps.Study(evaluation, method, seed=0).run(runner, episodes=3)
        total += runner.probability * estimate.value
        probability += runner.probability
        first, second, third = runner.behaviors
        assert np.array_equal(first, second)  # the second batch knows nothing of the first
        moved = max(moved, np.abs(third - first).max())
    assert abs(probability - 1.0) < 1e-12
    assert abs(total - bps.oracle.value(mdp, evaluation)) < 1e-12
    assert moved > 1e-3


def lagged(name: str, lag: int = 1) -> bps.Method:
    return replace(find_method(name, ENV), lag=lag)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bpg", "dr-bpg"])
def test_the_bits_are_those_of_the_lag_whoever_runs_the_episodes(two: Processes, name: str) -> None:
    alone = bps.evaluate(POLICY, ENV, 650, lagged(name), seed=5)
    assert bits(bps.evaluate(POLICY, ENV, 650, lagged(name), seed=5, workers=two)) == bits(alone)
    assert bits(bps.evaluate(POLICY, ENV, 650, lagged(name, 0), seed=5)) != bits(alone)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 4])
def test_other_numbers_of_workers_have_the_same_bits(count: int) -> None:
    alone = bps.evaluate(POLICY, ENV, 650, lagged("bpg", 2), seed=5)
    assert bits(bps.evaluate(POLICY, ENV, 650, lagged("bpg", 2), seed=5, workers=count)) == bits(alone)


@pytest.mark.parametrize("cached", [True, False])
def test_a_stored_study_goes_on_with_its_lag(tmp_path: Path, cached: bool) -> None:
    """In two runs or in one, by the cache or by a replay: a behavior knows what it would have known."""
    store, method = tmp_path / "study.db", lagged("bpg", 2)
    for total in (100, 300, 700):
        with bps.Study(POLICY, method, seed=3, store=store) as study:
            found = study.run(ENV, total=total)
            assert study.verify() == []
        if not cached:
            with bps.SQLiteJournal(store) as journal:
                journal.forget()
    alone = bps.Study(POLICY, method, seed=3).run(ENV, total=700)
    np.testing.assert_array_equal(found.data.values, alone.data.values)
    with pytest.raises(SettingsMismatchError, match=r"method\.lag \(stored 2, given 0\)"):
        bps.Study(POLICY, lagged("bpg", 0), seed=3, store=store)


def test_workers_are_given_the_next_batch_before_the_last_one_is_told() -> None:
    """What a runner hears: batch n + lag is expected before batch n is run, by the behavior that then runs it."""

    class Listening(bps.Runner):
        observation_space, action_space = ENV.observation_space, ENV.action_space

        def __init__(self) -> None:
            self.heard: list[tuple[str, int]] = []
            self.expected: dict[int, Any] = {}

        def expect(self, behavior: Any, sizes: Any, *, seed: int, batch: int, resets: int = 0) -> None:
            assert self.expected.setdefault(batch, behavior) is behavior
            assert list(sizes) == [100 if batch < 3 else 50]
            self.heard.append(("expect", batch))

        def run(self, behavior: Any, episodes: int, *, seed: int, batch: int, **_: Any) -> bps.Trajectories:
            assert self.expected[batch] is behavior
            self.heard.append(("run", batch))
            return bps.sample(ENV, behavior, episodes, seed=seed, batch=batch)

    runner = Listening()
    bps.Study(POLICY, lagged("bpg"), seed=0).run(runner, episodes=350)
    for batch in (0, 1, 2):
        assert runner.heard.index(("expect", batch + 1)) < runner.heard.index(("run", batch))
    assert [batch for what, batch in runner.heard if what == "run"] == [0, 1, 2, 3]


def test_the_lag_is_a_number_of_batches() -> None:
    with pytest.raises(InvalidArgumentError, match="lag"):
        lagged("bpg", -1)
