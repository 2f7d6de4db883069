"""The closed form on tables: equal to the exact oracle, unbiased by enumeration, and far below Monte Carlo."""

import dataclasses

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.control_variates.dynamics import MAX_CELLS, Dynamics
from bpsearch.control_variates.forecast import Forecast, ForecastModel
from bpsearch.errors import DeterministicPolicyError, InvalidArgumentError, InvalidTrajectoriesError
from bpsearch.estimators import doubly_robust
from bpsearch.methods import find_method
from bpsearch.search.closed_form import ClosedForm
from enumeration import CASES, SMALL_CASES, case_id, enumerate_trajectories, random_mdp, random_policy

METHOD = find_method("closed-form")


def known(mdp: bps.TabularMDP, visits: float = 1e13) -> Dynamics:
    """As if every action of every state had been seen so often, with the true frequencies."""
    counts = np.where(mdp.terminal[:, None, None], 0.0, visits * mdp.transitions)
    pairs = counts.sum(axis=-1)
    rewards = counts * mdp.rewards
    squares = (rewards * mdp.rewards).sum(axis=-1)
    nothing = np.zeros_like(counts)
    return Dynamics(counts, rewards, squares, nothing, np.zeros_like(pairs), mdp.initial, np.int64(mdp.horizon))


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_with_the_true_model_it_is_the_exact_oracle(case):
    mdp = random_mdp(*case)
    policy = random_policy(1, mdp)
    forecast, truth = Forecast.of(known(mdp), policy, mdp.discount), bps.oracle.q_function(mdp, policy)
    np.testing.assert_allclose(forecast.q[::-1], truth.q, atol=1e-9)
    np.testing.assert_allclose(forecast.v[:0:-1], truth.v, atol=1e-9)
    exact = {"estimator": "dr", "model": truth}
    assert forecast.variance_of_return == pytest.approx(bps.oracle.variance(mdp, policy, None, "mc"), abs=1e-9)
    for behavior in (policy, random_policy(2, mdp)):
        expected = bps.oracle.variance(mdp, policy, behavior, **exact)
        assert forecast.variance(behavior.probabilities) == pytest.approx(expected, abs=1e-9)
    best, least = bps.oracle.optimal_behavior(mdp, policy, **exact)
    found, rest = forecast.optimum
    np.testing.assert_allclose(found[::-1][:, ~mdp.terminal], best[:, ~mdp.terminal], atol=1e-5)
    assert forecast.variance_of_starts + mdp.initial @ rest == pytest.approx(least, abs=1e-9)
    plain = bps.oracle.variance(mdp, policy, None, **exact)
    stationary = bps.oracle.variance(mdp, policy, forecast.behavior(0.0), **exact)
    mixed = bps.oracle.variance(mdp, policy, forecast.behavior(0.3), **exact)
    _, local = bps.oracle.optimum(mdp, policy, **exact)
    assert least - 1e-9 <= stationary <= 1.001 * local + 1e-9, "as good as the best stationary behavior"
    assert stationary - 1e-9 <= mixed <= plain + 1e-9, "never worse than staying"


def two_batches(mdp, policy, opening, share=0.3):
    """The expectation of a value of the second batch given each opening, and how far its behavior had moved."""
    everything = enumerate_trajectories(mdp)
    batch = everything.under(policy)
    search, valuation = ClosedForm(share), METHOD.valuation
    for rows in opening(everything, policy):
        state, _ = search.step(search.init(policy, mdp.discount), batch.take(rows))
        behavior = search.behavior(state)
        known = valuation.learn(valuation.init(policy, mdp.discount), batch.take(rows))
        values = valuation.value(known, everything.under(behavior)).values
        yield (
            everything.probabilities(behavior.probabilities) @ values,
            np.abs(behavior.probabilities - policy.probabilities).max(),
        )


def single(everything, policy):
    return [np.array([row]) for row in range(len(everything.batch))]


def many(everything, policy):
    rng, probabilities = np.random.default_rng(0), everything.probabilities(policy.probabilities)
    return [rng.choice(len(probabilities), size=30, p=probabilities) for _ in range(5)]


@pytest.mark.parametrize("opening", [single, many])
def test_whatever_the_first_batch_shows_the_second_is_unbiased(opening):
    """Every trajectory as the first batch: so the whole study of two batches is enumerated."""
    for case in SMALL_CASES[::9]:
        mdp = random_mdp(*case)
        policy = random_policy(1, mdp)
        truth = bps.oracle.value(mdp, policy)
        means, moved = map(np.array, zip(*two_batches(mdp, policy, opening), strict=True))
        np.testing.assert_allclose(means, truth, atol=1e-11)
        assert moved.max() > 0.01


def test_a_model_that_knows_the_batch_itself_would_be_biased():
    """The test above can fail: valued with a model that has learned from the episode itself, the mean is off."""
    mdp = random_mdp(0, (3, 2, 2), 0.9)
    policy = random_policy(1, mdp)
    everything = enumerate_trajectories(mdp)
    batch, probabilities = everything.under(policy), everything.probabilities(policy.probabilities)
    valuation, total = METHOD.valuation, 0.0
    for row, probability in enumerate(probabilities):
        own = batch.take(np.array([row]))
        total += probability * float(valuation.value(valuation.learn(valuation.init(policy, 0.9), own), own).values[0])
    assert abs(total - bps.oracle.value(mdp, policy)) > 1e-3


def gamble(probability=0.02):
    """A rare action opens a coin of the environment; nothing else happens."""
    transitions, rewards = np.zeros((4, 2, 4)), np.zeros((4, 2, 4))
    transitions[0, 0, 1] = 1.0
    transitions[0, 1, 2:] = 0.5
    rewards[0, 1, 2:] = 1.0, -1.0
    mdp = bps.TabularMDP(transitions, rewards, np.eye(4)[0], np.arange(4) > 0, horizon=1)
    return mdp, bps.SoftmaxTable.from_probabilities(np.tile([1.0 - probability, probability], (4, 1)))


def test_noise_that_a_rare_action_opens():
    """12 studies of 1,000 episodes; measured about 0.05 (`python -m benchmarks.closed_form`)."""
    mdp, policy = gamble()
    found = [bps.evaluate(policy, mdp, 1000, "closed-form", seed=seed) for seed in range(12)]
    ratio = np.mean([result.value**2 for result in found]) / (0.02 / 1000)
    assert ratio < 0.15  # the mean of 12 squared errors of 0.05 each: 3e-4 by chance
    assert np.mean([result.interval(0.95)[0] <= 0.0 <= result.interval(0.95)[1] for result in found]) >= 0.66
    assert np.exp(-found[0].data.log_weights[-1]) > 0.3  # of the mixture, the other 0.7 go to the rare action


def test_an_action_that_was_never_seen_is_tried_more_often():
    mdp, policy = gamble(0.001)
    batch = bps.sample(mdp, policy, 50, seed=0)
    assert not np.any(np.asarray(batch.actions))
    search = ClosedForm()
    state, _ = search.step(search.init(policy), batch)
    tried = search.behavior(state).probabilities[0, 1]
    assert 0.003 < tried < 0.1


def test_a_constant_at_the_first_step_only_moves_the_values():
    mdp, policy = bps.envs.gridworld(), bps.shipped_policy("gridworld-early")
    first, second = (bps.sample(mdp, policy, 60, seed=0, batch=n) for n in range(2))

    def paid(batch, amount):
        rewards = np.array(batch.rewards)
        rewards[:, 0] += amount
        return dataclasses.replace(batch, rewards=rewards)

    outcomes = []
    for amount in (0.0, 1000.0):
        search, valuation = ClosedForm(), METHOD.valuation
        state, _ = search.step(search.init(policy), paid(first, amount))
        learned = valuation.learn(valuation.init(policy), paid(first, amount))
        other = bps.sample(mdp, search.behavior(state), 60, seed=1)
        values = [valuation.value(learned, paid(batch, amount)).values - amount for batch in (second, other)]
        outcomes.append((search.behavior(state).probabilities, *values))
    for one, more in zip(*outcomes, strict=True):
        np.testing.assert_allclose(more, one, atol=1e-6)


def test_a_gymnasium_task_with_discrete_observations(tmp_path):
    """No horizon is known beforehand; a stored study goes on, and its replay gives the same bits."""
    logits = np.random.default_rng(0).normal(size=(16, 4))
    policy, store = bps.SoftmaxTable(logits), tmp_path / "study"
    settings = {"method": "closed-form", "seed": 3}
    half = bps.evaluate(policy, "FrozenLake-v1", 200, store=store, **settings)
    whole = bps.evaluate(policy, "FrozenLake-v1", 400, store=store, **settings)
    assert (half.episodes, whole.episodes) == (200, 400)
    assert whole.value == bps.evaluate(policy, "FrozenLake-v1", 400, **settings).value
    with bps.Study.open(store, read_only=True) as study:
        assert study.verify() == []
    assert np.abs(whole.data.log_weights[100:]).max() > 0.1


def test_what_it_refuses():
    with pytest.raises(InvalidArgumentError, match="needs a SoftmaxTable"):
        ClosedForm().init(bps.shipped_policy("cartpole-swingup"))
    with pytest.raises(DeterministicPolicyError):
        ClosedForm().init(bps.SoftmaxTable([[0.0, -np.inf]]))
    with pytest.raises(InvalidArgumentError, match=f"at most {MAX_CELLS}; got 2000 states and 2 actions"):
        ClosedForm().init(bps.SoftmaxTable.uniform(2000, 2))
    with pytest.raises(InvalidArgumentError, match="defensive"):
        ClosedForm(1.0)
    with pytest.raises(InvalidArgumentError, match="cannot be; use TabularModel"):
        bps.BPG(0.1, estimator=doubly_robust, model=ForecastModel())
    mdp, policy = gamble()
    batch = dataclasses.replace(bps.sample(mdp, policy, 5, seed=0), final_observations=None)
    with pytest.raises(InvalidTrajectoriesError, match="final_observations"):
        ClosedForm().step(ClosedForm().init(policy), batch)
