"""The adversary's tasks are what they claim.

Statistical tests allow five standard errors, a false alarm in 1 of 1,700,000 for each comparison.
"""

import json
from dataclasses import asdict, replace

import gymnasium
import numpy as np
import pytest

import bpsearch as bps
from adversary_tasks import task_of
from benchmarks.adversary.families import NETWORKS, TABLES, build
from benchmarks.adversary.gymnasium_tables import dynamics
from benchmarks.adversary.moments import known_moments
from benchmarks.adversary.ranges import Choice, LogUniform, Seed, Uniform
from benchmarks.adversary.sketch import Problem, Sketch, branched, chained, changed, paid
from enumeration import enumerate_trajectories

pytestmark = pytest.mark.slow

ARRAYS = ("transitions", "rewards", "initial", "terminal")


def moments_by_enumeration(task):
    everything = enumerate_trajectories(task.mdp)
    with np.errstate(divide="ignore"):  # actions that are never taken
        chances = everything.probabilities(task.policy.probabilities)
    returns = everything.batch.returns(task.mdp.discount)
    truth = chances @ returns
    return truth, *(chances @ (returns - truth) ** power for power in (2, 4)), set(returns[chances > 0.0])


# --- every family ---


@pytest.mark.parametrize("name", TABLES)
def test_every_family_draws_tasks_and_builds_them_again(name):
    family = TABLES[name]
    assert family.name == name
    for seed in range(5):
        task = family(np.random.default_rng(seed))
        assert task.family == name
        assert np.isfinite(task.truth)
        assert task.variance >= 0.0
        assert all(isinstance(value, float) for value in task.parameters.values())
    again = build(name, json.loads(json.dumps(task.parameters)))
    for array in ARRAYS:
        np.testing.assert_array_equal(getattr(task.mdp, array), getattr(again.mdp, array))
    np.testing.assert_array_equal(task.policy.logits, again.policy.logits)
    assert (task.truth, task.variance) == (again.truth, again.variance)
    assert family.draw(np.random.default_rng(4)) == task.parameters
    assert family.draw(np.random.default_rng(5)) != task.parameters


@pytest.mark.parametrize("name", TABLES)
def test_truth_and_variance_are_the_oracles(name):
    task = task_of(name, seed=11)
    if name == "taxi":  # whose table costs the oracle seconds
        mdp = bps.TabularMDP(*(getattr(task.mdp, array) for array in ARRAYS), 15)
        task = replace(task, mdp=mdp, **asdict(known_moments(mdp, task.policy)))
    assert task.truth == pytest.approx(bps.oracle.value(task.mdp, task.policy), rel=1e-12)
    variance = bps.oracle.variance(task.mdp, task.policy, None, "mc")
    assert task.variance == pytest.approx(variance, rel=1e-7, abs=1e-10 * task.truth**2)


@pytest.mark.parametrize("name", ["luck-chain-network", "mixture-network", "frozen-lake-4x4-network"])
def test_a_network_is_the_table_whose_value_is_known(name):
    task = NETWORKS[name](np.random.default_rng(3))
    again = build(name, json.loads(json.dumps(task.parameters)))
    np.testing.assert_array_equal(task.policy.flat, again.policy.flat)
    assert (task.truth, task.variance) == (again.truth, again.variance)
    every = np.arange(task.mdp.actions)
    seen = np.repeat(task.mdp.numbers, len(every), axis=0)
    logits = np.asarray(task.policy.log_prob(seen, np.tile(every, task.mdp.states))).reshape(-1, len(every))
    table = bps.SoftmaxTable(logits)
    assert task.truth == pytest.approx(bps.oracle.value(task.mdp.env, table), rel=1e-9)
    assert task.variance == pytest.approx(bps.oracle.variance(task.mdp.env, table, None, "mc"), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("rare-effect", {"steps": 1.0}),
        ("rare-noise", {"steps": 1.0}),
        ("rare-nothing", {"steps": 3.0, "actions": 2.0}),
        ("jackpot", {"steps": 3.0, "early": 1.0}),
        ("disaster", {"steps": 3.0, "early": 0.0}),
        ("heavy-tails", {"steps": 1.0}),
        ("modes", {"steps": 3.0, "starts": 2.0}),
        ("binary", {"layers": 2.0, "width": 2.0, "actions": 2.0}),
        ("zero-variance", {"layers": 2.0, "kind": 2.0}),
    ],
)
def test_moments_equal_enumeration(name, parameters):
    task = task_of(name, seed=3, **parameters)
    truth, variance, fourth, _ = moments_by_enumeration(task)
    assert task.truth == pytest.approx(truth, rel=1e-10, abs=1e-12)
    assert task.variance == pytest.approx(variance, rel=1e-10, abs=1e-24 * max(truth**2, 1.0))
    if task.variance > 0.0:
        assert task.kurtosis == pytest.approx(fourth / variance**2, rel=1e-9)


@pytest.mark.parametrize(("name", "parameters"), [("frozen-lake-4x4", {"epsilon": 0.1}), ("mixture", {})])
def test_truth_and_variance_equal_long_sampling(name, parameters):
    task = task_of(name, seed=3, **parameters)
    episodes = 10_000
    returns = bps.sample(task.mdp, task.policy, episodes, seed=5).returns(task.mdp.discount)
    assert abs(returns.mean() - task.truth) < 5.0 * np.sqrt(task.variance / episodes)
    assert abs(returns.var() - task.variance) < 5.0 * task.variance * np.sqrt((task.kurtosis - 1.0) / episodes)


def test_parameters_of_another_family_are_refused():
    with pytest.raises(ValueError, match="jackpot has the parameters"):
        build("jackpot", {"epsilon": 0.1})
    with pytest.raises(ValueError, match="'lottery' is not one of frozen-lake-4x4"):
        build("lottery", {})


# --- what each family claims ---


@pytest.mark.parametrize("range_", [Uniform(1.0, 3.0), LogUniform(1e-5, 1e-1), Choice((2, 5, 9)), Seed()])
def test_what_is_drawn_and_mutated_stays_in_its_range(range_):
    rng = np.random.default_rng(0)
    value = range_.draw(rng)
    seen = set()
    for _ in range(200):
        value = range_.mutate(value, rng)
        seen.add(value)
        if isinstance(range_, Choice):
            assert value in range_.values
        elif not isinstance(range_, Seed):
            assert range_.low <= value <= range_.high
    assert len(seen) >= 3


def test_log_uniform_draws_every_order_of_magnitude():
    drawn = [LogUniform(1e-5, 1e-1).draw(np.random.default_rng(seed)) for seed in range(400)]
    counts = np.histogram(np.log10(drawn), bins=4, range=(-5, -1))[0]
    assert counts.min() > 60  # 100 are expected, with a standard deviation of 9


@pytest.mark.parametrize("seed", range(3))
def test_a_rare_action_that_opens_noise_has_no_advantage_and_all_the_variance(seed):
    task = task_of("rare-noise", seed)
    q, v = bps.oracle.q_function(task.mdp, task.policy)
    rare = np.flatnonzero(task.policy.probabilities[:, 2] > 0.0)
    rare = rare[~task.mdp.terminal[rare]]
    assert len(rare) == task.parameters["steps"]
    scale = task.parameters["size"]
    for time, state in enumerate(rare[:1]):  # the first state of the walk is that of the first step
        chances, rewards = task.mdp.transitions[state, 2], task.mdp.rewards[state, 2]
        ahead = rewards + v[time + 1]
        assert q[time, state, 2] == pytest.approx(v[time, state], abs=1e-9 * scale)
        assert chances @ (ahead - chances @ ahead) ** 2 == pytest.approx(scale**2)
        assert task.policy.probabilities[state, 2] == pytest.approx(task.parameters["probability"])
    np.testing.assert_allclose(q[0, rare, 2] - v[0, rare], 0.0, atol=1e-9 * scale)


def test_a_rare_action_without_effect_does_what_the_others_do():
    task = task_of("rare-nothing", actions=4.0)
    going = ~task.mdp.terminal
    for array in (task.mdp.transitions, task.mdp.rewards):
        np.testing.assert_array_equal(array[going], np.broadcast_to(array[going][:, :1], array[going].shape))
    np.testing.assert_allclose(task.policy.probabilities[going, 0], 1.0 - task.parameters["probability"])


@pytest.mark.parametrize("ends", [0.0, 1.0])
def test_a_rare_action_with_an_effect_has_it_for_sure(ends):
    task = task_of("rare-effect", ends=ends)
    state = int(np.flatnonzero(task.mdp.initial)[0])
    (successor,) = np.flatnonzero(task.mdp.transitions[state, 2])
    assert task.mdp.terminal[successor] == bool(ends)
    assert abs(task.mdp.rewards[state, 2, successor]) == task.parameters["effect"]
    q, v = bps.oracle.q_function(task.mdp, task.policy)
    assert abs(q[0, state, 2] - v[0, state]) > 0.5 * task.parameters["effect"]


@pytest.mark.parametrize(("name", "sign"), [("jackpot", 1.0), ("disaster", -1.0)])
@pytest.mark.parametrize("early", [0.0, 1.0])
def test_actions_explain_all_but_the_rare_stroke(name, sign, early):
    task = task_of(name, early=early)
    p, size = task.parameters["probability"], task.parameters["size"]
    assert task.truth == pytest.approx(sign * p * size)
    model = bps.oracle.q_function(task.mdp, task.policy)
    unexplained = bps.oracle.variance(task.mdp, task.policy, None, "as", model=model)
    assert unexplained == pytest.approx(p * (1.0 - p) * size**2)
    assert task.variance - unexplained == pytest.approx(1.0)


def test_returns_of_0_and_1():
    task = task_of("binary", layers=2.0, width=2.0)
    assert moments_by_enumeration(task)[-1] == {0.0, 1.0}
    assert task.variance == pytest.approx(task.truth * (1.0 - task.truth))


@pytest.mark.parametrize("kind", [0.0, 1.0, 2.0])
def test_without_variance_all_episodes_have_the_same_return(kind):
    task = task_of("zero-variance", kind=kind, layers=2.0, width=3.0)
    assert task.variance == 0.0
    assert np.isnan(task.kurtosis)
    returns = moments_by_enumeration(task)[-1]
    np.testing.assert_allclose(list(returns), task.truth, atol=1e-12 * task.parameters["scale"])
    assert task_of("zero-variance", kind=kind, layers=6.0, width=3.0).variance == 0.0


def test_heavier_tails_are_heavier():
    tails = [task_of("heavy-tails", tail=tail, rungs=8.0, explained=0.1).kurtosis for tail in (1.05, 2.0, 3.0)]
    assert tails[0] > 10.0
    assert tails == sorted(tails)


def test_a_survivor_gets_the_bonus_of_every_step():
    task = task_of("survival", penalty=0.0, horizon=100.0)
    paid_for = np.where(task.mdp.terminal, 0.0, 1.0)
    alive = ~task.mdp.terminal
    np.testing.assert_array_equal(task.mdp.rewards[alive].max(axis=(0, 1)), paid_for)
    assert 0.0 < task.truth < 100.0


def test_modes_begin_in_several_places_one_of_them_rare():
    task = task_of("modes", starts=4.0, rarest=0.01)
    shares = np.sort(task.mdp.initial[task.mdp.initial > 0.0])
    assert len(shares) == 4
    assert 0.01 in shares


def test_many_states_are_many():
    assert min(task_of("many-states", seed).mdp.states for seed in range(4)) >= 100


def test_near_deterministic_policies_take_one_action():
    task = task_of("near-deterministic", epsilon=1e-5)
    np.testing.assert_allclose(task.policy.probabilities.max(axis=1), 1.0, atol=1e-5)


@pytest.mark.parametrize(
    ("prefix", "options"), [("FrozenLake-v", {"map_name": "4x4"}), ("FrozenLake-v", {"map_name": "8x8"})]
)
def test_frozen_lake_is_gymnasiums(prefix, options):
    known = dynamics(prefix, **options, is_slippery=True)
    size = {"4x4": 4, "8x8": 8}[options["map_name"]]
    task = task_of(f"frozen-lake-{options['map_name']}")
    np.testing.assert_array_equal(task.mdp.transitions, known.transitions)
    env = gymnasium.make("FrozenLake-v1", **options)
    table = env.unwrapped.P
    for state, action in np.ndindex(size**2, 4):
        row = np.zeros(size**2)
        for chance, successor, reward, ended in table[state][action]:
            row[successor] += chance
            assert task.mdp.rewards[state, action, successor] == reward
            assert task.mdp.terminal[successor] == ended
        np.testing.assert_allclose(task.mdp.transitions[state, action], row)
    assert task.mdp.initial[0] == 1.0
    assert task.mdp.horizon == {4: 100, 8: 200}[size]
    env.close()


@pytest.mark.parametrize(
    ("name", "parameters", "truth"),
    [
        ("frozen-lake-4x4", {"planning": 0.99}, 0.7401),  # the success rate of the optimal policy in 100 steps
        ("cliff-walking", {"planning": 0.99, "limit": 100.0}, -13.0),
        ("taxi", {"planning": 0.99, "limit": 100.0}, 7.93),
    ],
)
def test_optimal_policies_are_optimal(name, parameters, truth):
    assert build(name, {**parameters, "epsilon": 1e-5}).truth == pytest.approx(truth, abs=6e-3)


# --- what is made of other problems ---


def coin(size=1.0):
    """One action of two pays `size`, the other nothing; the environment adds 0 or 1."""
    sketch = Sketch(2)
    first, second = sketch.state(0.5, 0.5), sketch.state()
    sketch.arrow(first, [(1.0, second, size)], 0)
    sketch.arrow(first, [(1.0, second, 0.0)], 1)
    sketch.arrow(second, [(0.5, sketch.end(), 1.0), (0.5, sketch.end(), 0.0)])
    return sketch.finish(first, 2)


def value_and_variance(problem):
    return bps.oracle.value(*problem), bps.oracle.variance(*problem, None, "mc")


def test_a_sketch_by_hand():
    assert value_and_variance(coin(2.0)) == pytest.approx((1.5, 1.25))
    with pytest.raises(ValueError, match="different successors"):
        Sketch(1).arrow(0, [(0.5, 1, 1.0), (0.5, 1, 2.0)])


@pytest.mark.parametrize("base", ["random", "jackpot"])
@pytest.mark.parametrize("discount", [0.9, 1.0])
def test_a_constant_moves_the_value_and_nothing_else(base, discount):
    """Also where episodes end before it is paid: the others wait for them."""
    drawn = task_of(base, **({"states": 5.0, "horizon": 5.0} if base == "random" else {"steps": 3.0}))
    problem = changed(Problem(drawn.mdp, drawn.policy), discount=discount)
    truth, variance = value_and_variance(problem)
    for step in range(problem.mdp.horizon):
        assert value_and_variance(paid(problem, step, 7.0)) == pytest.approx(
            (truth + discount**step * 7.0, variance), rel=1e-9
        )


def test_constants_of_both_signs_are_as_large_as_they_say():
    above, below = (task_of("constant", sign=sign, size=100.0) for sign in (1.0, -1.0))
    assert above.variance == pytest.approx(below.variance, rel=1e-9)
    assert above.truth - below.truth == pytest.approx(200.0 * np.sqrt(above.variance), rel=1e-9)


def test_signs_and_units_change_nothing_else():
    one, other = (task_of("signs-and-discounts", scale=scale, sign=sign) for scale, sign in ((1.0, 1.0), (10.0, -1.0)))
    assert other.truth == pytest.approx(-10.0 * one.truth)
    assert other.variance == pytest.approx(100.0 * one.variance)
    assert one.mdp.discount == 1.0 - one.parameters["myopia"]


def test_chains_add_and_branches_average():
    one, other = coin(2.0), coin(6.0)
    (v1, s1), (v2, s2) = value_and_variance(one), value_and_variance(other)
    assert value_and_variance(chained(one, other)) == pytest.approx((v1 + v2, s1 + s2))
    within, between = 0.25 * s1 + 0.75 * s2, 0.25 * 0.75 * (v1 - v2) ** 2
    assert value_and_variance(branched(one, other, 0.25)) == pytest.approx((0.25 * v1 + 0.75 * v2, within + between))
    task = task_of("rare-effect")
    assert value_and_variance(chained(one, Problem(task.mdp, task.policy))) == pytest.approx(
        (v1 + task.truth, s1 + task.variance)
    )
