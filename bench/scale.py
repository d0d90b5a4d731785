#!/usr/bin/env python3
"""The same analysis by one process, by Python and by Spark: equal to the last digit, and what each takes.

usage: bench/scale.py [--binary FILE] [--python PYTHON] [--folder DIR] [--files N] [--packets N] [--only NAME,…] [--json FILE]

Makes captures with `slipstream synth` (seeds 1 to N), analyses them in every way, compares the results, and
prints time, CPU time and memory of each. `--python` is that of an environment with the package and PySpark
(`pip install '.[spark]'`). The captures, 96 bytes a packet, are taken away afterwards unless --keep is given.
Names for --only: command, python, spark, pipe, flows, parts.
"""

import argparse
import fcntl
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import harness  # noqa: E402

SYNTH = ["--flows", "20000", "--slf", "2", "--zipf", "1.1", "--protocol", "0.8", "--ipv6", "0.1", "--size", "80..1500", "--rate", "1mpps", "--snap-len", "80"]
TICKS = os.sysconf("SC_CLK_TCK")


def tree(root):
    """Processes that descend from one, itself included: id, and the fields of its `stat` behind the name."""
    stats = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue
            stats[int(entry.name)] = text[text.rindex(")") + 2:].split()
    inside, grew = {root}, True
    while grew:
        more = {pid for pid, fields in stats.items() if int(fields[1]) in inside} - inside
        inside, grew = inside | more, bool(more)
    return {pid: stats[pid] for pid in inside if pid in stats}


class Watch:
    """Samples the memory of a process and of what it started, five times a second."""

    def __init__(self, pid):
        self.pid, self.over, self.peak, self.samples = pid, threading.Event(), 0, []
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        page = os.sysconf("SC_PAGE_SIZE")
        since = time.monotonic()
        while not self.over.wait(0.2):
            now = sum(int(fields[21]) * page for fields in tree(self.pid).values())
            self.samples.append((time.monotonic() - since, now))
            self.peak = max(self.peak, now)

    def end(self):
        self.over.set()
        self.thread.join()
        return self.peak


def timed(words, **options):
    """Runs a command: its output, wall and CPU seconds, and the most memory of it and what it started."""
    before, since = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        watch = Watch(process.pid)
        out, err = process.communicate()
        peak = watch.end()
    if process.returncode:
        sys.exit(f"{words}: exit status {process.returncode}: {err.decode()[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return out, {"seconds": time.monotonic() - since, "cpu_s": cpu, "mib": peak / 2**20}


PYTHON = """
import json, sys, time
import slipstream
files, threads = json.load(sys.stdin)
since, cpu = time.monotonic(), time.process_time()
result = slipstream.analyze(files, threads=threads)
print(json.dumps(result.to_dict()))
print(json.dumps({"seconds": time.monotonic() - since, "cpu_s": time.process_time() - cpu}))
"""

SPARK = """
import json, os, sys, time
sys.path.insert(0, BENCH)
from scale import tree, TICKS
from pyspark.sql import SparkSession
from slipstream import spark as packets
files, cores, rounds = json.load(sys.stdin)
since = time.monotonic()
os.environ["PYSPARK_PYTHON"] = sys.executable
builder = SparkSession.builder.master(f"local[{cores}]").appName("scale").config("spark.ui.enabled", "false")
for name, value in {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.driver.memory": "2g", "spark.log.level": "ERROR"}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
# The first job starts the Python workers, and compiles.
packets.locality(spark, files[:cores * 2])
start = time.monotonic() - since
size = max(os.stat(file).st_size for file in files)


def cpu():
    return sum(sum(map(int, fields[11:15])) for fields in tree(os.getpid()).values()) / TICKS


ways = {partitions: [] for partitions in (1, 2, 4)}
text = {}
for _ in range(rounds):
    for partitions in ways:
        since, before = time.monotonic(), cpu()
        result = packets.locality(spark, files, split=0 if partitions == 1 else size // partitions + 1)
        ways[partitions].append({"seconds": time.monotonic() - since, "cpu_s": cpu() - before})
        text[partitions] = json.dumps(result.to_dict())
spark.stop()
print(json.dumps({"start_s": start, "ways": ways, "results": text}))
"""


class Bench:
    """Captures, and what was measured."""

    def __init__(self, arguments, folder):
        self.binary, self.python, self.folder, self.rounds = arguments.binary, arguments.python, folder, arguments.rounds
        self.packets, self.each = arguments.packets, arguments.packets // arguments.files
        # Captures that were kept are used again if they are as long as is asked for.
        self.files = [folder / f"{n:03}-{self.each}.pcap" for n in range(1, arguments.files + 1)]
        self.want, self.rows = None, []

    def make(self):
        room = shutil.disk_usage(self.folder).free
        if room < self.packets * 96 * 1.5:
            sys.exit(f"{self.folder}: {room / 1e9:.1f} GB are free, too few for {self.packets * 96 / 1e9:.1f} GB of captures")
        for n, file in enumerate(self.files, 1):
            subprocess.run([self.binary, "synth", *SYNTH, "--packets", str(self.each), "--seed", str(n), file], check=True, stdout=subprocess.DEVNULL)

    def row(self, name, figures, text=None):
        """Prints a way's figures; its result must be that of the first one."""
        if text is not None:
            value = json.loads(text)
            self.want = self.want or value
            equal = json.dumps(value) == json.dumps(self.want)
            figures = {**figures, "equal": equal}
            if not equal:
                print(f"!! {name}: the result is another one")
        figures = {key: round(value, 3) if isinstance(value, float) else value for key, value in figures.items()}
        if "seconds" in figures:
            figures["mpps"] = round(self.each * len(self.files) / figures["seconds"] / 1e6, 2)
        self.rows.append({"way": name, **figures})
        print(f"{name:34} " + "  ".join(f"{key} {value}" for key, value in figures.items()), flush=True)

    def best(self, name, run):
        """The median of several rounds by wall clock."""
        done = sorted((run() for _ in range(self.rounds)), key=lambda one: one[1]["seconds"])
        text, figures = done[len(done) // 2]
        self.row(name, figures, text)

    def command(self):
        cores = os.cpu_count()
        for threads in (1, cores):
            self.best(f"command, {threads} thread{'s' * (threads > 1)}",
                      lambda threads=threads: timed([self.binary, "analyze", "--threads", threads, "--format", "json", *self.files]))

    def in_python(self):
        for threads in (1, None):
            def one(threads=threads):
                words = json.dumps([list(map(str, self.files)), threads])
                with tempfile.TemporaryFile() as stdin:
                    stdin.write(words.encode())
                    stdin.seek(0)
                    out, figures = timed([self.python, "-c", PYTHON], stdin=stdin)
                text, inner = out.decode().splitlines()[-2:]
                return text, {**figures, **json.loads(inner)}
            self.best(f"Python, {threads or 'all'} thread{'s' * (threads is None)}", one)

    def spark(self):
        words = json.dumps([list(map(str, self.files)), os.cpu_count(), self.rounds])
        with tempfile.TemporaryFile() as stdin:
            stdin.write(words.encode())
            stdin.seek(0)
            code = SPARK.replace("BENCH", repr(str(Path(__file__).parent)))
            out, figures = timed([self.python, "-c", code], stdin=stdin)
        got = json.loads(out.decode().splitlines()[-1])
        for partitions, rounds in got["ways"].items():
            middle = sorted(rounds, key=lambda one: one["seconds"])[len(rounds) // 2]
            self.row(f"Spark, {partitions} partition{'s' * (partitions != '1')} a file", middle, got["results"][partitions])
        self.row("Spark, all of it", {"start_s": got["start_s"], "mib": figures["mib"]})

    def parts(self):
        """A part's analysis and the joining of parts, each by itself, of one file of all packets."""
        whole = self.folder / "whole.pcap"
        subprocess.run([self.binary, "synth", *SYNTH, "--packets", str(self.packets // 4), whole], check=True, stdout=subprocess.DEVNULL)
        want = subprocess.run([self.binary, "analyze", "--format", "json", whole], check=True, capture_output=True).stdout
        for number in (1, 2, 4, 16):
            made, cpu = [], 0.0
            for part in range(1, number + 1):
                path = self.folder / f"{part}.part"
                _, figures = timed([self.binary, "analyze", "--part", f"{part}/{number}", "--save", path, whole])
                made.append(path)
                cpu += figures["cpu_s"]
            text, joined = timed([self.binary, "analyze", "merge", "--format", "json", *made])
            self.row(f"{self.packets // 4:,} packets in {number} part{'s' * (number > 1)}",
                     {"parts_cpu_s": cpu, "join_cpu_s": joined["cpu_s"], "state_bytes": sum(path.stat().st_size for path in made) // number,
                      "join_mib": joined["mib"], "equal": text == want})

    def pipe(self):
        """Memory over a stream of 50 M packets."""
        packets = self.packets * 5 // 2
        with subprocess.Popen([self.binary, "synth", *SYNTH, "--packets", str(packets), "-"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as made:
            with subprocess.Popen([self.binary, "analyze", "--format", "json", "-"], stdin=made.stdout, stdout=subprocess.PIPE) as process:
                made.stdout.close()
                watch = Watch(process.pid)
                out = process.communicate()[0]
                peak = watch.end()
        if json.loads(out)["records"] != packets:
            sys.exit("not all packets came through the pipe")
        tenths = [watch.samples[len(watch.samples) * n // 10][1] / 2**20 for n in range(10)]
        self.row(f"pipe of {packets:,} packets", {"mib": peak / 2**20, "mib_by_tenth": " ".join(f"{mib:.0f}" for mib in tenths)})

    def flows(self):
        """Bytes of memory, and of a saved part, that a flow takes: from few flows to many."""
        sizes = {}
        for flows in (10_000, 1_010_000):
            made = f"synth:flows={flows},packets=2000000,snap_len=64"
            path = self.folder / "flows.part"
            text = subprocess.run([self.binary, "-v", "analyze", "--threads", "1", made], check=True, capture_output=True, text=True).stderr
            saved = subprocess.run([self.binary, "-v", "analyze", "--save", path, made], check=True, capture_output=True, text=True).stderr
            mib = [int(re.search(r"(\d+) MiB", one).group(1)) for one in (text, saved)]
            sizes[flows] = (*mib, path.stat().st_size)
        (a, b, c), (d, e, f) = sizes.values()
        self.row("bytes a flow", {"analyze": round((d - a) * 2**20 / 1e6), "part": round((e - b) * 2**20 / 1e6), "saved": round((f - c) / 1e6)})


WAYS = {"command": Bench.command, "python": Bench.in_python, "spark": Bench.spark, "parts": Bench.parts, "pipe": Bench.pipe,
        "flows": Bench.flows}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=ROOT / "target/release/slipstream", type=Path)
    parser.add_argument("--python", default=sys.executable, help="of an environment with the package and PySpark")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where captures are made")
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--packets", type=int, default=20_000_000, help="of all files together")
    parser.add_argument("--rounds", type=int, default=3, help="each way is run so often; the median counts")
    parser.add_argument("--only", default="command,python,spark,parts,pipe,flows")
    parser.add_argument("--keep", action="store_true", help="leave the captures there")
    parser.add_argument("--json", type=Path, help="write all figures to a file")
    arguments = parser.parse_args()
    harness.ends_tidily()
    names = arguments.only.split(",")
    prepared(arguments, names)
    folder = arguments.folder / "slipstream-scale"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"another run is at work in {folder}: --folder names another one")
        measure(arguments, names, folder)


def prepared(arguments, names):
    """Ends with a clear word where something is missing that the measurement would stumble over."""
    unknown = [name for name in names if name not in WAYS]
    if unknown:
        sys.exit(f"--only knows {', '.join(WAYS)}, not {', '.join(unknown)}")
    if not 0 < arguments.files <= arguments.packets:
        sys.exit(f"{arguments.packets} packets are too few for {arguments.files} files")
    arguments.binary = harness.program(arguments.binary)
    for name, module in (("python", "slipstream"), ("spark", "pyspark")):
        found = [arguments.python, "-c", f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"]
        if name in names and subprocess.run(found, check=False).returncode:
            sys.exit(f"{arguments.python} has no {module}, which {name} needs: --python names another one, --only leaves {name} out")
    if "spark" in names:
        harness.needed("java")


def measure(arguments, names, folder):
    """Measures in each of these ways, and prints what they take."""
    bench = Bench(arguments, folder)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {arguments.packets:,} packets in {arguments.files} files", flush=True)
    try:
        if {"command", "python", "spark"} & set(names) and not all(file.exists() for file in bench.files):
            bench.make()
        for name in names:
            WAYS[name](bench)
    finally:
        if not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(bench.rows, indent=1) + "\n")
    sys.exit(any(row.get("equal") is False for row in bench.rows))


if __name__ == "__main__":
    main()
