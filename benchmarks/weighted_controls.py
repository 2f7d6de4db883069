"""Whether scores are worth subtracting from the values of a searched behavior's episodes, as `auto` does from its own.

Under a behavior μ the weighted scores w Z, Z = Σ_t ∇log π(A_t|S_t) and w = π(H)/μ(H), have mean 0. So within each batch
of the library's search (`AdaptiveBPG`) the shifted values are regressed on w Z and cross-fitted, as `auto` would.
Printed is the mean squared error of the mean of each batch, as the search values it and with what is subtracted,
relative to Monte Carlo's with as many episodes, over studies.

    python -m benchmarks.weighted_controls --studies 200 --batches 5
"""

import argparse

import numpy as np

import bpsearch as bps
from benchmarks.candidates import COURIER, problems
from bpsearch.inference.cross_fitting import cross_fit
from bpsearch.sampling.trajectories import Trajectories

SIZE = 100  # episodes of a batch


def controlled(policy: bps.SoftmaxTable, batch: Trajectories, values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(N,), the values less what weighted scores explain of them, cross-fitted."""
    scores = bps.Scores().bind(policy, 1.0)
    summary, each = scores.summarize(batch), weights[:, None]
    # A visit counts by the square of the weight: so much do the weighted scores of what may be done there vary.
    weighted = {"scores": each * summary["scores"], "visits": each**2 * summary["visits"]}
    return cross_fit([(scores, weighted)], values).values


def study(mdp: bps.TabularMDP, policy: bps.SoftmaxTable, batches: int, seed: int) -> np.ndarray:
    """(batches, 2), the mean of each batch, plain and controlled."""
    search, valuation = bps.AdaptiveBPG(), bps.Valuation(bps.estimators.importance_sampling)
    state, known, means = search.init(policy, mdp.discount), valuation.init(policy, mdp.discount), []
    for number in range(batches):
        batch = bps.sample(mdp, search.behavior(state), SIZE, seed=seed, batch=number)
        valued = valuation.value(known, batch, search.shift(state))
        state, _ = search.step(state, batch)
        less = controlled(policy, batch, valued.values, np.exp(valued.log_weights))
        means.append((valued.values.mean(), less.mean()))
    return np.array(means)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="gridworld-early,gridworld-converged,rare-0.005,random-1")
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--batches", type=int, default=5)
    options = parser.parse_args()
    known = problems()
    print(f"| task | | {' | '.join(f'batch {number + 1}' for number in range(options.batches))} |")
    print(f"|---|---{'|---' * options.batches}|")
    for name in (*options.tasks.split(","), COURIER):
        mdp, policy = known[name]
        plain = bps.oracle.variance(mdp, policy, None, "mc") / SIZE
        errors = np.array([study(mdp, policy, options.batches, seed) for seed in range(options.studies)])
        squares = (errors - bps.oracle.value(mdp, policy)) ** 2 / plain
        noise = squares.std(axis=0, ddof=1) / np.sqrt(options.studies)
        for column, title in enumerate(("the search's", "scores subtracted")):
            cells = (
                f"{x:.2g} ± {e:.2g}" for x, e in zip(squares.mean(axis=0)[:, column], noise[:, column], strict=True)
            )
            print(f"| {name} | {title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
