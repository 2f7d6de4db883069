"""NumPy's npz files from anywhere, read without running any code of theirs."""

import zipfile
import zlib
from typing import Any, BinaryIO

import numpy as np


def read_npz(file: BinaryIO) -> tuple[str, dict[str, Any]]:
    """The format that an npz names, and its other arrays; whatever else it is, no code of it runs.

    Raises:
        ValueError: the file is damaged, or no file of NumPy.
    """
    try:
        loaded = np.load(file, allow_pickle=False)
        arrays = dict(loaded) if isinstance(loaded, np.lib.npyio.NpzFile) else {}
    except (EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise ValueError(str(error)) from error
    return str(arrays.pop("format", "no format")), arrays
