"""Captures on a cluster: a data source for Spark, and the analyses of this package over it.

>>> from slipstream import spark as packets
>>> packets.register(spark)
>>> df = spark.read.format("pcap").load("/data/*.pcap.zst")
>>> packets.locality(spark, "/data/*.pcap.zst").total.ip.slf       # as slipstream.analyze of the same files, digit for digit

Needs PySpark 4 and pyarrow: pip install 'slipstream[spark]'. The paths must be there, under the same names,
on the driver and on all executors: a shared file system, or one machine.
"""

from __future__ import annotations

import bisect
import glob
import json
import os
import time
import warnings
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, Optional, Union

import pyarrow
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from . import _native, partials
from ._packets import packets
from .partials import ALL, END, Partial, Span
from .results import Analysis, Failed, words
from .sketches import Sketch

Paths = Union[str, "os.PathLike[str]", Iterable[Union[str, "os.PathLike[str]"]]]

SCHEMA = "file string, split long, number long, time_ns long, link_type int, original_len long, data binary"
"""Columns of packets: which capture; where the part of it begins that was read in one task, and the packet's
number in that; its time in nanoseconds since 1970; the number of its link type, with which `data` begins; its
length on the wire; and what was captured."""


_TASKS_A_CORE, _PARTS_A_TASK, _SKETCHES_A_TASK = 4, 8, 8


def register(spark: SparkSession) -> None:
    """Makes `spark.read.format("pcap")` and `spark.readStream.format("pcap")` known; see `Pcap` for their
    options."""
    spark.dataSource.register(Pcap)


def files(paths: Paths) -> list[str]:
    """The files that paths name: patterns and folders are looked up; the rest is taken as it is. In the order
    of `paths`, those of a pattern or folder by name."""
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    found: list[str] = []
    for path in map(os.fspath, paths):
        if os.path.isdir(path):
            inside = (os.path.join(path, name) for name in sorted(os.listdir(path)) if not name.startswith((".", "_")))
            found += [name for name in inside if os.path.isfile(name)]
        elif os.path.exists(path) or not glob.has_magic(path):
            found.append(path)
        else:
            matching = sorted(glob.glob(path))
            if not matching:
                raise FileNotFoundError(2, "no file has such a name", path)
            found += matching
    if not found:
        raise ValueError("no capture was named")
    return found


@dataclass
class Part(InputPartition):
    """A part of a capture, for one task."""

    file: str
    span: Span

    def __init__(self, file: str, span: Span) -> None:
        super().__init__((file, span))
        self.file, self.span = file, span


class Pcap(DataSource):
    """Packets of captures: pcap and pcapng, plain, gzip or zstd. Options:

    path: file, pattern or folder; also what `load` is given.
    split: bytes of a part that one task reads, 64 MiB by default; 0 reads each file in one piece. Compressed
        files and pcapng are never cut.
    strict: `true` makes damage to a capture an error. Else its packets end where the damage begins; damage in
        a part that is not its file's last one is always an error, since it could not be told where the next
        one begins.
    settle: of a stream: seconds for which a file must not have changed to count as finished, 10 by default.
    files: of a stream: how many files a batch has at most, 1000 by default. With `trigger(once=True)` and
        `trigger(availableNow=True)` a batch has all; before Spark 4.2 so has the first batch of a run.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # A wrong one is an error of `load`: one that the reader of a stream raises, Spark does not tell.
        for check in (_split, _strict, _settle, _most):
            check(options)

    @classmethod
    def name(cls) -> str:
        return "pcap"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(dict(self.options))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _Stream(dict(self.options))


def _paths(options: dict[str, str]) -> list[str]:
    if options.get("path"):
        return [options["path"]]
    # So Spark hands on what `load` was given, where it is several.
    if options.get("paths"):
        return json.loads(options["paths"])
    raise ValueError("no capture was named: load(\"folder/*.pcap\")")


def _parts(file: str, options: dict[str, str]) -> list[Part]:
    """For rows: nobody joins these, so that a pcapng file, which may describe interfaces anywhere, is read in
    one piece."""
    if _is_pcapng(file):
        return [Part(file, ALL)]
    return _cut(file, options)


def _is_pcapng(file: str) -> bool:
    with open(file, "rb") as opened:
        return opened.read(4) == b"\x0a\x0d\x0d\x0a"


def _cut(file: str, options: dict[str, str]) -> list[Part]:
    size = _split(options)
    return [Part(file, span) for span in (partials.spans(file, size) if size else [ALL])]


def _split(options: dict[str, str]) -> int:
    return _number(options, "split", 64 << 20, int, 0, "a number of bytes is wanted; 0 reads each file in one piece")


def _settle(options: dict[str, str]) -> float:
    return _number(options, "settle", 10, float, 0, "a number of seconds is wanted")


def _most(options: dict[str, str]) -> int:
    return _number(options, "files", 1000, int, 1, "a batch has a file at least")


def _number(options: dict[str, str], name: str, default: int, kind: type, least: int, why: str) -> Any:
    text = options.get(name, default)
    try:
        value = kind(text)
        if value >= least:
            return value
    except ValueError:
        pass
    raise ValueError(f"{name}={text}: {why}")


def _strict(options: dict[str, str]) -> bool:
    text = options.get("strict", "false").lower()
    if text not in ("true", "false"):
        raise ValueError(f"strict={text}: there are true and false")
    return text == "true"


class _Reader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self.options, self.strict = options, _strict(options)

    def partitions(self) -> list[InputPartition]:
        return [part for file in files(_paths(self.options)) for part in _parts(file, self.options)]

    def read(self, partition: Any) -> Iterator[pyarrow.RecordBatch]:
        return packets(partition.file, partition.span, strict=self.strict)


class _Stream(DataSourceStreamReader):
    """Files are read once they are finished, each once; which ones were is the stream's offset."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options, self.strict = options, _strict(options)
        self.settle, self.most = _settle(options), _most(options)
        self.known: Optional[list[str]] = None

    def initialOffset(self) -> dict:
        return {"files": []}

    def getDefaultReadLimit(self) -> Any:
        from pyspark.sql.streaming.datasource import ReadMaxFiles

        return ReadMaxFiles(self.most)

    def latestOffset(self, start: Optional[dict] = None, limit: Any = None) -> dict:
        """`start` has the files that were read, also by a run before this one, and `limit` says how many more
        there may be. Spark 4.0 and 4.1 tell neither."""
        most: Optional[int] = self.most
        if start is not None:
            known, most = start["files"], getattr(limit, "max_files", None)
        elif self.known is not None:
            known = self.known
        else:
            # An earlier run may have read any of them. An offset with fewer files than that run's would have
            # the others read once more, so that the first one has them all.
            known, most = [], None
        seen, now, more = set(known), time.time(), []
        for path in _paths(self.options):
            try:
                names = files(path)
            except (FileNotFoundError, ValueError):
                continue
            for name in names:
                try:
                    finished = name not in seen and now - os.stat(name).st_mtime >= self.settle
                except OSError:
                    continue
                if finished:
                    more.append(name)
        self.known = known + sorted(set(more))[:most]
        return {"files": self.known}

    def partitions(self, start: dict, end: dict) -> list[InputPartition]:
        before = set(start["files"])
        self.known = end["files"]
        return [part for file in end["files"] if file not in before for part in _parts(file, self.options)]

    def read(self, partition: Any) -> Iterator[pyarrow.RecordBatch]:
        return packets(partition.file, partition.span, strict=self.strict)

    def commit(self, end: dict) -> None:
        pass


def locality(spark: Optional[SparkSession], source: Union[DataFrame, Paths], *, split: int = 64 << 20, keep_going: bool = False,
             groups: Optional[int] = None, **settings: Any) -> Analysis:
    """Gives what `slipstream.analyze` gives of the same captures, digit for digit, worked out by the cluster.

    source: captures (files, patterns, folders), or a DataFrame of packets of `spark.read.format("pcap")`,
        also filtered, with its rows still in the order in which they were read.
    split: bytes of a part that one task analyses; 0 takes each file in one piece. Neighbouring parts that
        fall to the same task are analysed in one go, so that only what several tasks read is joined
        afterwards.
    keep_going: files that can't be read go to `failed` of the result, and the others are right; else the
        first of them raises its exception.
    groups: tasks that join the parts of files; as many as Spark takes in parallel by default.
    Further settings are those of `analyze`: windows, burst, top, tunnel.
    """
    given = partials.settings(**settings)
    # It raises what is wrong with them here, before tasks do.
    _native.Builder(given, True, False)
    if isinstance(source, DataFrame):
        return _locality_of(source, given)
    if spark is None:
        raise ValueError("a SparkSession is needed")
    named = files(source)
    tasks, failed = plan(named, split)
    if failed and not keep_going:
        raise _again(failed[0].file)
    joined = _joined(spark, tasks, given, groups)
    traces = []
    errors = {one.file: one for one in failed}
    # A file that is named twice counts twice, as `analyze` has it, and is read once.
    for file in named:
        if file in errors:
            continue
        outcome = joined[file]
        if outcome[:1] == b"!":
            errors[file] = Failed(file, outcome[1:].decode())
            if not keep_going:
                raise _again(file, errors[file].error)
        else:
            traces.append(Partial.from_bytes(outcome).trace())
    if not traces:
        raise _again(*next(iter((one.file, one.error) for one in errors.values())))
    return Analysis.of(traces, [errors[file] for file in named if file in errors])


def plan(named: list[str], split: int) -> tuple[list[Part], list[Failed]]:
    """Parts of files, and files that can't be read."""
    parts, failed = [], []
    for file in dict.fromkeys(named):
        try:
            parts += _cut(file, {"split": str(split)})
        except (OSError, _native.CaptureError) as error:
            failed.append(Failed.of(file, error))
    return parts, failed


def analyse(part: Part, settings: dict[str, Any]) -> bytes:
    """The analysis of a part, as bytes."""
    return _native.stretch(part.file, part.span, settings=settings, keep=False, walk=False, progress=None).save()


def rejoin(file: str, parts: list[tuple[Span, bytes]], settings: dict[str, Any]) -> bytes:
    """The parts of a file, in order, as one. A part that failed, or that doesn't follow the one before, is
    made anew."""
    redo = partials.redo_from(file, settings)
    whole: Optional[Partial] = None
    for span, state in parts:
        if whole is not None and whole.truncated_at_byte is not None:
            break
        if state[:1] == b"!":
            # It was cut in a wrong place, or begins in one: from where the one before ends, it is right.
            begin = whole.span[1] if whole is not None else 0
            if span[1] <= begin:
                continue
            next_ = _reaching(redo, begin, span[1])
        else:
            next_ = Partial.from_bytes(state)
        if whole is None:
            whole = next_
            continue
        try:
            whole.join(next_)
        except partials.PartialError as error:
            if error.reason not in ("unresolved", "gap"):
                raise
            # To its end as it was cut: where it ends itself may come of what it took to hold.
            if span[1] <= whole.span[1]:
                continue
            try:
                whole.join(_reaching(redo, whole.span[1], span[1]))
            except partials.PartialError:
                # A file that describes interfaces in the middle is taken in one piece.
                return redo(ALL, False, False).to_bytes()
    if whole is None:
        raise ValueError(f"{file}: no parts")
    return whole.to_bytes()


def _reaching(redo: Callable[[Span, bool, bool], Partial], begin: int, end: int) -> Partial:
    """A part from a place where a record begins; it goes on to the end of the file where none begins at
    `end`."""
    try:
        return redo((begin, end), begin > 0, begin > 0)
    except _native.CaptureError:
        return redo((begin, END), begin > 0, begin > 0)


class NullWarning(UserWarning):
    """Rows without a key or without a weight were left out of a sketch."""


def sketch(source: DataFrame, column: str, *, weight: Optional[str] = None, **sketch_settings: Any) -> Sketch:
    """A sketch of the values of a column, merged from those of all partitions:
    `sketch(df, "src", task="cardinality")`.

    column: bytes of the sketch's key length, or addresses as text. weight: a column of whole numbers, 1 by
        default. The settings are those of `slipstream.Sketch`.

    Rows whose key or weight is null are left out, as Spark's own aggregates do it; a `NullWarning` says how
    many there were.
    """
    columns = [column] + ([weight] if weight else [])
    chosen = source.select(*columns)
    _check_types(chosen)
    whole = Sketch(**sketch_settings)

    def make(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        mine, left_out = Sketch(**sketch_settings), 0
        for batch in batches:
            values = [column.to_pylist() for column in batch.columns]
            if any(column.null_count for column in batch.columns):
                rows = [row for row in zip(*values) if None not in row]
                left_out += batch.num_rows - len(rows)
                values = [list(column) for column in zip(*rows)]
            if values:
                mine.update(*values)
        yield _state(TaskContext.get().partitionId(), mine, left_out)

    def unite(table: pyarrow.Table) -> pyarrow.Table:
        rows = sorted(zip(*(table[name].to_pylist() for name in ("number", "state", "left_out"))))
        first = Sketch.from_bytes(rows[0][1])
        for _, state, _ in rows[1:]:
            first.merge(Sketch.from_bytes(state))
        return pyarrow.Table.from_batches([_state(rows[0][0], first, sum(left_out for _, _, left_out in rows))])

    # Sketches of neighbouring partitions are merged by tasks, so that the driver gets few; in the order of
    # partitions, on which what some kinds of sketches keep depends.
    made = chosen.mapInArrow(make, _STATE)
    united = made.groupBy((made["number"] / _SKETCHES_A_TASK).cast("long")).applyInArrow(unite, _STATE)
    left_out = 0
    for row in sorted(united.collect(), key=lambda row: row["number"]):
        whole.merge(Sketch.from_bytes(bytes(row["state"])))
        left_out += row["left_out"]
    if left_out:
        rows = "1 row has" if left_out == 1 else f"{left_out:,} rows have"
        warnings.warn(f"{rows} no {' or no '.join(columns)}: left out of the sketch", NullWarning, stacklevel=2)
    return whole


_STATE = "number long, state binary, left_out long"


def _state(number: int, made: Sketch, left_out: int) -> pyarrow.RecordBatch:
    return pyarrow.RecordBatch.from_arrays([pyarrow.array([number], pyarrow.int64()), pyarrow.array([made.to_bytes()], pyarrow.binary()),
                                            pyarrow.array([left_out], pyarrow.int64())], ["number", "state", "left_out"])


def _check_types(chosen: DataFrame) -> None:
    """Says of a column of keys or weights that it can't be one, before tasks do."""
    wanted = [("binary", "string"), ("tinyint", "smallint", "int", "bigint")]
    names = ["keys are bytes (binary), or addresses as text (string)", "weights are whole numbers (int, bigint)"]
    for field, kinds, why in zip(chosen.schema.fields, wanted, names):
        if field.dataType.simpleString() not in kinds:
            raise TypeError(f"{field.name} is a column of {field.dataType.simpleString()}: {why}")


def _joined(spark: SparkSession, tasks: list[Part], settings: dict[str, Any], groups: Optional[int]) -> dict[str, bytes]:
    """The analyses of parts, each made by a task, and those of a file joined by another one."""
    if not tasks:
        return {}

    shares = share(tasks, _tasks(spark, len(tasks)))
    tasks = [part for parts in shares for part in parts]

    def make(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for at, part in enumerate(shares[number], sum(map(len, shares[:number]))):
                    yield _row(part.file, at, _outcome(lambda part=part: analyse(part, settings)))

    def unite(table: pyarrow.Table) -> pyarrow.Table:
        rows = sorted(zip(table["number"].to_pylist(), table["state"].to_pylist()))
        file = tasks[rows[0][0]].file
        parts = [(tasks[number].span, state) for number, state in rows]
        return pyarrow.Table.from_batches([_row(file, rows[0][0], _outcome(lambda: rejoin(file, parts, settings)))])

    columns = "file string, number long, state binary"
    made = spark.range(0, len(shares), 1, len(shares)).mapInArrow(make, columns)
    several = len({task.file for task in tasks}) < len(tasks)
    if several:
        made = (made.repartition(groups, "file") if groups else made).groupBy("file").applyInArrow(unite, columns)
    return {row["file"]: bytes(row["state"]) for row in made.collect()}


def _tasks(spark: SparkSession, parts: int) -> int:
    """Tasks of Spark for so many parts. A task costs Spark and Python as much as some hundred thousand
    packets, so that each takes several parts, as long as there are enough tasks for all cores to be busy to
    the end; what is lost with a task is little."""
    try:
        cores = spark.sparkContext.defaultParallelism
    except Exception:  # A session by Spark Connect doesn't say.
        return parts
    return max(1, min(parts, max(_TASKS_A_CORE * cores, -(-parts // _PARTS_A_TASK))))


def share(parts: list[Part], tasks: int) -> list[list[Part]]:
    """Shares parts out to so many tasks or fewer, in order and about as many to each. A share ends where a
    file does if it can, since neighbouring parts of a file in a share become one part: what one task has read
    needs no joining."""
    ends = [at for at in range(1, len(parts)) if parts[at].file != parts[at - 1].file] + [len(parts)]
    cuts, room = [0], len(parts) / tasks / 4
    for number in range(1, tasks + 1):
        want = number * len(parts) // tasks
        after = bisect.bisect_left(ends, want)
        near = min(ends[max(0, after - 1):after + 1], key=lambda end: abs(end - want))
        cut = near if abs(near - want) <= room else want
        if cut > cuts[-1]:
            cuts.append(cut)
    shares = []
    for begin, end in zip(cuts, cuts[1:]):
        one: list[Part] = []
        for part in parts[begin:end]:
            if one and one[-1].file == part.file and one[-1].span[1] == part.span[0]:
                one[-1] = Part(part.file, (one[-1].span[0], part.span[1]))
            else:
                one.append(part)
        shares.append(one)
    return shares


def _row(file: str, number: int, state: bytes) -> pyarrow.RecordBatch:
    return pyarrow.RecordBatch.from_arrays([pyarrow.array([file], pyarrow.string()), pyarrow.array([number], pyarrow.int64()),
                                            pyarrow.array([state], pyarrow.binary())], ["file", "number", "state"])


def _outcome(work: Callable[[], bytes]) -> bytes:
    """What came out, or `!` and why nothing did: a file that can't be read is no failure of the task."""
    try:
        return work()
    except (OSError, _native.CaptureError) as error:
        return b"!" + words(error).encode()


def _again(file: str, text: str = "") -> Exception:
    """The exception that a file raises."""
    try:
        for _ in packets(file):
            pass
    except (OSError, _native.CaptureError) as error:
        return error
    return _native.CaptureError(text or f"{file}: can't be read")


def _locality_of(source: DataFrame, settings: dict[str, Any]) -> Analysis:
    """Each partition's packets are one stretch or several: of a file, and from one split of it on."""

    def one(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        builder, here, last = None, ("", 0), (0, 0)
        def end() -> pyarrow.RecordBatch:
            state = builder.finish(here[0]).save()
            return pyarrow.RecordBatch.from_pydict({
                "file": [here[0]], "split": pyarrow.array([here[1]], pyarrow.int64()), "number": pyarrow.array([first], pyarrow.int64()),
                "last_split": pyarrow.array([last[0]], pyarrow.int64()), "last_number": pyarrow.array([last[1]], pyarrow.int64()),
                "state": pyarrow.array([state], pyarrow.binary())})
        for batch in batches:
            absent = [name for name, column in zip(names, batch.columns) if column.null_count]
            if absent:
                raise ValueError(f"packets without {absent[0]} (null): leave those rows out")
            for piece in _pieces(batch):
                file, split, numbers = piece.column(0)[0].as_py(), piece.column(1)[0].as_py(), piece.column(2)
                if builder is None or file != here[0]:
                    if builder is not None:
                        yield end()
                    builder, here, first = _native.Builder(settings, False, True), (file, split), numbers[0].as_py()
                elif (split, numbers[0].as_py()) <= last:
                    raise ValueError(f"{file}: packets are not in the order of the file: sort them by file, split and number")
                if not _ascending(numbers):
                    raise ValueError(f"{file}: packets are not in the order of the file: sort them by file, split and number")
                builder.add(*map(_buffer, piece.columns[3:6]), *_binary(piece.column(6)))
                last = (split, numbers[-1].as_py())
        if builder is not None:
            yield end()

    schema = "file string, split long, number long, last_split long, last_number long, state binary"
    # Their bytes are read as they are in memory: columns of other types would be other packets.
    names, kinds = zip(*(column.split() for column in SCHEMA.split(", ")))
    columns = source.select(*(source[name].cast(kind) for name, kind in zip(names, kinds)))
    rows = columns.mapInArrow(one, schema).collect()
    rows.sort(key=lambda row: (row["file"], row["split"], row["number"]))
    for before, after in zip(rows, rows[1:]):
        if before["file"] == after["file"] and (before["last_split"], before["last_number"]) >= (after["split"], after["number"]):
            raise ValueError(f"{after['file']}: packets are not in the order of the file: sort them by file, split and number")
    if not rows:
        raise ValueError("there are no packets")
    traces: dict[str, Partial] = {}
    for row in rows:
        part = Partial.from_bytes(bytes(row["state"]))
        if row["file"] in traces:
            traces[row["file"]].join(part)
        else:
            traces[row["file"]] = part
    return Analysis.of([part.trace() for part in traces.values()], [])


def _pieces(batch: pyarrow.RecordBatch) -> Iterator[pyarrow.RecordBatch]:
    """Consecutive rows of one file and split."""
    begin = 0
    keys = list(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist()))
    for at in range(1, len(keys) + 1):
        if at == len(keys) or keys[at] != keys[begin]:
            yield batch.slice(begin, at - begin)
            begin = at


def _ascending(numbers: pyarrow.Array) -> bool:
    import pyarrow.compute as compute

    return len(numbers) < 2 or compute.all(compute.greater(numbers[1:], numbers[:-1])).as_py()


def _buffer(column: pyarrow.Array) -> bytes:
    """The values of a column of numbers, as they are in memory."""
    width = column.type.bit_width // 8
    return column.buffers()[1].to_pybytes()[column.offset * width:(column.offset + len(column)) * width]


def _binary(column: pyarrow.Array) -> tuple[bytes, bytes]:
    column = column.cast(pyarrow.binary())
    offsets, data = column.buffers()[1], column.buffers()[2]
    return (offsets.to_pybytes()[column.offset * 4:(column.offset + len(column) + 1) * 4], data.to_pybytes() if data else b"")
