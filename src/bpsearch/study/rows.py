"""The rows of a journal's tables, made of events and read back."""

from bpsearch.errors import InvalidArgumentError, StoreError
from bpsearch.study import codec
from bpsearch.study.journal import Event, Facts


def event_name(position: int) -> str:
    """What messages call an event."""
    return f"event {position}"


def read_facts(position: int, kind: object, data: object) -> tuple[str, Facts]:
    """The kind and the facts of the event in a row, whose columns must agree."""
    written, facts = codec.decode_facts(data, event_name(position))
    if written != kind:
        raise StoreError(f"{event_name(position)} is damaged: it is {kind!r:.80}, but was written as {written!r:.80}")
    return written, facts


def encode_entry(name: str, entry: Event | None) -> bytes | None:
    """An entry of the cache as bytes; None for one that is deleted."""
    if not isinstance(name, str) or not name.isprintable():
        raise InvalidArgumentError(f"an entry of the cache needs a printable text as its name, got {name!r:.80}")
    return None if entry is None else codec.encode_record(entry.kind, entry.facts, entry.arrays, f"the cached {name!r}")
