"""Cross-fitted control variates: unbiased by enumeration, equal to their formulas, and better than Monte Carlo."""

import dataclasses

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.control_variates import Scores, TabularAdvantages
from bpsearch.control_variates.scores import STRENGTHS
from bpsearch.inference import judgement
from bpsearch.inference.cross_fitting import FOLDS, cross_fit, value_next
from bpsearch.inference.judgement import Judgement
from bpsearch.methods import find_method
from enumeration import enumerate_trajectories, random_mdp, random_policy

VALUATION = find_method("auto").valuation
EAGER = bps.Valuation(control_variates=(Scores(doubt=0.0), TabularAdvantages(doubt=0.0)))


def value(policy, discount, batches, valuation):
    state = valuation.init(policy, discount)
    return valuation.conclude(state, [valuation.value(state, batch) for batch in batches])


def fit(policy, discount, batch):
    state = VALUATION.init(policy, discount)
    valued = VALUATION.value(state, batch)
    return cross_fit(list(VALUATION._controls(state, [valued]).values()), valued.returns)


class Given(Scores):
    """Scores that are given."""

    def bind(self, policy, discount):
        return self

    def steps(self, fit, which, candidate):
        return None


@pytest.mark.parametrize(("seed", "discount"), [(0, 0.9), (1, 1.0)])
@pytest.mark.parametrize("eager", [False, True])
def test_given_all_others_the_value_of_an_episode_is_unbiased(seed, discount, eager, monkeypatch):
    """Σ_h Pr(h) X_i(h, others) = ρ for any others: so the mean over any number of batches is unbiased."""
    valuation = VALUATION
    if eager:  # take whatever seems to explain anything: the choice itself must not bias
        monkeypatch.setattr(judgement, "CAUTION", 0.0)
        valuation = EAGER
    mdp = random_mdp(seed, (2, 2, 2), discount)
    policy = random_policy(seed, mdp)
    everything = enumerate_trajectories(mdp)
    batch, probabilities = everything.under(policy), everything.probabilities(policy.probabilities)
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(probabilities), size=42, p=probabilities)
    exact = bps.oracle.value(mdp, policy)
    moved = 0
    for episode in (3, 41):
        total, plain = 0.0, batch.returns(discount)
        for trajectory, probability in enumerate(probabilities):
            rows[episode] = trajectory
            values = np.concatenate(
                value(policy, discount, [batch.take(rows[:25]), batch.take(rows[25:])], valuation).batches
            )
            total += probability * values[episode]
            moved += values[episode] != plain[trajectory]
        assert total == pytest.approx(exact, abs=1e-10)
    assert moved  # the control variate was used


@pytest.mark.parametrize("seed", [0, 1])
def test_values_of_a_sequence_are_unbiased_given_the_batches_before(seed, monkeypatch):
    """Each episode of the second batch, given the first and its own others: with what was learned and chosen before."""
    monkeypatch.setattr(judgement, "CAUTION", 0.0)
    mdp = random_mdp(seed, (2, 2, 2), 0.9)
    policy = random_policy(seed, mdp)
    everything = enumerate_trajectories(mdp)
    batch, probabilities = everything.under(policy), everything.probabilities(policy.probabilities)
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(probabilities), size=65, p=probabilities)
    valuation = EAGER
    state = valuation.init(policy, 0.9)
    _, knowledge = valuation.advance(state, None, valuation.value(state, batch.take(rows[:60])))
    total, moved = 0.0, 0
    for trajectory, probability in enumerate(probabilities):
        rows[62] = trajectory
        second = valuation.value(state, batch.take(rows[60:]))
        values, _ = valuation.advance(state, knowledge, second)
        total += probability * values[2]
        moved += values[2] != second.returns[2]
    assert total == pytest.approx(bps.oracle.value(mdp, policy), abs=1e-10)
    assert moved


def test_a_choice_that_looks_at_its_own_fold_would_be_biased():
    """The test above can fail: valued with a ridge over all episodes, the expectation is off."""
    mdp = random_mdp(0, (3, 2, 2), 1.0)
    policy = random_policy(0, mdp)
    everything = enumerate_trajectories(mdp)
    batch, probabilities = everything.under(policy), everything.probabilities(policy.probabilities)
    scores = np.asarray(policy.episode_scores(batch.observations, batch.actions, batch.mask))
    returns = batch.returns()
    rows = np.random.default_rng(0).choice(len(probabilities), size=20, p=probabilities)
    total = 0.0
    for trajectory, probability in enumerate(probabilities):
        rows[0] = trajectory
        z, y = scores[rows], returns[rows]
        v = np.linalg.solve(z.T @ z + 0.1 * np.eye(z.shape[1]), z.T @ (y - y.mean()))
        total += probability * (y[0] - z[0] @ v)
    assert abs(total - bps.oracle.value(mdp, policy)) > 1e-3


def test_values_are_those_of_plain_loops():
    rng = np.random.default_rng(1)
    z = rng.normal(size=(37, 4))
    y = 3.0 + z @ np.array([1.0, -2.0, 0.0, 0.5]) + 0.1 * rng.normal(size=37)
    found = cross_fit([(Given(), {"scores": z})], y)
    folds = np.arange(37) % FOLDS
    for fold in range(FOLDS):
        best, chosen = 0.0, None
        for strength in STRENGTHS:
            residuals, predictions = [], []
            for judge in set(range(FOLDS)) - {fold}:
                v, mean = ridge(y, z, ~np.isin(folds, (fold, judge)), strength)
                predictions += list(z[folds == judge] @ v)
                residuals += list(y[folds == judge] - mean)
            predictions, residuals = np.array(predictions), np.array(residuals)
            covered, noise = predictions @ residuals, np.sqrt(np.sum((predictions * residuals) ** 2))
            best_share = np.clip(covered / (predictions @ predictions), 0.0, 1.0)
            left = np.sqrt(np.sum((predictions * (residuals - best_share * predictions)) ** 2))
            share = np.clip((covered - 0.5 * left) / (predictions @ predictions), 0.0, 1.0)
            gain = 2 * share * (covered - 0.5 * left) - share**2 * (predictions @ predictions)
            if covered > 2.0 * noise and gain > best:
                best, chosen = gain, share * ridge(y, z, folds != fold, strength)[0]
        np.testing.assert_allclose(found.values[folds == fold], y[folds == fold] - z[folds == fold] @ chosen, atol=1e-9)
    assert np.var(found.values) < 0.1 * np.var(y)


def ridge(y, z, kept, strength):
    z, y = z[kept], y[kept]
    products = z.T @ z
    floor = (1.0 / len(y) + 1e-9) * np.trace(products) / len(products)
    penalty = strength * np.diag(np.diag(products)) + floor * np.eye(len(products))
    return np.linalg.solve(products + penalty, z.T @ (y - y.mean())), y.mean()


def learn(policy, batch, groups=None):
    """The sums of advantages of all episodes, learned from those of group 0, and the expectation of their squares."""
    control = TabularAdvantages().bind(policy, 1.0)
    summary = control.summarize(batch)
    groups = np.zeros(len(batch), int) if groups is None else groups
    learned = control.fit(control.evidence(summary, batch.returns(), groups, 1))
    return control.predict(learned, summary)[0, 0], control.spread(learned, summary)[0, 0]


def test_advantages_of_a_model_with_all_data_are_those_of_the_truth():
    """Where every transition was seen often the learned advantages are the exact ones."""
    mdp = bps.envs.gridworld()
    policy = bps.shipped_policy("gridworld-early")
    batch = bps.sample(mdp, policy, 4000, seed=0)
    learned, _ = learn(policy, batch)
    exact = bps.oracle.q_function(mdp, policy)
    times = np.arange(mdp.horizon)
    advantages = (exact.q - exact.v[..., None])[times, batch.observations, batch.actions]
    assert np.corrcoef(learned, np.where(batch.mask, advantages, 0.0).sum(axis=1))[0, 1] > 0.999


def one_step(actions, rewards, logits=((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))):
    policy = bps.SoftmaxTable(logits)
    actions, rewards = np.array(actions)[:, None], np.array(rewards, float)[:, None]
    log_probs = policy.log_prob(np.zeros_like(actions), actions)
    final = np.ones(len(actions), int)
    return policy, bps.Trajectories(
        np.zeros_like(actions), actions, rewards, log_probs, np.ones_like(actions, bool), final_observations=final
    )


def test_of_an_action_never_seen_nothing_is_claimed():
    policy, batch = one_step([0, 1, 2], [1.0, 3.0, 100.0])
    learned, spread = learn(policy, batch, groups=np.array([0, 0, 1]))
    # One visit each, one pseudo-visit: q̂ = (1 + 2) / 2, (3 + 2) / 2, and 2 for the action never seen.
    np.testing.assert_allclose(learned, [-0.5, 0.5, 0.0])
    np.testing.assert_allclose(spread, (0.5**2 + 0.5**2) / 3)


def test_a_constant_at_the_first_step_teaches_nothing():
    mdp, policy = bps.envs.gridworld(), bps.shipped_policy("gridworld-early")
    batch = bps.sample(mdp, policy, 200, seed=0)
    paid = np.array(batch.rewards)
    paid[:, 0] += 1000.0
    more = dataclasses.replace(batch, rewards=paid)
    np.testing.assert_allclose(learn(policy, more)[0], learn(policy, batch)[0], atol=1e-8)


def test_a_control_that_unseen_actions_would_move_is_hardly_used():
    """An action of probability 0.04 that no episode took: a fit that hangs on it is not trusted, however well it fits.

    The scores of the other action are tiny and of one sign. That of the rare one is not: the policy tells.
    """
    logits = np.log([[0.96, 0.04], [0.5, 0.5]])
    policy, batch = one_step([0] * 60, np.random.default_rng(0).normal(size=60), logits)
    found = fit(policy, 1.0, batch)
    np.testing.assert_array_equal(found.values, batch.returns())
    # What such a fit would have done: the judgement knows it.
    seen = Judgement.of(np.ones(60), np.full((1, 60), 0.2), np.full((1, 60), 0.96 * 0.04 * 25.0))
    assert seen.choose(np.array([2.0]))[1] < 0.3
    told = Judgement.of(np.ones(60), np.full((1, 60), 0.2), np.zeros((1, 60)))
    assert told.choose(np.array([2.0]))[1] == 1.0


@pytest.mark.parametrize("name", ["gridworld-early", "gridworld-converged"])
def test_the_error_is_below_that_of_monte_carlo(name):
    """30 studies of 300 episodes; `benchmarks/evaluators` measures ratios of about 0.005 and 0.8."""
    mdp, policy = bps.envs.gridworld(), bps.shipped_policy(name)
    exact, variance = bps.oracle.value(mdp, policy), bps.oracle.variance(mdp, policy, None, "mc")
    squared = []
    for study in range(30):
        batch = bps.sample(mdp, policy, 300, seed=3, batch=study)
        squared.append((fit(policy, 1.0, batch).values.mean() - exact) ** 2)
    assert np.mean(squared) / (variance / 300) < {"gridworld-early": 0.05, "gridworld-converged": 1.3}[name]


def test_where_actions_explain_nothing_the_values_are_nearly_monte_carlos():
    """Returns that do not depend on the actions: little may be lost to chance."""
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(200):
        y, z = rng.normal(size=100), rng.normal(size=(100, 20))
        ratios.append(cross_fit([(Given(), {"scores": z})], y).values.mean() ** 2)
    assert np.mean(ratios) * 100 < 1.3  # 1 in expectation for Monte Carlo, standard error 0.1


def test_a_parameter_that_hardly_acts_throws_no_episode_off():
    """Two of a hundred episodes switch units on: what the others say of them is hardly to be believed.

    Without the floor of the ridge, 4 of these 20 studies have a thousand times the variance of the returns.
    """
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(20):
        scores = rng.normal(size=(100, 12))
        returns = scores[:, 0] + rng.normal(size=100)
        on = rng.permutation(100) < 2
        scores[:, 6:] *= np.where(on, 30.0, 0.01)[:, None]
        values = cross_fit([(Given(), {"scores": scores})], returns).values
        ratios.append(np.var(values) / np.var(returns))
    assert np.median(ratios) < 0.7
    assert max(ratios) < 3.0


class Unbound(Scores):
    """Scores of no policy: what a step adds is not known."""

    def steps(self, fit, which, candidate):
        return None


def two_of_a_kind():
    """A hundred episodes: what moves 98 of them a little does nothing to two others, that lie far off and are alike."""
    rng, rare = np.random.default_rng(0), np.array([7, 13])
    scores = np.zeros((100, 2))
    scores[:, 0] = rng.choice([-1.0, 1.0], size=100)
    scores[rare] = [0.0, 1.0]
    targets = 0.05 * scores[:, 0]
    targets[rare] = 1.0
    return rare, targets, {"scores": scores, "imagined": scores[:, None]}


def test_a_fit_that_hangs_on_a_single_episode_is_not_applied():
    """Whoever values one of the two has the other to learn from, and no third that could tell how wrong that is."""
    rare, targets, summary = two_of_a_kind()
    values = cross_fit([(Unbound(), summary)], targets).values
    np.testing.assert_allclose(values[rare], 1.0, atol=0.2)
    enough = np.repeat(np.arange(100), np.where(np.isin(np.arange(100), rare), 10, 1))  # ten of each tell it
    many = {name: array[enough] for name, array in summary.items()}
    values = cross_fit([(Unbound(), many)], targets[enough]).values
    assert np.abs(values[np.isin(enough, rare)] - targets.mean()).max() < 0.3


def test_a_fit_that_hangs_on_a_single_episode_is_not_applied_to_the_next_batch():
    _, targets, summary = two_of_a_kind()
    controls = [(Unbound(), summary)]
    one, other = (np.delete(np.arange(100), rare) for rare in (7, 13))  # each knows one of the two

    def part(rows):
        return [(control, {name: array[rows] for name, array in kept.items()}) for control, kept in controls]

    knowledge = cross_fit(part(one), targets[one]).knowledge
    values, _ = value_next(part(other), targets[other], knowledge)
    assert values[7] == pytest.approx(1.0, abs=0.25)  # 0.35 if it is applied


def test_what_an_applied_fit_changes_counts_against_a_candidate():
    deviations, candidates = np.tile([0.1, -0.1], 20), np.tile([0.1, -0.1], 20)[None]
    applied = candidates + np.eye(40)[:1]  # one more, in a single episode
    doubts, spread = np.full(1, 2.0), np.zeros((1, 40))
    as_judged = Judgement.of(deviations, candidates, spread).choose(doubts)
    hanging = Judgement.of(deviations, candidates, spread, applied).choose(doubts)
    assert as_judged[1] > 0.9
    assert hanging[1] == pytest.approx(as_judged[1] * 0.4 / 1.4)
    assert hanging[2] < 0.5 < as_judged[2]
