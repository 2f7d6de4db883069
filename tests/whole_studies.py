"""The expectation of an estimate over all studies that can happen."""

from itertools import product

import numpy as np

import bpsearch as bps
from bpsearch.testing import enumerate_trajectories


def expectation(method, mdp, policy, estimand, sizes):
    """E of the estimate, of every batch's weight, and of the naive ratio, over all studies with batches of these sizes.

    Every batch of every behavior is enumerated: whole studies are told, and each has its exact probability.
    """
    everything = enumerate_trajectories(mdp)
    with np.errstate(divide="ignore"):
        can_happen = everything.probabilities(policy.probabilities) > 0.0
    found = np.zeros(2)

    def extend(told, probability):
        study = bps.Study(policy, method, estimand=estimand, seed=0)
        for batch in told:
            study.tell(study.ask().number, batch)
        if len(told) == len(sizes):
            told_values = [valued for _, valued in sorted(study.turns().items())]
            means = np.array([told.values.mean() for told in told_values])
            weights = np.array([told.weight for told in told_values])
            ratio = weights * sizes @ means / (weights @ sizes) if weights.any() else means.mean()
            found[:] += probability * np.array([study.estimate().value, ratio])
            return
        behavior = study.ask().behavior
        log_probs = np.asarray(behavior.log_prob(everything.batch.observations, everything.batch.actions))
        log_probs = np.where(everything.batch.mask, log_probs, 0.0)
        of_one = everything.env_probs * np.exp(log_probs.sum(axis=1))
        possible = np.flatnonzero(can_happen & (of_one > 0.0))
        batch = bps.Trajectories(
            everything.batch.observations,
            everything.batch.actions,
            everything.batch.rewards,
            log_probs,
            everything.batch.mask,
            everything.batch.final_observations,
        )
        for rows in product(possible, repeat=sizes[len(told)]):
            extend([*told, batch.take(np.array(rows))], probability * np.prod(of_one[list(rows)]))

    extend([], 1.0)
    return found
