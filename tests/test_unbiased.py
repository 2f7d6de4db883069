"""Unbiasedness by enumeration: no sampling, no tolerance for luck."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bpsearch as bps
from bpsearch._core.jaxtools import replace
from bpsearch.control_variates import TabularModel
from bpsearch.estimators import advantage_sum, doubly_robust, importance_sampling, monte_carlo, per_decision
from bpsearch.paper.on_policy import OnPolicyCurve
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

TOLERANCE = 1e-10


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_every_unbiased_estimator_has_the_value_as_expectation(case):
    mdp = random_mdp(*case)
    evaluation, behavior = random_policy(1, mdp), random_policy(2, mdp)
    model = random_model(3, mdp, evaluation)
    everything = enumerate_trajectories(mdp)
    truth = bps.oracle.value(mdp, evaluation)
    for estimator in (monte_carlo, advantage_sum, importance_sampling, per_decision, doubly_robust):
        policy = evaluation if estimator.on_policy else behavior
        batch = everything.under(policy)
        extra = on_trajectories(model, batch) if estimator.needs_model else ()
        ratios = bps.estimators.log_ratios(evaluation, batch)
        values = estimator(batch.rewards, ratios, batch.mask, mdp.discount, *extra)
        expectation = everything.probabilities(policy.probabilities) @ values
        assert abs(expectation - truth) < TOLERANCE, estimator.name


def test_weighted_importance_sampling_is_biased_and_says_so():
    assert not bps.estimators.weighted_importance_sampling.unbiased
    mdp = random_mdp(1, (2, 2, 3), 0.9)
    evaluation, behavior = random_policy(1, mdp), random_policy(2, mdp)
    everything = enumerate_trajectories(mdp)
    one_episode = everything.under(behavior).returns(mdp.discount)  # a batch of one: its weight cancels
    expectation = everything.probabilities(behavior.probabilities) @ one_episode
    assert abs(expectation - bps.oracle.value(mdp, evaluation)) > 1e-3


@partial(jax.jit, static_argnums=0)
def all_pairs(search, state, everything):
    """For every pair of trajectories as two batches of one episode: log-probability, both values, the final mean."""

    def collected_by(behavior, index):
        episode = jax.tree_util.tree_map(lambda leaf: leaf[index][None], everything)
        log_probs = behavior.log_prob(episode.observations, episode.actions)
        return replace(episode, log_probs=jnp.where(episode.mask, log_probs, 0.0))

    def run_pair(first, second):
        log_prob, values, current = 0.0, [], state
        for index in (first, second):
            batch = collected_by(search.behavior(current), index)
            log_prob += batch.log_probs.sum()
            current, info = search.update(current, batch)
            values.append(info.values[0])
        final = search.objective.running_value(current.objective) if search.objective.revalues else 0.0
        return log_prob, *values, final

    indices = jnp.arange(everything.mask.shape[0])
    return jax.vmap(jax.vmap(run_pair, (None, 0)), (0, None))(indices, indices)


def two_batches(search, mdp, evaluation):
    """The probability of each pair of trajectories, their values X_0 and X_1 (after the update), the final mean."""
    everything = enumerate_trajectories(mdp)
    with jax.enable_x64(True):
        outcome = all_pairs(search, search.init(evaluation, mdp.discount), everything.batch)
    log_prob, first, second, final = map(np.asarray, outcome)
    probs = everything.env_probs[:, None] * everything.env_probs[None, :] * np.exp(log_prob)
    assert abs(probs.sum() - 1.0) < TOLERANCE
    return probs, first, second, final


def searches(mdp):
    model = TabularModel.like(mdp)
    fixed = TabularModel.like(mdp, "fixed", batches=1)
    return {
        "is": bps.BPG(0.3),
        "is-normalized": bps.BPG(normalized(0.5)),
        "pdis": bps.BPG(0.3, estimator=per_decision),
        "dr-predictable": bps.BPG(0.3, estimator=doubly_robust, model=model),
        "dr-fixed": bps.BPG(0.3, estimator=doubly_robust, model=fixed),
        "as-predictable": OnPolicyCurve(advantage_sum, model),
        "adaptive": bps.AdaptiveBPG(caution=0.0),
        "adaptive-defensive": bps.AdaptiveBPG(caution=0.0, defensive=0.3),
        "adaptive-pdis": bps.AdaptiveBPG(per_decision, caution=0.0),
        "adaptive-dr": bps.AdaptiveBPG(doubly_robust, model, caution=0.0),
    }


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("is-normalized", "dr-fixed")]


@pytest.mark.parametrize("name", ["is", "pdis", "dr-predictable", "as-predictable", *SLOW])
def test_a_two_batch_study_is_unbiased_through_its_parameter_update(name):
    for case in SMALL_CASES:
        mdp = random_mdp(*case)
        evaluation = random_policy(1, mdp)
        search = searches(mdp)[name]
        probs, first, second, _ = two_batches(search, mdp, evaluation)
        truth = bps.oracle.value(mdp, evaluation)
        assert abs((probs * first).sum() - truth) < TOLERANCE, case
        assert abs((probs * second).sum() - truth) < TOLERANCE, case
        moved = np.abs(probs.sum(axis=0) - probs.sum(axis=1)).max() > 1e-6
        assert moved == (name not in ("as-predictable", "dr-fixed")), "whether the second batch had another behavior"


@partial(jax.jit, static_argnums=0)
def all_triples(search, state, everything):
    """For every three trajectories as batches of one episode: log-probability, values, the last θ − θ_e."""
    evaluation = state.objective.evaluation

    def run_triple(*indices):
        log_prob, values, current = 0.0, [], state
        for index in indices:
            behavior = search.behavior(current)
            episode = jax.tree_util.tree_map(lambda leaf, index=index: leaf[index][None], everything)
            log_probs = behavior.log_prob(episode.observations, episode.actions)
            batch = replace(episode, log_probs=jnp.where(episode.mask, log_probs, 0.0))
            log_prob += batch.log_probs.sum()
            current, info = search.update(current, batch)
            values.append(info.values[0])
        return log_prob, jnp.stack(values), jnp.abs(behavior.flat - evaluation.flat).max()

    indices = jnp.arange(everything.mask.shape[0])
    over_last = jax.vmap(run_triple, (None, None, 0))
    return jax.lax.map(lambda first: jax.vmap(over_last, (None, 0, None))(first, indices, indices), indices)


@pytest.mark.parametrize("name", ["adaptive", "adaptive-defensive", "adaptive-pdis", "adaptive-dr"])
@pytest.mark.parametrize(
    "case", [(1, (2, 2, 2), 1.0), pytest.param((0, (2, 2, 2), 0.9), marks=pytest.mark.slow)], ids=case_id
)
def test_a_three_batch_study_is_unbiased_through_all_that_the_default_search_decides(case, name):
    """Its shift, ridge, step and gate are chosen twice in between."""
    mdp = random_mdp(*case)
    evaluation = random_policy(1, mdp)
    search = searches(mdp)[name]
    everything = enumerate_trajectories(mdp)
    with jax.enable_x64(True):
        outcome = all_triples(search, search.init(evaluation, mdp.discount), everything.batch)
    log_prob, values, moved = map(np.asarray, outcome)
    env_probs = everything.env_probs
    probs = np.einsum("i,j,k->ijk", env_probs, env_probs, env_probs) * np.exp(log_prob)
    assert abs(probs.sum() - 1.0) < TOLERANCE
    truth = bps.oracle.value(mdp, evaluation)
    for batch in range(3):
        assert abs((probs * values[..., batch]).sum() - truth) < TOLERANCE
    assert (probs * (moved > 1e-6)).sum() > 0.1, "the third batch often had another behavior"


@pytest.mark.slow
def test_the_updated_model_is_biased():
    biases = []
    for case in SMALL_CASES:
        mdp = random_mdp(*case)
        evaluation = random_policy(1, mdp)
        search = bps.BPG(0.3, estimator=doubly_robust, model=TabularModel.like(mdp, "update"))
        probs, _, _, final = two_batches(search, mdp, evaluation)
        biases.append(abs((probs * final).sum() - bps.oracle.value(mdp, evaluation)))
    assert np.median(biases) > 1e-3
