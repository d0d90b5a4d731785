"""Names of files, and states in them."""

from __future__ import annotations

import os
import threading
from typing import Union

from . import _native

Path = Union[str, "os.PathLike[str]"]
Bytes = Union[bytes, bytearray, memoryview]


def name_of(path: Path) -> str:
    """A file's name as text; raises `UnicodeEncodeError` for text that can't be one's, as `open` does."""
    os.fsencode(path)
    return os.fspath(path)


def as_bytes(data: Bytes) -> bytes:
    """The bytes of anything that has some; raises `TypeError` where it has none."""
    return data if isinstance(data, bytes) else bytes(memoryview(data))


def of_file(path: Path, error: _native.StateError) -> _native.StateError:
    """What is wrong with a state, said of the file that has it."""
    named = _native.StateError(f"{os.fspath(path)}: {error}")
    named.file, named.byte = os.fspath(path), error.byte
    return named


def replace(path: Path, data: bytes) -> None:
    """Writes a file beside and renames it."""
    path = os.fspath(path)
    # Threads may write to one path at the same time, too.
    beside = f"{path}.{os.getpid()}.{threading.get_ident()}.tmp"
    try:
        with open(beside, "wb") as file:
            file.write(data)
        os.replace(beside, path)
    except BaseException as error:
        if os.path.exists(beside):
            os.unlink(beside)
        # One of writing, as where the disk is full, names no file.
        if isinstance(error, OSError) and error.filename in (None, beside):
            raise type(error)(error.errno, error.strerror, path) from None
        raise
