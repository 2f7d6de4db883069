"""NumPy's npz files from anywhere, read without running any code of theirs, nor taking memory that they only claim.

An npz is a zip of arrays, each with a header that says its type and shape. All headers are read, and all sizes are
known and allowed, before memory is taken for the first array.
"""

import math
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch._core.foreign import KINDS, MAX_BYTES
from bpsearch._core.texts import show

MAX_MEMBERS = 10_000  # arrays in a file
MAX_TEXT = 10_000  # characters of a text
LARGEST_EXPANSION = 1032  # what deflate can make of a byte: who claims more lies, or lets members overlap
_HEADER_BYTES = 1 << 16
_SUFFIX = ".npy"
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True)
class _Member:
    """An array that has not been read yet.

    Attributes:
        info: where it lies.
        dtype: of its elements, as it lies there.
        shape: in C order, or in Fortran's.
        fortran: which of the two.
        start: bytes of the header.
    """

    info: zipfile.ZipInfo
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    start: int

    @property
    def bytes(self) -> int:
        """That the array takes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def widest(self) -> int:
        """Bytes that it takes once it is computed with, in 64 bit."""
        return math.prod(self.shape) * max(self.dtype.itemsize, 8)


@contextmanager
def open_file(path: str | Path) -> Iterator[BinaryIO]:
    """A file for reading, and nothing else: a pipe or a device would never end.

    Raises:
        OSError: there is none.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise OSError(f"{show(path)} is not a file")
    with path.open("rb") as file:
        yield file


def read_npz(
    file: BinaryIO, *, limit: int = MAX_BYTES, expansion: int = LARGEST_EXPANSION, only: tuple[str, ...] | None = None
) -> tuple[str, dict[str, Any]]:
    """The format that an npz names, and its other arrays: numbers in the byte order of this machine, or texts.

    Args:
        file: open for reading.
        limit: bytes that its arrays may take together, in 64 bit.
        expansion: how many times larger than the file they may be, beyond a first MiB for each time.
        only: names of the arrays to read, if not all.

    Raises:
        ValueError: the file is damaged, no npz, or claims too much.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = _members(archive)
            total = sum(member.widest for member in members.values())
            allowed = min(limit, expansion * (_size(file) + 2**20))
            if total > allowed:
                raise ValueError(f"its arrays would take {total} bytes of memory, at most {allowed} are allowed")
            names = members if only is None else [name for name in ("format", *only) if name in members]
            arrays = {name: _read(archive, name, members[name]) for name in names}
    except (EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, OSError) as error:
        raise ValueError(show(error) or type(error).__name__) from error
    except MemoryError as error:
        raise ValueError("its arrays need more memory than there is") from error
    return str(arrays.pop("format", "no format")), arrays


def check_members(archive: zipfile.ZipFile, size: int, limit: int, expansion: int = LARGEST_EXPANSION) -> None:
    """Refuse a zip whose members claim more than they can be, or that need more than stored and deflated data.

    Args:
        archive: the zip.
        size: bytes of its file.
        limit: bytes that all members may have together.
        expansion: see `read_npz`.

    Raises:
        ValueError: naming the member or the sum.
    """
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS:
        raise ValueError(f"it has {len(infos)} members, at most {MAX_MEMBERS} are allowed")
    for info in infos:
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 0x1:
            raise ValueError(f"{show(info.filename)} is encrypted, or compressed by other means than deflate")
        stored = info.compress_type == zipfile.ZIP_STORED
        if info.file_size > info.compress_size * (1 if stored else LARGEST_EXPANSION) + 64 * (not stored):
            raise ValueError(f"{show(info.filename)} cannot hold the {info.file_size} bytes that it claims")
    if len({info.filename for info in infos}) < len(infos):
        raise ValueError("two members have the same name")
    total, allowed = sum(info.file_size for info in infos), min(limit, expansion * (size + 2**20))
    if total > allowed:
        raise ValueError(f"its members would take {total} bytes, at most {allowed} are allowed")


def _size(file: BinaryIO) -> int:
    position = file.tell()
    size = file.seek(0, os.SEEK_END)
    file.seek(position)
    return size


def _members(archive: zipfile.ZipFile) -> dict[str, _Member]:
    check_members(archive, sum(info.compress_size for info in archive.infolist()), limit=2**63)
    return {info.filename.removesuffix(_SUFFIX): _header(archive, info) for info in archive.infolist()}


def _header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    name = show(info.filename)
    with archive.open(info) as stream:
        try:
            version = np.lib.format.read_magic(stream)
            if version not in _READERS:
                raise ValueError(f"version {version}")
            # A header may claim to be long, too: NumPy reads at most so much of it.
            shape, fortran, dtype = _READERS[version](stream, max_header_size=_HEADER_BYTES)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, OverflowError) as error:
            raise ValueError(f"{name} is not a NumPy array: {show(error)}") from error
        start = stream.tell()
    if not all(type(length) is int and 0 <= length < 2**63 for length in shape):
        raise ValueError(f"{name} has the shape {show(shape)}")
    if dtype.kind == "U":
        if shape or dtype.itemsize > 4 * MAX_TEXT:
            raise ValueError(f"{name} must be one text of at most {MAX_TEXT} characters, got {show(dtype)} {shape}")
    elif dtype.kind not in KINDS or dtype.itemsize > 8:
        raise ValueError(f"{name} must hold bools, integers or floats of at most 64 bit, got the type {show(dtype)}")
    member = _Member(info, dtype, shape, fortran, start)
    if start + member.bytes != info.file_size:
        raise ValueError(f"{name} has {info.file_size - start} bytes, but its header claims {member.bytes}")
    return member


def _read(archive: zipfile.ZipFile, name: str, member: _Member) -> NumpyArray:
    array: NumpyArray = np.empty(member.shape[::-1] if member.fortran else member.shape, member.dtype)
    with archive.open(member.info) as stream:
        stream.read(member.start)
        buffer = array.reshape(-1).view(np.uint8)
        done = 0
        while done < member.bytes:
            # `readinto` of a zip member reads all that is wanted into memory first, and then copies it.
            piece = stream.read(min(1 << 20, member.bytes - done))
            if not piece:
                raise ValueError(f"{show(name)} ends too early")
            buffer[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
            done += len(piece)
        if stream.read(1):  # at its end the checksum is compared
            raise ValueError(f"{show(name)} is longer than its header says")
    array = array.T if member.fortran else array
    if array.dtype.kind == "b":
        array = array.view(np.uint8) != 0  # a byte of 2 is neither true nor false
    if array.dtype.isnative:
        return array
    return array.byteswap(inplace=True).view(array.dtype.newbyteorder("="))
