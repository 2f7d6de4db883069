"""Episodes a few at a time, where the observations of all are too large to be copied at once."""

from collections.abc import Iterator

import jax
import numpy as np

from bpsearch._core.arrays import Array, Observations

_BYTES = 2**26  # of observations that are copied at once


def row_bytes(observations: Observations, leading: int) -> int:
    """How much one observation takes, after so many leading axes."""
    leaves = jax.tree_util.tree_leaves(observations)
    return sum(int(np.prod(leaf.shape[leading:], dtype=int)) * leaf.dtype.itemsize for leaf in leaves)


def episode_groups(observations: Observations, mask: Array) -> Iterator[slice]:
    """Neighboring episodes whose steps are copied at once: all of them, unless they are images or the like."""
    sizes = np.asarray(mask).sum(axis=1) * row_bytes(observations, 2)
    start, total = 0, 0
    for episode, size in enumerate(sizes.tolist()):
        if total and total + size > _BYTES:
            yield slice(start, episode)
            start, total = episode, 0
        total += size
    yield slice(start, len(sizes))
