"""Analyses of parts of a trace, which join to exactly that of the whole: split, analyse, merge.

>>> parts = [slipstream.partial("big.pcap", span) for span in slipstream.spans("big.pcap", 64 << 20)]
>>> slipstream.merge(parts).total.ip.slf == slipstream.analyze("big.pcap").total.ip.slf
True

Each part may be made in another process or on another machine, saved, and read by another program. A file is
cut where a record begins, as far as that can be told; that it is so is proven when parts are merged: each
must end where the next one begins.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, Callable, Optional, Union

from . import _native
from ._native import PartialError, StateError
from ._damage import warn
from ._files import Bytes, Path, as_bytes, name_of, of_file, read, replace, whole_number
from .results import Analysis, Trace

Span = tuple[int, int]

END = 2**64 - 1
"""The end of a file, wherever that is."""
ALL: Span = (0, END)


def settings(windows: Union[int, str, Iterable[Union[int, str]]] = ("16us", "64us", "128us"), burst: int = 32,
             top: int = 10, tunnel: str = "outer") -> dict[str, Any]:
    """Settings of an analysis: see `slipstream.analyze`."""
    if tunnel not in ("outer", "inner"):
        raise ValueError(f"tunnel={tunnel!r}: there are 'outer' and 'inner'")
    # Text in bytes would be a list of numbers, each taken for a window.
    if isinstance(windows, (bytes, bytearray)):
        raise TypeError(f"windows={windows!r}: a time is text or a number of nanoseconds")
    # An array with one element has an index, too, but is several windows.
    if isinstance(windows, str) or not isinstance(windows, Iterable):
        windows = [windows]
    windows = [window if isinstance(window, str) else operator.index(window) for window in windows]
    for window in windows:
        if not isinstance(window, str) and not 0 <= window < 1 << 64:
            raise ValueError(f"windows: {window} is out of range; nanoseconds are 0 to {(1 << 64) - 1}")
    return {"windows": windows, "burst": whole_number("burst", burst, 32), "top": whole_number("top", top), "inner": tunnel == "inner"}


def spans(path: Path, size: int = 64 << 20) -> list[Span]:
    """Cuts a capture into parts of about `size` bytes: where the first record of each begins (0: with the
    file), and where that of the next one does (`END` for the last).

    What is compressed, or no regular file, is one part. Where packets carry what looks like records
    themselves, so that it can't be told where one begins, the file isn't cut.
    """
    if size < 1:
        raise ValueError(f"size={size}: parts have a byte at least")
    return _native.spans(name_of(path), whole_number("size", size))


class Partial:
    """The analysis of a part of a trace."""

    def __init__(self, native: _native.Stretch) -> None:
        self._native = native

    @classmethod
    def from_bytes(cls, data: Bytes) -> Partial:
        """Of the bytes of `to_bytes`; raises `StateError`, with `byte`, where they are damaged, or of another
        version."""
        return cls(_native.Stretch.load(as_bytes(data)))

    def to_bytes(self) -> bytes:
        """The state; the book has its format."""
        return self._native.save()

    @classmethod
    def load(cls, path: Path) -> Partial:
        """Reads a file that `save` wrote; raises `StateError`, which names it."""
        data = read(path)
        try:
            return cls.from_bytes(data)
        except StateError as error:
            raise of_file(path, error) from None

    def save(self, path: Path) -> None:
        """Writes the state to a file, all or nothing."""
        replace(path, self.to_bytes())

    @property
    def file(self) -> str:
        """Name of the trace."""
        return self._native.file

    @property
    def span(self) -> Span:
        """The bytes at which its first record and the next part begin; 0 where that is not known."""
        return self._native.span

    @property
    def truncated_at_byte(self) -> Optional[int]:
        """The byte at which the capture is damaged; it ends there."""
        return self._native.truncated_at_byte

    @property
    def records(self) -> int:
        """Packets in it."""
        return self._native.records

    @property
    def kept_packets(self) -> int:
        """Packets that are kept as they are, because what comes before them may matter."""
        return self._native.kept_packets

    def join(self, following: Partial) -> None:
        """Adds the part that follows in the trace. Raises `PartialError`, whose `reason` says why it
        can't."""
        self._native.join(_checked(following)._native)

    def trace(self) -> Trace:
        """The result of a trace that is this part."""
        return Trace.of(self._native.finish())

    def __reduce__(self) -> Any:
        return Partial.from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        return f"Partial(file={self.file!r}, span={self.span}, records={self.records})"


def partial(path: Path, span: Span = ALL, *, keep: bool = False, walk: bool = False,
            progress: Optional[Callable[[str, Optional[float]], object]] = None, **settings_: Any) -> Partial:
    """Analyses a part of a capture, of `spans`; all of it by default.

    keep: keep all packets, 5 to 10 bytes each, so that it joins whatever times come before.
    walk: go over the file up to the part first: what a pcapng file says there of its interfaces holds for the
        part, too.
    Further settings are those of `analyze`: windows, burst, top, tunnel.

    Raises as `analyze` does, and warns of damage as it does; `CaptureError` also where the part ends where no
    record does.
    """
    made = Partial(_native.stretch(name_of(path), span, settings=settings(**settings_), keep=keep, walk=walk, progress=progress))
    if made.truncated_at_byte is not None:
        warn(f"{made.file}: damaged at byte {made.truncated_at_byte}")
    return made


def join(parts: Iterable[Partial], redo: Optional[Callable[[Span, bool, bool], Partial]] = None) -> Partial:
    """The parts of one trace, in order, as one.

    redo: makes a part anew, of a span, with `keep` and `walk`: where times run back over a boundary farther
        than packets were kept, where a part begins elsewhere than the one before ends, where the file has
        described further interfaces in between, or where the part's first packet has no time. Without it,
        `PartialError` is raised then.
    """
    whole: Optional[Partial] = None
    begins: Optional[int] = None
    for part in map(_checked, parts):
        begins, before = part.span[0], begins
        if whole is None:
            whole = Partial.from_bytes(part.to_bytes())
            continue
        if whole.truncated_at_byte is not None:
            if begins == before and part.records:
                error = PartialError(f"two parts of {part.file} begin at byte {begins}: one of them is enough")
                error.reason = "gap"
                raise error
            break
        try:
            whole.join(part)
        except PartialError as error:
            if redo is None or error.reason not in ("unresolved", "gap"):
                raise
            # One that met damage did so by what it took to hold: its end is not known.
            end = END if part.truncated_at_byte is not None else part.span[1] or END
            if end <= whole.span[1]:
                continue
            whole.join(redo((whole.span[1], end), True, True))
    if whole is None:
        raise ValueError("no parts")
    return whole


def merge(parts: Iterable[Partial]) -> Analysis:
    """The analysis of traces of which these are the parts, in any order: those of a trace join by their
    bytes, traces as `analyze` has several, in the order in which they are first named.

    Raises `PartialError`: its `reason` is `"missing"` where a trace's first or last part isn't there, `"gap"`
    where one between is missing; `join` takes such parts, too.
    """
    traces: dict[str, list[Partial]] = {}
    for part in map(_checked, parts):
        traces.setdefault(part.file, []).append(part)
    if not traces:
        raise ValueError("no parts")
    joined = [join(sorted(_some(parts), key=lambda part: part.span)) for parts in traces.values()]
    for one in joined:
        one._native.complete()
    return Analysis.of([part.trace() for part in joined], [])


def _checked(part: Partial) -> Partial:
    if not isinstance(part, Partial):
        raise TypeError(f"a part of an analysis is a Partial, not {type(part).__name__}")
    return part


def _some(parts: list[Partial]) -> list[Partial]:
    """Without parts for which nothing was left, unless there are no others."""
    return [part for part in parts if not part._native.is_nothing] or parts


def redo_from(path: Path, settings_: dict[str, Any]) -> Callable[[Span, bool, bool], Partial]:
    """Makes parts of a file anew, for `join`."""
    return lambda span, keep, walk: Partial(
        _native.stretch(path, span, settings=settings_, keep=keep, walk=walk, progress=None))
