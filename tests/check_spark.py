#!/usr/bin/env python3
"""Parts of traces and Spark, as `pip install '.[spark]'` gives them: results are those of the binary.

usage: check_spark.py [target/release/slipstream] [--only TEXT] [--python PYTHON]

Digit for digit: one process, parts joined, Spark with 1, 2 and 4 partitions a file, a damaged file among
many, a flow that is half of the trace, Python workers and an executor killed in the middle. Needs Java 17 or
later. The environment has all that the package may use, so that its notebooks are run here, and its stubs
checked.
"""

import argparse
import base64
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from random import Random

import harness
from check_python import Checks as Package
from check_python import captures, inside, install

SIZE = 64 << 10


def half(path, packets):
    """A pcap file in which every other packet is of one flow; the others are of many."""
    record, state = [], 1
    for n in range(packets):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        other = 0 if n % 2 else 1 + (state >> 33) % 3000
        frame = bytes(12) + b"\x08\x00\x45\x00\x00\x28" + bytes(5) + b"\x06\x00\x00" + (0x0a000000 + other).to_bytes(4, "big")
        frame = frame[:22] + b"\x40\x06" + frame[24:]
        frame += b"\x0a\x01\x00\x01\x01\xbb\x04\x00" + bytes(8) + b"\x50\x10" + bytes(6)
        at = 1_700_000_000_000_000_000 + n * 300
        length = len(frame).to_bytes(4, "little")
        record.append((at // 10**9).to_bytes(4, "little") + (at % 10**9).to_bytes(4, "little") + length * 2 + frame)
    path.write_bytes(b"\x4d\x3c\xb2\xa1\x02\0\x04\0" + bytes(8) + b"\0\0\x04\0\x01\0\0\0" + b"".join(record))


class Checks(Package):
    """What is checked inside of the virtual environment."""

    def __init__(self, binary, where, scratch):
        super().__init__(binary, where, scratch)
        self.session = None
        # What Spark leaves behind goes away with the scratch directory.
        os.chdir(scratch)

    def close(self):
        if self.session is not None:
            self.session.stop()
        os.chdir("/")

    def spark(self, master="local[2,4]"):
        from pyspark.sql import SparkSession

        from slipstream import spark as packets

        if self.session is not None and self.session.conf.get("spark.master") != master:
            self.session.stop()
            self.session = None
        if self.session is None:
            os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
            builder = SparkSession.builder.master(master).appName("check")
            for name, value in {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1",
                                "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g", "spark.log.level": "OFF", "spark.ui.showConsoleProgress": "false",
                                "spark.sql.execution.pyspark.python": sys.executable, "spark.python.authenticate.socketTimeout": "60s"}.items():
                builder = builder.config(name, value)
            self.session = builder.getOrCreate()
            packets.register(self.session)
        return self.session, packets

    def made(self):
        """Generated captures: large enough to be cut, of both formats; compressed; and one with a flow that
        is half of it."""
        where = self.scratch / "made"
        if not where.exists():
            where.mkdir()
            self.slipstream.synth(where / "a.pcap", flows=2000, packets=20_000, slf=2, rate="5mpps", snap_len=80)
            self.slipstream.synth(where / "b.pcapng", flows=200, packets=20_000, rate="1mpps", size=200, snap_len=64, ipv6=0.3)
            self.slipstream.synth(where / "c.pcap.zst", flows=50, packets=5000)
            half(where / "d.pcap", 20_000)
        return sorted(where.iterdir())

    def parts(self):
        """Without Spark: files cut into parts, each analysed by itself, through bytes, in any order."""
        s = self.slipstream
        for path in [*self.made(), *captures(self.where)]:
            want = self.command("analyze", path)
            if want is None:
                self.raises((OSError, ValueError), lambda path=path: s.spans(path), str(path))
                continue
            for size in (SIZE, 300_000, max(1, path.stat().st_size // 3)):
                spans = s.spans(path, size)
                assert spans[0][0] == 0 and spans[-1][1] == 2**64 - 1 and all(a[1] == b[0] for a, b in zip(spans, spans[1:])), spans
                parts = [s.Partial.from_bytes(s.partial(path, span).to_bytes()) for span in spans]
                got = s.merge(reversed(parts)).to_dict()
                self.same(got, want, f"{path} in {len(spans)}")
                if size == SIZE and path.parent == self.scratch / "made":
                    assert len(spans) >= (1 if path.suffix == ".zst" else 4), (path, spans)
        self.states()
        self.cut_wrong()
        self.crossed()
        self.walked()

    def crossed(self):
        """Parts that the command saved are Python's, byte for byte, and the other way round; also joined
        across."""
        s, path = self.slipstream, self.made()[0]
        want = self.command("analyze", path)
        for number in (1, 2, 4):
            theirs = [self.scratch / f"{n}.part" for n in range(1, number + 1)]
            for n, part in enumerate(theirs, 1):
                assert self.command("analyze", "--part", f"{n}/{number}", "--save", part, path), part
            parts = [s.Partial.load(part) for part in theirs]
            ours = [s.partial(path, (part.span[0], part.span[1] if part is not parts[-1] else 2**64 - 1)) for part in parts]
            assert [part.to_bytes() for part in ours] == [part.read_bytes() for part in theirs]
            self.same(s.merge(parts[::-1]).to_dict(), want, "the command's parts in Python")
            for part, mine in list(zip(theirs, ours))[::2]:
                mine.save(part)
            self.same(self.command("analyze", "merge", *theirs), want, "Python's parts in the command")
        self.raises(s.PartialError, lambda: s.merge(parts[1:]), "no part begins", reason="missing")
        self.raises(s.PartialError, lambda: s.merge(parts[:-1]), "no part ends", reason="missing")
        self.raises(s.PartialError, lambda: s.merge([parts[0], *parts[2:]]), reason="gap")
        # In a compressed file nothing is left for a second part.
        zst = self.made()[2]
        for n in (1, 2):
            self.command("analyze", "--part", f"{n}/2", "--save", self.scratch / f"{n}.part", zst)
        got = s.merge([s.Partial.load(self.scratch / f"{n}.part") for n in (2, 1)])
        self.same(got.to_dict(), self.command("analyze", zst), "a part with nothing in it")

    def walked(self):
        """A part of a pcapng file behind the description of another interface: over all that comes before it,
        it is right."""
        s, path = self.slipstream, self.mixed()
        middle = s.spans(path, path.stat().st_size * 3 // 4)[-1][0]
        first, last = s.partial(path, (0, middle)), s.partial(path, (middle, 2**64 - 1), walk=True)
        self.same(s.merge([last, first]).to_dict(), self.command("analyze", path), "walked")
        batches = list(s.packets(path, (middle, 2**64 - 1), walk=True))
        assert {link for batch in batches for link in batch.column("link_type").to_pylist()} == {101}
        assert sum(batch.num_rows for batch in batches) == last.records
        self.raises(s.CaptureError, lambda: s.partial(path, (middle + 4, 2**64 - 1), walk=True), str(path), byte=middle + 4)

    def states(self):
        """Saved parts: read again, damaged, of another version, of other settings, out of order."""
        s = self.slipstream
        path = self.made()[0]
        parts = [s.partial(path, span) for span in s.spans(path, 400_000)]
        saved = self.scratch / "a.partial"
        parts[1].save(saved)
        assert s.Partial.load(saved).to_bytes() == parts[1].to_bytes()
        data = saved.read_bytes()
        for at in [*range(0, 200, 11), len(data) - 1]:
            for wrong in (data[:at], data[:at] + bytes([data[at] ^ 8]) + data[at + 1:]):
                saved.write_bytes(wrong)
                error = self.raises(s.StateError, lambda: s.Partial.load(saved), str(saved), "byte ", file=str(saved))
                assert isinstance(error.byte, int), error
        newer = data[:8] + b"\x09\0" + data[10:]
        self.raises(s.StateError, lambda: s.Partial.from_bytes(newer), "version 9", byte=8)
        self.raises(s.PartialError, lambda: parts[0].join(parts[2]), reason="gap")
        self.raises(s.PartialError, lambda: parts[1].join(parts[0]), reason="opens")
        self.raises(s.PartialError, lambda: parts[0].join(s.partial(path, s.spans(path, 400_000)[1], burst=7)), reason="settings")
        self.raises(s.PartialError, lambda: parts[1].join(s.partial(self.made()[1])), reason="opens")
        self.raises(ValueError, lambda: s.spans(path, 0), "size")
        self.raises(ValueError, lambda: s.merge([]), "no parts")
        self.raises(FileNotFoundError, lambda: s.spans(self.scratch / "missing.pcap"), "missing.pcap")

    def cut_wrong(self):
        """A part that begins or ends where no record does is an exception with the byte, and is made anew
        from where one does."""
        s = self.slipstream
        from slipstream import partials

        path = self.made()[0]
        first, second = s.spans(path, 400_000)[:2]
        wrong = first[1] + 3
        self.raises(s.CaptureError, lambda: s.partial(path, (0, wrong)), str(wrong), file=str(path), byte=wrong)
        given = partials.settings()
        from slipstream import spark as packets

        states = []
        for span in ((0, wrong), (wrong, second[1]), (second[1], partials.END)):
            try:
                states.append((span, s.partial(path, span).to_bytes()))
            except s.CaptureError as error:
                states.append((span, b"!" + str(error).encode()))
        whole = s.Partial.from_bytes(packets.rejoin(str(path), states, given))
        self.same(whole.trace().to_dict(), self.command("analyze", path)["traces"][0], "made anew")

    def locality(self):
        """The cluster's analysis is the command's: with parts of every size, from paths and from
        DataFrames."""
        spark, packets = self.spark()
        several = self.made()
        want = self.command("analyze", *several)
        for partitions in (1, 2, 4):
            size = max(1, max(path.stat().st_size for path in several) // partitions) if partitions > 1 else 0
            got = packets.locality(spark, several, split=size).to_dict()
            self.same(got, want, f"{partitions} partitions a file")
        pattern = packets.locality(spark, str(self.scratch / "made" / "*"), split=500_000)
        self.same(pattern.to_dict(), want, "pattern")
        frame = spark.read.format("pcap").option("split", 400_000).load(str(self.scratch / "made"))
        assert frame.rdd.getNumPartitions() >= 8, frame.rdd.getNumPartitions()
        self.same(packets.locality(spark, frame).to_dict(), want, "a DataFrame")
        words = ("--window", "5us,1ms", "--burst", 7, "--top", 3)
        got = packets.locality(spark, several[0], split=200_000, windows=["5us", "1ms"], burst=7, top=3).to_dict()
        self.same(got, self.command("analyze", several[0], *words), "settings")
        small = [path for path in captures(self.where) if self.command("analyze", path)]
        self.same(packets.locality(spark, small, split=100_000).to_dict(), self.command("analyze", *small), "captures")

    def shares(self):
        """Parts shared out to tasks: nothing is lost or turned round, neighbours are one, and files stay
        whole where they can."""
        from slipstream import spark as packets

        random = Random(7)
        for _ in range(2000):
            parts = []
            for file in range(random.randint(1, 12)):
                cuts = [0, *sorted(random.sample(range(1, 100), random.choice((0, 0, 1, 3, random.randint(0, 40))))), 2**64 - 1]
                parts += [packets.Part(str(file), span) for span in zip(cuts, cuts[1:])]
            tasks = random.randint(1, len(parts))
            shared = packets.share(parts, tasks)
            assert 1 <= len(shared) <= tasks and all(shared), (len(shared), tasks)
            flat = [part for one in shared for part in one]
            assert list(dict.fromkeys(part.file for part in flat)) == list(dict.fromkeys(part.file for part in parts))
            for file in {part.file for part in parts}:
                spans, whole = [part.span for part in flat if part.file == file], [part.span for part in parts if part.file == file]
                assert spans[0][0] == 0 and spans[-1][1] == whole[-1][1] and all(a[1] == b[0] for a, b in zip(spans, spans[1:]))
                assert {begin for begin, _ in spans} <= {begin for begin, _ in whole}
            for one in shared:
                assert len({part.file for part in one}) == len(one), "neighbours of one file are two parts"
                held = sum(1 for part in parts for mine in one if mine.file == part.file and mine.span[0] <= part.span[0] < mine.span[1])
                assert held <= 2 * -(-len(parts) // tasks) + 1, "a task has far more than its share"
        even = [packets.Part(str(file), span) for file in range(8) for span in ((0, 5), (5, 9), (9, 20), (20, 2**64 - 1))]
        assert packets.share(even, 4) == [[packets.Part(str(file), packets.ALL) for file in pair] for pair in ((0, 1), (2, 3), (4, 5), (6, 7))]

    def frame(self):
        """Rows: as many as there are packets, their bytes the same, whatever the parts."""
        spark, packets = self.spark()
        path = self.made()[0]
        whole = spark.read.format("pcap").option("split", 0).load(str(path))
        assert whole.columns == ["file", "split", "number", "time_ns", "link_type", "original_len", "data"]
        rows = whole.orderBy("split", "number").collect()
        parts = spark.read.format("pcap").option("split", 300_000).load(str(path)).orderBy("split", "number").collect()
        assert len(rows) == len(parts) == 20_000
        assert all(a[3:] == b[3:] for a, b in zip(rows, parts))
        data = path.read_bytes()
        at = int.from_bytes(data[24:28], "little") * 10**9 + int.from_bytes(data[28:32], "little")
        assert rows[0]["time_ns"] == at and rows[0]["link_type"] == 1 and bytes(rows[0]["data"]) == data[40:120]
        # A pattern may begin with a bracket, as a list in JSON does.
        assert packets._paths({"path": "[0-9]*.pcap"}) == ["[0-9]*.pcap"]  # pylint: disable=protected-access
        assert spark.read.format("pcap").load([str(one) for one in self.made()[:2]]).select("file").distinct().count() == 2
        filtered = spark.read.format("pcap").load(str(path)).where("original_len > 400")
        assert packets.locality(spark, filtered).total.records == sum(row["original_len"] > 400 for row in rows)
        mixed = spark.read.format("pcap").load(str(path)).orderBy("time_ns", ascending=False)
        self.raises(Exception, lambda: packets.locality(spark, mixed), "order")
        heavy = whole.selectExpr("substring(data, 27, 4) AS src", "original_len AS bytes")
        merged = packets.sketch(heavy.repartition(4), "src", kind="exact", weight="bytes")
        one = self.slipstream.Sketch("exact")
        one.update([bytes(row["data"])[26:30] for row in rows], [row["original_len"] for row in rows])
        assert merged == one
        for kind, values in (("exaloglog", None), ("ddsketch", "bytes")):
            # Their states are the same, whoever made them and in how many parts.
            alone = self.slipstream.Sketch(kind, memory=1 << 14)
            alone.update([bytes(row["data"])[26:30] for row in rows], [row["original_len"] for row in rows] if values else 1)
            assert packets.sketch(heavy.repartition(3), "src", kind=kind, memory=1 << 14, weight=values) == alone
        estimate = packets.sketch(heavy, "src", task="cardinality").cardinality().estimate
        assert abs(estimate - one.cardinality().estimate) <= 0.1 * one.cardinality().estimate

    def columns(self):
        """Sketches of all partitions are made in one job, and some keep what comes first: the same each time.
        Rows with null are left out and counted; columns that can't be what they should are told."""
        spark, packets = self.spark()
        values = [(bytes([10, 0, n % 7, n % 50]) if n % 11 else None, n % 13 or None) for n in range(1000)]
        frame = spark.createDataFrame(values, "src binary, bytes long").repartition(12).cache()
        for weight, rows in ((None, [(key, 1) for key, _ in values if key]), ("bytes", [row for row in values if None not in row])):
            one = self.slipstream.Sketch("exact")
            one.update(*map(list, zip(*rows)))
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                assert packets.sketch(frame, "src", kind="exact", weight=weight) == one
            told = [str(one.message) for one in told if one.category is packets.NullWarning]
            assert len(told) == 1 and told[0].startswith(f"{1000 - len(rows)} rows have no src"), told
        full = frame.dropna()
        with warnings.catch_warnings():
            warnings.simplefilter("error", packets.NullWarning)
            few = [packets.sketch(full, "src", kind="space-saving", memory=400, weight="bytes").to_bytes() for _ in range(3)]
            assert packets.sketch(full.where("bytes < 0"), "src", kind="exact").weight == 0
        assert len(set(few)) == 1
        context = spark.sparkContext
        context.setJobGroup("sketch", "")
        packets.sketch(full, "src", kind="exact")
        tracker = context.statusTracker()
        stages = [tracker.getStageInfo(stage) for job in tracker.getJobIdsForGroup("sketch") for stage in tracker.getJobInfo(job).stageIds]
        context.setLocalProperty("spark.jobGroup.id", None)
        assert any(stage.numTasks == 12 for stage in stages if stage), stages
        for column, weight in (("bytes", None), ("src", "src")):
            self.raises(TypeError, lambda column=column, weight=weight: packets.sketch(full, column, kind="exact", weight=weight),
                        f"{weight or column} is a column of")
        self.raises(Exception, lambda: packets.sketch(full, "src", kind="exact", key_bytes=16), "a key of 4 bytes")
        rows = [("a", 0, n, n * 1000, 1, 60, bytes(60)) for n in range(5)]
        small = spark.createDataFrame(rows, packets.SCHEMA).coalesce(1)
        want = packets.locality(spark, small).to_dict()
        narrow = small.selectExpr("file", "int(split) split", "int(number) number", "int(time_ns) time_ns", "bigint(link_type) link_type",
                                  "int(original_len) original_len", "data")
        self.same(packets.locality(spark, narrow).to_dict(), want, "columns of other widths")
        for at, name in enumerate(small.columns):
            lacking = spark.createDataFrame([*rows[:4], (*rows[4][:at], None, *rows[4][at + 1:])], packets.SCHEMA).coalesce(1)
            self.raises(Exception, lambda lacking=lacking: packets.locality(spark, lacking), f"packets without {name}")

    def bad(self):
        """A damaged file among many is listed, the rest is right; others have an exception that names
        them."""
        spark, packets = self.spark()
        several = self.made()
        empty, text, cut = (self.scratch / name for name in ("empty.pcap", "text.pcap", "cut.pcap"))
        empty.write_bytes(b"")
        text.write_bytes(b"not a capture, but a text of some length")
        cut.write_bytes(several[0].read_bytes()[:-5])
        missing = self.scratch / "missing.pcap"
        got = packets.locality(spark, [*several, empty, text, missing, cut], split=400_000, keep_going=True)
        assert [one.file for one in got.failed] == [str(empty), str(text), str(missing)], got.failed
        assert all(str(path) in one.error for path, one in zip((empty, text, missing), got.failed))
        want = self.command("analyze", *several, cut)
        got = got.to_dict()
        del got["failed"]
        self.same(got, want, "with files that can't be read")
        assert got["traces"][-1]["truncated_at_byte"] == self.command("analyze", cut)["truncated_at_byte"]
        twice = [several[0], several[1], several[0]]
        self.same(packets.locality(spark, twice).to_dict(), self.command("analyze", *twice), "a file that is named twice")
        s = self.slipstream
        self.raises(s.CaptureError, lambda: packets.locality(spark, [several[0], text]), str(text), byte=0)
        self.raises(FileNotFoundError, lambda: packets.locality(spark, missing), "missing.pcap")
        for wrong in ({"burst": 0}, {"windows": "5"}):
            self.raises(ValueError, lambda wrong=wrong: packets.locality(spark, several[0], **wrong), next(iter(wrong)))
        self.raises(FileNotFoundError, lambda: packets.locality(spark, str(self.scratch / "no*.pcap")), "no*.pcap")
        self.raises(Exception, lambda: spark.read.format("pcap").load(str(text)).count(), str(text))
        self.raises(Exception, lambda: spark.read.format("pcap").option("strict", "true").load(str(cut)).count(), str(cut))
        for option, wrong in (("strict", "maybe"), ("split", "64MiB"), ("split", "-1"), ("settle", "soon"), ("files", "0")):
            for read in (spark.read, spark.readStream):
                self.raises(Exception, lambda read=read, option=option, wrong=wrong: read.format("pcap").option(option, wrong).load(str(cut)),
                            f"{option}={wrong}: ")
        assert spark.read.format("pcap").load(str(cut)).count() == 19_999
        for data, records in ((several[0].read_bytes()[:24], 0), (self.one_packet(several[0]), 1)):
            path = self.scratch / "small.pcap"
            path.write_bytes(data)
            assert packets.locality(spark, path, split=10).total.records == records
            assert spark.read.format("pcap").load(str(path)).count() == records

    def times(self):
        """Packets of 1970, of 2100 and later, and with several link types in one file."""
        spark, packets = self.spark()
        base = self.made()[0].read_bytes()
        for seconds in (0, 5, 4_102_444_800, 2**32 - 10):
            path = self.scratch / "times.pcap"
            path.write_bytes(base[:24] + b"".join(
                (seconds + n // 1000).to_bytes(4, "little") + (n % 1000 * 10**6).to_bytes(4, "little") + base[32:32 + 8 + 80]
                for n in range(6000)))
            got = packets.locality(spark, path, split=100_000).to_dict()
            self.same(got, self.command("analyze", path), f"{seconds} s")
        mixed = self.mixed()
        want = self.command("analyze", mixed)
        self.same(packets.locality(spark, mixed, split=400_000).to_dict(), want, "mixed link types")
        assert spark.read.format("pcap").option("split", 400_000).load(str(mixed)).groupBy("link_type").count().count() == 2

    def mixed(self):
        """A pcapng file that describes a second interface, of another link type, in the middle: its packets
        follow to the end."""
        mixed = self.scratch / "mixed.pcapng"
        block = self.made()[1].read_bytes()
        section = int.from_bytes(block[4:8], "little")
        interface = block[section:section + int.from_bytes(block[section + 4:section + 8], "little")]
        raw = interface[:8] + (101).to_bytes(2, "little") + interface[10:]
        rest = block[section + len(interface):]
        length = int.from_bytes(rest[4:8], "little")
        packet = rest[:8] + (1).to_bytes(4, "little") + rest[12:length]
        mixed.write_bytes(block + raw + packet * 9000)
        return mixed

    def killed(self):
        """Python workers killed in the middle of an analysis: their tasks run again, and the result is the
        same."""
        spark, packets = self.spark()
        several, want = self.made(), self.command("analyze", *self.made())
        self.killing(spark, "pyspark/daemon", lambda: self.same(packets.locality(spark, several, split=100_000).to_dict(), want, "killed"))

    def executor(self):
        """One of two executors killed in the middle: the other one, and the one that takes its place, do its
        work again."""
        spark, packets = self.spark("local-cluster[2,1,1024]")
        several, want = self.made(), self.command("analyze", *self.made())
        self.killing(spark, "CoarseGrainedExecutorBackend",
                     lambda: self.same(packets.locality(spark, several, split=100_000).to_dict(), want, "an executor was killed"))

    @classmethod
    def killing(cls, spark, name, work):
        """Does some work, a process of this name being killed in its middle. Who is killed may have had
        nothing to do just then, or the work be over on a busy machine before it is looked at: it is done
        again until a task has failed."""
        for _ in range(8):
            if cls.killing_once(spark, name, work):
                return
        raise AssertionError("no task failed: nothing was killed in the middle")

    @staticmethod
    def killing_once(spark, name, work):
        """Does some work of Spark, and kills processes with this name in their command lines once tasks have
        ended; how many tasks failed."""
        over, tracker, counts = threading.Event(), spark.sparkContext.statusTracker(), {}

        def mine(name):
            """Processes of that name whose parent is of the same name, or which were started by this
            program's JVM."""
            found = {}
            for entry in Path("/proc").iterdir():
                try:
                    words, stat = (entry / "cmdline").read_bytes(), (entry / "stat").read_text()
                except OSError:
                    continue
                found[entry.name] = (stat[stat.rindex(")") + 2:].split()[1], words.replace(b".", b"/").decode(errors="replace"))
            def ancestors(pid):
                while pid in found:
                    yield pid
                    pid = found[pid][0]
            return [int(pid) for pid, (parent, words) in found.items() if name in words and str(os.getpid()) in ancestors(pid)
                    and (name != "pyspark/daemon" or name in found.get(parent, ("", ""))[1])]

        def watch():
            kills = 0
            while not over.wait(0.005):
                for stage in tracker.getActiveStageIds():
                    info = tracker.getStageInfo(stage)
                    if info is None:
                        continue
                    counts[stage] = max(counts.get(stage, 0), info.numFailedTasks)
                    victims = mine(name)
                    if info.numCompletedTasks >= 2 and not sum(counts.values()) and kills < 3 and victims:
                        # Of workers all, since some wait for a task; of executors one.
                        for victim in victims if name == "pyspark/daemon" else victims[-1:]:
                            with contextlib.suppress(ProcessLookupError):
                                os.kill(victim, signal.SIGKILL)
                        kills += 1
                        over.wait(0.2)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            work()
        finally:
            over.set()
            thread.join()
        return sum(counts.values())

    def notebooks(self):
        """The notebooks run from their first cell to the last, on small input; the first cell of the one
        gives a chart."""
        import nbclient
        import nbformat

        os.environ["GIGABYTES"] = "0.003"
        for name in ("holding", "heavy_hitters"):
            path = harness.ROOT / "examples/notebooks" / f"{name}.ipynb"
            notebook = nbformat.read(path, as_version=4)
            nbformat.validate(notebook)
            assert not any(cell.get("outputs") for cell in notebook.cells), f"{name}: stored with outputs"
            nbclient.NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(path.parent)}}).execute()
            outputs = [[output for output in cell.outputs] for cell in notebook.cells if cell.cell_type == "code"]
            text = "".join(output.get("text", "") for cell in outputs for output in cell)
            charts = [[base64.b64decode(output["data"]["image/png"]) for output in cell if "image/png" in output.get("data", {})] for cell in outputs]
            assert sum(map(len, charts)) == 2 - (name != "holding") and all(self.drawn(chart) for cell in charts for chart in cell), name
            if name == "holding":
                assert charts[0], "the first cell gives no chart"
                assert "24,000 packets" in text and "predicted 2.9" in text, text
            else:
                assert "GB/s" in text and "of the 20 heaviest were found, all within" in text, text

    @staticmethod
    def drawn(png):
        """Is there something in the picture? Rows of one colour pack to next to nothing."""
        width, height = (int.from_bytes(png[at:at + 4], "big") for at in (16, 20))
        return png[:8] == b"\x89PNG\r\n\x1a\n" and width > 300 and height > 150 and len(png) > 8000

    def stubs(self):
        """What the stubs say is what there is: names, arguments, defaults."""
        (self.scratch / "allowed").write_text("slipstream\\._native\\.__all__\n")
        words = [sys.executable, "-m", "mypy.stubtest", "--allowlist", "allowed", "slipstream._native"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=self.scratch)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-1000:]
        code = "import slipstream\nreveal_type(slipstream.analyze('x').total.ip.slf)\nslipstream.merge([1])\n"
        (self.scratch / "typed.py").write_text(code)
        done = subprocess.run([sys.executable, "-m", "mypy", "typed.py"], capture_output=True, text=True, check=False, cwd=self.scratch)
        assert 'Revealed type is "' in done.stdout and "float" in done.stdout and "incompatible type" in done.stdout, done.stdout + done.stderr

    def stream(self):
        """Finished captures of a folder, each once, over two runs."""
        spark, _ = self.spark()
        folder, done = self.scratch / "folder", self.scratch / "done"
        folder.mkdir()
        first, second, third = self.made()[:3]
        shutil.copyfile(first, folder / "1.pcap")
        os.utime(folder / "1.pcap", (1, 1))
        shutil.copyfile(third, folder / "growing.pcap.zst")

        def run():
            stream = spark.readStream.format("pcap").option("settle", 3600).option("split", 500_000).load(str(folder))
            query = (stream.select("file", "original_len").writeStream.format("parquet").option("path", str(done))
                     .option("checkpointLocation", str(self.scratch / "checkpoint")).trigger(once=True).start())
            assert query.awaitTermination(60)
            assert query.exception() is None, query.exception()
            return spark.read.parquet(str(done)).count()

        assert run() == 20_000
        shutil.copyfile(second, folder / "2.pcapng")
        os.utime(folder / "2.pcapng", (1, 1))
        assert run() == 40_000
        assert run() == 40_000

    def resumed(self):
        """A stream with a bound on the files of a batch that is stopped and goes on: none is read again, and
        none left out."""
        spark, packets = self.spark()
        folder, done = self.scratch / "resumed", self.scratch / "resumed-done"
        folder.mkdir()
        made = self.made()[0]

        def put(*names):
            for name in names:
                shutil.copyfile(made, folder / f"{name}.pcap")
                os.utime(folder / f"{name}.pcap", (1, 1))

        def run():
            stream = spark.readStream.format("pcap").option("settle", 3600).option("files", 2).load(str(folder))
            query = (stream.select("file", "original_len").writeStream.format("parquet").option("path", str(done))
                     .option("checkpointLocation", str(self.scratch / "resumed-checkpoint")).start())
            try:
                query.processAllAvailable()
                sizes = [batch["numInputRows"] for batch in query.recentProgress]
                assert max(sizes, default=0) <= 40_000, sizes
            finally:
                query.stop()
            return {row["file"].rsplit("/", 1)[1]: row["count"] for row in spark.read.parquet(str(done)).groupBy("file").count().collect()}

        put("b", "c", "d", "e", "f")
        assert run() == {f"{name}.pcap": 20_000 for name in "bcdef"}
        put("a", "g")
        assert run() == {f"{name}.pcap": 20_000 for name in "abcdefg"}
        assert run() == {f"{name}.pcap": 20_000 for name in "abcdefg"}
        # Before Spark 4.2 a reader isn't told what was read before.
        old = packets._Stream({"path": str(folder), "files": "2"})
        before = {"files": [str(folder / f"{name}.pcap") for name in "bcdef"]}
        first = old.latestOffset()
        assert {part.file for part in old.partitions(before, first)} == {str(folder / f"{name}.pcap") for name in "ag"}
        put("h", "i", "j")
        assert len(old.latestOffset()["files"]) == len(first["files"]) + 2
        self.raises(ValueError, lambda: packets._Stream({"path": str(folder), "files": "0"}), "files=0")


# The executor last: it needs a cluster of its own.
NAMES = ("parts", "shares", "tables", "notebooks", "stubs", "locality", "frame", "columns", "bad", "times", "stream", "resumed", "killed", "executor")
TOOLS = ("ipykernel", "mypy", "nbclient", "nbformat", "vl-convert-python")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", nargs="?", default=harness.ROOT / "target/release/slipstream", type=Path)
    parser.add_argument("--only", default="", help="only checks that have this text in their name")
    parser.add_argument("--python", help="of a virtual environment in which the package is, with PySpark")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    harness.ends_tidily()
    binary = harness.program(arguments.binary)
    if arguments.inside:
        warnings.simplefilter("ignore")
        inside(Checks, NAMES, binary, arguments.only)
    harness.needed("java")
    if not (harness.traces() / "expected.jsonl").exists():
        if os.environ.get("SLIPSTREAM_TRACES") != "none":
            sys.exit(f"no captures in {harness.traces()} (SLIPSTREAM_TRACES names their folder, or is none)")
        print("SLIPSTREAM_TRACES=none: nothing was checked\n0 passed, 0 failed")
        return
    since = time.monotonic()
    # Without a token, as in check_python.py.
    python = arguments.python or install("spark,plot", "spark-package", TOOLS)
    print(f"pip install: {time.monotonic() - since:.1f} s", flush=True)
    with harness.token():
        done = subprocess.run([python, __file__, binary, "--inside", "--only", arguments.only], stdin=subprocess.DEVNULL, check=False)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
