"""What no estimate may depend on: constants, units, names, the order of folds. Property-based, for the methods."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bpsearch as bps
from bpsearch.estimators import importance_sampling
from bpsearch.methods import find_method
from bpsearch.testing import random_mdp

SHAPE, DISCOUNT, EPISODES = (4, 3, 3), 0.9, 100
# Whole-episode values. Estimators that weigh rewards one by one ("pdis-bpg", "dr-bpg") weigh a constant as well, and a
# model without time ("as") takes one that is paid at one step for a property of the states met there.
METHODS = ("mc", "auto", "bpg")
SLOW = settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
CONSTANTS = st.floats(-1e4, 1e4).filter(lambda c: abs(c) > 1e-3)
SEEDS = st.integers(0, 10_000)


def batches(seed, mdp, policy):
    return [bps.sample(mdp, policy, EPISODES, seed=seed, batch=number) for number in range(3)]


def study(method, policy, told):
    """An estimate of on-policy batches, told as if they had been asked for one after the other."""
    found = bps.Study(policy, find_method(method), estimand=bps.Return(DISCOUNT), seed=0)
    for batch in told:
        # The behaviors are the policy's own: what a search does with the batches is not what is tested here.
        found.tell(found.ask().number, dataclasses.replace(batch, behavior_parameters=None))
    return found.estimate()


def make(seed):
    mdp = random_mdp(seed, SHAPE, DISCOUNT)
    policy = bps.SoftmaxTable(np.random.default_rng(seed).normal(size=SHAPE[:2]))
    return mdp, policy, batches(seed, mdp, policy)


def assert_moved(before, after, shift=0.0, scale=1.0):
    """`after` = scale · `before` + shift, in everything that it says."""
    size = abs(shift) + abs(scale) * (abs(before.value) + before.std_error)
    tolerance = {"rel": 1e-6, "abs": 1e-7 * size}
    assert after.value == pytest.approx(scale * before.value + shift, **tolerance)
    assert after.std_error == pytest.approx(abs(scale) * before.std_error, **tolerance)
    for name in ("interval", "tight_interval", "anytime_interval"):
        ends = sorted(scale * end + shift for end in getattr(before, name)())
        assert getattr(after, name)() == pytest.approx(tuple(ends), **tolerance)
    for name in ("savings", "tight_savings"):
        assert getattr(after, name) == pytest.approx(getattr(before, name), rel=1e-4)


@pytest.mark.parametrize("method", METHODS)
@SLOW
@given(seed=SEEDS, constant=CONSTANTS)
def test_a_constant_at_the_first_step_moves_everything_by_itself(method, seed, constant):
    _, policy, told = make(seed)
    paid = []
    for batch in told:
        rewards = np.array(batch.rewards)
        rewards[:, 0] += constant
        paid.append(dataclasses.replace(batch, rewards=rewards))
    assert_moved(study(method, policy, told), study(method, policy, paid), shift=constant)


@pytest.mark.parametrize("method", METHODS)
@SLOW
@given(seed=SEEDS, scale=st.floats(1e-3, 1e3), sign=st.sampled_from((-1.0, 1.0)))
def test_units_and_signs_scale_everything(method, seed, scale, sign):
    _, policy, told = make(seed)
    scaled = [dataclasses.replace(batch, rewards=sign * scale * batch.rewards) for batch in told]
    assert_moved(study(method, policy, told), study(method, policy, scaled), scale=sign * scale)


@pytest.mark.parametrize("method", METHODS)
@SLOW
@given(seed=SEEDS)
def test_names_of_states_and_actions_do_not_matter(method, seed):
    _, policy, told = make(seed)
    rng = np.random.default_rng(seed)
    states, actions = rng.permutation(SHAPE[0]), rng.permutation(SHAPE[1])
    renamed_policy = bps.SoftmaxTable(policy.logits[np.argsort(states)][:, np.argsort(actions)])
    renamed = [
        dataclasses.replace(
            batch,
            observations=states[batch.observations],
            actions=actions[batch.actions],
            final_observations=states[batch.final_observations],
            behavior_parameters=None,
        )
        for batch in told
    ]
    assert_moved(study(method, policy, told), study(method, renamed_policy, renamed))


@pytest.mark.parametrize("method", METHODS)
@SLOW
@given(seed=SEEDS)
def test_an_action_that_the_policy_cannot_take_does_not_matter(method, seed):
    _, policy, told = make(seed)
    wider = bps.SoftmaxTable(np.pad(policy.logits, ((0, 0), (0, 1)), constant_values=-np.inf))
    more = [dataclasses.replace(batch, behavior_parameters=None) for batch in told]
    assert_moved(study(method, policy, told), study(method, wider, more))


@pytest.mark.parametrize("method", ["mc", "auto"])
@SLOW
@given(seed=SEEDS)
def test_the_order_of_the_folds_does_not_matter(method, seed):
    """Fold k of every batch becomes fold k + 1: the same episodes are judged and learned from together."""
    _, policy, told = make(seed)
    turned = np.roll(np.arange(EPISODES), 1)
    again = [batch.take(turned) for batch in told]
    before, after = study(method, policy, told), study(method, policy, again)
    assert after.value == pytest.approx(before.value, rel=1e-7, abs=1e-9)
    assert after.std_error == pytest.approx(before.std_error, rel=1e-6)


@pytest.mark.parametrize("method", ["mc", "auto"])
@SLOW
@given(seed=SEEDS)
def test_splitting_a_step_in_two_does_not_matter(method, seed):
    """Every step becomes two: the second in a state of its own, with one possible action and no reward."""
    _, policy, told = make(seed)
    states = SHAPE[0]
    waiting = np.full((states, SHAPE[1]), -np.inf)
    waiting[:, 0] = 0.0
    longer = bps.SoftmaxTable(np.vstack([policy.logits, waiting]))
    split = []
    for batch in told:
        batch = dataclasses.replace(batch, rewards=batch.rewards * DISCOUNT ** np.arange(batch.mask.shape[1]))
        after = states + np.asarray(batch.successors)  # the state in which one waits before the successor

        def interleave(first, second):
            return np.stack([first, second], axis=2).reshape(len(first), -1)

        split.append(
            bps.Trajectories(
                interleave(batch.observations, after),
                interleave(batch.actions, np.zeros_like(batch.actions)),
                interleave(batch.rewards, np.zeros_like(batch.rewards)),
                interleave(batch.log_probs, np.zeros_like(batch.log_probs)),
                interleave(batch.mask, batch.mask),
                final_observations=batch.final_observations,
            )
        )
    plain = [
        dataclasses.replace(batch, rewards=batch.rewards * DISCOUNT ** np.arange(batch.mask.shape[1])) for batch in told
    ]
    before, after = (bps.Study(p, find_method(method), seed=0) for p in (policy, longer))
    for one, other in zip(plain, split, strict=True):
        before.tell(before.ask().number, dataclasses.replace(one, behavior_parameters=None))
        after.tell(after.ask().number, other)
    found, expected = after.estimate(), before.estimate()
    assert found.value == pytest.approx(expected.value, rel=1e-7, abs=1e-8)
    assert found.std_error == pytest.approx(expected.std_error, rel=1e-6)


def test_the_weights_of_a_searched_study_ignore_constants_too():
    """The same with behaviors that move: told twice, with and without a constant on the return."""
    mdp, policy = bps.envs.gridworld(), bps.shipped_policy("gridworld-early")
    results = []
    for constant in (0.0, 500.0):
        found = bps.Study(policy, bps.Method(bps.AdaptiveBPG(), bps.Valuation(importance_sampling)), seed=0)
        for number in range(4):
            request = found.ask()
            batch = bps.sample(mdp, request.behavior, 100, seed=1, batch=number)
            rewards = np.array(batch.rewards)
            rewards[:, 0] += constant
            found.tell(request.number, dataclasses.replace(batch, rewards=rewards))
        results.append(found.estimate())
    assert results[1].value - 500.0 == pytest.approx(results[0].value, rel=1e-6)
    assert results[1].std_error == pytest.approx(results[0].std_error, rel=1e-5)
    assert results[1].savings == pytest.approx(results[0].savings, rel=1e-4)
