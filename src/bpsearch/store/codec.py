"""Records as bytes: numbers and texts as JSON, arrays as they lie in memory, and a checksum over all of it."""

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bpsearch.errors import InvalidArgumentError, StoreError
from bpsearch.trajectories import Array

_CHECKSUM_BYTES = 16
_LENGTH = struct.Struct("<I")
_KINDS = "biufc"  # what NumPy calls bool, signed, unsigned, float and complex


@dataclass(frozen=True, eq=False)
class Record:
    """What a store keeps under one key.

    Attributes:
        facts: numbers, texts, lists and dicts that JSON has.
        arrays: arrays of numbers, by name.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)


def encode(record: Record, name: str) -> bytes:
    """The record as bytes that carry a checksum; `name` says what it is, so that two records cannot be exchanged.

    Arrays are kept in the smallest type that holds every value exactly, a constant array as one value; integers are
    compressed. Decoding gives the types back.
    """
    headers, payloads = [], []
    for key, value in record.arrays.items():
        header, payload = _array_bytes(key, np.asarray(value))
        headers.append(header)
        payloads.append(payload)
    head = json.dumps({"facts": record.facts, "arrays": headers}).encode()
    body = b"".join([_LENGTH.pack(len(head)), head, *payloads])
    return _checksum(name, body) + body


def decode(data: bytes, name: str) -> Record:
    """The record that `encode` wrote.

    Raises:
        StoreError: the checksum does not fit, so that some of the bytes are not those that were written.
    """
    checksum, body = data[:_CHECKSUM_BYTES], memoryview(data)[_CHECKSUM_BYTES:]
    if checksum != _checksum(name, body):
        raise StoreError(f"{name} is damaged: its checksum does not fit its content")
    start = _LENGTH.size + _LENGTH.unpack(body[: _LENGTH.size])[0]
    head = json.loads(bytes(body[_LENGTH.size : start]))
    arrays = {}
    for header in head["arrays"]:
        arrays[header["name"]] = _array(header, body[start : start + header["bytes"]])
        start += header["bytes"]
    return Record(head["facts"], arrays)


def digest(array: Array) -> str:
    """A short text that tells arrays apart by type, shape and content."""
    array = np.asarray(array)
    text = f"{array.dtype.str}{array.shape}"
    return hashlib.blake2b(array.tobytes(), digest_size=16, key=text.encode()[:64]).hexdigest()


def same_bits(one: Array, other: Array) -> bool:
    """Whether two arrays have the same type, shape and content, to the last bit."""
    one, other = np.asarray(one), np.asarray(other)
    return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())


def _checksum(name: str, body: bytes | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES, key=hashlib.blake2b(name.encode()).digest()).digest()


def _array_bytes(name: str, array: Array) -> tuple[dict[str, Any], bytes]:
    if array.dtype.kind not in _KINDS:
        raise InvalidArgumentError(f"{name} cannot be stored: expected an array of numbers, got the type {array.dtype}")
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
    header: dict[str, Any] = {"name": name, "type": array.dtype.str, "shape": array.shape}
    kept = _smallest(array)
    if kept.size > 1 and _is_constant(kept):
        header["constant"] = True
        kept = kept.ravel()[:1]
    header["kept"] = kept.dtype.str
    payload = kept.tobytes()
    if kept.dtype.kind in "biu" and len(payload) > 64:
        payload = zlib.compress(payload, 1)  # floats hardly shrink, and cost more time than the disk
        header["zlib"] = True
    header["bytes"] = len(payload)
    return header, payload


def _array(header: dict[str, Any], payload: memoryview) -> Array:
    data = zlib.decompress(payload) if header.get("zlib") else payload
    kept = np.frombuffer(data, np.dtype(header["kept"]))
    shape, dtype = tuple(header["shape"]), np.dtype(header["type"])
    if header.get("constant"):
        return np.full(shape, kept[0].astype(dtype), dtype)
    return kept.astype(dtype).reshape(shape)


def _smallest(array: Array) -> Array:
    """The same values in fewer bytes, if every one of them survives the way there and back bit by bit."""
    if array.dtype.kind in "iu" and array.size:
        low, high = array.min(), array.max()
        smaller = np.result_type(np.min_scalar_type(low), np.min_scalar_type(high))
        return array.astype(smaller) if smaller.itemsize < array.dtype.itemsize and smaller.kind in "iu" else array
    if array.dtype == np.float64 and array.size:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            smaller = array.astype(np.float32)
        same = np.array_equal(_bits(smaller.astype(np.float64)), _bits(array))
        return smaller if same else array
    return array


def _is_constant(array: Array) -> bool:
    bits = _bits(array)
    # Most arrays differ at once, and need not be gone through.
    return bool((bits[:2] == bits[0]).all() and (bits == bits[0]).all())


def _bits(array: Array) -> Array:
    """The array as a vector of unsigned numbers: −0 is not 0, and a NaN equals itself."""
    if array.dtype.kind == "c":
        return array.ravel().view(array.real.dtype).view(f"u{array.dtype.itemsize // 2}").reshape(-1, 2)
    return array.ravel().view(f"u{array.dtype.itemsize}")
