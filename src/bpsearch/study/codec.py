"""Facts and arrays as bytes: JSON, arrays as they lie in memory, and a checksum over each.

Nothing that is decoded is trusted. Sizes are checked before memory is taken, and every fault is a `StoreError` that
names the record: a checksum finds accidents, but whoever makes a file on purpose can make its checksums too.
"""

import hashlib
import json
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bpsearch._core.foreign import MAX_BYTES
from bpsearch.errors import InvalidArgumentError, StoreError

MAX_JSON_BYTES = 2**24  # of the facts of a record, or of what it says of its arrays
_MAX_AXES = 64  # NumPy's own limit
_CHECKSUM_BYTES = 16
_LENGTH = struct.Struct("<I")
# bool, integers, floats and complex numbers of a size that is the same on every machine: the types of this machine by
# the name of the little-endian type that is written.
_TYPES = {np.dtype(code).newbyteorder("<").str: np.dtype(code) for code in "?bhiqBHIQefdFD"}


@dataclass(frozen=True)
class _Header:
    """How an array lies in a record.

    Attributes:
        name: of the array.
        type: in memory.
        kept: the little-endian type in the record, which `type` can hold.
        shape: in memory.
        constant: whether only one value is kept.
        zlib: whether it is compressed.
        bytes: that it takes in the record.
    """

    name: str
    type: np.dtype[Any]
    kept: np.dtype[Any]
    shape: tuple[int, ...]
    constant: bool
    zlib: bool
    bytes: int

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return math.prod(self.shape) * self.type.itemsize

    @property
    def kept_size(self) -> int:
        """Bytes before compression."""
        return (1 if self.constant else math.prod(self.shape)) * self.kept.itemsize


def encode_facts(kind: str, facts: Mapping[str, Any], name: str) -> bytes:
    """A kind and facts as bytes that carry a checksum; `name` enters it, so that two records cannot be exchanged.

    Raises:
        InvalidArgumentError: a value is none that JSON has.
    """
    if not isinstance(kind, str) or not kind.isprintable():
        raise InvalidArgumentError(f"{name} cannot be stored: expected a printable text as its kind, got {kind!r:.80}")
    try:
        head = _dumps([kind, dict(facts)])
        _check_keys(facts)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{name} cannot be stored: expected facts that JSON has, but {error}") from error
    return _seal(head, name, "facts")


def decode_facts(data: object, name: str) -> tuple[str, dict[str, Any]]:
    """The kind and the facts that `encode_facts` wrote.

    Raises:
        StoreError: some of the bytes are not those that were written.
    """
    body = _unseal(data, name, "facts")
    try:
        kind, facts = _loads(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise _damage_error(name, "facts", error) from error
    if not isinstance(kind, str) or not isinstance(facts, dict):
        raise _damage_error(name, "facts", "expected a text and a dict")
    return kind, facts


def encode_arrays(arrays: Mapping[str, ArrayLike], name: str) -> bytes:
    """Arrays as bytes that carry a checksum.

    Each is kept in the smallest type that holds every value exactly, a constant array as one value; integers are
    compressed. Decoding gives the types back, in the byte order of the machine.

    Raises:
        InvalidArgumentError: one is no array of numbers, or they are larger than `MAX_BYTES`.
    """
    headers, payloads, size = [], [], 0
    for key, value in arrays.items():
        array = np.asarray(value)
        size += array.nbytes
        if size > MAX_BYTES:
            raise InvalidArgumentError(f"{name} cannot be stored: its arrays take more than {MAX_BYTES} bytes")
        header, payload = _array_bytes(key, array)
        headers.append(header)
        payloads.append(payload)
    head = _dumps(headers)
    return _seal(b"".join([_LENGTH.pack(len(head)), head, *payloads]), name, "arrays")


def decode_arrays(data: object, name: str) -> dict[str, NDArray[Any]]:
    """The arrays that `encode_arrays` wrote.

    Raises:
        StoreError: some of the bytes are not those that were written, or they ask for more than `MAX_BYTES`.
    """
    body = _unseal(data, name, "arrays")
    try:
        start = _LENGTH.size + _LENGTH.unpack(body[: _LENGTH.size])[0]
        headers = [_parse(header) for header in _loads(body[_LENGTH.size : start])]
        size = sum(header.size for header in headers)
        if size > MAX_BYTES:
            raise ValueError(f"they would take {size} bytes of memory, at most {MAX_BYTES} are allowed")
        if start + sum(header.bytes for header in headers) != len(body):
            raise ValueError(f"their sizes do not add up to {len(body)} bytes")
        if len({header.name for header in headers}) < len(headers):
            raise ValueError("two have the same name")
        arrays = {}
        for header in headers:
            arrays[header.name] = _array(header, body[start : start + header.bytes])
            start += header.bytes
    except (TypeError, ValueError, RecursionError, MemoryError, struct.error, zlib.error) as error:
        raise _damage_error(name, "arrays", error) from error
    return arrays


def encode_record(kind: str, facts: Mapping[str, Any], arrays: Mapping[str, ArrayLike], name: str) -> bytes:
    """Both in one piece."""
    head = encode_facts(kind, facts, name)
    return _LENGTH.pack(len(head)) + head + encode_arrays(arrays, name)


def decode_record(data: object, name: str) -> tuple[str, dict[str, Any], dict[str, NDArray[Any]]]:
    """The kind, the facts and the arrays that `encode_record` wrote.

    Raises:
        StoreError: some of the bytes are not those that were written.
    """
    if not isinstance(data, bytes) or len(data) < _LENGTH.size:
        raise _damage_error(name, "content", "it is too short")
    end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    return *decode_facts(data[_LENGTH.size : end], name), decode_arrays(data[end:], name)


def digest(array: ArrayLike) -> str:
    """A short text that tells arrays apart by type, shape and content."""
    array = np.asarray(array)
    text = f"{array.dtype.str}{array.shape}"
    return hashlib.blake2b(array.tobytes(), digest_size=16, key=text.encode()[:64]).hexdigest()


def same_bits(one: ArrayLike, other: ArrayLike) -> bool:
    """Whether two arrays have the same type, shape and content, to the last bit."""
    one, other = np.asarray(one), np.asarray(other)
    return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())


def _seal(body: bytes, name: str, part: str) -> bytes:
    return _checksum(body, name, part) + body


def _unseal(data: object, name: str, part: str) -> memoryview:
    if not isinstance(data, bytes):
        raise _damage_error(name, part, f"expected bytes, got {type(data).__name__}")
    body = memoryview(data)[_CHECKSUM_BYTES:]
    if data[:_CHECKSUM_BYTES] != _checksum(body, name, part):
        raise _damage_error(name, part, "their checksum does not fit")
    return body


def _checksum(body: bytes | memoryview, name: str, part: str) -> bytes:
    key = hashlib.blake2b(f"{name} {part}".encode(errors="surrogatepass")).digest()
    return hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES, key=key).digest()


def _damage_error(name: str, part: str, reason: object) -> StoreError:
    # Whatever the reason quotes comes from a file, and must not reach a terminal as it is.
    text = str(reason) or type(reason).__name__
    text = text if text.isprintable() else ascii(text)[1:-1]
    return StoreError(f"{name[:200]} is damaged: its {part} cannot be read: {text[:200]}")


def _dumps(value: object) -> bytes:
    head = json.dumps(value).encode()
    if len(head) > MAX_JSON_BYTES:
        raise InvalidArgumentError(f"{len(head)} bytes of JSON are more than {MAX_JSON_BYTES}; use arrays")
    return head


def _loads(head: memoryview) -> Any:
    if len(head) > MAX_JSON_BYTES:
        raise ValueError(f"they say {len(head)} bytes of themselves, at most {MAX_JSON_BYTES} are allowed")
    return json.loads(bytes(head).decode())


def _check_keys(value: object) -> None:
    """Refuse what JSON would quietly turn into a text."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r:.80} is not a text")
            _check_keys(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_keys(inner)


def _is_length(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 2**63


def _parse(header: object) -> _Header:
    if not isinstance(header, dict) or not isinstance(header.get("name"), str):
        raise TypeError("a header has no name")
    name, shape, count = header["name"], header.get("shape"), header.get("bytes")
    in_memory, kept = (header.get(key) for key in ("type", "kept"))
    if not isinstance(in_memory, str) or not isinstance(kept, str) or not {in_memory, kept} <= _TYPES.keys():
        raise TypeError(f"{name!r:.80} has the types {in_memory!r:.80} and {kept!r:.80}")
    if not np.can_cast(_TYPES[kept], _TYPES[in_memory], "safe"):
        raise TypeError(f"{name!r:.80} of the type {in_memory} cannot have been kept as {kept}")
    if not isinstance(shape, list) or len(shape) > _MAX_AXES or not all(map(_is_length, shape)):
        raise ValueError(f"{name!r:.80} has the shape {shape!r:.80}")
    if not _is_length(count):
        raise ValueError(f"{name!r:.80} takes {count!r:.80} bytes")
    flags = {key: header.get(key, False) is True for key in ("constant", "zlib")}
    parsed = _Header(name, _TYPES[in_memory], np.dtype(kept), tuple(shape), bytes=count, **flags)
    if not parsed.zlib and count != parsed.kept_size:
        raise ValueError(f"{name!r:.80} takes {count} bytes, expected {parsed.kept_size!r:.80}")
    return parsed


def _array_bytes(name: str, array: NDArray[Any]) -> tuple[dict[str, Any], bytes]:
    little = array.dtype.newbyteorder("<")
    if not isinstance(name, str):
        raise InvalidArgumentError(f"an array cannot be stored: expected a text as its name, got {name!r:.80}")
    if little.str not in _TYPES:
        raise InvalidArgumentError(f"{name} cannot be stored: expected an array of numbers, got the type {array.dtype}")
    array = np.ascontiguousarray(array, little).reshape(array.shape)
    header: dict[str, Any] = {"name": name, "type": little.str, "shape": array.shape}
    kept = _smallest(array)
    if kept.size > 1 and _is_constant(kept):
        header["constant"] = True
        kept = kept.ravel()[:1]
    kept = kept.astype(kept.dtype.newbyteorder("<"), copy=False)
    header["kept"] = kept.dtype.str
    payload = kept.tobytes()
    if kept.dtype.kind in "biu" and len(payload) > 64:
        payload = zlib.compress(payload, 1)  # floats hardly shrink, and cost more time than the disk
        header["zlib"] = True
    header["bytes"] = len(payload)
    return header, payload


def _array(header: _Header, payload: memoryview) -> NDArray[Any]:
    data: bytes | memoryview = payload
    if header.zlib:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(payload, header.kept_size + 1)
        if len(data) != header.kept_size or not unpacker.eof or unpacker.unused_data:
            raise ValueError(f"{header.name!r:.80} does not unpack to {header.kept_size} bytes")
    kept = np.frombuffer(data, header.kept)
    if header.kept.kind == "b":
        kept = kept.view(np.uint8) != 0
    if header.constant:
        return np.full(header.shape, kept[0], header.type)
    return kept.astype(header.type).reshape(header.shape)


def _smallest(array: NDArray[Any]) -> NDArray[Any]:
    """The same values in fewer bytes, if every one of them survives the way there and back bit by bit."""
    if array.dtype.kind in "iu" and array.size:
        low, high = array.min(), array.max()
        smaller = np.result_type(np.min_scalar_type(low), np.min_scalar_type(high))
        return array.astype(smaller) if smaller.itemsize < array.dtype.itemsize and smaller.kind in "iu" else array
    if array.dtype == np.float64 and array.size:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            narrow = array.astype(np.float32)
        same = np.array_equal(_bits(narrow.astype(np.float64)), _bits(array))
        return narrow if same else array
    return array


def _is_constant(array: NDArray[Any]) -> bool:
    bits = _bits(array)
    # Most arrays differ at once, and need not be gone through.
    return bool((bits[:2] == bits[0]).all() and (bits == bits[0]).all())


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    """The array as a vector of unsigned numbers: −0 is not 0, and a NaN equals itself."""
    if array.dtype.kind == "c":
        return array.ravel().view(array.real.dtype).view(f"u{array.dtype.itemsize // 2}").reshape(-1, 2)
    return array.ravel().view(f"u{array.dtype.itemsize}")
