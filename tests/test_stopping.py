"""Stopping: at a target, at a time limit, by Ctrl-C; each leaves a usable estimate that says how it ended."""

import json
import os
import signal
import time

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.errors import InvalidArgumentError
from enumeration import SMALL_CASES, enumerate_trajectories, random_mdp

MDP = bps.envs.gridworld()
POLICY = bps.shipped_policy("gridworld-early")


def test_a_study_stops_at_its_target_and_not_before():
    seen = []

    def look(study, _):
        low, high = study.estimate().anytime_interval()
        seen.append((high - low) / 2)

    found = bps.Study(POLICY, bps.OnPolicy(), seed=1).run(MDP, episodes=5000, on_batch=look, target_halfwidth=8.0)
    assert found.ended == "target"
    assert found.episodes == 100 * len(seen) < 5000
    assert seen[-1] <= 8.0 < seen[-2]
    assert "which this one was not: it ended by reaching its target" in found.interval_kind
    assert "whenever one stops" in found.anytime_kind
    low, high = found.anytime_interval()
    assert low < bps.oracle.value(MDP, POLICY) < high
    wider = found.anytime_interval(0.99)
    assert wider[0] < low < high < wider[1]
    assert found.to_json()["anytime_interval"] == (low, high)


def test_a_target_out_of_reach_ends_with_the_budget():
    found = bps.evaluate(POLICY, MDP, 200, "mc", target_halfwidth=1e-3)
    assert found.ended == "budget"
    assert found.episodes == 200


def test_a_time_limit_lets_the_batch_finish():
    found = bps.evaluate(
        POLICY, MDP, 500, "mc", time_limit=0.01, on_batch=lambda *_: time.sleep(0.02), target_halfwidth=1e-3
    )
    assert found.ended == "time limit"
    assert found.episodes == 100


def test_an_interrupt_leaves_whole_batches_and_a_usable_estimate():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may have it ignored

    def interrupt(study, _):
        if study.episodes == 300:
            os.kill(os.getpid(), signal.SIGINT)

    study = bps.Study(POLICY, bps.AdaptiveBPG(), seed=2)
    try:
        found = study.run(MDP, episodes=1000, on_batch=interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert found.ended == "interrupted"
    assert "interrupted after" in str(found)
    assert 300 <= found.episodes < 1000
    assert int(study.state.valuation.batches) == found.episodes // 100
    whole = bps.Study(POLICY, bps.AdaptiveBPG(), seed=2).run(MDP, episodes=1000)
    assert study.run(MDP, episodes=1000 - found.episodes).value == whole.value, "the study goes on as if nothing was"


def test_an_interrupt_before_the_first_batch_is_an_interrupt(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("bpsearch.study.sample", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bps.Study(POLICY, bps.OnPolicy()).run(MDP, episodes=100)


def test_the_command_prints_and_writes_what_it_has_when_interrupted(tmp_path, monkeypatch, in_process):
    def sampled(*arguments, batch, **options):
        if batch == 2:
            raise KeyboardInterrupt
        return bps.sample(*arguments, batch=batch, **options)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bpsearch.study.sample", sampled)
    arguments = "--env bpsearch/Gridworld-v0 --policy gridworld-early --method mc --out found --failure"
    done = in_process("evaluate", *arguments.split(), "return < -80")
    assert done.returncode == 130
    assert "Interrupted after 200 episodes." in done.stdout
    assert "probability of return < -80" in done.stdout
    result = json.loads((tmp_path / "found" / "result.json").read_text())
    assert (result["ended"], result["episodes"]) == ("interrupted", 200)
    assert 0.0 <= result["interval"][0] < result["interval"][1] <= 1.0
    assert "Interrupted after 200 episodes" in (tmp_path / "found" / "report.html").read_text()


def test_the_range_of_returns_of_a_table_is_exact():
    for case in SMALL_CASES:
        mdp = random_mdp(*case)
        returns = enumerate_trajectories(mdp).batch.returns(mdp.discount)
        np.testing.assert_allclose(mdp.return_range, (returns.min(), returns.max()))


def test_without_a_range_there_is_no_anytime_interval_and_no_target():
    found = bps.evaluate(lambda observation: 0, "CartPole-v1", 20, horizon=20)
    assert found.anytime_interval() is None
    assert "needs to know between which numbers every return lies" in found.anytime_kind
    assert "anytime" not in str(found)
    with pytest.raises(InvalidArgumentError, match="target_halfwidth needs an interval"):
        bps.evaluate(lambda observation: 0, "CartPole-v1", 20, target_halfwidth=1.0)
    ranged = bps.evaluate(lambda observation: 0, "CartPole-v1", 60, horizon=20, return_range=(0, 20))
    low, high = ranged.anytime_interval()
    assert 0.0 <= low < ranged.value < high <= 20.0
    untraceable = bps.evaluate(lambda state: 1, MDP, 20, horizon=5)
    assert untraceable.anytime_interval() is not None, "the table knows its range whoever runs it"


def test_a_range_that_returns_leave_is_refused():
    study = bps.Study(POLICY, bps.OnPolicy(), return_range=(-10.0, 0.0))
    with pytest.raises(InvalidArgumentError, match=r"beyond the given range \[-10, 0\]"):
        study.run(MDP, episodes=300, target_halfwidth=1.0)
    assert study.episodes == 100
    assert study.estimate().anytime_interval() is None
    assert "give one that holds every return" in study.estimate().anytime_kind


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target_halfwidth": 0.0}, "target_halfwidth must be"),
        ({"time_limit": -1.0}, "time_limit must be"),
        ({"return_range": (1.0, 1.0)}, "return_range must be"),
        ({"return_range": (0.0, float("inf"))}, "return_range must be"),
        ({"return_range": 3.0}, "return_range must be two finite numbers"),
        ({"return_range": (0.0, 2.0), "failure": "length > 3"}, "return_range has no meaning for the event"),
        ({"defensive": 1.0}, "defensive must be"),
        ({"defensive": 0.1, "method": "mc"}, "defensive has no meaning for method 'mc'"),
    ],
)
def test_bad_settings_are_named(arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        bps.evaluate(POLICY, MDP, 100, **arguments)


def test_the_interval_speaks_of_weights_only_where_there_are_some():
    own = bps.evaluate(POLICY, MDP, episodes=200, method="mc")
    searched = bps.evaluate(POLICY, MDP, episodes=200, method="bpg")
    assert "rare episodes" in own.interval_kind
    assert "weights" not in own.interval_kind
    assert "importance weights" in searched.interval_kind
