"""Other ways to find a behavior than the search that the library has, judged by the exact oracle.

From one batch of the policy's own episodes:

- closed form: μ ∝ π √M̂ (section 3.1 of the paper) of the maximum-likelihood model of that batch, for per-decision
  importance sampling, a tenth of π mixed in at every step; and the same with the true model, which nobody has.
- cross-entropy: the table that makes the episodes most probable, each weighed by |g − ḡ|, with ten pseudo-visits of π
  in every state, for importance sampling with the returns shifted by ḡ.
- the library's search (`AdaptiveBPG`) after the same batch.

Printed is the exact variance of the next batch's values relative to Monte Carlo's, the median over studies.

    python -m benchmarks.candidates --episodes 300 --studies 9
"""

import argparse

import numpy as np

import bpsearch as bps
from benchmarks.coverage import failures
from benchmarks.evaluators.tasks import TASKS
from bpsearch.trajectories import Trajectories

SHARE_OF_POLICY, PSEUDO_VISITS = 0.1, 10.0


def fitted(mdp: bps.TabularMDP, batch: Trajectories) -> bps.TabularMDP:
    """The maximum-likelihood model; an action never seen ends the episode without a reward."""
    mask = batch.mask
    counts, rewards = np.zeros((2, mdp.states, mdp.actions, mdp.states))
    cells = (batch.observations[mask], batch.actions[mask], batch.successors[mask])
    np.add.at(counts, cells, 1.0)
    np.add.at(rewards, cells, batch.rewards[mask])
    unseen = counts.sum(axis=-1) == 0.0
    counts[unseen] = mdp.terminal
    transitions = counts / counts.sum(axis=-1, keepdims=True)
    return bps.TabularMDP(
        transitions, rewards / np.maximum(counts, 1.0), mdp.initial, mdp.terminal, mdp.horizon, mdp.discount
    )


def closed_form(mdp: bps.TabularMDP, policy: bps.SoftmaxTable, model: bps.TabularMDP) -> float:
    """The exact variance of the per-decision estimator under μ ∝ π √M of `model`."""
    best, _ = bps.oracle.optimal_behavior(model, policy)
    mixed = SHARE_OF_POLICY * policy.probabilities + (1.0 - SHARE_OF_POLICY) * best
    return bps.oracle.variance(mdp, policy, mixed, "pdis")


def cross_entropy(mdp: bps.TabularMDP, policy: bps.SoftmaxTable, batch: Trajectories) -> float:
    """The exact variance of the shifted estimator under the table of largest weighted likelihood."""
    returns = batch.returns(mdp.discount)
    weights = np.abs(returns - returns.mean())
    weights = weights / max(weights.mean(), 1e-300)
    visits = PSEUDO_VISITS * policy.probabilities
    each = np.broadcast_to(weights[:, None], batch.mask.shape)[batch.mask]
    np.add.at(visits, (batch.observations[batch.mask], batch.actions[batch.mask]), each)
    behavior = bps.SoftmaxTable(np.log(visits / visits.sum(axis=1, keepdims=True)))
    return bps.oracle.variance(mdp, policy, behavior, "is", shift=float(returns.mean()))


def search(mdp: bps.TabularMDP, policy: bps.SoftmaxTable, batch: Trajectories) -> float:
    """The exact variance of the library's search after the batch."""
    own = bps.AdaptiveBPG()
    state, _ = own.step(own.init(policy, mdp.discount), batch)
    return bps.oracle.variance(mdp, policy, own.behavior(state), "is", shift=float(state.shift))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--studies", type=int, default=9)
    options = parser.parse_args()
    problems = {name: (task.env, task.policy) for name, task in ((name, make()) for name, make in TASKS.items())}
    problems = {name: pair for name, pair in problems.items() if isinstance(pair[0], bps.TabularMDP)}
    problems["failure of a courier"] = failures()
    print("| task | closed form, true model | closed form | cross-entropy | AdaptiveBPG |\n|---|---|---|---|---|")
    for name, (mdp, policy) in problems.items():
        plain = bps.oracle.variance(mdp, policy, None, "mc")
        found = []
        for study in range(options.studies):
            batch = bps.sample(mdp, policy, options.episodes, seed=5, batch=study)
            ways = (
                closed_form(mdp, policy, fitted(mdp, batch)),
                cross_entropy(mdp, policy, batch),
                search(mdp, policy, batch),
            )
            found.append(np.array(ways) / plain)
        known = closed_form(mdp, policy, mdp) / plain
        cells = [f"{x:.3g}" for x in (known, *np.median(found, axis=0))]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
