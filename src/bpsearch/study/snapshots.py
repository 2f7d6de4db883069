"""States as named arrays."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch.errors import InvalidArgumentError, StoreError
from bpsearch.study.codec import digest, same_bits
from bpsearch.study.journal import Event


class Snapshots:
    """Turns states of one study into entries of a cache and back.

    A state is a pytree; its structure, and whatever in it is not an array, is that of the search's first state, which
    settings and policy make again. So only arrays are kept, and of those only the ones that are not as they were at
    first: the evaluation policy, for instance, is not written again with every batch.

    Args:
        first: the state before the first batch.
    """

    def __init__(self, first: Any) -> None:
        leaves, structure = jax.tree_util.tree_flatten_with_path(first)
        self._structure: Any = structure
        self._first = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
        self._digests = {name: digest(leaf) for name, leaf in self._first.items()}

    def event(self, state: Any) -> Event:
        """What is to be kept of a state.

        Raises:
            InvalidArgumentError: the state has another structure than the first one.
        """
        leaves, structure = jax.tree_util.tree_flatten(state)
        if structure != self._structure:
            raise InvalidArgumentError(
                f"the state of a search must keep its structure from batch to batch to be stored: expected "
                f"{self._structure}, got {structure}"
            )
        changed: dict[str, NumpyArray] = {}
        for (name, first), leaf in zip(self._first.items(), leaves, strict=True):
            if not _same(first, leaf):
                changed[name] = np.asarray(leaf)
        kept = {name: self._digests[name] for name in self._first if name not in changed}
        return Event("state", {"as at first": kept}, changed)

    def state(self, event: Event) -> Any:
        """The state of which `event` was made.

        Raises:
            StoreError: it is of another search.
        """
        kept: Mapping[str, str] = event.facts.get("as at first", {})
        if set(kept) | set(event.arrays) != set(self._first):
            odd = sorted((set(kept) | set(event.arrays)) ^ set(self._first))
            raise StoreError(f"the stored state is of another search or version: they differ in {', '.join(odd)}")
        for name, expected in kept.items():
            if self._digests[name] != expected:
                raise StoreError(
                    f"the stored state is of another search or version: {name} was not {self._first[name]!r} at first"
                )
        leaves = [event.arrays.get(name, first) for name, first in self._first.items()]
        return jax.tree_util.tree_unflatten(self._structure, leaves)


def _same(first: Any, leaf: Any) -> bool:
    """Whether a leaf is still the very bits, of the very kind, that it was at first."""
    if first is leaf:
        return True
    if np.ndim(first) != np.ndim(leaf) or isinstance(first, np.ndarray | np.generic | jax.Array) != isinstance(
        leaf, np.ndarray | np.generic | jax.Array
    ):
        return False
    return same_bits(first, leaf)
