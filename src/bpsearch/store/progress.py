"""How far a study has come: its requests, what was told, and the state of the search."""

from typing import Any

import numpy as np

from bpsearch.checks import check_integer
from bpsearch.errors import RequestError
from bpsearch.numerics import to_numpy
from bpsearch.policies.base import Policy
from bpsearch.search.base import Info, Search
from bpsearch.store.ledger import Batch, Entry, Ledger, Status
from bpsearch.store.policies import policy_arrays
from bpsearch.store.settings import check_same
from bpsearch.store.snapshots import Snapshots
from bpsearch.trajectories import Trajectories


class Progress:
    """The present of a study, in memory and in its ledger: nothing is true here before it is written there.

    A ledger that holds a study already is taken up where it is.

    Args:
        ledger: where it is written down.
        policy: the evaluation policy.
        search: the search.
        discount: γ.
        settings: what must not change, by name.

    Raises:
        SettingsMismatchError: the ledger holds a study with other settings.
        StoreError: a record is damaged or missing.
    """

    def __init__(
        self, ledger: Ledger, policy: Policy, search: Search, discount: float, settings: dict[str, Any]
    ) -> None:
        self._ledger = ledger
        self._search = search
        self._policy = policy
        self._discount = discount
        self.first = search.init(policy, discount)
        self.state: Any = self.first
        self.entries: list[Entry] = []
        self.batches: dict[int, Batch] = {}
        self.asked_states: dict[int, Any] = {}  # of open requests, by number
        self._snapshots = Snapshots(self.first)
        if ledger.is_empty:
            ledger.create(settings, policy_arrays(policy), self._snapshots.record(self.first))
        else:
            self._take_up(settings)
        self.identity = str(ledger.facts["identity"])

    def next_entry(self) -> Entry:
        """The next request, not yet written down.

        Raises:
            SupportError: the search has ruled out actions that the evaluation policy takes.
            StoreLockedError: the store was opened for reading.
        """
        self._ledger.store.check_writable()
        behavior = self._search.behavior(self.state)
        behavior.check_support(self._policy)
        return self._ledger.entry(len(self.entries), to_numpy(behavior.flat), len(self.batches), self.identity)

    def ask(self, entry: Entry) -> None:
        """Give a request out: its state is kept until it is settled."""
        if self._ledger.keeps:
            self._ledger.ask(entry)
        self.entries.append(entry)
        self.asked_states[entry.number] = self.state

    def open_entry(self, number: int) -> Entry:
        """The request of that number, if it waits for its episodes.

        Raises:
            RequestError: it was never asked, or is told or abandoned already.
        """
        check_integer("number", number, at_least=0)
        if number >= len(self.entries):
            raise RequestError(f"request {number} was never asked; the study has asked {len(self.entries)} so far")
        entry = self.entries[number]
        if entry.status is not Status.OPEN:
            raise RequestError(f"request {number} is {entry.status} already, since {entry.settled}")
        return entry

    def tell(self, entry: Entry, trajectories: Trajectories) -> Info:
        """Value a batch with the state of its asking, learn from it with the present one, and write it down."""
        position = len(self.batches)
        learned, info = self._search.step(self.asked_states.get(entry.number, self.state), trajectories)
        if entry.version != position:
            learned, _ = self._search.step(self.state, trajectories)
        # Copies: views would keep the compiled step's results alive, which weigh more than the numbers themselves.
        batch = Batch(np.array(info.values), np.array(info.log_weights), trajectories.returns(self._discount))
        told = entry.told(position)
        settled, waiting = told.without_parameters(), self._waiting(without=entry)
        if self._ledger.keeps:
            self._ledger.tell(told, batch, trajectories, self._snapshots.record(learned), self._needed(entry))
        # Statements without a call: an interrupt cannot come between them.
        self.entries[entry.number :] = [settled, *self.entries[entry.number + 1 :]]
        self.asked_states = waiting
        self.batches[entry.number] = batch
        self.state = learned
        return info

    def abandon(self, entry: Entry, reason: str) -> None:
        """Wait no longer for an open request."""
        given_up = entry.abandoned(reason)
        settled, waiting = given_up.without_parameters(), self._waiting(without=entry)
        if self._ledger.keeps:
            self._ledger.abandon(given_up, {len(self.batches), *self._needed(entry)})
        self.entries[entry.number] = settled
        self.asked_states = waiting

    def _waiting(self, without: Entry) -> dict[int, Any]:
        return {number: state for number, state in self.asked_states.items() if number != without.number}

    def _needed(self, without: Entry) -> set[int]:
        """The versions of the state on which open requests other than one depend."""
        return {self.entries[number].version for number in self.asked_states if number != without.number}

    def _take_up(self, settings: dict[str, Any]) -> None:
        stored = self._ledger.settings
        check_same({name: stored[name] for name in settings}, settings, str(self._ledger.store))
        contents = self._ledger.load()
        self.entries, self.batches = contents.entries, contents.batches
        states = {version: self._snapshots.state(record) for version, record in contents.states.items()}
        self.state = states[len(self.batches)]
        self.asked_states = {e.number: states[e.version] for e in self.entries if e.status is Status.OPEN}
