"""`analyze`, `reframe` and `synth`: functions on captures."""

from __future__ import annotations

import json
import operator
import os
from typing import Any, Callable, Iterable, Optional, Union

from . import _native, partials
from ._damage import warn, warn_of_times
from ._files import as_bytes, name_of, whole_number
from .results import Analysis, Failed, Trace

Source = Union[str, "os.PathLike[str]", bytes, bytearray, memoryview]
Time = Union[int, str]
Progress = Optional[Callable[[str, Optional[float]], object]]


def analyze(traces: Union[Source, Iterable[Source]], *, windows: Union[Time, Iterable[Time]] = ("16us", "64us", "128us"),
            burst: int = 32, top: int = 10, tunnel: str = "outer", threads: Optional[int] = None, strict: bool = False,
            keep_going: bool = False, progress: Progress = None) -> Analysis:
    """Finds out what locality traces have, and what holding their packets would gain.

    `traces` is a capture or several of them: paths, bytes with a whole capture, or
    `"synth:flows=100,packets=1000"`. Captures are pcap or pcapng, plain, gzip or zstd.

    windows: holding windows, one or several, in nanoseconds or with a unit (`"64us"`).
    burst: packets at which a train leaves at once.
    top: addresses that are listed.
    tunnel: `"outer"` or `"inner"`: which IP header makes the flow.
    threads: all cores by default; results don't depend on it.
    strict: a damaged capture is an error, not a warning.
    keep_going: a trace that can't be read goes to `failed` of the result, and raises nothing unless none
        could be read.
    progress: called now and then with the name of a trace and the share of it that is done (None where that
        is unknown).

    Raises an `OSError` where a file can't be opened or read, `CaptureError` (a `ValueError`, with `file` and
    `byte`) where it is no capture, and `ValueError` for a setting out of range.

    >>> result = analyze("traces/campus.pcap.gz", windows=["64us"])
    >>> [(w.window_ns, w.mean_train) for w in result.total.ip.windows]
    [(64000, 2.921...)]
    """
    given = partials.settings(windows, burst, top, tunnel)
    threads = None if threads is None else whole_number("threads", threads)
    if isinstance(traces, (str, bytes, bytearray, memoryview, os.PathLike)):
        traces = [traces]
    if hasattr(traces, "read"):
        raise TypeError("an open file is no capture: name its path, or give its bytes")
    traces = list(map(_source, traces))
    if not traces:
        raise ValueError("no trace was named")
    done, failed, first = [], [], None
    for trace in traces:
        try:
            one = _native.analyze(trace, **given, threads=threads, strict=strict, progress=progress)
        except (OSError, _native.CaptureError) as error:
            if not keep_going:
                raise
            first = first or error
            failed.append(Failed.of("<bytes>" if isinstance(trace, bytes) else trace, error))
            continue
        warn(one.damage and one.damage[1])
        warn_of_times(one.file, one.odd_times)
        done.append(Trace.of(one))
    if not done:
        raise first
    return Analysis.of(done, failed)


def reframe(source: Source, output: Optional[Union[str, "os.PathLike[str]"]] = None, *, stamp: str = "release",
            workers: int = 1, strict: bool = False, progress: Progress = None,
            classes: Union[str, Iterable[str]] = (), **settings: Any) -> dict[str, Any]:
    """Puts packets of a flow back to back, from a capture to another; gives the command's report.

    `output` is a path, whose name says the format (`.pcap`, `.pcapng`, also `.gz` and `.zst`), or None or
    `"null"` for the report alone. The settings are those of the command: `hold="64us"`, `burst=32`,
    `policy="waiting"`, `bypass="none"`, `capacity`, `flows`, `admit`, `budget`, `compress`, `tcp_order`,
    `tunnel`, …; `reframe_settings()` lists them. Times are in nanoseconds or with a unit.

    classes: one or several, as with `--class`: `"voice: udp dst port 16384-32767 => bypass"`.
    stamp: `"release"` or `"arrival"`: which time is written with a packet.
    workers: threads; what is written doesn't depend on it.

    >>> report = reframe("traces/campus.pcap.gz", "trains.pcapng", hold="64us")
    >>> report["slf_in"], report["slf_out"]
    (1.233..., 2.921...)
    """
    if stamp not in ("release", "arrival"):
        raise ValueError(f"stamp={stamp!r}: there are 'release' and 'arrival'")
    texts = [(name, _text(name, value)) for name, value in settings.items() if value is not None]
    source = _source(source)
    path = None if output is None else _output(output)
    classes = [classes] if isinstance(classes, str) else list(classes)
    report, damage, odd_times = _native.reframe(source, path, texts, classes=classes, arrival_stamps=stamp == "arrival",
                                                workers=whole_number("workers", workers), strict=strict, progress=progress)
    warn(damage)
    warn_of_times("<bytes>" if isinstance(source, bytes) else source, odd_times)
    return json.loads(report)


def reframe_settings() -> dict[str, tuple[str, Optional[str]]]:
    """The settings of `reframe`: what each is for, and its default."""
    return {name: (text, default) for name, text, default in _native.reframe_settings()}


def synth(output: Union[str, "os.PathLike[str]"], *, progress: Progress = None, **settings: Any) -> dict[str, Any]:
    """Makes a capture with a known locality; gives the command's report. With `"null"` as output, that alone.

    The settings are those of the command: `profile`, `copies`, `packets`, `flows`, `active`, `slf`, `order`,
    `train`, `zipf`, `size`, `rate`, `arrivals`, `protocol`, `ipv6`, `vlan`, `vlan_ids`, `start` (in seconds),
    `seed`, `snap_len`. The same settings and seed give the same bytes on every machine.

    >>> synth("four.pcap", flows=1024, packets=10_000, slf=4, size=60, rate="10mpps")["packets"]
    10000
    """
    texts = []
    for name, value in settings.items():
        if value is None:
            continue
        if name == "start":
            value = _seconds(value)
        if name == "vlan_ids" and not isinstance(value, str):
            value = ",".join(str(v) for v in value)
        texts.append((name.replace("_", "-"), _text(name, value)))
    return json.loads(_native.synth(_output(output), texts, progress))


def _source(source: Source) -> Union[str, bytes]:
    """A path, or the bytes of a capture."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return as_bytes(source)
    return name_of(os.fsdecode(source))


def _output(path: Union[str, "os.PathLike[str]"]) -> Optional[str]:
    """The name of a capture to write; None for `"null"`, which discards packets, as for the command. A file
    of that name is `"./null"`."""
    return None if path == "null" else name_of(path)


_TIMES = ("hold", "hold_min", "hold_max")
_LATEST = (1 << 62) // 1_000_000_000


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if name in _TIMES and hasattr(value, "__index__"):
        value = operator.index(value)
        return f"{value}ns" if value else "0"
    return str(value)


def _seconds(value: Any) -> int:
    """The nanoseconds of a start in whole seconds since 1970."""
    seconds = int(value) if isinstance(value, str) else operator.index(value)
    if not 0 <= seconds <= _LATEST:
        raise ValueError(f"start={value!r}: seconds since 1970 are 0 to {_LATEST}")
    return seconds * 1_000_000_000
