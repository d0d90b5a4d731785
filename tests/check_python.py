#!/usr/bin/env python3
"""The Python package as `pip install .` gives it, in a virtual environment: its numbers, the binary's.

usage: check_python.py [target/release/slipstream] [--only TEXT]

Digit for digit: what Python gives must be the JSON of the command, but for times of the clock. Bad input must
raise exceptions that name file and byte. Tables and charts are checked where pyarrow and altair can be
imported (`--extras` installs them).
"""

import argparse
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness
from harness import ROOT, Run
from python_states import States

CAPTURES = 14
# A user's package is built with all optimisations, which takes minutes; the numbers are the same without, and
# the crates are those of the other tests.
BUILD = ("--profile", "dev", "--features", "testing")


def run(*words, **options):
    done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                          timeout=1500, **options)
    if done.returncode:
        raise AssertionError(f"{words}: exit status {done.returncode}: {done.stdout[-1000:]}{done.stderr[-2000:]}")
    return done.stdout


def install(extras="", name="python-package", others=()):
    """A fresh virtual environment with the package and what it may use; its Python. With `extras`, the
    environment stays from one time to the next, since some are hundreds of megabytes, and the package is
    installed anew; so do other packages that tests need."""
    where = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve() / name
    base = getattr(sys, "_base_executable", None) or sys.executable
    made_with = (where / "pyvenv.cfg").read_text() if (where / "pyvenv.cfg").exists() else ""
    # Another Python's environment can't be made this one's, and one without pip was never finished.
    if not extras or f"home = {Path(base).parent}\n" not in made_with or not (where / "bin/pip").exists():
        shutil.rmtree(where, ignore_errors=True)
        run(base, "-m", "venv", where)
    wanted = f"{ROOT}[{extras}]" if extras else ROOT
    environment = {"MATURIN_PEP517_ARGS": " ".join(BUILD), **os.environ}
    # Of what is installed little is used: to compile all of it to byte code takes longer.
    words = ("-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", wanted, *others)
    run(where / "bin/python", *words, cwd=where, env=environment)
    return where / "bin/python"


def odd_times():
    """A pcapng of a packet with a time, two without, and one of the year 2600."""

    def block(kind, *words):
        length = 12 + 4 * len(words)
        return struct.pack(f"<{len(words) + 3}I", kind, length, *words, length)

    def packet(at):
        return block(6, 0, at >> 32, at & 0xFFFFFFFF, 60, 60, *[0] * 15)

    head = block(0x0A0D0D0A, 0x1A2B3C4D, 1, 0xFFFFFFFF, 0xFFFFFFFF) + block(1, 1, 0)
    return head + packet(1) + block(3, 60, *[0] * 15) * 2 + packet(19_880_000_000_000_000)


def captures(where):
    """A dozen captures: small ones of many kinds, the bundled one, and one large enough to be read in
    parts."""
    odd = sorted(p for p in (where / "odd").glob("*") if p.stat().st_size < 100_000)
    several = sorted((where / "multi").glob("*"), key=lambda p: p.stat().st_size)
    return [ROOT / "traces/campus.pcap.gz", *odd[:: max(1, len(odd) // 7)][:7], *several[:5], *several[len(several) // 2:][:1]]


def strip(report, *keys):
    return {key: value for key, value in report.items() if key not in ("elapsed_ns", "cpu_ns", "input", "output", *keys)}


class Checks(States):
    """What is checked inside of the virtual environment."""

    def __init__(self, binary, where, scratch):
        import slipstream  # pylint: disable=import-outside-toplevel

        self.slipstream, self.binary, self.where, self.scratch = slipstream, binary, where, scratch
        self.campus = ROOT / "traces/campus.pcap.gz"

    def close(self):
        """Ends what the checks have begun."""

    def command(self, *words):
        """The JSON that the binary prints; None where it fails."""
        got = Run(self.binary, [*words, "--format", "json"])
        return json.loads(got.stdout) if got.status == 0 else None

    def same(self, got, want, what):
        """Equal to the last digit: floats are compared as they are, and keys in their order."""
        got, want = json.dumps(got), json.dumps(want)
        if got != want:
            at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
            raise AssertionError(f"{what}: got …{got[max(0, at - 80):at + 80]}…, expected …{want[max(0, at - 80):at + 80]}…")

    def raises(self, kind, call, *texts, **attributes):
        try:
            call()
        except Exception as error:  # pylint: disable=broad-except
            assert isinstance(error, kind), f"{type(error)}: {error}"
            for text in texts:
                assert text in str(error), f"{text!r} isn't in {error}"
            for name, value in attributes.items():
                assert getattr(error, name) == value, f"{name} is {getattr(error, name)!r}, not {value!r}"
            return error
        raise AssertionError(f"no {kind.__name__}")

    def analyze(self):
        """Every number of `analyze --format json`, of captures of many kinds, from paths and from bytes."""
        import warnings

        warnings.simplefilter("ignore")
        judged = 0
        for path in captures(self.where):
            want = self.command("analyze", path)
            if want is None:
                error = self.raises((OSError, ValueError), lambda path=path: self.slipstream.analyze(path))
                assert str(path) in str(error), error
                continue
            judged += 1
            for threads in (1, 2, None):
                self.same(self.slipstream.analyze(path, threads=threads).to_dict(), want, f"{path}, {threads} threads")
            of_bytes = self.slipstream.analyze(path.read_bytes()).to_dict()
            assert of_bytes.pop("file") == "<bytes>" == of_bytes["traces"][0].pop("file")
            del want["file"], want["traces"][0]["file"]
            self.same(of_bytes, want, f"bytes of {path}")
        assert judged >= CAPTURES - 2, f"only {judged} captures could be read"

    def settings(self):
        """Settings of the analysis, several traces, and generated traffic."""
        words = ("--window", "5us,1ms", "--burst", 7, "--top", 3, "--tunnel", "inner")
        got = self.slipstream.analyze(self.campus, windows=["5us", 1_000_000], burst=7, top=3, tunnel="inner")
        self.same(got.to_dict(), self.command("analyze", self.campus, *words), "settings")
        for one in ("64us", 64_000):
            got = self.slipstream.analyze(self.campus, windows=one).to_dict()
            self.same(got, self.command("analyze", self.campus, "--window", "64us"), "one window")
            self.same(self.slipstream.merge([self.slipstream.partial(self.campus, windows=one)]).to_dict(), got, "a part, one window")
        several = captures(self.where)[-3:]
        got = self.slipstream.analyze(several)
        self.same(got.to_dict(), self.command("analyze", *several), "several")
        made = "synth:flows=100,packets=5000,slf=3"
        self.same(self.slipstream.analyze(made).to_dict(), self.command("analyze", made), made)
        one = self.slipstream.analyze(self.campus)
        raw = one.to_dict()
        assert one.total.ip.slf == raw["ip"]["slf"] and one.total.tcp.windows[1].window_ns == 64_000
        assert one.total.ip.flow_size.max == raw["ip"]["flow_size"]["max"]
        assert one.total.tcp.windows[0].ack_coalescable_strict == raw["tcp"]["windows"][0]["ack_coalescable_strict"]
        seen = []
        long = "synth:flows=10,packets=600000"
        self.slipstream.analyze(long, progress=lambda name, share: seen.append((name, share)))
        assert seen and seen[0][0] == long, seen
        self.raises(KeyError, lambda: self.slipstream.analyze(long, progress=lambda *_: {}["x"]))

    def inputs(self):
        """Buffers, arrays of windows and one class are taken, as programs have them at hand; results can be
        copied, and come from other processes."""
        import array
        import copy
        import dataclasses
        import multiprocessing

        s, content = self.slipstream, self.campus.read_bytes()
        want = s.analyze(content).to_dict()
        for buffer in (bytearray(content), memoryview(content)):
            self.same(s.analyze(buffer).to_dict(), want, "a buffer")
            self.same(strip(s.reframe(buffer)), strip(s.reframe(content)), "a buffer, reframed")
        windows = array.array("q", [16_000, 64_000])
        self.same(s.analyze(content, windows=windows).to_dict(), s.analyze(content, windows=list(windows)).to_dict(), "windows")
        one = "web: tcp port 80,443 => hold=200us, burst=64"
        self.same(strip(s.reframe(self.campus, classes=one)), strip(s.reframe(self.campus, classes=[one])), "one class")
        result = s.analyze([self.campus, content])
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            (back,) = pool.map(s.analyze, [[str(self.campus), content]])
        for got in (back, copy.deepcopy(back), copy.deepcopy(result)):
            assert got == result
            self.same(got.to_dict(), result.to_dict(), "a copy")
            assert [one.flows() for one in got.total._native] == [one.flows() for one in result.total._native]
        assert dataclasses.asdict(result)["total"]["ip"]["slf"] == result.total.ip.slf

    def odd_times(self):
        """Packets without times, and with times that can't be, are told, by traces and of all together."""
        import warnings

        s, path = self.slipstream, self.scratch / "odd.pcapng"
        path.write_bytes(odd_times())
        for source, name in ((path, str(path)), (path.read_bytes(), "<bytes>")):
            for threads in (1, 3):
                with warnings.catch_warnings(record=True) as told:
                    warnings.simplefilter("always")
                    result = s.analyze([source, source], threads=threads)
                    s.reframe(source, workers=threads)
                assert [w.category for w in told] == [s.TimeWarning] * 6 and all(name in str(w.message) for w in told), told
                assert {Path(w.filename) for w in told} == {Path(__file__)}, told
                assert "1 packet lie" in str(told[0].message) and "2 packets are not told" in str(told[1].message), told
                assert [(t.clamped_times, t.without_time) for t in result.traces] == [(1, 2)] * 2
                assert (result.total.clamped_times, result.total.without_time) == (2, 4)
        whole = s.analyze("synth:flows=1,packets=9").total
        assert (whole.clamped_times, whole.without_time) == (0, 0)

    def bad(self):
        """Missing, empty, cut, damaged and foreign files."""
        s, scratch = self.slipstream, self.scratch
        missing = scratch / "missing.pcap"
        self.raises(FileNotFoundError, lambda: s.analyze(missing), "missing.pcap", filename=str(missing), errno=2)
        self.raises(IsADirectoryError, lambda: s.analyze(scratch), filename=str(scratch))
        for name, content, byte in (("empty", b"", 0), ("text", b"not a capture, but a text of some length", 0),
                                    ("cut", b"\xd4\xc3\xb2\xa1\x02\0", 6)):
            path = scratch / f"{name}.pcap"
            path.write_bytes(content)
            self.raises(s.CaptureError, lambda path=path: s.analyze(path), str(path), file=str(path), byte=byte)
            self.raises(s.CaptureError, lambda path=path: s.reframe(path), str(path), file=str(path), byte=byte)
            self.raises(s.CaptureError, lambda content=content: s.analyze(content), "<bytes>", file="<bytes>", byte=byte)
        whole = scratch / "whole.pcap"
        s.synth(whole, flows=10, packets=1000)
        cut = scratch / "damaged.pcap"
        cut.write_bytes(whole.read_bytes()[:-5])
        import warnings

        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            result = s.analyze(cut)
            report = s.reframe(cut)
            part = s.partial(cut)
        assert [w.category for w in told] == [s.DamageWarning] * 3 and all(str(cut) in str(w.message) for w in told), told
        assert {Path(w.filename) for w in told} == {Path(__file__)}, told
        self.raises(s.PartialError, lambda: s.merge([part, part]), str(cut), reason="gap")
        byte = self.command("analyze", cut)["truncated_at_byte"]
        assert result.total.truncated_at_byte == byte == report["truncated_at_byte"] and str(byte) in str(told[0].message)
        assert result.total.records == 999
        for start in (-1, 10**12):
            self.raises(ValueError, lambda start=start: s.synth(scratch / "no.pcap", packets=1, start=start), f"start={start}")
        self.raises(TypeError, lambda: s.synth(scratch / "no.pcap", packets=1, start=1.5))
        s.synth(scratch / "stamps.pcap", packets=10, tcp_timestamps=True, start=7)
        # Times are numbers of nanoseconds wherever times are.
        s.reframe(whole, hold="auto", hold_min=5000, hold_max=64_000)
        assert s.analyze(whole, windows=64_000).to_dict()["ip"] == s.analyze(whole, windows=["64us"]).to_dict()["ip"]
        for call in (lambda: s.analyze(cut, strict=True), lambda: s.reframe(cut, strict=True)):
            self.raises(s.CaptureError, call, str(cut), str(byte), file=str(cut), byte=byte)
        kept = s.analyze([missing, whole, scratch / "empty.pcap"], keep_going=True)
        assert [f.file for f in kept.failed] == [str(missing), str(scratch / "empty.pcap")] and kept.total.records == 1000
        assert kept.to_dict()["failed"] == self.command("analyze", "--keep-going", missing, whole, scratch / "empty.pcap")["failed"]
        assert "total" in kept.to_dict()
        self.raises(FileNotFoundError, lambda: s.analyze([missing, whole]))
        self.raises(FileNotFoundError, lambda: s.analyze([missing], keep_going=True))
        for call, text in ((lambda: s.analyze(whole, burst=0), "burst"), (lambda: s.analyze(whole, windows=["5"]), "windows"),
                           (lambda: s.analyze(whole, windows=-1), "windows: -1"), (lambda: s.partial(whole, windows=[5, 1 << 64]), "windows: "),
                           (lambda: s.analyze([]), "no trace"), (lambda: s.analyze(whole, tunnel="both"), "tunnel"),
                           (lambda: s.reframe(whole, hodl="1us"), "hold"), (lambda: s.reframe(whole, hold="1"), "hold"),
                           (lambda: s.reframe(whole, workers=0), "workers"), (lambda: s.synth(scratch / "x.pcap", flows=0), ""),
                           (lambda: s.reframe(whole, stamp="never"), "stamp"),
                           (lambda: s.reframe(whole, hold_max=1000), "hold_max: is a bound of hold = auto"),
                           (lambda: s.reframe(whole, admit="adaptive", budget="price=5"), "budget: "),
                           (lambda: s.reframe(whole, classes="web tcp port 80"), 'class "web tcp port 80"')):
            self.raises(ValueError, call, text)
        for name, value in (("burst", -1), ("burst", 1 << 32), ("top", -1), ("threads", -1), ("threads", 1 << 64)):
            self.raises(ValueError, lambda name=name, value=value: s.analyze(whole, **{name: value}), f"{name}={value} is out of range: 0 to ")
        self.raises(ValueError, lambda: s.reframe(whole, workers=-1), "workers=-1")
        for name in ("key_bytes", "memory", "seed", "keep", "source_bytes", "below"):
            self.raises(ValueError, lambda name=name: s.Sketch("count-min", **{name: -1}), f"{name}=-1")
        sketch = s.Sketch("space-saving")
        for call, text in ((lambda: sketch.update("10.0.0.1", -1), "weight=-1"), (lambda: sketch.update(["10.0.0.1"], [1 << 64]), "weight="),
                           (lambda: sketch.heavy_hitters(top=-1), "top=-1"), (lambda: sketch.heavy_hitters(threshold=-1), "threshold=-1")):
            self.raises(ValueError, call, text)
        for call, text in ((lambda: s.analyze(whole, windows=64.5), "float"), (lambda: s.analyze(5), "int"), (lambda: s.analyze([5]), "int"),
                           (lambda: s.reframe(5), "int"), (lambda: s.analyze(whole, windows=b"64us"), "windows")):
            self.raises(TypeError, call, text)
        with open(whole, "rb") as opened:
            for call in (s.analyze, s.reframe):
                self.raises(TypeError, lambda call=call: call(opened), "" if call is s.reframe else "open file")
        self.raises(FileNotFoundError, lambda: s.reframe(whole, scratch / "nowhere" / "out.pcap"), "nowhere")
        assert not (scratch / "x.pcap").exists()
        # A disk that is full is the system's error, whoever writes, with the name of the file.
        for call in (lambda: s.reframe(whole, "/dev/full"), lambda: s.synth("/dev/full", packets=10)):
            self.raises(OSError, call, "free some space", filename="/dev/full", errno=28)
        # So is a folder in which there can be no new files, and a file that can't be read.
        for call in (lambda: s.reframe(whole, "/proc/x.pcap"), lambda: s.synth("/proc/x.pcap", packets=10)):
            self.raises(OSError, call, "no new files", filename="/proc/x.pcap", errno=95)
        for load in (s.Sketch.load, s.Measurement.load, s.Partial.load, s.analyze):
            self.raises(OSError, lambda load=load: load("/proc/self/mem"), "/proc/self/mem", filename="/proc/self/mem", errno=5)
        # A device is written to and stays one, and a link leads where it did.
        part, link = s.partial(whole), scratch / "link"
        link.symlink_to(scratch / "behind")
        for save, load in ((s.Sketch("count-min").save, s.Sketch.load), (part.save, s.Partial.load)):
            self.raises(OSError, lambda save=save: save("/dev/full"), "/dev/full", filename="/dev/full", errno=28)
            assert Path("/dev/full").is_char_device()
            save(link)
            assert link.is_symlink() and load(scratch / "behind").to_bytes() == load(link).to_bytes()
        # A name that discards packets, as for the command, makes no file.
        before = os.getcwd()
        os.chdir(scratch)
        try:
            assert s.reframe(whole, "null")["output"] == "null" == s.synth("null", packets=10)["output"]
            assert not os.path.exists("null")
            assert s.reframe(whole, "./null")["packets_out"] == s.analyze("null").total.records == 1000
        finally:
            os.chdir(before)
        # A file's name may be no UTF-8; reports have it as well as they can.
        odd = scratch / os.fsdecode(b"odd\xff.pcap")
        report = s.synth(odd, packets=10)
        assert odd.exists() and report["output"] == f"{scratch}/odd\ufffd.pcap" == s.analyze(odd).total.file
        assert s.reframe(odd, odd.with_suffix(".pcapng"))["input"] == report["output"]
        # Text that can be no file's name is an error as of `open`.
        nobody = str(scratch / "\ud800.pcap")
        for call in (s.analyze, s.reframe, s.spans, s.partial, lambda path: s.reframe(odd, path), lambda path: s.synth(path, packets=1)):
            self.raises(UnicodeEncodeError, lambda call=call: call(nobody))
        for trace, records in ((self.one_packet(whole), 1), (whole.read_bytes()[:24], 0)):
            assert s.analyze(trace).total.records == records

    @staticmethod
    def one_packet(path):
        data = path.read_bytes()
        length = int.from_bytes(data[32:36], "little")
        return data[:40 + length]

    def reframe(self):
        """Reports as the command's, and files the same to the byte."""
        s, scratch = self.slipstream, self.scratch
        classes = ["voice: udp dst port 16384-32767 => bypass", "web: tcp port 80,443 => hold=200us, burst=64"]
        cases = [({}, ()), ({"hold": 128_000, "policy": "waiting", "burst": 16}, ("--hold", "128us", "--policy", "waiting", "--burst", 16)),
                 ({"hold": 0}, ("--hold", "0")), ({"stamp": "arrival", "tcp_order": True}, ("--stamp", "arrival", "--tcp-order")),
                 ({"classes": classes, "workers": 2}, ("--class", classes[0], "--class", classes[1], "--workers", 2)),
                 ({"hold": "1ms", "admit": "adaptive", "budget": "delay=30us"}, ("--hold", "1ms", "--admit", "adaptive", "--budget", "delay=30us")),
                 ({"compress": "gro", "classes": ["elephants: top 1 % => hold=1ms"]}, ("--compress", "gro", "--class", "elephants: top 1 % => hold=1ms"))]
        for i, (settings, words) in enumerate(cases):
            mine, theirs = scratch / f"mine{i}.pcapng", scratch / f"theirs{i}.pcapng"
            got = s.reframe(self.campus, mine, **settings)
            want = self.command("reframe", self.campus, theirs, *words)
            assert got["output"] == str(mine) and got["input"] == str(self.campus)
            self.same(strip(got), strip(want), f"reframe {words}")
            assert mine.read_bytes() == theirs.read_bytes(), f"reframe {words}: the files differ"
        assert "hold" in s.reframe_settings()
        self.same(strip(s.reframe(self.campus.read_bytes())), strip(self.command("reframe", self.campus, "null")), "bytes to null")

    def synth(self):
        """The same bytes and report as the command's."""
        s, scratch = self.slipstream, self.scratch
        cases = [({"flows": 100, "packets": 5000, "slf": 4, "size": 60, "rate": "10mpps"},
                  ("--flows", 100, "--packets", 5000, "--slf", 4, "--size", 60, "--rate", "10mpps")),
                 ({"profile": "campus", "packets": 3000, "seed": 7, "snap_len": 96},
                  ("--profile", "campus", "--packets", 3000, "--seed", 7, "--snap-len", 96)),
                 ({"packets": 500, "start": 5, "vlan": 0.5, "vlan_ids": [7, 8], "protocol": 0.3, "zipf": 1.1},
                  ("--packets", 500, "--start", 5, "--vlan", 0.5, "--vlan-ids", "7,8", "--protocol", 0.3, "--zipf", 1.1))]
        for settings, words in cases:
            mine, theirs = scratch / "mine.pcapng", scratch / "theirs.pcapng"
            self.same(strip(s.synth(mine, **settings)), strip(self.command("synth", *words, theirs)), f"synth {words}")
            assert mine.read_bytes() == theirs.read_bytes(), f"synth {words}: the files differ"

    def model(self):
        """The queue as the command solves it."""
        solve = self.slipstream.model.solve
        service = {"service_base": "600ns", "service_per_packet": 77}
        words = ("--service-base", "600ns", "--service-per-packet", "77ns")
        for settings, more in (({"rate": "11.97mpps"}, ("--rate", "11.97mpps")), ({"mean": 83.5197}, ("--mean", 83.5197)),
                               ({"rate": 11e6, "interarrival": "negbin", "cv": 2}, ("--rate", "11mpps", "--interarrival", "negbin", "--cv", 2)),
                               ({"mean": 12, "slot": "10ns", "interarrival": "geometric", "start": "exact", "queue": 512, "batch": 32},
                                ("--mean", 12, "--slot", "10ns", "--interarrival", "geometric", "--start", "exact", "--queue", 512, "--batch", 32))):
            self.same(strip(solve(**service, **settings)), strip(self.command("model", "solve", *words, *more)), str(more))
        for wrong in ({}, {"rate": 1e6, "mean": 5}, {"rate": "5"}, {"rate": 0}, {"mean": -1}, {"mean": math.nan},
                      {"mean": 80, "interarrival": "often"}, {"mean": 80, "cv": 2}, {"mean": 80, "queue": 0}):
            self.raises(ValueError, lambda wrong=wrong: solve(**service, **wrong))

    def threads(self):
        """Python goes on while the package works."""
        import threading

        worker = threading.Thread(target=self.slipstream.analyze, args=("synth:flows=1000,packets=1500000",))
        worker.start()
        ticks, longest, last = 0, 0.0, time.monotonic()
        while worker.is_alive():
            time.sleep(0.001)
            now = time.monotonic()
            ticks, longest, last = ticks + 1, max(longest, now - last), now
        assert ticks >= 10, f"{ticks} ticks, the longest of {longest} s"

    def shared(self):
        """Threads that use one sketch, or join one another's parts, take turns: nothing is lost, and none
        waits for ever."""
        import threading

        s, failed = self.slipstream, []
        sketch, other = s.Sketch(task="heavy-hitters"), s.Sketch(task="heavy-hitters")
        one, two = s.partial(self.campus), s.partial(self.campus)
        keys = b"\x0a\0\0\1" * 300_000

        def gap(part, following):
            self.raises(s.PartialError, lambda: part.join(following))

        def often(times, call, *arguments):
            try:
                for _ in range(times):
                    call(*arguments)
            except Exception as error:  # pylint: disable=broad-except
                failed.append(repr(error))

        work = [(5, sketch.update, keys), (5, sketch.update, keys), (100, lambda: sketch.weight), (20, other.merge, sketch),
                (20, sketch.copy), (50, gap, one, two), (50, gap, two, one), (50, gap, one, one), (50, one.to_bytes),
                (50, lambda: (two.file, two.records, two.span))]
        threads = [threading.Thread(target=often, args=one_of, daemon=True) for one_of in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
        assert not any(thread.is_alive() for thread in threads), "threads wait for one another"
        assert not failed and sketch.weight == 10 * 300_000, (failed, sketch.weight)

    def sketches_without_memory(self):
        """Tables that can't be had are a MemoryError, and the program goes on."""
        code = """
import resource, slipstream
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
for sketch in ("count-min", "flow-radar", "mrac"):
    try:
        slipstream.Sketch(sketch, memory=1 << 33)
    except MemoryError as error:
        print(sketch in str(error))
print(slipstream.Sketch("count-min", memory=1 << 16).memory_bytes > 0)
"""
        assert run(sys.executable, "-c", code).split() == ["True"] * 4

    def interrupts(self):
        """Ctrl-C ends what would take minutes."""
        import threading

        trace = self.scratch / "many.pcap"
        self.slipstream.synth(trace, packets=300_000)
        long = ("slipstream.model.solve(mean=4, service_base=600, service_per_packet=77, slot=20, queue=512, batch=16, start='exact')",
                f"slipstream.spans({str(trace)!r}, 1)", "slipstream.analyze('synth:packets=100M')",
                "slipstream.Sketch(task='heavy-hitters').update(bytes(800_000_000))")
        # The threads that read sections hear nothing: the one that called does, however many there are.
        callers = set()
        sections = self.scratch / "sections.pcap"
        self.slipstream.synth(sections, packets=1_000_000, size=1000, snap_len=100, flows=100_000)
        self.slipstream.analyze(sections, threads=16, progress=lambda *_: callers.add(threading.get_ident()))
        assert callers <= {threading.get_ident()}, callers
        flows = b"".join(key.to_bytes(4, "little") for key in range(6_000_000))
        (self.scratch / "keys").write_bytes(flows)
        before = f"sketch = slipstream.Sketch('flow-radar', memory=1 << 29); sketch.update(open({str(self.scratch / 'keys')!r}, 'rb').read())"
        for before, call in (*(("", call) for call in long), (before, "sketch.heavy_hitters(top=1)"), (before, "sketch.flow_size(bytes(4))")):
            # A program that a shell runs in the background ignores interrupts, and so would Python here.
            # Whoever presses it once more is heard, too.
            code = f"""
import signal, threading, time, slipstream
signal.signal(signal.SIGINT, signal.default_int_handler)
{before}
ended = threading.Event()
def interrupt():
    while not ended.wait(1):
        signal.raise_signal(signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
since = time.monotonic()
try:
    {call}
except KeyboardInterrupt:
    ended.set()
    print(time.monotonic() - since - 1, flush=True)
else:
    print("came to its end after", time.monotonic() - since, "s")
"""
            said = run(sys.executable, "-c", code)
            assert said.strip() and not said.startswith("came") and float(said) < 5, f"{call}: {said!r}"

    def tables(self):
        """Arrow tables and charts, where their libraries are; a clear error where not."""
        result = self.slipstream.analyze(self.campus)
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            self.raises(ImportError, result.flows, "pip install pyarrow")
            self.raises(ImportError, result.distributions, "pip install pyarrow")
        else:
            flows, raw = result.flows(), result.to_dict()
            assert flows.num_rows == raw["ip"]["flows"] and sum(flows["packets"].to_pylist()) == raw["ip"]["packets"]
            assert {name for name in flows.column_names if flows[name].null_count} == {"bytes", "first_ns", "last_ns", "tcp_flags"}
            rows = [r for r in result.distributions().to_pylist() if (r["sequence"], r["distribution"]) == ("ip", "spatial_distance")]
            self.same([{k: r[k] for k in ("from", "to", "count")} for r in rows], raw["ip"]["spatial_distance"]["histogram"], "histogram")
            both = self.slipstream.analyze([self.campus, "synth:flows=50,packets=500"])
            assert both.flows().num_rows == sum(t.ip.flows for t in both.traces)
            self.packets_to_the_damage()
        try:
            import altair  # noqa: F401
        except ImportError:
            self.raises(ImportError, result.plot, "pip install altair")
        else:
            plot, raw = result.plot().to_dict(), result.to_dict()["ip"]
            assert plot["hconcat"]
            # Who doesn't see it is told the figures.
            for window in raw["windows"]:
                assert f"{window['mean_train']:.2f} packets a train" in plot["description"], plot["description"]
            assert f"{raw['temporal_distance_ns']['p50'] / 1000:.1f} µs" in plot["description"], plot["description"]
            assert self.slipstream.analyze("synth:flows=1,packets=1").plot().to_dict()
            # A line needs two points, also where all packets come alike.
            alike = self.slipstream.analyze("synth:flows=3,order=round-robin,packets=300,rate=10").plot().to_dict()
            for chart, lines in zip(alike["hconcat"], (3, 1)):
                shares = [point["share"] for point in chart["data"]["values"]]
                assert shares == [0, 1] * lines, shares

    def packets_to_the_damage(self):
        """What follows damage is not there, and that is told."""
        import warnings

        whole, cut = self.scratch / "all.pcap", self.scratch / "some.pcap"
        self.slipstream.synth(whole, packets=1000)
        cut.write_bytes(whole.read_bytes()[:-5])
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert sum(batch.num_rows for batch in self.slipstream.packets(whole)) == 1000 and not told
            assert sum(batch.num_rows for batch in self.slipstream.packets(cut)) == 999
        assert [w.category for w in told] == [self.slipstream.DamageWarning] and str(cut) in str(told[0].message), told
        self.raises(ValueError, lambda: self.slipstream.packets(whole, batch_bytes=0), "batch_bytes=0")
        # A length of more than 31 bits is what it is, and no negative number.
        data = bytearray(whole.read_bytes()[:24 + 16 + 60])
        struct.pack_into("<II", data, 32, 60, 0xFFFFFFF0)
        long = self.scratch / "long.pcap"
        long.write_bytes(data)
        (batch,) = self.slipstream.packets(long)
        assert batch.column("original_len").to_pylist() == [0xFFFFFFF0] and self.slipstream.analyze(long).total.bytes == 0xFFFFFFF0
        # A capture that can't be cut has no parts, and none of them is the whole of it.
        for span in ((0, 500), (500, 2**64 - 1)):
            for part in (self.slipstream.packets, self.slipstream.partial):
                self.raises(self.slipstream.CaptureError, lambda part=part, span=span: part(self.campus, span), "has no parts")
        assert sum(batch.num_rows for batch in self.slipstream.packets(self.campus)) == 24_000
        odd = self.scratch / os.fsdecode(b"rows\xff.pcap")
        whole.rename(odd)
        rows = next(self.slipstream.packets(odd))
        assert set(rows.column("file").to_pylist()) == {f"{self.scratch}/rows\ufffd.pcap"}
        # The call tells of a file that can't be read, not the first packet that somebody asks for.
        self.raises(FileNotFoundError, lambda: self.slipstream.packets("missing.pcap"), "missing.pcap")

    def wheel(self):
        """One wheel for CPython 3.9 and later, which works in an environment of its own: what `make wheels`
        does, but for optimisations."""
        folder = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve() / "wheels-dev"
        said = run(ROOT / "ci/wheels.sh", folder, *BUILD, cwd=ROOT, env={**os.environ, "PYTHON": sys.executable})
        assert "works in a fresh environment" in said and "-cp39-abi3-" in said, said

    def once(self):
        """No crate is built for this package that was built for the other tests, but with other features."""
        def crates(*words):
            said = run("cargo", "tree", "--locked", "--prefix", "none", "--format", "{p}|{f}", *words, cwd=ROOT)
            found = {}
            for line in said.splitlines():
                name, _, features = line.removesuffix(" (*)").partition("|")
                found.setdefault(name, set()).add(features)
            return found

        mine = crates("--package", "slipstream-py", "--features", "testing", "--edges", "normal,build")
        every = crates("--workspace", "--edges", "normal,build,dev")
        others = {name: (features, every.get(name)) for name, features in mine.items()
                  if not features & every.get(name, features) and "slipstream-py " not in name}
        assert len(mine) > 50 and not others, f"have crates/py/Cargo.toml ask for the features that are missing: {others}"
        # What procedural macros use and other crates, too, cargo builds in another way than what they alone
        # use.
        plain = crates("--package", "slipstream-py", "--features", "testing", "--edges", "normal,no-proc-macro")
        shared = crates("--workspace", "--edges", "normal,dev,no-proc-macro")
        macros = sorted(name for name in mine.keys() & shared.keys() - plain.keys() if mine[name] & shared[name])
        assert not macros, f"have crates/py/Cargo.toml depend on what others use outside of procedural macros: {macros}"

    def typed(self):
        """The type stubs are installed, and name what there is."""
        where = Path(self.slipstream.__file__).parent
        assert (where / "py.typed").exists()
        stubs = (where / "_native.pyi").read_text()
        native = sys.modules["slipstream._native"]
        missing = [name for name in dir(native) if not name.startswith("__") and name not in stubs]
        missing += [name for kind in (native.Sketch, native.Analysis) for name in vars(kind) if not name.startswith("__") and name not in stubs]
        assert not missing, missing
        assert all(hasattr(self.slipstream, name) for name in self.slipstream.__all__)
        for name in self.slipstream.__all__:
            assert getattr(getattr(self.slipstream, name), "__doc__", True), f"{name} has no documentation"


NAMES = ("analyze", "settings", "inputs", "odd_times", "bad", "reframe", "synth", "model", "sketches", "states", "threads", "shared", "sketches_without_memory", "interrupts", "tables", "typed", "wheel", "once")


def inside(kind, names, binary, only):
    """Runs checks of a kind by their names; prints what failed."""
    with tempfile.TemporaryDirectory() as scratch:
        checks = kind(binary, harness.traces(), Path(scratch))
        try:
            harness.one_by_one([(name, getattr(checks, name)) for name in names], only, lambda check, _: check())
        finally:
            checks.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", nargs="?", default=ROOT / "target/release/slipstream", type=Path)
    parser.add_argument("--only", default="", help="only checks that have this text in their name")
    parser.add_argument("--extras", action="store_true", help="with pyarrow and altair")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    harness.ends_tidily()
    binary = harness.program(arguments.binary)
    if arguments.inside:
        inside(Checks, NAMES, binary, arguments.only)
    if not (harness.traces() / "expected.jsonl").exists():
        if os.environ.get("SLIPSTREAM_TRACES") != "none":
            sys.exit(f"no captures in {harness.traces()} (SLIPSTREAM_TRACES names their folder, or is none)")
        print("SLIPSTREAM_TRACES=none: nothing was checked\n0 passed, 0 failed")
        return
    since = time.monotonic()
    # Without a token: pip waits for cargo, which may wait for minutes for whoever builds in the same folder.
    python = install("arrow,plot" if arguments.extras else "", "python-extras" if arguments.extras else "python-package")
    print(f"pip install: {time.monotonic() - since:.1f} s", flush=True)
    with harness.token():
        done = subprocess.run([python, __file__, binary, "--inside", "--only", arguments.only], stdin=subprocess.DEVNULL, check=False)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
