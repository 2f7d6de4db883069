"""Random streams: a pure function of the user's seed, the batch and the chunk of episodes, or the episode."""

import jax
import numpy as np

from bpsearch.checks import check_integer
from bpsearch.trajectories import Array


def batch_key(seed: int, batch: int = 0) -> Array:
    """The key of one batch of episodes; batches and seeds never share a stream."""
    return jax.random.fold_in(jax.random.key(check_integer("seed", seed, at_least=0), impl="threefry2x32"), batch)


def episode_stream(seed: int, batch: int, episode: int) -> np.random.Generator:
    """The numbers of one episode in a Gymnasium environment: first the environment's seed, then the action noise.

    No two episodes share a stream, as those of the seeds 0 and 1 do if an environment counts its seeds up.
    """
    entropy = check_integer("seed", seed, at_least=0)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy, spawn_key=(batch, episode))))
