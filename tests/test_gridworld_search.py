"""The paper's main claim on its own environment, measured by the exact oracle."""

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.paper.training import RECIPES, reinforce
from bpsearch.paper.trials import Trials

pytestmark = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "step_size", "least_share"), [("gridworld-early", 1e-5, 0.95), ("gridworld-converged", 1e-4, 0.75)]
)
def test_bpg_reaches_what_is_achievable_in_its_class(name, step_size, least_share):
    """Algorithm 1 with k = 100 for 1000 iterations: share of the achievable variance reduction, worst of 4 trials."""
    mdp, policy = bps.envs.gridworld(), bps.shipped_policy(name)
    monte_carlo = bps.oracle.variance(mdp, policy, None, "mc")
    _, lowest = bps.oracle.optimum(mdp, policy)
    states, _ = Trials(bps.BPG(step_size), iterations=1000, batch_size=100, group=4).run(mdp, policy, 4)
    reached = [bps.oracle.variance(mdp, policy, policy.with_flat(theta)) for theta in states.parameters]
    shares = (monte_carlo - np.array(reached)) / (monte_carlo - lowest)
    assert shares.min() >= least_share
    assert shares.max() <= 1.0 + 1e-9


def test_reinforce_improves_and_is_reproducible():
    mdp = bps.envs.gridworld()
    policies = reinforce(mdp, iterations=20, batch_size=50, step_size=0.005, seed=3)
    again = reinforce(mdp, iterations=20, batch_size=50, step_size=0.005, seed=3)
    values = [bps.oracle.value(mdp, policy) for policy in policies]
    assert values[0] == pytest.approx(-72.413, abs=5e-4)
    assert values[20] > values[10] > values[0] + 20
    np.testing.assert_array_equal(policies[20].logits, again[20].logits)


def test_the_shipped_policies_are_what_their_recipes_make():
    trained = RECIPES["gridworld-early"].train()
    np.testing.assert_allclose(trained.logits, bps.shipped_policy("gridworld-early").logits, atol=1e-9)


def test_the_two_evaluation_policies_show_what_the_paper_describes():
    """π_1 is improved but far from converged and its returns spread far wider than those of the converged π_2."""
    mdp = bps.envs.gridworld()
    early, converged = bps.shipped_policy("gridworld-early"), bps.shipped_policy("gridworld-converged")
    assert -72.4 < bps.oracle.value(mdp, early) < bps.oracle.value(mdp, converged)
    spread = [np.sqrt(bps.oracle.variance(mdp, p, None, "mc")) for p in (early, converged)]
    assert spread[0] > 4 * spread[1]
