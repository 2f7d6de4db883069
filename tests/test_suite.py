"""Suites: a table of tasks, and both errors of their mean."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

import bpsearch as bps
from bpsearch.errors import InvalidArgumentError

MDP = bps.envs.gridworld()
EARLY = bps.shipped_policy("gridworld-early")
TASKS = {
    "plain": MDP,
    "paid": dataclasses.replace(MDP, rewards=MDP.rewards + 1.0),
    "short": dataclasses.replace(MDP, horizon=5),
}


def test_the_mean_and_its_errors_by_another_route():
    scales = {"plain": (-100.0, 100.0), "paid": (0.0, 50.0), "short": (-10.0, 10.0)}
    found = bps.evaluate_suite(EARLY, TASKS, 300, "mc", seed=0, scales=scales)
    assert found.episodes == 900
    alone = {name: bps.evaluate(EARLY, env, 300, "mc", seed=0) for name, env in TASKS.items()}
    scores = [(alone[n].value - low) / (high - low) for n, (low, high) in scales.items()]
    errors = [alone[n].std_error / (high - low) for n, (low, high) in scales.items()]
    assert list(found.scores.values()) == pytest.approx(scores)
    assert found.mean == pytest.approx(np.mean(scores))
    assert found.std_error == pytest.approx(math.sqrt(sum(e**2 for e in errors)) / 3)
    assert found.clustered_error == pytest.approx(stats.sem(scores))
    low, high = found.clustered_interval(0.9)
    assert (high - low) / 2 == pytest.approx(stats.t.ppf(0.95, 2) * stats.sem(scores))
    low, high = found.interval(0.95)
    assert (high - low) / 2 == pytest.approx(1.959964 * found.std_error, rel=1e-5)
    truths = [(bps.oracle.value(TASKS[n], EARLY) - low) / (high - low) for n, (low, high) in scales.items()]
    assert low < np.mean(truths) < high
    table = found.to_dataframe()
    assert list(table["task"]) == list(TASKS)
    assert table["score"].tolist() == pytest.approx(scores)
    text = str(found)
    assert text.splitlines()[0].split()[:2] == ["task", "score"]
    assert "for other tasks like these (clustered by task)" in text


def test_values_count_as_they_are_without_scales_and_options_are_passed_on():
    policies = {"plain": EARLY, "short": bps.SoftmaxTable(1.2 * EARLY.logits)}
    found = bps.evaluate_suite(policies, {n: TASKS[n] for n in policies}, 2000, "mc", seed=1, target=10.0)
    assert found.scores == {name: estimate.value for name, estimate in found.estimates.items()}
    assert found.estimates["short"].episodes < 2000
    assert "score" not in str(found)
    one = bps.evaluate_suite(EARLY, {"plain": MDP}, 100, "mc", seed=0)
    assert one.clustered_interval() is None
    assert one.interval() is not None


def test_mistakes_are_named():
    with pytest.raises(InvalidArgumentError, match="at least one"):
        bps.evaluate_suite(EARLY, {})
    with pytest.raises(InvalidArgumentError, match="policies must have the names"):
        bps.evaluate_suite({"a": EARLY}, {"b": MDP})
    with pytest.raises(InvalidArgumentError, match="scales must have the names"):
        bps.evaluate_suite(EARLY, {"b": MDP}, scales={"a": (0.0, 1.0)})
    with pytest.raises(InvalidArgumentError, match="the scale of b"):
        bps.evaluate_suite(EARLY, {"b": MDP}, scales={"b": (1.0, 1.0)})
