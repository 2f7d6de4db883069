"""What every journal promises (`bpsearch.study.journal.Journal`), as checks that anybody's journal can run.

    from bpsearch.testing.journals import check_journal

    check_journal(lambda: MyJournal(new_path()), lambda journal, read_only: MyJournal(journal.path, read_only))

Each check is also a function of its own in `CHECKS`, for `pytest.mark.parametrize`. What needs a look below the
surface (what a killed process leaves, damage on disk) is for a journal's own tests.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bpsearch.errors import BPSearchError, InvalidArgumentError, StoreError, StoreLockedError
from bpsearch.study.journal import Event, Journal

ARRAYS: Mapping[str, NDArray[Any]] = {
    "64 bit": np.linspace(-1.0, 1.0, 120).reshape(40, 3) ** 3,
    "fits 32 bit": np.arange(50) / 8.0,
    "odd floats": np.array([np.nan, -0.0, np.inf, -np.inf, 5e-324, 1.7e308]),
    "another nan": np.array([np.frombuffer(b"\x01\x00\x00\x00\x00\x00\xf8\x7f")[0], np.nan]),
    "32 bit": np.linspace(0, 1, 7, dtype=np.float32),
    "16 bit": np.linspace(0, 1, 7, dtype=np.float16),
    "small": np.array([[0, 1], [255, 3]]),
    "negative": np.array([-129, 127]),
    "large": np.array([0, 2**64 - 1], np.uint64),
    "wide": np.array([-(2**62), 2**62]),
    "many": np.arange(10_000, dtype=np.int32) % 7,
    "flags": np.array([True, False, True]),
    "many flags": np.arange(1000) % 3 == 0,
    "constant": np.full((5, 2), -1.5),
    "constant flags": np.ones((30, 40), bool),
    "zero and minus zero": np.array([0.0, -0.0, 0.0]),
    "constant and minus zero": np.full(9, -0.0),
    "single": np.array(0.1),
    "whole": np.array(7),
    "empty": np.zeros((0, 4)),
    "no integers": np.zeros(0, int),
    "complex": np.array([1 + 2j, -0.0j]),
    "strided": np.arange(24.0).reshape(4, 6)[::2, ::3].T,
    "big-endian": np.array([1, -70_000, 2**31 - 1], ">i4"),
    "big-endian floats": np.array([0.1, -2.5e300], ">f8"),
    "big-endian constant": np.full(5, 258, ">u2"),
}
FACTS: dict[str, Any] = {
    "none": None,
    "flags": [True, False],
    "whole": [0, -1, 2**63, -(2**200)],
    "floats": [0.1, -0.0, 5e-324, float("inf")],
    "texts": ["", "é", "\x1b[31m\n\0", "\ud800"],
    "nested": {"a": {"b": [[], {}]}},
}


class Reopen(Protocol):
    """Opens a journal once more, beside the one that is given or after it was closed."""

    def __call__(self, journal: Journal, *, read_only: bool) -> Journal:
        """The same journal in another object."""


Make = Callable[[], Journal]


def check_journal(make: Make, reopen: Reopen) -> None:
    """Check everything that a journal promises.

    Args:
        make: makes a new, empty journal, open for writing.
        reopen: opens the same journal once more.

    Raises:
        AssertionError: a promise is not kept; the text says which.
    """
    for check in CHECKS:
        check(make, reopen)


def check_new(make: Make, reopen: Reopen) -> None:
    """A new journal is empty, and says so."""
    with make() as journal:
        _equal(len(journal), 0, "the number of events in a new journal")
        _equal(bool(journal), True, "the truth of a journal, with or without events")
        _equal(journal.read_only, False, "read_only of a journal that can be written")
        _equal((journal.damages(), journal.intact()), ([], []), "the damages and the events of a new journal")
        _equal(journal.cached("anything"), None, "an entry that was never made")
        for position in (0, -1, 2**70):
            for read in (journal.facts, journal.event):
                with _expect(StoreError, f"event {position} is missing"):
                    read(position)


def check_events(make: Make, reopen: Reopen) -> None:
    """Events come back in their order, bit by bit, in another object as in the first."""
    with make() as journal:
        for position, (name, array) in enumerate(ARRAYS.items()):
            journal.append(Event(f"kind {name}", FACTS | {"n": position}, {name: array}), position=position)
        journal.append(Event("all", {}, ARRAYS), position=len(ARRAYS))
        _check_all(journal)
        with reopen(journal, read_only=True) as reader:
            _check_all(reader)
    with reopen(journal, read_only=False) as journal:
        _check_all(journal)
        journal.append(Event("more"), position=len(ARRAYS) + 1)
        _equal(len(journal), len(ARRAYS) + 2, "the number of events")


def check_what_is_kept_is_a_copy(make: Make, reopen: Reopen) -> None:
    """Neither what was given nor what was read is tied to what is kept."""
    with make() as journal:
        facts, array = {"list": [1]}, np.arange(3.0)
        journal.append(Event("a", facts, {"a": array}), position=0, cache={"c": Event("c", facts, {"a": array})})
        facts["list"].append(2)
        array += 1.0
        for _ in range(2):
            for event in (journal.event(0), journal.cached("c")):
                assert event is not None, "an entry of the cache is missing"
                _equal(event.facts, {"list": [1]}, "facts that were changed outside")
                _same(event.arrays["a"], np.arange(3.0), "an array that was changed outside")
                event.facts["list"].append(3)
                event.arrays["a"][:] = 9.0


def check_compare_and_set(make: Make, reopen: Reopen) -> None:
    """An event at any other position than the next one is refused, with its cache entries."""
    with make() as journal:
        journal.append(Event("first"), position=0, cache={"kept": Event("old"), "gone": Event("old")})
        for position in (0, 2, 10**6):
            cache = {"kept": Event("new"), "gone": None, "more": Event("new")}
            with _expect(StoreLockedError, "another writer"):
                journal.append(Event("x"), position=position, cache=cache)
        _equal(len(journal), 1, "the number of events after refused ones")
        _equal(journal.event(0).kind, "first", "the event whose place another wanted")
        _equal([_kind(journal, name) for name in ("kept", "gone", "more")], ["old", "old", None], "the cache")
        journal.append(Event("second"), position=1)
        _equal([journal.facts(position)[0] for position in (0, 1)], ["first", "second"], "the events")


def check_cache(make: Make, reopen: Reopen) -> None:
    """Entries are made, replaced and deleted with an event; without them nothing is lost."""
    with make() as journal:
        journal.append(Event("a"), position=0, cache={"state": Event("old", {"n": 1}, ARRAYS), "é 2": Event("b")})
        found = journal.cached("state")
        assert found is not None, "an entry of the cache is missing"
        _equal((found.kind, found.facts), ("old", {"n": 1}), "an entry")
        for name, array in ARRAYS.items():
            _same(found.arrays[name], array, f"the array {name} of an entry")
        journal.append(Event("b"), position=1, cache={"state": Event("new"), "é 2": None, "never": None})
        with reopen(journal, read_only=True) as reader:
            _equal([_kind(reader, name) for name in ("state", "é 2", "never")], ["new", None, None], "the cache")
        _equal(journal.damages(), [], "the damages")
        journal.forget()
        _equal(journal.cached("state"), None, "an entry that was forgotten")
        _equal((len(journal), journal.intact()), (2, [0, 1]), "the events without the cache")


def check_what_cannot_be_kept(make: Make, reopen: Reopen) -> None:
    """What would not come back is refused at once, and nothing of it is written."""
    circle: list[object] = []
    circle.append(circle)
    events = [
        Event("a", {}, {"a": np.array([print])}),
        Event("a", {}, {"a": np.array(["text"])}),
        Event("a", {}, {"a": np.array(["2020-01-01"], "M8[D]")}),
        Event("a", {"a": object()}),
        Event("a", {"a": {1: 2}}),
        Event("a", {"a": {1, 2}}),
        Event("a", {"a": circle}),
        Event(b"a"),  # type: ignore[arg-type]
    ]
    with make() as journal:
        for event in events:
            with _expect(InvalidArgumentError):
                journal.append(event, position=0)
            with _expect(InvalidArgumentError):
                journal.append(Event("a"), position=0, cache={"c": event})
        _equal((len(journal), journal.cached("c")), (0, None), "what is left of refused events")


def check_readers(make: Make, reopen: Reopen) -> None:
    """A reader watches a writer, has one view while it reads, and cannot write."""
    with make() as journal:
        journal.append(Event("a"), position=0, cache={"c": Event("old")})
        with reopen(journal, read_only=True) as reader:
            _equal(reader.read_only, True, "read_only of a reader")
            with reader.reading():
                journal.append(Event("b"), position=1, cache={"c": Event("new")})
                with reader.reading():
                    _equal((len(reader), _kind(reader, "c")), (1, "old"), "what is seen within one view")
                _equal((len(reader), _kind(reader, "c")), (1, "old"), "what is seen within one view")
            _equal((len(reader), _kind(reader, "c")), (2, "new"), "what is seen after it")
            with _expect(StoreLockedError):
                reader.append(Event("c"), position=2)
            with _expect(StoreLockedError):
                reader.forget()
        with journal.reading():
            with _expect(StoreLockedError):
                journal.append(Event("c"), position=2)
            _equal(len(journal), 2, "the number of events in a view of the writer's own")
        journal.append(Event("c"), position=2)
        _equal((len(journal), _kind(journal, "c")), (3, "new"), "what the writer sees")


def check_two_writers(make: Make, reopen: Reopen) -> None:
    """Of two writers one is refused, at the latest when it appends where the other has; nothing is lost."""
    with make() as journal:
        other: Journal | None = None
        with contextlib.suppress(StoreLockedError):
            other = reopen(journal, read_only=False)
        journal.append(Event("first"), position=0)
        if other is not None:
            with other, _expect(StoreLockedError):
                other.append(Event("second"), position=0)
        _equal((len(journal), journal.event(0).kind), (1, "first"), "what the first writer was told is safe")
    with reopen(journal, read_only=False) as following:
        following.append(Event("second"), position=1)
        _equal(len(following), 2, "the number of events of the next writer")


def check_threads(make: Make, reopen: Reopen) -> None:
    """Threads share a journal: each position is given to one of them."""
    with make() as journal:
        won: list[list[int]] = [[] for _ in range(4)]
        faults: list[BaseException] = []

        def compete(number: int) -> None:
            try:
                for position in range(12):
                    try:
                        journal.append(Event("a", {"by": number}), position=position, cache={"c": Event("c")})
                        won[number].append(position)
                    except StoreLockedError:
                        pass
                    with journal.reading():
                        journal.event(len(journal) - 1)
            except BaseException as error:
                faults.append(error)

        threads = [threading.Thread(target=compete, args=(number,)) for number in range(len(won))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _equal(faults, [], "what went wrong in threads")
        _equal(sorted(chain(*won)), list(range(12)), "the positions that were given out")
        for number, positions in enumerate(won):
            found = [position for position in range(12) if journal.facts(position)[1] == {"by": number}]
            _equal(found, positions, f"the positions of thread {number}")


def check_closing(make: Make, reopen: Reopen) -> None:
    """A closed journal says so, and can be closed once more."""
    journal = make()
    journal.append(Event("a"), position=0)
    journal.close()
    journal.close()
    with _expect(StoreError):
        len(journal)
    with _expect(StoreError):
        journal.event(0)
    with _expect(StoreError):
        journal.append(Event("b"), position=1)
    reopen(journal, read_only=False).close()


CHECKS = (
    check_new,
    check_events,
    check_what_is_kept_is_a_copy,
    check_compare_and_set,
    check_cache,
    check_what_cannot_be_kept,
    check_readers,
    check_two_writers,
    check_threads,
    check_closing,
)


def _check_all(journal: Journal) -> None:
    """What `check_events` has appended is there."""
    for position, (name, array) in enumerate(ARRAYS.items()):
        event = journal.event(position)
        _equal(journal.facts(position), (event.kind, event.facts), "the facts by themselves")
        _equal((event.kind, event.facts), (f"kind {name}", FACTS | {"n": position}), f"the facts of event {position}")
        _equal(list(event.arrays), [name], f"the arrays of event {position}")
        _same(event.arrays[name], array, f"the array {name}")
    last = journal.event(len(ARRAYS))
    _equal(list(last.arrays), list(ARRAYS), "the arrays of an event, in their order")
    for name, array in ARRAYS.items():
        _same(last.arrays[name], array, f"the array {name} among others")
    _equal(journal.damages(), [], "the damages")
    _equal(journal.intact(), list(range(len(journal))), "the events that can be read")


def _kind(journal: Journal, name: str) -> str | None:
    entry = journal.cached(name)
    return None if entry is None else entry.kind


def _equal(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{what}: expected {expected!r}, got {found!r}")


def _same(found: NDArray[Any], expected: NDArray[Any], what: str) -> None:
    """To the last bit, in the byte order of the machine."""
    native = expected.astype(expected.dtype.newbyteorder("="))
    _equal((found.dtype.str, found.shape), (native.dtype.str, native.shape), f"type and shape of {what}")
    _equal(found.tobytes(), native.tobytes(), what)


@contextmanager
def _expect(error: type[BPSearchError], words: str = "") -> Iterator[None]:
    """The block ends with this error, whose text has these words."""
    try:
        yield
    except error as found:
        _equal(words in str(found), True, f"that the error {str(found)!r} says {words!r}")
        return
    raise AssertionError(f"expected {error.__name__}, got no error")
