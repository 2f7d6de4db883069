"""Whether scores are worth subtracting from the values of a searched behavior's episodes, as `auto` does from its own.

Under a behavior μ the weighted scores w Z, Z = Σ_t ∇log π(A_t|S_t) and w = π(H)/μ(H), have mean 0. So within each batch
of the library's search (`AdaptiveBPG`) the shifted values are regressed on w Z and cross-fitted, as `auto` would.
Printed is the mean squared error of the mean of each batch, as the search values it and with what is subtracted,
relative to Monte Carlo's with as many episodes, over studies.

    python -m benchmarks.weighted_controls --studies 200 --batches 5
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

import bpsearch as bps
from benchmarks.candidates import COURIER, problems
from bpsearch.numerics import in_64_bit, to_numpy
from bpsearch.search.cross_fitting import FOLDS, cross_fit
from bpsearch.trajectories import Trajectories

SIZE = 100  # episodes of a batch


@jax.jit
def features(policy: bps.SoftmaxTable, batch: Trajectories, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(N, P), the scores, and (K, P, P), what each fold's visited states say of the spread of the weighted ones."""
    folds = jax.nn.one_hot(jnp.arange(len(batch.mask)) % FOLDS, FOLDS, axis=0)
    spread = jax.vmap(lambda own: policy.score_covariance(batch.observations, batch.mask, own))(folds * weights**2)
    return policy.episode_scores(batch.observations, batch.actions, batch.mask), spread


@in_64_bit
def controlled(policy: bps.SoftmaxTable, batch: Trajectories, values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(N,), the values less what weighted scores explain of them, cross-fitted."""
    scores, spread = to_numpy(features(policy, batch, weights))
    return cross_fit(values, weights[:, None] * scores, spread).values


def study(mdp: bps.TabularMDP, policy: bps.SoftmaxTable, batches: int, seed: int) -> np.ndarray:
    """(batches, 2), the mean of each batch, plain and controlled."""
    search = bps.AdaptiveBPG()
    state, means = search.init(policy, mdp.discount), []
    for number in range(batches):
        batch = bps.sample(mdp, search.behavior(state), SIZE, seed=seed, batch=number)
        state, info = search.step(state, batch)
        less = controlled(policy, batch, info.values, np.exp(info.log_weights))
        means.append((info.values.mean(), less.mean()))
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
