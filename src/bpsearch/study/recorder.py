"""What a study writes down, and how it is read back."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch._core.checks import check_integer, check_type
from bpsearch._core.clock import now
from bpsearch._core.interrupts import hold_interrupts
from bpsearch._core.texts import show
from bpsearch._core.versions import versions
from bpsearch.errors import BPSearchError, InvalidArgumentError, StoreError
from bpsearch.inference.stopping import Ended
from bpsearch.inference.valuation import ValuedBatch
from bpsearch.sampling.packing import pack, unpack
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.study.journal import Event, Journal
from bpsearch.study.requests import Entry, Status
from bpsearch.study.settings import check_same

FORMAT = 2  # of the events below; another one is refused
_AS_ASKED = "as asked"
_KEPT = ("values", "log_weights", "returns", "weight", "asked", "moved")
_FACTS = ("number", "identity", "version", "asked", "status", "position", "settled", "reason")


@dataclass(frozen=True, eq=False)
class History:
    """What a journal tells of a study, without its episodes.

    Attributes:
        identity: what tells the study from every other.
        facts: its identity, when it was made, and with which versions.
        settings: what must not change, by name.
        policy: the arrays of the evaluation policy.
        entries: of all requests, in the order of their numbers.
        told_at: the position of the event that told each batch, in the order of telling.
        asked_at: the position of the event that asked each request that was given out.
        ended: why the last run ended; None if none did.
    """

    identity: str
    facts: dict[str, Any]
    settings: dict[str, Any]
    policy: Mapping[str, NumpyArray]
    entries: list[Entry]
    told_at: dict[int, int]
    asked_at: dict[int, int]
    ended: Ended | None


@contextmanager
def understood(journal: Journal | None) -> Iterator[None]:
    """What fails within on a journal's account is an error that names it.

    Checksums find accidents; a journal that was made on purpose may hold whatever its checksums fit.

    Raises:
        StoreError: the journal holds something that no study writes.
    """
    try:
        yield
    except BPSearchError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        if journal is None or not len(journal):
            raise
        raise StoreError(
            f"{journal} holds a study that this program cannot take up: {type(error).__name__}: {show(error)}"
        ) from error


class Recorder:
    """Writes down what happens to a study, each event on disk before the method returns.

    Events are never changed. The states of the search and the values of told batches follow from them by replaying;
    they are kept in the journal's cache, which may be deleted.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._length: int | None = None  # events that this writer knows of; a damaged journal may not tell

    @property
    def is_empty(self) -> bool:
        """Whether no study has been written yet."""
        return self._known() == 0

    def make(self, settings: dict[str, Any], policy: Mapping[str, NumpyArray]) -> str:
        """Write a new study; return its identity."""
        identity = secrets.token_hex(16)
        facts = {"format": FORMAT, "identity": identity, "created": now(), "versions": versions()}
        self._append(Event("made", facts | {"settings": settings}, policy))
        return identity

    def fix(self, settings: dict[str, Any]) -> None:
        """Write down settings that become known only later; those that are there already must be the same.

        Raises:
            SettingsMismatchError: one is not.
        """
        stored = self.read().settings
        known = {name: value for name, value in settings.items() if name in stored}
        check_same({name: stored[name] for name in known}, known, str(self.journal))
        if len(known) < len(settings):
            self._append(Event("fixed", {"settings": {n: v for n, v in settings.items() if n not in known}}))

    def ask(self, entry: Entry, parameters: NumpyArray) -> None:
        """Write a request that is given out."""
        self._append(Event("asked", _facts(entry), {"parameters": np.asarray(parameters)}))

    def tell(
        self,
        entry: Entry,
        parameters: NumpyArray,
        batch: Trajectories,
        cache: Mapping[str, Event | None],
    ) -> int:
        """Write a told batch with all its episodes; return the position of the event."""
        arrays = pack(batch)
        told = arrays.pop("behavior_parameters", None)
        facts = _facts(entry) | {"behavior": _AS_ASKED if told is not None else None}
        return self._append(Event("told", facts, {"parameters": np.asarray(parameters), **arrays}), cache)

    def abandon(self, entry: Entry, cache: Mapping[str, Event | None]) -> None:
        """Write that nobody waits for a request any more."""
        self._append(Event("abandoned", _facts(entry)), cache)

    def end(self, ended: Ended) -> None:
        """Write why a run ended."""
        self._append(Event("ended", {"ended": str(ended), "at": now()}))

    def read(self) -> History:
        """What was written.

        Raises:
            StoreError: an event is damaged, or the study is of another version.
        """
        with self.journal.reading():
            if not len(self.journal):
                raise StoreError(f"{self.journal} holds no study yet")
            first = self.journal.event(0)
            if first.kind != "made" or first.facts.get("format") != FORMAT:
                raise StoreError(
                    f"{self.journal} holds a study of another version: this program reads format {FORMAT}, got "
                    f"{show(repr(first.facts.get('format', 'none')))}"
                )
            with understood(self.journal):
                return _gather(first, [self.journal.facts(i) for i in range(1, len(self.journal))])

    def episodes(self, position: int) -> tuple[Trajectories, NumpyArray]:
        """The episodes that the event at this position told, and the parameters of the behavior that was asked."""
        event = self.journal.event(position)
        arrays = dict(event.arrays)
        with understood(self.journal):
            parameters = arrays.pop("parameters")
            if event.facts["behavior"] == _AS_ASKED:
                arrays["behavior_parameters"] = parameters
            return unpack(arrays), parameters

    def parameters(self, position: int) -> NumpyArray:
        """The parameters of the behavior of the request that was asked by the event at this position."""
        return self.journal.event(position).arrays["parameters"]

    def _append(self, event: Event, cache: Mapping[str, Event | None] | None = None) -> int:
        with hold_interrupts():
            position = self._known()
            self.journal.append(event, position=position, cache=cache or {})
            self._length = position + 1
        return position

    def _known(self) -> int:
        if self._length is None:
            self._length = len(self.journal)
        return self._length


def valued_event(valued: ValuedBatch) -> Event:
    """What the cache keeps of a valued batch."""
    return Event("batch", {}, {name: np.asarray(getattr(valued, name)) for name in _KEPT})


def read_valued(event: Event) -> ValuedBatch:
    """The batch that `valued_event` kept, without the summaries of control variates."""
    values, log_weights, returns, *rest = (event.arrays[name] for name in _KEPT)
    weight, asked, moved = (array.item() for array in rest)
    return ValuedBatch(values, log_weights, returns, weight=weight, asked=asked, moved=moved)


def _facts(entry: Entry) -> dict[str, Any]:
    return {name: value for name, value in asdict(entry).items() if name in _FACTS}


def _entry(facts: dict[str, Any]) -> Entry:
    check_integer("number", facts["number"], at_least=0)
    check_integer("version", facts["version"], at_least=0)
    if facts["position"] is not None:
        check_integer("position", facts["position"], at_least=0)
    for name in ("identity", "asked", "reason"):
        check_type(name, facts[name], str, "a text")
    return Entry(**{name: facts[name] for name in _FACTS} | {"status": Status(facts["status"])})


def _gather(first: Event, later: list[tuple[str, dict[str, Any]]]) -> History:
    settings = dict(first.facts["settings"])
    entries: dict[int, Entry] = {}
    told_at: dict[int, int] = {}
    asked_at: dict[int, int] = {}
    ended: Ended | None = None
    for position, (kind, facts) in enumerate(later, 1):
        try:
            if kind == "fixed":
                settings |= facts["settings"]
            elif kind == "ended":
                ended = Ended(facts["ended"])
            elif kind in ("asked", "told", "abandoned"):
                entry = _entry(facts)
                entries[entry.number] = entry
                if kind == "told":
                    told_at[entry.number] = position
                if kind == "asked":
                    asked_at[entry.number] = position
            else:
                raise StoreError(f"event {position} is of a kind that this program does not know: {show(kind)!r}")
        except StoreError:
            raise
        except (InvalidArgumentError, KeyError, TypeError, ValueError) as error:
            raise StoreError(f"event {position} is not one of this program: {show(repr(error))}") from error
    if sorted(entries) != list(range(len(entries))):
        raise StoreError(f"the requests are not numbered one after the other, but {sorted(entries)!r:.200}")
    facts = {name: first.facts[name] for name in ("identity", "created", "versions")}
    ordered = [entries[number] for number in sorted(entries)]
    return History(facts["identity"], facts, settings, first.arrays, ordered, told_at, asked_at, ended)
