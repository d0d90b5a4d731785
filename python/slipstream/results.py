"""What `analyze` gives: dataclasses, and tables where pyarrow is there, and charts where Altair is."""

from __future__ import annotations

import copyreg
import dataclasses
import io
import json
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from . import _native


@dataclass(frozen=True)
class Distribution:
    """A distribution: its mean is exact, quantiles are within 0.5 %. Of nothing, they are None."""

    mean: Optional[float]
    p25: Optional[float]
    p50: Optional[float]
    p75: Optional[float]
    p90: Optional[float]
    p99: Optional[float]
    histogram: list[dict[str, int]] = field(repr=False)
    """The values that occur, ascending: `from` and `to` (inclusive), and `count`."""
    min: Optional[int] = None
    """Of flow sizes: the smallest."""
    max: Optional[int] = None
    """Of flow sizes: the largest."""


@dataclass(frozen=True)
class Window:
    """The trains that a holding window would build; all figures are exact."""

    window_ns: int
    burst: int
    batches: int
    mean_train: Optional[float]
    share_packets_in_trains: Optional[float]
    p25: Optional[float]
    p50: Optional[float]
    p75: Optional[float]
    p90: Optional[float]
    histogram: list[dict[str, int]] = field(repr=False)
    slf_after: Optional[float] = None
    """Packets a run as they would leave."""
    pure_acks: Optional[int] = None
    ack_coalescable_simple: Optional[float] = None
    ack_coalescable_strict: Optional[float] = None
    ack_flag_mean: Optional[float] = None


@dataclass(frozen=True)
class Sequence:
    """The locality of a sequence of packets: all IP, or TCP. Flows are directional."""

    packets: int
    flows: int
    single_packet_flows: int
    runs: int
    slf: Optional[float]
    """Spatial locality factor: packets ÷ runs."""
    pairs: int
    share_spatial_distance_gt_1: Optional[float]
    spatial_distance: Distribution
    temporal_distance_ns: Distribution
    flow_size: Distribution
    windows: list[Window]
    flow_switches: list[dict[str, Any]]


def _of(kind: type, values: dict[str, Any]) -> Any:
    """A dataclass of a dictionary that may say more than it has fields for."""
    return kind(**{f.name: values[f.name] for f in dataclasses.fields(kind) if f.name in values})


def _sequence(values: dict[str, Any]) -> Sequence:
    distributions = ("spatial_distance", "temporal_distance_ns", "flow_size")
    return _of(Sequence, {
        **values,
        **{name: _of(Distribution, values[name]) for name in distributions},
        "windows": [_of(Window, window) for window in values["windows"]],
    })


def words(error: Exception) -> str:
    """What the command says of a trace, of which an `OSError` says it in Python's form."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or repr(error)


@dataclass(frozen=True)
class Failed:
    """A trace that could not be read, and why, in the words of the command."""

    file: str
    error: str

    @classmethod
    def of(cls, file: str, error: Exception) -> Failed:
        """A trace that raised an exception."""
        return cls(file, words(error))


@dataclass(frozen=True)
class Trace:
    """The locality of a trace, or of several as if they were one."""

    file: Optional[str]
    truncated_at_byte: Optional[int]
    """Where the capture is damaged; None if it is whole."""
    clamped_times: Optional[int]
    """Packets whose times lie before 1970 or after 2554, and were moved to those bounds; None where the trace
    is made of saved parts, which don't say."""
    without_time: Optional[int]
    """Packets without a time, which count as coming with the one before; None as above."""
    records: int
    bytes: int
    duration_ns: int
    skipped: dict[str, int]
    """Packets without a flow, by reason."""
    ipv6: int
    fragments: int
    flows_bidirectional: int
    clock_backwards: int
    ip: Sequence = field(repr=False)
    """All IP packets."""
    tcp: Sequence = field(repr=False)
    """The TCP packets that are not fragments."""
    top_endpoints: list[dict[str, Any]] = field(repr=False)
    _report: dict[str, Any] = field(repr=False, compare=False)
    _native: list[Union[_native.Analysis, _Flows]] = field(repr=False, compare=False)

    @classmethod
    def of(cls, one: _native.Analysis, parts: Optional[list[_native.Analysis]] = None) -> Trace:
        """The result of a trace; with `parts`, that of several traces of which `one` is the total."""
        report = json.loads(one.report())
        values = {**report, "ip": _sequence(report["ip"]), "tcp": _sequence(report["tcp"])}
        clamped, missing = one.odd_times or (None, None)
        values.update(file=None if parts else one.file, truncated_at_byte=one.damage and one.damage[0],
                      clamped_times=clamped, without_time=missing, _report=report, _native=parts or [one])
        return _of(cls, values)

    def to_dict(self) -> dict[str, Any]:
        """What the command prints of it with `--format json`."""
        if self.file is None:
            return dict(self._report)
        return {"file": self.file, "truncated_at_byte": self.truncated_at_byte, **self._report}

    def flows(self) -> Any:
        """A row a directional flow, as a `pyarrow.Table`: file, vlans, ip_version, src, dst, protocol,
        src_port, dst_port, packets, tcp_packets, flow (its number in the trace, from 0); and bytes, first_ns,
        last_ns and tcp_flags, which only `slipstream analyze --parquet` fills in: here they are null.

        >>> flows = slipstream.analyze("traces/campus.pcap.gz").flows()
        >>> flows.sort_by([("packets", "descending")]).slice(0, 3).to_pylist()
        """
        arrow, parquet = _pyarrow()
        return arrow.concat_tables([parquet.read_table(io.BytesIO(one.flows())) for one in self._native])

    def distributions(self) -> Any:
        """All histograms, as a `pyarrow.Table` of `sequence` (ip, tcp), `distribution` (`spatial_distance`,
        …, `train_64000ns`), `from`, `to` (inclusive) and `count`."""
        arrow, _ = _pyarrow()
        columns: dict[str, list[Any]] = {"sequence": [], "distribution": [], "from": [], "to": [], "count": []}
        for row in self._buckets():
            for name, value in row.items():
                columns[name].append(value)
        types = {"sequence": arrow.string(), "distribution": arrow.string()}
        return arrow.table({name: arrow.array(values, types.get(name, arrow.int64())) for name, values in columns.items()})

    def _buckets(self) -> list[dict[str, Any]]:
        rows = []
        for name in ("ip", "tcp"):
            sequence = getattr(self, name)
            all_ = {key: getattr(sequence, key) for key in ("spatial_distance", "temporal_distance_ns", "flow_size")}
            all_.update({f"train_{window.window_ns}ns": window for window in sequence.windows})
            rows += [{"sequence": name, "distribution": key, **bucket} for key, of in all_.items() for bucket in of.histogram]
        return rows

    def plot(self) -> Any:
        """An `altair.Chart`: which share of packets would leave in trains of at most so many, a line a
        window; beside it, which share of packets follows within which time on the one before of its flow.
        `.save("locality.html", inline=True)` makes a page that needs no network."""
        try:
            import altair
        except ImportError as error:
            raise ImportError("plot() needs Altair: pip install altair") from error
        trains = []
        # Every line rises from 0 at its first value: else one of a single value would be a point, which no
        # line shows.
        for window in self.ip.windows:
            points = [{"window": _time(window.window_ns), **point} for point in _cumulated(window.histogram, by_size=True)]
            trains += [{**point, "share": 0} for point in points[:1]] + points
        order = [_time(window.window_ns) for window in self.ip.windows]
        first = altair.Chart(altair.Data(values=trains), title="Trains, were packets held").mark_line(interpolate="step-after").encode(
            x=altair.X("value:Q", title="packets of a train, at most"),
            y=altair.Y("share:Q", title="share of packets", axis=altair.Axis(format="%"), scale=altair.Scale(domain=[0, 1])),
            color=altair.Color("window:N", title="held for", sort=order))
        # Where a clock ran back, times lie below 0, which a logarithm can't show.
        times = [{**point, "value": point["value"] / 1000} for point in _cumulated(self.ip.temporal_distance_ns.histogram)
                 if point["value"] > 0]
        times = [{**point, "share": 0} for point in times[:1]] + times
        second = altair.Chart(altair.Data(values=times), title="Time since the flow's packet before").mark_line().encode(
            x=altair.X("value:Q", title="µs, at most", scale=altair.Scale(type="log")),
            y=altair.Y("share:Q", title="share of pairs", axis=altair.Axis(format="%"), scale=altair.Scale(domain=[0, 1])))
        return altair.hconcat(first, second).properties(description=self._plot_in_words())

    def _plot_in_words(self) -> str:
        """The charts in words, for those who don't see them."""
        held = [f"{_time(window.window_ns)}: {window.mean_train:.2f} packets a train, {window.share_packets_in_trains:.0%} of packets in trains"
                for window in self.ip.windows if window.mean_train is not None and window.share_packets_in_trains is not None]
        median = self.ip.temporal_distance_ns.p50
        times = [] if median is None else [f"median time since the flow's packet before {median / 1000:.1f} µs"]
        return "; ".join(["Length of trains by hold, and time between packets of a flow", *held, *times])


@dataclass(frozen=True)
class Analysis:
    """The result of `analyze`: each trace, and all of them as if they were one."""

    traces: list[Trace]
    total: Trace
    """All traces together; of one trace, that one."""
    failed: list[Failed]
    """Those that could not be read (with `keep_going`)."""

    @classmethod
    def of(cls, traces: list[Trace], failed: list[Failed]) -> Analysis:
        """The result of these traces, of which there is one at least, and their total."""
        parts = [trace._native[0] for trace in traces]
        total = traces[0] if len(traces) == 1 else Trace.of(parts[0].merged(parts[1:]), parts)
        return cls(traces, total, failed)

    def to_dict(self) -> dict[str, Any]:
        """What the command prints with `--format json`."""
        traces = [trace.to_dict() for trace in self.traces]
        alone = len(traces) == 1 and not self.failed
        whole = traces[0] if alone else {"total": dict(self.total._report)}
        result = {"schema": 1, **whole, "traces": traces}
        if self.failed:
            result["failed"] = [dataclasses.asdict(failed) for failed in self.failed]
        return result

    def flows(self) -> Any:
        """The flows of all traces: see `Trace.flows`."""
        return self.total.flows()

    def distributions(self) -> Any:
        """The histograms of all traces together: see `Trace.distributions`."""
        return self.total.distributions()

    def plot(self) -> Any:
        """The charts of all traces together: see `Trace.plot`."""
        return self.total.plot()


class _Flows:
    """A trace's flows, of which its table is made where its result came from another process or is a copy."""

    def __init__(self, parquet: bytes) -> None:
        self._parquet = parquet

    def flows(self) -> bytes:
        return self._parquet

    def __reduce__(self) -> Any:
        return _Flows, (self._parquet,)


copyreg.pickle(_native.Analysis, lambda one: (_Flows, (one.flows(),)))


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("tables need pyarrow: pip install pyarrow") from error
    return pyarrow, pyarrow.parquet


def _cumulated(histogram: list[dict[str, int]], by_size: bool = False) -> list[dict[str, float]]:
    """Which share is at most so much; of packets in trains instead of trains, with `by_size`."""
    counts = [(bucket["to"], bucket["count"] * (bucket["to"] if by_size else 1)) for bucket in histogram]
    whole, so_far, points = sum(count for _, count in counts), 0, []
    for value, count in counts:
        so_far += count
        points.append({"value": value, "share": so_far / whole})
    return points


def _time(ns: int) -> str:
    return f"{ns / 1000:g} µs"
