"""What a study writes down, and in which transactions."""

import dataclasses
import hashlib
import secrets
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from bpsearch.errors import StoreError
from bpsearch.exchange.packing import pack, unpack
from bpsearch.store.base import Store
from bpsearch.store.codec import Record
from bpsearch.store.lock import now
from bpsearch.store.settings import check_same
from bpsearch.trajectories import Array, Trajectories
from bpsearch.versions import versions

_AS_ASKED = "as asked"


class Status(StrEnum):
    """What became of a request."""

    OPEN = "open"
    TOLD = "told"
    ABANDONED = "abandoned"


@dataclass(frozen=True, eq=False)
class Entry:
    """A request, as the ledger has it.

    Attributes:
        number: of the request and of its batch.
        identity: a hash of study, number and parameters.
        parameters: (P,), the flat parameters of the behavior; None where they are left in the store.
        version: how many batches had been told when it was asked: which state of the search made the behavior and
            values the batch.
        asked: when.
        status: what became of it.
        position: how many batches were told before this one; None unless it was told.
        settled: when it was told or abandoned.
        reason: why it was abandoned.
    """

    number: int
    identity: str
    parameters: Array | None
    version: int
    asked: str = dataclasses.field(default_factory=now)
    status: Status = Status.OPEN
    position: int | None = None
    settled: str | None = None
    reason: str = ""

    def without_parameters(self) -> "Entry":
        """The entry as it is kept in memory once the request is settled."""
        return dataclasses.replace(self, parameters=None)

    def told(self, position: int) -> "Entry":
        """The entry of the same request once its episodes are there."""
        return dataclasses.replace(self, status=Status.TOLD, position=position, settled=now())

    def abandoned(self, reason: str) -> "Entry":
        """The entry of the same request once nobody waits for it any more."""
        return dataclasses.replace(self, status=Status.ABANDONED, settled=now(), reason=reason)


@dataclass(frozen=True, eq=False)
class Batch:
    """(N,) each, what the estimate needs of a batch: values, log-weights, and the returns as they came."""

    values: Array
    log_weights: Array
    returns: Array


@dataclass(frozen=True, eq=False)
class Contents:
    """Everything that a study carries on with, as of one moment.

    Attributes:
        entries: of all requests, in the order of their numbers.
        batches: what was told, by number.
        states: the search's state after so many told batches: the last one, and those of open requests.
    """

    entries: list[Entry]
    batches: dict[int, Batch]
    states: dict[int, Record]


class Ledger:
    """A study's records in a store. Each method that writes is one transaction.

    Args:
        store: where.
        keeps: whether anything is kept besides the study itself. A study that ends with its process, and values no
            episode twice, has no use for requests, batches and states that pile up in memory.
    """

    def __init__(self, store: Store, *, keeps: bool = True) -> None:
        self.store = store
        self.keeps = keeps

    @property
    def is_empty(self) -> bool:
        """Whether no study has been written yet."""
        return not self.store.keys("study")

    @property
    def facts(self) -> dict[str, Any]:
        """The study's `identity`, when it was `created`, and with which `versions`."""
        return self.store.get("study", 0).facts

    @property
    def policy(self) -> Mapping[str, Array]:
        """The arrays of the evaluation policy."""
        return self.store.get("study", 0).arrays

    @property
    def settings(self) -> dict[str, Any]:
        """What must not change, by name."""
        records = [self.store.get("setting", number).facts for number in self.store.keys("setting")]
        return {record["name"]: record["value"] for record in records}

    def create(self, settings: dict[str, Any], policy: Mapping[str, Array], state: Record) -> None:
        """Write a new study, with the search's first state."""
        facts = {"identity": secrets.token_hex(16), "created": now(), "versions": versions()}
        with self.store.writing():
            self._put_settings(settings, start=0)
            self.store.put("state", 0, state)
            self.store.put("study", 0, Record(facts, policy))

    def fix(self, settings: dict[str, Any], where: str) -> None:
        """Write down settings that become known only later; those that are there already must be the same.

        Raises:
            SettingsMismatchError: one is not.
        """
        stored = self.settings
        check_same({name: stored[name] for name in settings if name in stored}, _known(settings, stored), where)
        new = {name: value for name, value in settings.items() if name not in stored}
        if new:
            with self.store.writing():
                self._put_settings(new, start=len(stored))

    def entry(self, number: int, parameters: Array, version: int, study: str) -> Entry:
        """A new request, not yet written."""
        data = f"{study} {number} {parameters.dtype.str} ".encode() + np.ascontiguousarray(parameters).tobytes()
        return Entry(number, hashlib.blake2b(data, digest_size=16).hexdigest(), parameters, version)

    def ask(self, entry: Entry) -> None:
        """Write a request that is given out; the state of its version stays until it is settled."""
        with self.store.writing():
            self._put_entry(entry)

    def tell(
        self, entry: Entry, batch: Batch, trajectories: Trajectories, state: Record, needed: Collection[int]
    ) -> None:
        """Write a told batch and the state of the search after it; of the others only the `needed` versions stay."""
        assert entry.position is not None
        with self.store.writing():
            self.store.put("episodes", entry.number, _episodes_record(trajectories))
            arrays = {"values": batch.values, "log_weights": batch.log_weights, "returns": batch.returns}
            self.store.put("batch", entry.number, Record({}, arrays))
            self._put_entry(entry)
            self.store.put("state", entry.position + 1, state)
            self._forget_states({entry.position + 1, *needed})

    def abandon(self, entry: Entry, needed: Collection[int]) -> None:
        """Write that nobody waits for a request any more; of the states only the `needed` versions stay."""
        with self.store.writing():
            self._put_entry(entry)
            self._forget_states(needed)

    def load(self) -> Contents:
        """What a study carries on with; the episodes stay on disk.

        Raises:
            StoreError: a record is damaged or missing.
        """
        with self.store.reading():
            entries = [
                entry if entry.status is Status.OPEN else entry.without_parameters() for entry in self._entries()
            ]
            batches = {entry.number: self.batch(entry.number) for entry in entries if entry.status is Status.TOLD}
            versions = {len(batches)} | {entry.version for entry in entries if entry.status is Status.OPEN}
            return Contents(entries, batches, {version: self.store.get("state", version) for version in versions})

    def entries(self) -> list[Entry]:
        """All requests."""
        return list(self._entries())

    def read_entry(self, number: int) -> Entry:
        """One request."""
        record = self.store.get("request", number)
        facts = record.facts | {"status": Status(record.facts["status"])}
        return Entry(number=number, parameters=record.arrays["parameters"], **facts)

    def batch(self, number: int) -> Batch:
        """The numbers of a told batch."""
        return Batch(**self.store.get("batch", number).arrays)

    def episodes(self, number: int) -> Trajectories:
        """The episodes of a told batch."""
        record = self.store.get("episodes", number)
        arrays = dict(record.arrays)
        if record.facts["behavior"] == _AS_ASKED:
            arrays["behavior_parameters"] = self.read_entry(number).parameters
        return unpack(arrays)

    def damages(self) -> list[str]:
        """What is wrong with the store, in words: damaged records, and records that are missing."""
        found = self.store.damages()
        try:
            entries = self.entries()
            kept = {kind: set(self.store.keys(kind)) for kind in ("batch", "episodes", "state")}
        except StoreError:
            return found  # which says why
        told = {entry.number for entry in entries if entry.status is Status.TOLD}
        needed = {"batch": told, "episodes": told, "state": {len(told)}}
        needed["state"] |= {entry.version for entry in entries if entry.status is Status.OPEN}
        for kind, numbers in needed.items():
            found += [f"{kind} {number} is missing" for number in sorted(numbers - kept[kind])]
            found += [f"{kind} {number} belongs to no request" for number in sorted(kept[kind] - numbers)]
        missing = sorted(set(range(len(entries))) - {entry.number for entry in entries})
        return found + [f"request {number} is missing" for number in missing]

    def _entries(self) -> Iterator[Entry]:
        return (self.read_entry(number) for number in self.store.keys("request"))

    def _put_settings(self, settings: dict[str, Any], start: int) -> None:
        for number, (name, value) in enumerate(settings.items(), start):
            self.store.put("setting", number, Record({"name": name, "value": value}))

    def _put_entry(self, entry: Entry) -> None:
        names = ("identity", "version", "asked", "status", "position", "settled", "reason")
        facts = {name: getattr(entry, name) for name in names}
        self.store.put("request", entry.number, Record(facts, {"parameters": entry.parameters}))

    def _forget_states(self, needed: Collection[int]) -> None:
        for version in self.store.keys("state"):
            if version not in needed:
                self.store.delete("state", version)


def _episodes_record(trajectories: Trajectories) -> Record:
    arrays = pack(trajectories)
    told = arrays.pop("behavior_parameters", None)
    return Record({"behavior": _AS_ASKED if told is not None else None}, arrays)


def _known(settings: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name in stored}
