"""`bps.estimate`: episodes that are there already."""

import dataclasses

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.control_variates import TabularModel
from bpsearch.errors import InvalidArgumentError, PoorOverlapError
from toy_envs import Toy


def task() -> tuple[bps.TabularMDP, bps.SoftmaxTable, bps.SoftmaxTable]:
    env, policy = bps.envs.gridworld(), bps.shipped_policy("gridworld-early")
    noise = np.random.default_rng(0).normal(scale=0.15, size=policy.logits.shape)
    return env, policy, bps.SoftmaxTable(policy.logits + noise)


@pytest.mark.parametrize("estimator", ["auto", "is", "pdis", "wis", bps.estimators.per_decision])
def test_logged_episodes_of_another_policy(estimator: object) -> None:
    """|z| < 4.5 on the exact value, and the same by hand: a false alarm once in 100,000 seeds."""
    env, policy, behavior = task()
    batch = bps.sample(env, behavior, 2000, seed=0)
    result = bps.estimate(policy, batch, estimator)  # type: ignore[arg-type]
    assert result.std_error is not None
    assert abs(result.value - bps.oracle.value(env, policy)) < 4.5 * result.std_error
    assert result.diagnostics.effective_sample_size < 2000
    weights = np.exp(
        np.sum(policy.log_prob(batch.observations, batch.actions) - batch.log_probs, axis=1, where=batch.mask)
    )
    if estimator == "is":
        assert result.value == pytest.approx(np.mean(weights * batch.returns()), rel=1e-9)
    assert result.unbiased == (estimator != "wis")


def test_a_model_learns_from_earlier_episodes_only() -> None:
    env, policy, behavior = task()
    batch = bps.sample(env, behavior, 1000, seed=1)
    valuation = bps.Valuation(bps.estimators.doubly_robust, TabularModel.like(env))
    result = bps.estimate(policy, batch, valuation)
    assert abs(result.value - bps.oracle.value(env, policy)) < 4.5 * (result.std_error or 0.0)
    assert (result.std_error or 0.0) < (bps.estimate(policy, batch, "is").std_error or 0.0)
    first = bps.estimate(
        policy, batch.take(np.arange(100)), bps.Valuation(bps.estimators.doubly_robust, TabularModel.like(env))
    )
    assert first.episodes == 100


def test_episodes_of_the_policy_itself_are_valued_as_by_auto() -> None:
    env, policy, _ = task()
    run = bps.evaluate(policy, env, episodes=100, seed=3)
    logged = bps.estimate(policy, bps.sample(env, policy, 100, seed=3))
    assert logged.value == pytest.approx(run.value, rel=1e-9)
    assert logged.interval() == pytest.approx(run.interval(), rel=1e-9)
    assert logged.method == "auto"


def test_probabilities_are_computed_again_if_wanted() -> None:
    env, policy, behavior = task()
    batch = bps.sample(env, behavior, 200, seed=0)
    forgotten = dataclasses.replace(batch, log_probs=np.zeros_like(batch.log_probs))
    expected = bps.estimate(policy, batch, "is").value
    assert bps.estimate(policy, forgotten, "is", behavior=behavior).value == pytest.approx(expected, rel=1e-9)


def test_episodes_that_say_nothing_are_refused() -> None:
    env, policy, _ = task()
    far = bps.SoftmaxTable(np.random.default_rng(1).normal(scale=3.0, size=policy.logits.shape))
    batch = bps.sample(env, far, 200, seed=0)
    with pytest.raises(PoorOverlapError, match=r"worth \d+\.\d equally weighted.*insist=True"):
        bps.estimate(policy, batch)
    assert bps.estimate(policy, batch, insist=True).episodes == 200
    with pytest.raises(InvalidArgumentError, match="gives no probabilities"):
        bps.estimate(bps.from_function(lambda observation: 0, Toy), batch)
    with pytest.raises(InvalidArgumentError, match="env is needed"):
        bps.estimate("agent.zip", batch)
    with pytest.raises(InvalidArgumentError, match="estimator must be one of auto"):
        bps.estimate(policy, batch, "dr", insist=True)


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    env, policy, _ = task()
    seen = []
    bps.evaluate(
        policy, env, episodes=200, seed=0, progress=True, on_batch=lambda study, info: seen.append(study.episodes)
    )
    assert seen == [100, 200]
