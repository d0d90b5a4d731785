"""Files of states, as `slipstream measure --save` writes them and `measure merge` and `measure query` read
them.

`SLIPMEAS`, version (u16), length of the description (u32), the description (JSON), then for each epoch two
sketches (IPv4, IPv6), each a length (u64; 0 = none) and the bytes of `Sketch.to_bytes`; at the end CRC-32 of
everything before. Little-endian.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Optional

from ._files import Bytes, Path, as_bytes, of_file, read, replace
from ._native import StateError
from .sketches import Sketch

_MAGIC = b"SLIPMEAS"
_VERSION = 2


@dataclass
class Epoch:
    """An epoch of a measurement: its span, and the sketches of its IPv4 and its IPv6 packets (None where
    there were none)."""

    span: dict[str, Any]
    """`packets`, `start_ns`, `end_ns`, `first_ns`, `last_ns`, `partial`."""
    ipv4: Optional[Sketch]
    ipv6: Optional[Sketch]


@dataclass
class Measurement:
    """A saved measurement.

    >>> measurement = Measurement.load("monday.state")     # slipstream measure … --save monday.state
    >>> measurement.description["task"], measurement.epochs[0].ipv4.heavy_hitters(top=3)
    """

    description: dict[str, Any]
    """`task`, `sketch`, `key`, `pairs`, `weight`, `epoch`, `aggregate`, `tunnel`, `seed`."""
    epochs: list[Epoch]

    @classmethod
    def load(cls, path: Path) -> Measurement:
        """Reads a file; raises `StateError`, which names it, where it is no such file, damaged, or of a newer
        version."""
        data = read(path)
        try:
            return cls.from_bytes(data)
        except StateError as error:
            raise of_file(path, error) from None

    @classmethod
    def from_bytes(cls, data: Bytes) -> Measurement:
        """Of the bytes of such a file."""
        data = as_bytes(data)
        if data[:8] != _MAGIC:
            raise _wrong(0, "this is no state that `measure --save` wrote")
        if len(data) < 18:
            raise _wrong(len(data), "the state is cut short")
        version, length = struct.unpack_from("<HI", data, 8)
        if not 1 <= version <= _VERSION:
            raise _wrong(8, f"a state of version {version}; this program reads versions 1 to {_VERSION}")
        if struct.unpack("<I", data[-4:])[0] != zlib.crc32(data[:-4]):
            raise _wrong(len(data) - 4, "the state is damaged: its checksum is wrong")
        at, end = 14 + length, len(data) - 4
        try:
            description = json.loads(data[14:at])
            spans = description.pop("epochs")
            states = []
            for _ in range(2 * len(spans)):
                (length,) = struct.unpack_from("<Q", data[:end], at)
                at += 8
                if length > end - at:
                    raise _wrong(at, "the state is cut short")
                states.append(Sketch.from_bytes(data[at:at + length]) if length else None)
                at += length
        except (struct.error, KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise _wrong(min(at, end), f"the state is damaged: {error}") from None
        if at != end:
            raise _wrong(at, "the state is damaged: there is more than its description says")
        if version == 1:
            # It does not say these: the seed is that of the sketches, and packets came at some time of an
            # epoch.
            seed = next((state.seed for state in states if state is not None), 0)
            description = {**description, "tunnel": "unknown", "seed": seed}
            spans = [{**span, "first_ns": span["start_ns"], "last_ns": span["end_ns"], "partial": False} for span in spans]
        pairs = zip(spans, states[::2], states[1::2])
        return cls(description, [Epoch(span, four, six) for span, four, six in pairs])

    def to_bytes(self) -> bytes:
        """The bytes of such a file."""
        description = {**self.description, "epochs": [epoch.span for epoch in self.epochs]}
        text = json.dumps(description, separators=(",", ":"), ensure_ascii=False).encode()
        out = bytearray(_MAGIC + struct.pack("<HI", _VERSION, len(text)) + text)
        for epoch in self.epochs:
            for sketch in (epoch.ipv4, epoch.ipv6):
                state = b"" if sketch is None else sketch.to_bytes()
                out += struct.pack("<Q", len(state)) + state
        return bytes(out + struct.pack("<I", zlib.crc32(out)))

    def save(self, path: Path) -> None:
        """Writes a file that the command reads; it is replaced as a whole or not at all."""
        replace(path, self.to_bytes())


def _wrong(byte: int, what: str) -> StateError:
    error = StateError(f"byte {byte}: {what}")
    error.byte = byte
    return error
