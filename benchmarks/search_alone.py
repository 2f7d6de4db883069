"""How much of the achievable variance reduction the search that needs no step size finds, by the exact oracle.

4x4 gridworld, early policy, batches of 100 episodes. After each batch the exact variance of the estimator that the next
batch will have is compared with Monte Carlo's and with that of the best behavior, which the oracle finds for plain
importance sampling. The search also shifts the returns, which plain importance sampling does not: it may find more.

    python -m benchmarks.search_alone --studies 20
"""

import argparse

import numpy as np

import bpsearch as bps

BATCH_SIZE, BATCHES = 100, 10


def found(seed: int) -> list[float]:
    """The exact variance after each batch of a study, relative to Monte Carlo's."""
    mdp, policy = bps.envs.gridworld(), bps.shipped_policy("gridworld-early")
    plain = bps.oracle.variance(mdp, policy, None, "mc")
    search = bps.AdaptiveBPG()
    state, ratios = search.init(policy), []
    for batch in range(BATCHES):
        episodes = bps.sample(mdp, search.behavior(state), BATCH_SIZE, seed=seed, batch=batch)
        state, _ = search.step(state, episodes)
        exact = bps.oracle.variance(mdp, policy, search.behavior(state), "is", shift=search.shift(state))
        ratios.append(exact / plain)
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=20)
    studies = parser.parse_args().studies
    mdp, policy = bps.envs.gridworld(), bps.shipped_policy("gridworld-early")
    best = bps.oracle.optimum(mdp, policy, "is")[1] / bps.oracle.variance(mdp, policy, None, "mc")
    print(f"best behavior of plain importance sampling: {best:.4f} of Monte Carlo's variance")
    print("| episodes | variance relative to Monte Carlo's, median | worst | share of the achievable, median | worst |")
    print("|---|---|---|---|---|")
    for batch, ratios in enumerate(np.transpose([found(seed) for seed in range(studies)]), start=1):
        shares = (1.0 - ratios) / (1.0 - best)
        print(
            f"| {batch * BATCH_SIZE} | {np.median(ratios):.3f} | {ratios.max():.3f} "
            f"| {np.median(shares):.0%} | {shares.min():.0%} |"
        )


if __name__ == "__main__":
    main()
