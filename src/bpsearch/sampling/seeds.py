"""Random streams: a pure function of the user's seed, the batch and the chunk of episodes."""

import jax

from bpsearch.checks import check_integer
from bpsearch.trajectories import Array


def batch_key(seed: int, batch: int = 0) -> Array:
    """The key of one batch of episodes; batches and seeds never share a stream."""
    return jax.random.fold_in(jax.random.key(check_integer("seed", seed, at_least=0)), batch)
