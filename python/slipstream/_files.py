"""What arguments have in common: names of files and states in them, whole numbers."""

from __future__ import annotations

import contextlib
import operator
import os
import threading
from collections.abc import Iterator
from typing import Any, Optional, Union

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


def whole_number(name: str, value: Any, bits: int = 64) -> int:
    """A whole number from 0 on of so many bits; raises `ValueError` for another one, `TypeError` for what is
    none."""
    number = operator.index(value)
    if not 0 <= number < 1 << bits:
        raise ValueError(f"{name}={number} is out of range: 0 to {(1 << bits) - 1}")
    return number


def of_file(path: Path, error: _native.StateError) -> _native.StateError:
    """What is wrong with a state, said of the file that has it."""
    named = _native.StateError(f"{os.fspath(path)}: {error}")
    named.file, named.byte = os.fspath(path), error.byte
    return named


def read(path: Path) -> bytes:
    """The bytes of a file; an `OSError` names it, also where it can be opened and not read."""
    with _naming(path), open(path, "rb") as file:
        return file.read()


def replace(path: Path, data: bytes) -> None:
    """Writes a file beside and renames it. A link stays one, and its target is replaced; a device or a pipe
    is written to."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        with _naming(path), open(path, "wb") as file:
            file.write(data)
        return
    target = os.path.realpath(path) if os.path.islink(path) else os.fspath(path)
    # Threads may write to one path at the same time, too.
    beside = f"{target}.{os.getpid()}.{threading.get_ident()}.tmp"
    try:
        with _naming(path, beside):
            with open(beside, "wb") as file:
                file.write(data)
            os.replace(beside, target)
    except BaseException:
        if os.path.exists(beside):
            os.unlink(beside)
        raise


@contextlib.contextmanager
def _naming(path: Path, beside: Optional[str] = None) -> Iterator[None]:
    """Has an `OSError` name the file as the user did: one of reading or writing, as where the disk is full,
    names none by itself, and of the file `beside` nobody knows."""
    try:
        yield
    except OSError as error:
        if error.filename in (None, beside):
            raise type(error)(error.errno, error.strerror, os.fspath(path)) from None
        raise
