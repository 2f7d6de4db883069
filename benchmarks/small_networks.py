"""What `auto` does on networks that nobody trained, beside Monte Carlo on the same episodes.

    python -m benchmarks.small_networks --networks 12 --studies 60 --seed 1

Networks of ReLU units with random weights act in CartPole-v1, compiled. Most of their units are off in most episodes,
so a regression on their scores may learn a coefficient from next to nothing. Each row is a network: the mean squared
error over studies, relative to Monte Carlo's (with its squared error on the same episodes as control variate), and the
variance of the values within a study relative to that of the returns, the median and the largest.
"""

import argparse
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bpsearch as bps
from bpsearch.methods import find_method

REFERENCE = 20_000  # episodes that tell the truth


def draw(seed: int) -> tuple[bps.Policy, str]:
    """A network of one or two hidden layers of 8 to 64 units."""
    rng = np.random.default_rng(seed)
    widths = [4, *[int(2 ** rng.integers(3, 7))] * int(rng.integers(1, 3)), 2]
    parameters = {
        f"layer {at}": {
            "bias": rng.uniform(-1.0, 1.0, size=width) / np.sqrt(before),
            "weights": rng.uniform(-1.0, 1.0, size=(width, before)) / np.sqrt(before),
        }
        for at, (before, width) in enumerate(pairwise(widths))
    }
    env = bps.envs.classic_cartpole()
    policy = bps.from_jax(apply, parameters, env.observation_space, env.action_space, adapt="last")
    return policy, " x ".join(map(str, widths[1:-1]))


def apply(parameters: Mapping[str, Any], observation: jax.Array) -> jax.Array:
    """The logits."""
    hidden = observation
    for at, layer in enumerate(parameters.values()):
        hidden = layer["weights"] @ (jnp.maximum(hidden, 0.0) if at else hidden) + layer["bias"]
    return hidden


def measure(policy: bps.Policy, episodes: int, studies: int) -> tuple[float, float, float, float]:
    """The ratio of mean squared errors with its standard error, the median and the largest ratio of variances."""
    env, valuation = bps.envs.classic_cartpole(), find_method("auto").valuation
    returns = np.asarray(bps.sample(env, policy, REFERENCE, seed=1).returns())
    truth, variance = returns.mean(), returns.var() / episodes
    state = valuation.init(policy)
    errors, spreads = [], []
    for study in range(studies):
        batch = bps.sample(env, policy, episodes, seed=2, batch=study)
        values, plain = valuation.conclude(state, [valuation.value(state, batch)]), np.asarray(batch.returns())
        errors.append(((values.mean - truth) ** 2 / variance, (plain.mean() - truth) ** 2 / variance))
        spreads.append(np.var(np.concatenate(values.batches)) / np.var(plain))
    own, rival = np.array(errors).T
    slope = np.cov(own, rival)[0, 1] / rival.var(ddof=1)
    adjusted = own - slope * (rival - 1.0)
    return adjusted.mean(), adjusted.std(ddof=1) / np.sqrt(studies), float(np.median(spreads)), max(spreads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=12)
    parser.add_argument("--studies", type=int, default=60)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print("| network | units | error relative to Monte Carlo's | variance, median | largest |\n|---|---|---|---|---|")
    for number in range(options.networks):
        policy, units = draw(options.seed * 1000 + number)
        ratio, error, median, largest = measure(policy, options.episodes, options.studies)
        print(f"| {number} | {units} | {ratio:.2f} ± {error:.2f} | {median:.2f} | {largest:.2f} |", flush=True)


if __name__ == "__main__":
    main()
