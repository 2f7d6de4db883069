"""How far a study has come: its requests, its batches, and the states of search and valuation."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from bpsearch._core.arrays import Array
from bpsearch._core.checks import check_integer
from bpsearch._core.interrupts import hold_interrupts
from bpsearch._core.jaxtools import pytree, replace, to_numpy
from bpsearch.errors import RequestError, StoreError
from bpsearch.estimands import Estimand
from bpsearch.inference.valuation import ValuedBatch
from bpsearch.methods import Method
from bpsearch.policies.base import Policy
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search.base import Info
from bpsearch.study.codec import same_bits
from bpsearch.study.journal import Event
from bpsearch.study.recorder import History, Recorder, read_valued, valued_event
from bpsearch.study.requests import Entry, Status
from bpsearch.study.snapshots import Snapshots


@pytree()
@dataclass(frozen=True, eq=False)
class States:
    """What fixes a request: the states of the search and of the valuation."""

    search: Any
    valuation: Any


class Progress:
    """The present of a study, as objects. With a recorder nothing is true here before it is written there.

    Args:
        policy: the evaluation policy.
        method: search and valuation.
        estimand: what is asked.
        recorder: where it is written down, if it is.
    """

    def __init__(self, policy: Policy, method: Method, estimand: Estimand, recorder: Recorder | None) -> None:
        self.policy, self.method, self.estimand, self.recorder = policy, method, estimand, recorder
        discount = estimand.discount
        self.first = States(method.search.init(policy, discount), method.valuation.init(policy, discount))
        self.states = self.first
        self.recent = {0: self.first}  # by the number of told batches, as far back as the method's lag
        self._behaviors: dict[int, Policy] = {}
        self.entries: list[Entry] = []
        self.batches: dict[int, ValuedBatch] = {}
        self.asked: dict[int, States] = {}  # what fixes the open requests
        self.explained: float = math.nan
        self._snapshots = None if recorder is None else Snapshots(self.first)
        self._told_at: dict[int, int] = {}
        self._uncached = False  # whether the cache lacks what is here, and is to be written with the next event

    @property
    def behavior(self) -> Policy:
        """What the search would have run next."""
        return self.method.search.behavior(self.states.search)

    def behavior_at(self, version: int) -> Policy:
        """What the search would have run after so many told batches, one of the `recent` ones: always the same object.

        Workers are sent an object once.
        """
        self._behaviors = {kept: policy for kept, policy in self._behaviors.items() if kept in self.recent}
        if version not in self._behaviors:
            self._behaviors[version] = self.method.search.behavior(self.recent[version].search)
        return self._behaviors[version]

    def request_version(self, ahead: int = 0) -> int:
        """After how many told batches the behavior of the next one, or of one later, is fixed.

        It follows from the number of told batches alone: not from how often the study was closed in between.
        """
        return max(len(self.batches) + ahead - self.method.lag, 0)

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

    def ask(self, entry: Entry, behavior: Policy) -> None:
        """Give a request out: what fixes it is kept until it is settled."""
        with hold_interrupts():
            if self.recorder is not None:
                self.recorder.ask(entry, to_numpy(behavior.flat))
            self.entries.append(entry)
            self.asked[entry.number] = self.states

    def tell(self, entry: Entry, batch: Trajectories) -> Info:
        """Value a batch with what was fixed at its asking, learn from it with the present states, and write it down."""
        fixed = self.asked.get(entry.number) or self.recent[entry.version]
        valued, states, info = self._take_in(fixed, batch)
        explained = float(info.explained)
        told = entry.tell(len(self.batches))
        with hold_interrupts():
            if self.recorder is not None:
                parameters = to_numpy(self.method.search.behavior(fixed.search).flat)
                changes = self._cache_changes(states, explained, len(self.batches) + 1, entry.number)
                changes[f"batch {entry.number}"] = valued_event(valued)
                self._told_at[entry.number] = self.recorder.tell(told, parameters, batch, changes)
                self._uncached = False
            self.entries[entry.number :] = [told, *self.entries[entry.number + 1 :]]
            self.asked.pop(entry.number, None)
            self.batches[entry.number] = valued
            self.states, self.explained = states, explained
            self._keep({**self.recent, len(self.batches): states})
        return info

    def abandon(self, entry: Entry, reason: str) -> None:
        """Wait no longer for an open request."""
        given_up = entry.abandon(reason)
        with hold_interrupts():
            if self.recorder is not None:
                changes = self._cache_changes(self.states, self.explained, len(self.batches), entry.number)
                self.recorder.abandon(given_up, changes)
                self._uncached = False
            self.entries[entry.number] = given_up
            del self.asked[entry.number]

    def batch(self, number: int) -> ValuedBatch:
        """A told batch, with the summaries of the control variates, which a cache does not keep."""
        batch = self.batches[number]
        if len(batch.summaries) < len(self.method.valuation.control_variates):
            assert self.recorder is not None
            episodes, _ = self.recorder.episodes(self._told_at[number])
            summaries = self.method.valuation.summarize(self.states.valuation, self.estimand.pay(episodes))
            batch = replace(batch, summaries=summaries)
            self.batches[number] = batch
        return batch

    def take_up(self, history: History) -> None:
        """Go on from what was written: by the cache if it holds all that is needed, else by replaying."""
        self.entries = history.entries
        self._told_at = history.told_at
        if not self._take_from_cache(history):
            self.replay(history)
            self._uncached = True

    def replay(self, history: History) -> list[str]:
        """Run search and valuation again over all told batches, in the order in which they were told.

        Returns:
            What came out otherwise than the journal has it, in words; empty if all is the same to the last bit.
        """
        assert self.recorder is not None
        told = [history.entries[number] for number in history.told_at]
        if [entry.position for entry in told] != list(range(len(told))):
            raise StoreError("the told batches are not numbered one after the other")
        versions = {entry.version for entry in history.entries if entry.status is not Status.ABANDONED}
        versions |= self._recent_versions(len(told))
        kept, batches, found = {0: self.first}, {}, []
        states, explained = self.first, math.nan
        for position, entry in enumerate(told):
            batch, parameters = self.recorder.episodes(history.told_at[entry.number])
            fixed = kept[entry.version]
            found += self._compare_behavior(entry, fixed, parameters)
            self.states = states
            valued, states, info = self._take_in(fixed, batch)
            explained = float(info.explained)
            found += self._compare_values(entry, valued)
            batches[entry.number] = valued
            if position + 1 in versions:
                kept[position + 1] = states
        for number, position in history.asked_at.items():
            if history.entries[number].status is Status.OPEN:
                entry = history.entries[number]
                found += self._compare_behavior(entry, kept[entry.version], self.recorder.parameters(position))
        self.batches, self.states, self.explained = batches, states, explained
        self.asked = {e.number: kept[e.version] for e in history.entries if e.status is Status.OPEN}
        self._keep({**kept, len(told): states})
        cached = self.recorder.journal.cached(f"state {len(told)}")
        if cached is not None and self._snapshots is not None:
            again = jax.tree_util.tree_leaves(self._snapshots.state(cached))
            if not all(map(same_bits, jax.tree_util.tree_leaves(states), again)):
                found.append("the state of the search is another than the told batches lead to")
        return found

    def _take_in(self, fixed: States, batch: Trajectories) -> tuple[ValuedBatch, States, Info]:
        search, valuation = self.method.search, self.method.valuation
        paid = self.estimand.pay(batch)
        valued = valuation.value(fixed.valuation, paid, search.shift(fixed.search), search.weight(fixed.search))
        learned, info = search.step(self.states.search, paid)
        return valued, States(learned, valuation.learn(self.states.valuation, paid)), info

    def _recent_versions(self, told: int) -> set[int]:
        """Those on which later requests of a run depend."""
        return set(range(max(told - self.method.lag, 0), told + 1))

    def _keep(self, states: dict[int, States]) -> None:
        """The recent ones of these states."""
        versions = self._recent_versions(len(self.batches))
        self.recent = {version: found for version, found in states.items() if version in versions}

    def _cache_changes(self, states: States, explained: float, version: int, settled: int) -> dict[str, Event | None]:
        """The state of this version put into the cache, and those deleted on which no open request depends.

        What a replay has found out again goes with them.
        """
        assert self._snapshots is not None
        needed = {self.entries[number].version for number in self.asked if number != settled}
        needed |= self._recent_versions(version)
        before = set(self.recent) | {self.entries[number].version for number in self.asked}
        forgotten: dict[str, Event | None] = {f"state {old}": None for old in before - needed}
        again: dict[str, Event | None] = {}
        if self._uncached:
            again |= {f"batch {number}": valued_event(valued) for number, valued in self.batches.items()}
            waiting = {old: found for old, found in self.recent.items() if old > 0 and old in needed}
            waiting |= {self.entries[number].version: old for number, old in self.asked.items() if number != settled}
            again |= {f"state {old}": self._snapshots.event(fixed) for old, fixed in waiting.items()}
        kept = self._snapshots.event(states)
        kept.facts["explained"] = None if math.isnan(explained) else explained
        return forgotten | again | {f"state {version}": kept}

    def _take_from_cache(self, history: History) -> bool:
        assert self.recorder is not None
        assert self._snapshots is not None
        journal = self.recorder.journal
        batches = {number: journal.cached(f"batch {number}") for number in history.told_at}
        open_entries = [entry for entry in history.entries if entry.status is Status.OPEN]
        versions = self._recent_versions(len(batches)) | {entry.version for entry in open_entries}
        states = {version: journal.cached(f"state {version}") for version in versions}
        try:
            found = {version: self._snapshots.state(event) for version, event in states.items() if event is not None}
            valued = {number: read_valued(event) for number, event in batches.items() if event is not None}
        except (StoreError, KeyError):
            return False
        if 0 in versions:
            found[0] = self.first
        if len(found) < len(versions) or len(valued) < len(batches):
            return False
        self.batches, self.states = valued, found[len(batches)]
        self.asked = {entry.number: found[entry.version] for entry in open_entries}
        self._keep(found)
        last = journal.cached(f"state {len(batches)}")
        explained = None if last is None else last.facts.get("explained")
        self.explained = math.nan if explained is None else float(explained)
        return True

    def _compare_behavior(self, entry: Entry, fixed: States, parameters: Array) -> list[str]:
        again = np.asarray(self.method.search.behavior(fixed.search).flat)
        if same_bits(again, parameters):
            return []
        return [f"request {entry.number} has another behavior than its state of the search gives"]

    def _compare_values(self, entry: Entry, valued: ValuedBatch) -> list[str]:
        assert self.recorder is not None
        cached = self.recorder.journal.cached(f"batch {entry.number}")
        if cached is None:
            return []
        return [
            f"batch {entry.number} has other {name} than its episodes give"
            for name, array in cached.arrays.items()
            if not same_bits(getattr(valued, name), array)
        ]
