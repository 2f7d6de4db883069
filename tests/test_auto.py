"""Cross-fitted control variates: unbiased by enumeration, equal to their formulas, and better than Monte Carlo."""

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.models.advantages import FoldedAdvantages
from bpsearch.search import cross_fitting
from bpsearch.search.auto import Auto
from bpsearch.search.cross_fitting import FOLDS, STRENGTHS, cross_fit
from enumeration import enumerate_trajectories, random_mdp, random_policy


@pytest.mark.parametrize(("seed", "discount"), [(0, 0.9), (1, 1.0)])
@pytest.mark.parametrize("eager", [False, True])
def test_given_all_others_the_value_of_an_episode_is_unbiased(seed, discount, eager, monkeypatch):
    """Σ_h Pr(h) X_i(h, others) = ρ for any others: so the mean over any number of batches is unbiased."""
    if eager:  # take whatever seems to explain anything: the choice itself must not bias
        monkeypatch.setattr(cross_fitting, "CAUTION", 0.0)
        monkeypatch.setattr(cross_fitting, "DOUBT", (0.0, 0.0))
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
            fit = Auto().revalued(policy, discount, [batch.take(rows[:25]), batch.take(rows[25:])])
            total += probability * fit.values[episode]
            moved += fit.values[episode] != plain[trajectory]
        assert total == pytest.approx(exact, abs=1e-10)
    assert moved  # the control variate was used


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
    fit = cross_fit(y, z)
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
            share = np.clip((covered - 0.5 * noise) / (predictions @ predictions), 0.0, 1.0)
            gain = 2 * share * (covered - 0.5 * noise) - share**2 * (predictions @ predictions)
            if covered > 2.0 * noise and gain > best:
                best, chosen = gain, share * ridge(y, z, folds != fold, strength)[0]
        np.testing.assert_allclose(fit.values[folds == fold], y[folds == fold] - z[folds == fold] @ chosen, atol=1e-9)
    assert np.var(fit.values) < 0.1 * np.var(y)


def ridge(y, z, kept, strength):
    z, y = z[kept], y[kept]
    products = z.T @ z
    penalty = strength * np.diag(np.diag(products)) + 1e-9 * np.trace(products) / len(products) * np.eye(len(products))
    return np.linalg.solve(products + penalty, z.T @ (y - y.mean())), y.mean()


def test_advantages_of_a_model_with_all_data_are_those_of_the_truth():
    """Where every transition was seen often the learned advantages are the exact ones."""
    mdp = bps.envs.gridworld()
    policy = bps.shipped_policy("gridworld-early")
    batch = bps.sample(mdp, policy, 4000, seed=0)
    learned = FoldedAdvantages.of(policy, 1.0, batch, np.arange(4000) % FOLDS)(np.ones((1, FOLDS), bool))[0]
    exact = bps.oracle.q_function(mdp, policy)
    times = np.arange(mdp.horizon)
    advantages = (exact.q - exact.v[..., None])[times, batch.observations, batch.actions]
    assert np.corrcoef(learned, np.where(batch.mask, advantages, 0.0).sum(axis=1))[0, 1] > 0.999


def test_of_an_action_never_seen_nothing_is_claimed():
    policy = bps.SoftmaxTable(np.zeros((2, 3)))
    batch = bps.Trajectories(
        np.array([[0], [0], [0]]),
        np.array([[0], [1], [2]]),
        np.array([[1.0], [3.0], [100.0]]),
        np.full((3, 1), -np.log(3.0)),
        np.ones((3, 1), bool),
        final_observations=np.array([1, 1, 1]),
    )
    learned = FoldedAdvantages.of(policy, 1.0, batch, np.array([0, 0, 1]))(np.array([[True, False]]))[0]
    # One visit each, one pseudo-visit: q̂ = (1 + 2) / 2, (3 + 2) / 2, and 2 for the action of the other fold.
    np.testing.assert_allclose(learned, [-0.5, 0.5, 0.0])


def test_the_variance_by_known_probabilities_is_the_exact_one_where_everything_was_seen():
    """A deterministic gridworld: all variance is the actions', so without any control it is that of the return."""
    mdp, policy = bps.envs.gridworld(), bps.shipped_policy("gridworld-early")
    batch = bps.sample(mdp, policy, 4000, seed=0)
    advantages = FoldedAdvantages.of(policy, 1.0, batch, np.arange(4000) % FOLDS)
    nothing = (np.zeros((FOLDS, policy.logits.size)), np.zeros(FOLDS))
    exact = bps.oracle.variance(mdp, policy, None, "mc")
    assert advantages.variance(*nothing) == pytest.approx(exact, rel=0.05)
    # With what the folds teach hardly any is left; the sample's own variance says the same.
    fit = Auto().revalued(policy, 1.0, [batch])
    assert fit.variance == pytest.approx(np.var(fit.values), rel=0.25)
    assert fit.variance < 0.01 * exact
    # A ridge's coefficients are subtracted by the same formula: the sums are those of the scores.
    coefficients = np.tile(np.random.default_rng(0).normal(size=policy.logits.size), (FOLDS, 1))
    scores = np.asarray(policy.episode_scores(batch.observations, batch.actions, batch.mask))
    sampled = np.var(batch.returns() - scores @ coefficients[0])
    assert advantages.variance(coefficients, np.zeros(FOLDS)) == pytest.approx(sampled, rel=0.1)


def test_an_action_that_should_have_come_keeps_the_interval_wide():
    """One state, two steps, 50 episodes that never took the action of probability 0.05."""
    policy = bps.SoftmaxTable(np.log([[0.95, 0.05], [0.5, 0.5]]))
    actions = np.zeros((50, 2), int)
    batch = bps.Trajectories(
        np.zeros((50, 2), int),
        actions,
        np.tile([1.0, 2.0], (50, 1)),
        np.full((50, 2), np.log(0.95)),
        np.ones((50, 2), bool),
        final_observations=np.ones(50, int),
    )
    valued = Auto().revalue(Auto().init(policy), [batch])
    # The model knows no time: 1.5 a step, and every other step ends. Values of 2.25 and 1.5 are met: variance 0.375².
    expected = 0.375**2 * 2 * 0.05 / 50
    assert valued.error.variance == pytest.approx(expected)
    np.testing.assert_array_equal(np.concatenate(valued.batches), 3.0)


@pytest.mark.parametrize("name", ["gridworld-early", "gridworld-converged"])
def test_the_error_is_below_that_of_monte_carlo(name):
    """30 studies of 300 episodes; `benchmarks/evaluators` measures ratios of about 0.005 and 0.8."""
    mdp, policy = bps.envs.gridworld(), bps.shipped_policy(name)
    exact, variance = bps.oracle.value(mdp, policy), bps.oracle.variance(mdp, policy, None, "mc")
    squared = []
    for study in range(30):
        batch = bps.sample(mdp, policy, 300, seed=3, batch=study)
        squared.append((Auto().revalued(policy, 1.0, [batch]).values.mean() - exact) ** 2)
    assert np.mean(squared) / (variance / 300) < {"gridworld-early": 0.05, "gridworld-converged": 1.3}[name]


def test_where_actions_explain_nothing_the_values_are_nearly_monte_carlos():
    """Returns that do not depend on the actions: little may be lost to chance."""
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(200):
        y, z = rng.normal(size=100), rng.normal(size=(100, 20))
        ratios.append(cross_fit(y, z).values.mean() ** 2)
    assert np.mean(ratios) * 100 < 1.3  # 1 in expectation for Monte Carlo, standard error 0.1
