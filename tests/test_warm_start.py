"""Studies that begin with old episodes."""

import itertools
from pathlib import Path

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.errors import InvalidArgumentError, PoorOverlapError
from bpsearch.search import WarmStart
from bpsearch.search.warm_start import judge_worth
from bpsearch.testing import check_search
from enumeration import enumerate_trajectories


def forked() -> bps.TabularMDP:
    """Two steps of two actions each: four trajectories."""
    transitions = np.zeros((3, 2, 3))
    transitions[0, :, 1] = transitions[1, :, 2] = transitions[2, :, 2] = 1.0
    rewards = np.array([[1.0, -0.5], [2.0, 0.3], [0.0, 0.0]])[:, :, None].repeat(3, axis=2)
    return bps.TabularMDP(transitions, rewards, np.array([1.0, 0.0, 0.0]), np.array([False, False, True]), 2)


@pytest.mark.parametrize("name", ["is", pytest.param("pdis", marks=pytest.mark.slow)])
def test_a_warm_study_is_unbiased_through_weights_and_search(name: str) -> None:
    """Σ Pr(pilot, old, new) · estimate = value, over all ways in which two, one and one episodes may happen."""
    mdp = forked()
    policy = bps.SoftmaxTable(np.array([[0.3, -0.4], [0.8, 0.0], [0.0, 0.0]]))
    old = bps.SoftmaxTable(np.array([[-0.9, 0.5], [-0.2, 0.7], [0.0, 0.0]]))
    everything = enumerate_trajectories(mdp)
    logged, chances = everything.under(old), everything.probabilities(old.probabilities)
    estimator = bps.estimators.importance_sampling if name == "is" else bps.estimators.per_decision
    method = bps.Method(WarmStart(bps.BPG(0.05, estimator=estimator)), bps.Valuation(estimator))
    expectation, hasty, total, weights, behaviors = 0.0, 0.0, 0.0, set(), set()
    count = len(everything.batch)
    for first, second, third in itertools.product(range(count), repeat=3):
        study = bps.Study(policy, method, seed=0)
        for rows in ([first, second], [third]):
            study.tell(study.ask().number, logged.take(np.array(rows)))
        told = study._progress.batches
        request = study.ask()
        behavior = request.behavior
        assert isinstance(behavior, bps.SoftmaxTable)
        weights.add(round(told[1].weight, 12))
        behaviors.add(round(float(behavior.flat[0]), 12))
        fresh, own = everything.under(behavior), everything.probabilities(behavior.probabilities)
        ratios = bps.estimators.log_ratios(policy, fresh)
        new = estimator(fresh.rewards, ratios, fresh.mask, 1.0)
        chance = chances[first] * chances[second] * chances[third]
        worth, value = told[1].weight, float(told[1].values[0])
        expectation += chance * np.sum(own * (worth * value + new) / (worth + 1.0))
        # A control: the old episode says itself how much it is worth.
        itself = min(float(np.exp(told[1].log_weights[0])), 1.0)
        hasty += chance * np.sum(own * (itself * value + new) / (itself + 1.0))
        total += chance * own.sum()
        if (first, second, third) == (0, 1, 2):  # the study's own arithmetic
            study.tell(request.number, fresh.take(np.array([3])))
            expected = (worth * value + float(new[3])) / (worth + 1.0)
            assert study.estimate().value == pytest.approx(expected, rel=1e-12)
            assert study.estimate().episodes == 4
    truth = bps.oracle.value(mdp, policy)
    assert total == pytest.approx(1.0, abs=1e-12)
    assert len(weights) > 3
    assert len(behaviors) == count  # the search has learned from the third
    assert abs(expectation - truth) < 1e-12
    assert abs(hasty - truth) > 1e-3


def test_warm_start_is_a_search() -> None:
    env, policy, old = logged_task(0.1)
    batches = [old.take(np.arange(10)), old.take(np.arange(10, 30)), bps.sample(env, policy, 10, seed=1)]
    check_search(WarmStart(bps.AdaptiveBPG(caution=0.0)), policy, batches)


def test_what_old_episodes_are_worth() -> None:
    returns, weights = np.array([1.0, 2.0, 4.0]), np.array([0.5, 1.0, 2.0])
    mean = weights @ returns / 3.5
    values = weights * returns + mean * (1.0 - weights)
    expected = (weights @ (returns - mean) ** 2 / 3.5) / np.var(values, ddof=1)
    assert judge_worth(weights * returns, returns, np.log(weights)) == pytest.approx((expected, mean))
    assert judge_worth(returns, returns, np.zeros(3)) == pytest.approx((2.0 / 3.0, 7.0 / 3.0))  # n − 1 over n
    assert judge_worth(np.ones(3), np.ones(3), np.zeros(3)) == (1.0, 1.0)
    assert judge_worth(returns[:1], returns[:1], np.zeros(1)) == (0.0, 0.0)
    assert judge_worth(np.zeros(2), returns[:2], np.full(2, -np.inf)) == (0.0, 0.0)


def logged_task(noise: float) -> tuple[bps.TabularMDP, bps.SoftmaxTable, bps.Trajectories]:
    env, policy = bps.envs.gridworld(), bps.shipped_policy("gridworld-early")
    change = np.random.default_rng(0).normal(scale=noise, size=policy.logits.shape)
    return env, policy, bps.sample(env, bps.SoftmaxTable(policy.logits + change), 400, seed=5)


@pytest.mark.slow
def test_old_episodes_of_another_behavior_help() -> None:
    """|z| < 4.5 on the exact value: a false alarm once in 100,000 seeds."""
    env, policy, old = logged_task(0.03)
    study = bps.warm_start(policy, old, "bpg", seed=0)
    assert study.episodes == 400
    result = study.run(env, total=600)
    alone = bps.evaluate(policy, env, 200, "bpg", seed=0)
    assert result.std_error is not None
    assert alone.std_error is not None
    assert abs(result.value - bps.oracle.value(env, policy)) < 4.5 * result.std_error
    assert result.std_error < alone.std_error
    assert result.episodes == 600
    assert bps.warm_start(policy, old).method.name == "pdis-bpg"


def test_own_old_episodes_count_like_new_ones() -> None:
    env, policy, _ = logged_task(0.0)
    old = bps.sample(env, policy, 150, seed=9)
    study = bps.warm_start(policy, old, seed=0)
    assert study.method.name == "auto"
    assert study.estimate().value == pytest.approx(bps.estimate(policy, old).value)
    assert study.run(env, episodes=100).episodes == 250


def test_a_stored_warm_start_goes_on(tmp_path: Path) -> None:
    env, policy, old = logged_task(0.1)
    path = tmp_path / "study.bps"
    with bps.warm_start(policy, old, "bpg", seed=0, store=path) as study:
        study.run(env, total=500)
    with bps.warm_start(policy, old, "bpg", seed=0, store=path) as study:
        assert study.episodes == 500
        stopped = study.run(env, total=600)
    assert stopped.value == bps.warm_start(policy, old, "bpg", seed=0).run(env, total=600).value
    with bps.Study.open(path) as study:
        assert study.verify() == []


def test_what_cannot_be_a_warm_start_is_refused() -> None:
    _, policy, old = logged_task(0.1)
    for method in ("mc", bps.Method(bps.OnPolicy(), bps.Valuation())):
        with pytest.raises(InvalidArgumentError, match="values episodes of the policy itself only"):
            bps.warm_start(policy, old, method)
    _, _, far = logged_task(3.0)
    with pytest.raises(PoorOverlapError, match="equally weighted"):
        bps.warm_start(policy, far)
