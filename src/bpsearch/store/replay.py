"""A second look at a stored study: do its episodes lead to the numbers and the state that it holds?"""

from typing import Any

import jax
import numpy as np

from bpsearch.errors import StoreError
from bpsearch.search.base import Search
from bpsearch.store.codec import same_bits
from bpsearch.store.ledger import Batch, Entry, Ledger, Status
from bpsearch.store.snapshots import Snapshots


def replay(ledger: Ledger, search: Search, first: Any, discount: float) -> list[str]:
    """Run the search again over the stored episodes in the order in which they were told.

    Returns:
        What came out otherwise than it was stored, in words; empty if all is the same to the last bit.
    """
    told = sorted(_told(ledger), key=lambda entry: entry.position or 0)
    last_use = {entry.version: position for position, entry in enumerate(told)}
    states, found = {0: first}, []
    for position, entry in enumerate(told):
        state = states[entry.version]
        parameters = np.asarray(search.behavior(state).flat)
        if not same_bits(parameters, entry.parameters):
            found.append(f"request {entry.number} has another behavior than its state of the search gives")
        trajectories = ledger.episodes(entry.number)
        learned, info = search.step(state, trajectories)
        if entry.version != position:
            learned, _ = search.step(states[position], trajectories)
        again = Batch(info.values, info.log_weights, trajectories.returns(discount))
        stored = ledger.batch(entry.number)
        found += [
            f"batch {entry.number} has other {name} than its episodes give"
            for name in ("values", "log_weights", "returns")
            if not same_bits(getattr(again, name), getattr(stored, name))
        ]
        states[position + 1] = learned
        states = {version: states[version] for version in states if _needed(version, position + 1, last_use)}
    if not _same_state(states[len(told)], Snapshots(first).state(ledger.store.get("state", len(told)))):
        found.append("the state of the search is another than the told batches lead to")
    return found


def _told(ledger: Ledger) -> list[Entry]:
    told = [entry for entry in ledger.entries() if entry.status is Status.TOLD]
    positions = sorted(-1 if entry.position is None else entry.position for entry in told)
    if positions != list(range(len(told))):
        raise StoreError(f"the told batches are not numbered one after the other, but {positions}")
    return told


def _needed(version: int, position: int, last_use: dict[int, int]) -> bool:
    return version == position or last_use.get(version, -1) >= position


def _same_state(one: Any, other: Any) -> bool:
    return all(map(same_bits, jax.tree_util.tree_leaves(one), jax.tree_util.tree_leaves(other)))
