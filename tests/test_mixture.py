"""The defensive mixture: bounded weights, no bias, the right gradient; first by enumeration, then by sampling."""

from pathlib import Path

import jax
import numpy as np
import pytest

import bpsearch as bps
from bpsearch._core.jaxtools import to_numpy
from bpsearch.control_variates import TabularModel
from bpsearch.envs.resolve import spaces_of
from bpsearch.errors import InvalidArgumentError, PolicyFileError
from bpsearch.estimators import doubly_robust, importance_sampling, log_ratios, per_decision, score_weights
from bpsearch.paper.trials import Trials
from bpsearch.policies import Mixture
from bpsearch.policies.files import save_policy
from bpsearch.search import normalized
from enumeration import (
    CASES,
    SMALL_CASES,
    case_id,
    enumerate_trajectories,
    on_trajectories,
    random_mdp,
    random_model,
    random_policy,
)
from test_unbiased import TOLERANCE, two_batches

ESTIMATORS = (importance_sampling, per_decision, doubly_robust)
FAR = 4.0  # scale of logits: behaviors whose own weights exceed 1/α by far


def under(everything, mixture):
    """The enumerated batch as if the mixture had collected it, and each trajectory's probability by the formula."""
    b = everything.batch
    log_probs = np.where(b.mask, mixture.log_prob(b.observations, b.actions), 0.0)
    batch = bps.Trajectories(b.observations, b.actions, b.rewards, log_probs, b.mask, b.final_observations)
    one, other = (everything.probabilities(p.probabilities) for p in (mixture.evaluation, mixture.component))
    if mixture.explorer is None:
        return batch, mixture.share * one + (1.0 - mixture.share) * other
    third = everything.probabilities(mixture.explorer.probabilities)
    rest = 1.0 - mixture.share - mixture.explored
    return batch, mixture.share * one + rest * other + mixture.explored * third


@pytest.mark.parametrize("case", CASES[::2], ids=case_id)
def test_it_is_unbiased_with_bounded_weights(case):
    mdp = random_mdp(*case)
    evaluation, component = random_policy(1, mdp), random_policy(2, mdp, FAR)
    everything = enumerate_trajectories(mdp)
    model = random_model(3, mdp, evaluation)
    truth = bps.oracle.value(mdp, evaluation)
    unbounded = np.exp(np.cumsum(log_ratios(evaluation, everything.under(component)), axis=1)).max()
    third = random_policy(4, mdp, FAR)
    for share, *explorer in ((0.05,), (0.3,), (0.8,), (0.05, third, 0.2), (0.5, third, 0.4)):
        batch, probabilities = under(everything, Mixture(evaluation, component, share, *explorer))
        recorded = everything.env_probs * np.exp(batch.log_probs.sum(axis=1))
        np.testing.assert_allclose(recorded, probabilities, rtol=1e-12)
        assert abs(probabilities.sum() - 1.0) < TOLERANCE
        ratios = log_ratios(evaluation, batch)
        largest = np.exp(np.cumsum(ratios, axis=1)).max()
        assert largest <= (1.0 + 1e-12) / share
        assert largest <= unbounded or explorer
        for estimator in ESTIMATORS:
            extra = on_trajectories(model, batch) if estimator.needs_model else ()
            values = estimator(batch.rewards, ratios, batch.mask, mdp.discount, *extra)
            assert abs(probabilities @ values - truth) < TOLERANCE, (estimator.name, share)


@pytest.mark.parametrize(
    "name", ["is", *(pytest.param(name, marks=pytest.mark.slow) for name in ("is-normalized", "pdis")), "dr"]
)
def test_a_two_batch_study_is_unbiased_through_its_update(name):
    for case in ((0, (3, 2, 2), 0.9), (1, (3, 2, 2), 1.0)):  # one shape: compiled once
        mdp = random_mdp(*case)
        model = TabularModel.like(mdp)
        evaluation = random_policy(1, mdp)
        search = {
            "is": bps.BPG(0.3, defensive=0.2),
            "is-normalized": bps.BPG(normalized(0.5), defensive=0.4),
            "pdis": bps.BPG(0.3, estimator=per_decision, defensive=0.2),
            "dr": bps.BPG(0.3, estimator=doubly_robust, model=model, defensive=0.2),
        }[name]
        probs, first, second, _ = two_batches(search, mdp, evaluation)
        truth = bps.oracle.value(mdp, evaluation)
        assert abs((probs * first).sum() - truth) < TOLERANCE, case
        assert abs((probs * second).sum() - truth) < TOLERANCE, case
        assert np.abs(probs.sum(axis=0) - probs.sum(axis=1)).max() > 1e-6, "the second batch had another behavior"


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: e.name)
def test_the_gradient_is_that_of_the_mixtures_second_moment(estimator):
    """Score weights and `Mixture.score`, summed over all trajectories, against central differences of E[X²]."""
    for case, explored in zip(SMALL_CASES[1::4], (None, 0.25, None, 0.1), strict=False):
        mdp = random_mdp(*case)
        third = None if explored is None else random_policy(4, mdp)
        evaluation, component = random_policy(1, mdp), random_policy(2, mdp)
        everything = enumerate_trajectories(mdp)
        model = random_model(3, mdp, evaluation)

        def valued(theta, more=(third, explored), evaluation=evaluation, everything=everything, mdp=mdp, model=model):
            mixture = Mixture(evaluation, evaluation.with_flat(theta), 0.3, *more)
            batch, probabilities = under(everything, mixture)
            extra = on_trajectories(model, batch) if estimator.needs_model else ()
            arguments = (batch.rewards, log_ratios(evaluation, batch), batch.mask, mdp.discount, *extra)
            return mixture, batch, probabilities, arguments

        mixture, batch, probabilities, arguments = valued(component.flat)
        _, weights = score_weights(estimator, *arguments)
        exact = mixture.score(batch.observations, batch.actions, probabilities[:, None] * weights)
        numeric = np.zeros_like(exact)
        for i, direction in enumerate(1e-5 * np.eye(len(exact))):
            moments = []
            for sign in (1.0, -1.0):
                _, _, chances, shifted = valued(component.flat + sign * direction)
                moments.append(chances @ estimator(*shifted) ** 2)
            numeric[i] = (moments[0] - moments[1]) / 2e-5
        np.testing.assert_allclose(exact, numeric, atol=1e-7)
        assert np.abs(numeric).max() > 1e-3


def test_padding_that_no_policy_could_take_does_no_harm():
    evaluation = bps.SoftmaxTable([[-np.inf, 0.0, 0.0], [0.0, 0.0, 0.0]])
    component = bps.SoftmaxTable([[-np.inf, 1.0, 0.0], [0.0, -2.0, 0.0]])
    mixture = Mixture(evaluation, component, 0.3)
    observations, actions = np.array([[1, 0, 0]]), np.array([[1, 2, 0]])
    weights = np.array([[1.0, -2.0, 0.0]])
    score = mixture.score(observations, actions, weights)
    np.testing.assert_allclose(score, mixture.score(observations[:, :2], actions[:, :2], weights[:, :2]))
    assert np.isfinite(score).all()


MDP = bps.envs.gridworld()
POLICY = bps.shipped_policy("gridworld-early")


def far_mixture(share=0.2):
    noise = np.random.default_rng(0).normal(size=(16, 4))
    return Mixture(POLICY, bps.SoftmaxTable(POLICY.logits + noise), share)


def check_recorded(mixture, batch):
    """What was recorded while sampling is the mixture's log-probability of whole episodes; weights are bounded."""
    recomputed = np.where(batch.mask, mixture.log_prob(batch.observations, batch.actions), 0.0)
    np.testing.assert_allclose(batch.log_probs, recomputed, atol=1e-9)
    weights = np.exp(np.cumsum(log_ratios(mixture.evaluation, batch), axis=1))
    assert weights.max() <= (1.0 + 1e-9) / mixture.share
    assert weights[:, -1].max() > 0.5 / mixture.share, "the bound is put to the test"
    return weights[:, -1]


def test_the_compiled_sampler_runs_it():
    """E[w] = 1 and the value by z-tests at a false-alarm rate of 1e-6 each."""
    mixture = far_mixture()
    batch = bps.sample(MDP, mixture, episodes=3000, seed=1)
    weights = check_recorded(mixture, batch)
    for sample, truth in ((weights, 1.0), (weights * batch.returns(), bps.oracle.value(MDP, POLICY))):
        assert abs(sample.mean() - truth) < 4.9 * sample.std(ddof=1) / np.sqrt(3000)
    np.testing.assert_array_equal(batch.behavior_parameters, mixture.component.flat)


@pytest.mark.slow
def test_the_gymnasium_sampler_runs_it_whatever_the_number_of_environments():
    mixture = far_mixture()
    batches = [bps.sample("bpsearch/Gridworld-v0", mixture, episodes=100, seed=2, num_envs=count) for count in (2, 16)]
    np.testing.assert_array_equal(batches[0].actions, batches[1].actions)
    np.testing.assert_allclose(batches[0].log_probs, batches[1].log_probs, atol=1e-12)
    weights = check_recorded(mixture, batches[0])
    assert abs(weights.mean() - 1.0) < 4.9 * weights.std(ddof=1) / np.sqrt(100)


def test_a_third_policy_runs_its_share_of_whole_episodes_wherever_they_are_sampled():
    """Three policies that never take the same action; binomial bounds at 1e-6, and the same numbers from a file."""
    tables = [bps.SoftmaxTable(np.tile(np.where(np.arange(4) == a, 0.0, -60.0), (16, 1))) for a in range(3)]
    mixture = Mixture(*tables[:2], 0.2, tables[2], 0.3)
    for env in (MDP, "bpsearch/Gridworld-v0"):
        batch = bps.sample(env, mixture, episodes=400, seed=3, horizon=6)
        whole = np.where(batch.mask, batch.actions == batch.actions[:, :1], True).all(axis=1)
        assert whole.all()
        for action, share in enumerate((0.2, 0.5, 0.3)):
            of_this = float(np.mean(batch.actions[:, 0] == action))
            assert abs(of_this - share) < 4.9 * np.sqrt(share * (1.0 - share) / 400)
        again = np.where(batch.mask, mixture.log_prob(batch.observations, batch.actions), 0.0)
        np.testing.assert_allclose(batch.log_probs, again, atol=1e-9)


def test_a_third_policy_is_kept_in_files(tmp_path):
    mixture = Mixture(POLICY, POLICY.with_flat(0.5 * POLICY.flat), 0.2, POLICY.noisier(4.0), 0.1)
    save_policy(mixture, tmp_path / "three.npz")
    again = bps.load_policy(tmp_path / "three.npz")
    np.testing.assert_array_equal(again.explorer.flat, mixture.explorer.flat)
    batch = bps.sample(MDP, mixture, episodes=20, seed=0)
    one, other = (found.log_prob(batch.observations, batch.actions) for found in (mixture, again))
    np.testing.assert_array_equal(one, other)
    with np.load(tmp_path / "three.npz") as parts:
        wrong = dict(parts) | {"explored": 0.9}
    np.savez(tmp_path / "wrong.npz", **wrong)
    with pytest.raises(PolicyFileError, match=r"between 0 and 0\.8, got"):
        bps.load_policy(tmp_path / "wrong.npz")


@pytest.mark.parametrize(("explorer", "explored"), [(POLICY, 0.8), (POLICY, None), (None, 0.1), (POLICY, -0.1)])
def test_a_third_policy_without_a_share_of_its_own_is_refused(explorer, explored):
    with pytest.raises(InvalidArgumentError, match=r"^(explored|explorer) must be"):
        Mixture(POLICY, POLICY, 0.3, explorer, explored)


def test_each_component_runs_its_share_of_whole_episodes():
    """Components that never take the same action: an episode tells who ran it; binomial bound at 1e-6."""
    evaluation = bps.SoftmaxTable(np.tile([0.0, -60.0, 0.0, 0.0], (16, 1)))
    component = evaluation.with_flat(np.tile([-60.0, 0.0, -60.0, -60.0], 16))
    mixture = Mixture(evaluation, component, 0.2)
    for env in (MDP, "bpsearch/Gridworld-v0"):
        batch = bps.sample(env, mixture, episodes=400, seed=3, horizon=6)
        by_component = np.where(batch.mask, batch.actions == 1, True).all(axis=1)
        by_evaluation = np.where(batch.mask, batch.actions != 1, True).all(axis=1)
        assert (by_component ^ by_evaluation).all()
        assert abs(by_evaluation.mean() - 0.2) < 4.9 * np.sqrt(0.2 * 0.8 / 400)


def test_networks_in_32_bit_and_torch_modules():
    import torch

    space = spaces_of("CartPole-v1")
    network = bps.CategoricalMLP.init(0, *space, (8,))

    class Actor(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(4, 2)

        def forward(self, observations):
            return torch.distributions.Categorical(logits=self.head(observations))

    torch.manual_seed(0)
    for policy in (network, bps.from_torch(Actor(), *space)):
        flat = np.asarray(policy.flat)
        component = policy.with_flat((flat + np.random.default_rng(1).normal(size=flat.shape)).astype(flat.dtype))
        mixture = Mixture(policy, component, 0.1)
        batch = bps.sample("CartPole-v1", mixture, episodes=40, seed=0, num_envs=8, horizon=30)
        weights = np.exp(log_ratios(policy, batch).sum(axis=1))
        assert weights.max() <= 1.001 / 0.1
        assert abs(weights.mean() - 1.0) < 4.9 * weights.std(ddof=1) / np.sqrt(40)


def test_searches_take_it_as_an_option_also_compiled():
    """Trials of a search: unbiased by a z-test at 1e-6, every weight bounded."""
    search = bps.BPG(normalized(0.3), defensive=0.25)

    def record(_search, state, info, batch):
        return info.values, log_ratios(state.objective.evaluation, batch).sum(axis=1)

    _, (values, log_weights) = Trials(search, iterations=5, batch_size=50, seed=2, record=record).run(MDP, POLICY, 60)
    assert np.exp(log_weights).max() <= (1.0 + 1e-9) / 0.25
    assert np.exp(log_weights).max() > 2.0
    means = values.mean(axis=(1, 2))
    assert abs(means.mean() - bps.oracle.value(MDP, POLICY)) < 4.9 * means.std(ddof=1) / np.sqrt(60)

    study = bps.Study(POLICY, search, seed=0)
    estimate = study.run(MDP, episodes=300)
    assert np.exp(estimate.data.log_weights).max() <= (1.0 + 1e-9) / 0.25
    assert isinstance(study.ask().behavior, Mixture)
    leaves = jax.tree_util.tree_leaves(to_numpy(study.ask().behavior))
    assert len(leaves) == 3


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan"), "some"])
def test_bad_shares_are_named(share):
    for make in (lambda: bps.BPG(1.0, defensive=share), lambda: bps.AdaptiveBPG(defensive=share)):
        with pytest.raises(InvalidArgumentError, match="defensive must be"):
            make()


def test_agents_of_sb3_are_drawn_and_recorded_by_numpy():
    """What is recorded is what torch says of whole episodes, and does not depend on how many run side by side."""
    pytest.importorskip("stable_baselines3")
    agent = Path(__file__).parent / "agents" / "ppo-cartpole-v1.zip"
    policy = bps.load_sb3(agent, "CartPole-v1", adapt="last")
    assert policy.architecture.in_numpy is not None
    mixture = Mixture(policy, policy.with_flat(0.7 * policy.flat), 0.3)
    few, many = (bps.sample("CartPole-v1", mixture, episodes=40, seed=0, horizon=30, num_envs=n) for n in (3, 64))
    np.testing.assert_array_equal(few.log_probs, many.log_probs)
    np.testing.assert_array_equal(few.actions, many.actions)
    again = np.asarray(mixture.log_prob(few.observations, few.actions))
    np.testing.assert_allclose(few.log_probs[few.mask], again[few.mask], rtol=1e-9, atol=1e-12)
