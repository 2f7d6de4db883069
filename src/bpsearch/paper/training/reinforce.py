"""REINFORCE for tabular policies."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from bpsearch._core.arrays import Array
from bpsearch._core.checks import check_integer, check_real
from bpsearch._core.jaxtools import in_64_bit
from bpsearch.envs.tabular import TabularMDP
from bpsearch.policies.table import SoftmaxTable
from bpsearch.sampling import check_spaces
from bpsearch.sampling.compiled import rollout
from bpsearch.sampling.seeds import batch_key


@in_64_bit
def reinforce(
    mdp: TabularMDP,
    policy: SoftmaxTable | None = None,
    *,
    iterations: int,
    batch_size: int = 100,
    step_size: float = 0.01,
    seed: int = 0,
) -> list[SoftmaxTable]:
    """Improve a policy by gradient ascent on its value; return the policies after 0, 1, …, `iterations` steps.

    The gradient is E[Σ_t γ^t (G_t − b_t) ∇log π(A_t|S_t)] (section 4.2 of the paper) with the reward-to-go G_t in place
    of the whole return, which has the same expectation, and the batch's mean reward-to-go at step t as baseline.

    Args:
        mdp: the environment.
        policy: where to start; the uniform policy if None.
        iterations: how many steps.
        batch_size: episodes per step.
        step_size: the constant step.
        seed: the same seed gives the same policies.
    """
    check_integer("iterations", iterations)
    check_integer("batch_size", batch_size)
    check_real("step_size", step_size, above=0.0)
    policy = SoftmaxTable.uniform(mdp.states, mdp.actions) if policy is None else policy
    check_spaces(mdp, policy)
    logits = _ascend(mdp, policy, batch_key(seed), step_size, iterations, batch_size)
    return [policy, *(SoftmaxTable(table) for table in np.asarray(logits))]


@partial(jax.jit, static_argnames=("iterations", "batch_size"))
def _ascend(
    mdp: TabularMDP, policy: SoftmaxTable, key: Array, step_size: float, iterations: int, batch_size: int
) -> Array:
    discounts = mdp.discount ** jnp.arange(mdp.horizon)

    def step(policy: SoftmaxTable, key: Array) -> tuple[SoftmaxTable, Array]:
        batch = rollout(mdp, policy, key, batch_size)
        discounted = batch.rewards * discounts
        to_go = jnp.cumsum(discounted[:, ::-1], axis=1)[:, ::-1]
        baseline = to_go.sum(axis=0) / jnp.maximum(batch.mask.sum(axis=0), 1)
        weights = jnp.where(batch.mask, to_go - baseline, 0.0)
        gradient = policy.score(batch.observations, batch.actions, weights) / batch_size
        policy = policy.with_flat(policy.flat + step_size * gradient)
        return policy, policy.logits

    policy = jax.tree_util.tree_map(jnp.asarray, policy)
    return jax.lax.scan(step, policy, jax.random.split(key, iterations))[1]
