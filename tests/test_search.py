"""Searches: Algorithm 1 step by step, step sizes, early stopping, and one protocol for all."""

import jax
import numpy as np
import pytest

import bpsearch as bps
from bpsearch.control_variates import TabularModel
from bpsearch.errors import InvalidArgumentError
from bpsearch.estimators import advantage_sum, doubly_robust, importance_sampling, log_ratios, per_decision
from bpsearch.paper.on_policy import OnPolicyCurve
from bpsearch.search import constant, decaying, normalized

MDP = bps.envs.gridworld()
POLICY = bps.shipped_policy("gridworld-early")


def all_searches():
    model = TabularModel.like(MDP)
    return {
        "on-policy": bps.OnPolicy(),
        "advantage sum": OnPolicyCurve(advantage_sum, model),
        "bpg": bps.BPG(1e-5),
        "bpg without baseline": bps.BPG(1e-5, baseline=False),
        "bpg normalized": bps.BPG(normalized(0.05), patience=3),
        "pdis-bpg": bps.BPG(decaying(1e-5, 0.1), estimator=per_decision),
        "adaptive": bps.AdaptiveBPG(),
        "adaptive pdis": bps.AdaptiveBPG(per_decision),
        "adaptive dr": bps.AdaptiveBPG(doubly_robust, model),
        "dr-bpg": bps.BPG(1e-6, estimator=doubly_robust, model=model),
        "dr-bpg fixed": bps.BPG(1e-6, estimator=doubly_robust, model=TabularModel.like(MDP, "fixed", 2)),
        "dr-bpg update": bps.BPG(1e-6, estimator=doubly_robust, model=TabularModel.like(MDP, "update")),
    }


def run(search, batches, seed=0):
    state = search.init(POLICY)
    infos = []
    for number in range(batches):
        batch = bps.sample(MDP, search.behavior(state), episodes=50, seed=seed, batch=number)
        state, info = search.step(state, batch)
        infos.append(info)
    return state, infos


def marked(names, slow):
    """The names; tests of some take long, and others are of their kind."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in slow else name for name in names]


@pytest.mark.parametrize("name", marked(all_searches(), slow=("adaptive pdis", "dr-bpg update")))
def test_protocol(name):
    """Starts at the evaluation policy; values what it learns from; its state is arrays and can be carried on."""
    search = all_searches()[name]
    state = search.init(POLICY)
    np.testing.assert_array_equal(search.behavior(state).flat, POLICY.flat)
    assert search.shift(state) == 0.0
    final, infos = run(search, 4)
    for info in infos:
        assert info.values.shape == (0 if name == "on-policy" else 50,)
        assert info.second_moment == pytest.approx(np.mean(info.values**2) if info.values.size else 0.0)
    restored = assert_restorable(final)
    batch = bps.sample(MDP, search.behavior(restored), episodes=50, seed=0, batch=4)
    assert_same_bits(search.step(restored, batch)[0], run(search, 5)[0])


def assert_restorable(state):
    """Nothing but arrays; the state made again from copies of them."""
    leaves, structure = jax.tree_util.tree_flatten(state)
    assert all(isinstance(leaf, np.ndarray | np.generic) for leaf in leaves)
    return jax.tree_util.tree_unflatten(structure, [np.array(leaf) for leaf in leaves])


def assert_same_bits(one, other):
    for a, b in zip(*(jax.tree_util.tree_leaves(state) for state in (one, other)), strict=True):
        np.testing.assert_array_equal(a, b)


def all_valuations():
    model = TabularModel.like(MDP)
    return {
        "monte carlo": bps.Valuation(),
        "importance sampling": bps.Valuation(importance_sampling),
        "advantage sum": bps.Valuation(advantage_sum, model),
        "doubly robust": bps.Valuation(doubly_robust, model),
        "doubly robust fixed": bps.Valuation(doubly_robust, TabularModel.like(MDP, "fixed", 2)),
        "control variates": bps.Valuation(control_variates=(bps.Scores(), bps.TabularAdvantages())),
    }


@pytest.mark.parametrize("name", all_valuations())
def test_protocol_of_valuations(name):
    """One value, one log-weight and one return per episode; its state is arrays and can be carried on."""
    valuation = all_valuations()[name]
    behavior = POLICY if valuation.estimator.on_policy else bps.SoftmaxTable(0.9 * POLICY.logits)
    batches = [bps.sample(MDP, behavior, episodes=50, seed=0, batch=number) for number in range(5)]

    def learn(state, batches):
        for batch in batches:
            state = valuation.learn(state, batch)
        return state

    state = learn(valuation.init(POLICY), batches[:4])
    valued = valuation.value(state, batches[4])
    assert valued.values.shape == valued.log_weights.shape == valued.returns.shape == (50,)
    np.testing.assert_array_equal(valued.returns, batches[4].returns())
    np.testing.assert_allclose(valued.log_weights, log_ratios(POLICY, batches[4]).sum(axis=1), atol=1e-12)
    shifted = valuation.value(state, batches[4], 7.0).values
    expected = (
        valued.values if valuation.estimator.on_policy else valued.values + 7.0 * (1 - np.exp(valued.log_weights))
    )
    np.testing.assert_allclose(shifted, expected, atol=1e-10)
    restored = assert_restorable(state)
    assert_same_bits(valuation.learn(restored, batches[4]), learn(valuation.init(POLICY), batches))
    np.testing.assert_array_equal(valuation.value(restored, batches[4]).values, valued.values)


LEARNING = [name for name in all_searches() if name not in ("on-policy", "dr-bpg update")]


@pytest.mark.parametrize("name", marked(LEARNING, slow=("adaptive pdis", "pdis-bpg")))
def test_a_study_values_episodes_as_the_search_learns_from_them(name):
    """Two routes: the search's own compiled step, and the valuation that it is given by default."""
    search = all_searches()[name]
    told = []
    estimate = bps.Study(POLICY, search, seed=0).run(
        MDP, episodes=400, on_batch=lambda _, info: told.append(info.values)
    )
    np.testing.assert_allclose(estimate.data.values, np.concatenate(told), rtol=1e-12, atol=1e-10)


def test_one_step_is_algorithm_1():
    """θ_1 = θ_0 + α/k Σ IS² Σ ∇log π, by plain loops; from the second step on with the baseline of the first."""
    search = bps.BPG(1e-4)
    state = search.init(POLICY)
    theta, baseline = POLICY.flat, 0.0
    for number in range(2):
        behavior = search.behavior(state)
        batch = bps.sample(MDP, behavior, episodes=20, seed=5, batch=number)
        gradient = np.zeros((16, 4))
        squares = []
        for n in range(20):
            score, log_weight = np.zeros((16, 4)), 0.0
            for t in range(batch.lengths[n]):
                s, a = batch.observations[n, t], batch.actions[n, t]
                score[s] += np.eye(4)[a] - behavior.probabilities[s]
                log_weight += np.log(POLICY.probabilities[s, a] / behavior.probabilities[s, a])
            square = (np.exp(log_weight) * batch.rewards[n].sum()) ** 2
            squares.append(square)
            gradient += (-square - baseline) * score / 20
        theta = theta - 1e-4 * gradient.ravel()
        baseline = -np.mean(squares)
        state, info = search.step(state, batch)
        np.testing.assert_allclose(state.parameters, theta, rtol=1e-9)
        assert info.gradient_norm == pytest.approx(np.linalg.norm(gradient))


def test_step_sizes():
    assert float(constant(0.5).at(7, 100.0)) == 0.5
    assert float(decaying(0.5, 1.0).at(3, 100.0)) == 0.125
    assert float(decaying(0.5, 3.0, power=0.5).at(1, 100.0)) == 0.25
    assert float(normalized(0.5).at(3, 100.0)) == pytest.approx(0.005)
    assert float(normalized(0.5).at(3, 0.0)) == 0.0


def test_the_normalised_step_does_not_depend_on_the_unit_of_the_rewards():
    cents = bps.TabularMDP(MDP.transitions, 100 * MDP.rewards, MDP.initial, MDP.terminal, MDP.horizon)
    search = bps.BPG(normalized(0.05))
    finals = []
    for env in (MDP, cents):
        study = bps.Study(POLICY, search, seed=3)
        study.run(env, episodes=500)
        finals.append(study.state.parameters)
    np.testing.assert_allclose(finals[0], finals[1], rtol=1e-9)


def test_early_stopping_returns_to_the_lowest_second_moment():
    search = bps.BPG(1e-5, patience=2)
    state = search.init(POLICY)
    moments, thetas, stopped_at = [], [], None
    for number in range(40):
        thetas.append(np.array(state.parameters))
        batch = bps.sample(MDP, search.behavior(state), episodes=50, seed=1, batch=number)
        state, info = search.step(state, batch)
        moments.append(float(info.second_moment))
        if state.stopped:
            stopped_at = number
            break
    assert stopped_at is not None
    best = int(np.argmin(moments))
    assert stopped_at == best + 2
    np.testing.assert_array_equal(state.parameters, thetas[best])
    batch = bps.sample(MDP, search.behavior(state), episodes=50, seed=1, batch=99)
    after, info = search.step(state, batch)
    np.testing.assert_array_equal(after.parameters, thetas[best])
    assert info.step_size == 0.0


def test_a_fixed_model_is_learned_first_and_then_stands_still():
    search = bps.BPG(1e-6, estimator=doubly_robust, model=TabularModel.like(MDP, "fixed", batches=2))
    state = search.init(POLICY)
    models, thetas = [], []
    for number in range(4):
        batch = bps.sample(MDP, search.behavior(state), episodes=50, seed=2, batch=number)
        state, info = search.step(state, batch)
        if number < 2:  # valued without a model
            np.testing.assert_allclose(info.values, batch.returns(), rtol=1e-12)
        models.append(np.array(state.objective.model.q))
        thetas.append(np.array(state.parameters))
    assert not models[0].any()
    assert models[1].any()
    np.testing.assert_array_equal(models[1], models[3])
    np.testing.assert_array_equal(thetas[1], POLICY.flat)
    assert (thetas[2] != POLICY.flat).any()


def test_the_learned_model_is_the_truth_where_everything_was_seen():
    """A deterministic environment seen everywhere: q̂ is q exactly."""
    valuation = bps.Valuation(advantage_sum, TabularModel.like(MDP))
    uniform = bps.SoftmaxTable.uniform(16, 4)
    state = valuation.learn(valuation.init(uniform), bps.sample(MDP, uniform, episodes=500, seed=0))
    truth = bps.oracle.q_function(MDP, uniform)
    np.testing.assert_allclose(state.model.q, truth.q, atol=1e-9)
    np.testing.assert_allclose(state.model.v, truth.v, atol=1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bps.BPG(0.0), "step_size must be a finite number greater than 0"),
        (lambda: bps.BPG(-1.0), "step_size"),
        (lambda: bps.BPG(float("nan")), "step_size"),
        (lambda: bps.BPG("fast"), "step_size must be a number"),
        (lambda: bps.BPG(1.0, patience=0), "patience must be a whole number of at least 1, got 0"),
        (lambda: decaying(1.0, -1.0), "decay"),
        (lambda: bps.BPG(1.0).init(POLICY, discount=2.0), "discount"),
        (lambda: TabularModel(0, 4, 10), "states"),
    ],
)
def test_bad_settings_are_named(make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make()
