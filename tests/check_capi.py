#!/usr/bin/env python3
"""Does a stranger get far with the libraries alone? The C library, its examples, the README's program.

usage: check_capi.py [target/release/slipstream]

The trains of the C examples are held against those of `slipstream reframe`, byte for byte; C programs do
wrong what can be done wrong, under AddressSanitizer; the README's program compiles outside of the workspace
as it stands there, the reframer alone without the standard library, and every crate can be packaged. What is
needed is built here: with cargo, cc, pkg-config and Debian's libdpdk-dev.
"""

import argparse
import os
import re
import shutil
import signal
import struct
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

import capture
import harness
import netns
from harness import ROOT
from netns import Net

NS, US = 0xA1B23C4D, 0xA1B2C3D4
STRICT = ("-Wall", "-Wextra", "-Werror")
SANITIZE = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
EXAMPLES = ROOT / "examples" / "c"


def run(*words, cwd=None, env=None, timeout=600):
    """A command's output; an exception that says what it said where it fails."""
    words = [str(word) for word in words]
    done = subprocess.run(words, cwd=cwd, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False, timeout=timeout)
    if done.returncode:
        raise AssertionError(f"{' '.join(words)}: exit status {done.returncode}: {done.stdout[-500:]}{done.stderr[-1500:]}")
    return done.stdout


def cargo(*words, **options):
    return run(os.environ.get("CARGO", "cargo"), *words, **options)


# A user's library is built with all optimisations, which takes a minute of CPU time, since the command's
# crates are built in another way. The library does the same without them.
PLAIN = ("--profile", "dev", *(word for name in ("core", "reframe", "sketch", "wire")
                               for word in ("--config", f"profile.dev.package.slipstream-{name}.opt-level=0")))


class Installed:
    """The C library, installed as `make install-c` does it, but built without optimisation."""

    def __init__(self, directory, binary):
        self.binary, self.directory = binary, directory
        target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
        target /= "capi"
        cargo("build", *PLAIN, "--locked", "-p", "slipstream-capi", "--target-dir", target, cwd=ROOT)
        self.prefix = directory / "prefix"
        self.built = target / "debug"
        run(ROOT / "ci" / "install_c.sh", self.built, self.prefix)
        self.env = {"PKG_CONFIG_PATH": f"{self.prefix}/lib/pkgconfig", "LD_LIBRARY_PATH": f"{self.prefix}/lib"}
        # Strangers share what macros are made of.
        self.strangers = {"CARGO_TARGET_DIR": str(directory / "strangers"), "CARGO_PROFILE_DEV_DEBUG": "false"}
        self.capture, self.coarse = directory / "in.pcap", directory / "us.pcap"
        self.packets = capture.read(ROOT / "traces" / "campus.pcap.gz").records
        write(self.capture, self.packets, NS)
        write(self.coarse, self.packets, US)

    def flags(self, *libraries):
        return run("pkg-config", "--cflags", "--libs", *libraries, env=self.env).split()

    def static(self):
        private = run("pkg-config", "--static", "--libs-only-l", "slipstream", env=self.env).split()
        return [f"-I{self.prefix}/include", self.prefix / "lib" / "libslipstream.a",
                *(word for word in private if word != "-lslipstream")]

    def compile(self, source, name, *flags, compiler="cc"):
        program = self.directory / name
        source_first = [compiler, *STRICT, source, "-o", program, *flags]
        run(*source_first, env=self.env)
        return program

    def reframed(self, source):
        """Packets of a capture behind `slipstream reframe`."""
        out = self.directory / f"by-slipstream-{source.stem}.pcap"
        if not out.exists():
            run(self.binary, "reframe", source, out)
        return out


def write(path, records, magic):
    """A classic pcap file of Ethernet frames."""
    unit = 1 if magic == NS else 1000
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", magic, 2, 4, 0, 0, 96, 1))
        for r in records:
            file.write(struct.pack("<IIII", r.time // 10**9, r.time % 10**9 // unit, len(r.data), r.length) + r.data)


def contents(path):
    """What was captured of each packet; net_pcap knows no other length."""
    return [r.data for r in capture.read(path).records]


def header(case, c):
    """The header is C and C++ of any age, and programs see only names that begin with slip_."""
    source = c.directory / "header.c"
    source.write_text("#include <slipstream.h>\nint main(void) { return slip_error_text(SLIP_OK) == 0; }\n")
    for standard in ("c99", "c11", "c17"):
        c.compile(source, "header", "-pedantic", f"-std={standard}", *c.flags("slipstream"))
    program = c.compile(source, "header", "-xc++", "-pedantic", "-std=c++17", "-xnone", *c.flags("slipstream"), compiler="c++")
    run(program, env=c.env)
    library = c.prefix / "lib" / "libslipstream.so"
    names = [line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()]
    case.check(len(names) > 15, f"only {len(names)} functions")
    case.equal([name for name in names if not name.startswith("slip_")], [], "other names in the library")
    case.check("libslipstream.so.0" in run("readelf", "-d", library), "the library doesn't say its name")
    declared = set(re.findall(r"\b(slip_\w+)\(", (c.prefix / "include" / "slipstream.h").read_text()))
    case.equal(sorted(declared - set(names)), [], "declared, but not there")
    case.equal(sorted(set(names) - declared), [], "there, but not declared")


def loader(case, c):
    """An installation renews the loader's cache if the loader looks there, and else says what to do."""
    tools, log = c.directory / "tools", c.directory / "ldconfig.log"
    tools.mkdir()

    def install(uid, looks_in, **env):
        scripts = {"id": f"echo {uid}", "ldconfig": f"echo \"ldconfig $*\" >> {log}\necho '{looks_in}/lib: (from a file)'"}
        for name, script in scripts.items():
            (tools / name).write_text(f"#!/bin/sh\n{script}\n")
            (tools / name).chmod(0o755)
        log.write_text("")
        done = subprocess.run([ROOT / "ci" / "install_c.sh", c.built, c.prefix], capture_output=True, text=True, check=True,
                              env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", **env})
        return log.read_text().splitlines(), done.stderr

    case.equal(install(0, c.prefix), (["ldconfig -N -X -v", "ldconfig "], ""), "as root")
    calls, said = install(1000, c.prefix)
    case.equal(calls, ["ldconfig -N -X -v"], "as a user")
    case.check("run as root" in said, said)
    calls, said = install(0, "/elsewhere")
    case.equal(calls, ["ldconfig -N -X -v"], "where the loader doesn't look")
    case.check(f"-Wl,-rpath,{c.prefix}/lib" in said, said)
    case.equal(install(0, c.prefix, DESTDIR=str(c.directory / "staged")), ([], ""), "below DESTDIR")


def wrong_input(case, c):
    """A C program does everything wrong that can be told, and nothing breaks."""
    source = ROOT / "crates" / "capi" / "tests" / "bad_input.c"
    said = run(c.compile(source, "bad", "-std=gnu11", *SANITIZE, *c.static())).splitlines()
    case.check(re.fullmatch(r"3\d\d passed, 0 failed", said[-1]), said)
    # The same against the shared library.
    said = run(c.compile(source, "bad", "-std=gnu11", *c.flags("slipstream")), env=c.env).splitlines()
    case.check(re.fullmatch(r"3\d\d passed, 0 failed", said[-1]), said)


def plain_c(case, c):
    """trains.c gives the trains of `slipstream reframe`, release times included."""
    lines = (EXAMPLES / "trains.c").read_text().count("\n")
    case.check(lines <= 150, f"{lines} lines")
    plain = c.compile(EXAMPLES / "trains.c", "trains", "-O2", *c.flags("slipstream"))
    # AddressSanitizer takes note of each byte of its slots, which takes seconds a run where they are as long
    # as packets may ever be.
    source = (EXAMPLES / "trains.c").read_text()
    short = c.directory / "trains-checked.c"
    short.write_text(re.sub(r"^#define LONGEST 262144$", "#define LONGEST 2048", source, flags=re.M))
    case.check(short.read_text() != source, "the slots are as long as they were")
    checked = c.compile(short, "trains-checked", *SANITIZE, *c.static())
    synthetic = c.directory / "synth.pcap"
    run(c.binary, "synth", "--flows", "64", "--packets", "20k", "--rate", "2mpps", "--seed", "3", synthetic)
    for source in (c.capture, c.coarse, synthetic):
        expected = capture.read(c.reframed(source)).records
        for program in (plain, checked):
            out = c.directory / "trains.pcap"
            said = run(program, source, out, env=c.env)
            got = capture.read(out).records
            # The example writes nanoseconds whatever it reads; the command writes what it read.
            unit = 1000 if source is c.coarse else 1
            cut = [(r.time // unit * unit, r.length, r.data) for r in got]
            case.check(cut == [(r.time, r.length, r.data) for r in expected], f"{program.name} {source.name}: other trains")
            case.check(f"{len(expected)} packets in, {len(expected)} out" in said, said)
    # Memory for the reframer, and not for all packets.
    done = subprocess.run(["prlimit", "--as=400000000", plain, synthetic, "few.pcap"], cwd=c.directory, capture_output=True,
                          text=True, check=False, env={**os.environ, **c.env})
    case.check(done.returncode == 2 and "too little memory" in done.stderr, f"few slots: {done.returncode} {done.stderr}")
    # Cut off in a packet, and in what stands before one.
    broken = [c.directory / f"cut-{at}.pcap" for at in (5000, 30, 39)]
    for one in broken:
        one.write_bytes(c.capture.read_bytes()[:int(one.stem[4:])])
    itself = c.directory / "itself.pcap"
    itself.write_bytes(c.capture.read_bytes())
    for words in (*((one, "x.pcap") for one in broken), ("nothing-there", "x"), ("one",), (itself, itself)):
        done = subprocess.run([checked, *words], cwd=c.directory, capture_output=True, text=True, check=False)
        case.check(done.returncode == 2 and done.stderr.startswith("trains: "), f"{words}: {done.returncode} {done.stderr}")
    case.check(itself.read_bytes() == c.capture.read_bytes(), "a capture was written over while it was read")


def live(case, c):
    """trains.c between two interfaces: every packet arrives, each flow in order, in trains."""
    reason = netns.why_not()
    if not case.check(not reason, reason):
        return
    program = c.compile(EXAMPLES / "trains.c", "trains-live", "-O2", *c.static())
    with Net() as net:
        near, far = net.wire("a"), net.wire("b")
        child = net.start("m", program, "ma", "mb")
        opened = lambda: len(net.sh("m", "cat", "/proc/net/packet").splitlines()) >= 3
        case.check(harness.until(opened), "it opens no sockets")
        frames = []
        for number in range(2000):
            near.send(netns.udp(net, number, number % 4))
            if number % 100 == 99:
                # No faster than a busy machine can follow.
                got = far.receive(10, netns.is_udp, 100)
                frames += [netns.number_of(frame) for _, frame in got]
        case.equal(len(frames), 2000, "packets")
        for flow in range(4):
            numbers = [n for f, n in frames if f == flow]
            case.check(numbers == list(range(flow, 2000, 4)), f"flow {flow}: {len(numbers)} packets, or another order")
        runs = 1 + sum(a[0] != b[0] for a, b in zip(frames, frames[1:]))
        case.check(runs < 1500, f"{runs} runs of one flow: no trains")
        child.terminate()
        out, err = child.communicate(timeout=10)
        # Hosts say something of their own accord, too.
        counts = re.match(r"(\d+) packets in, (\d+) out, ", out)
        case.check(child.returncode == 0 and counts and counts[1] == counts[2] and 2000 <= int(counts[1]) < 2100,
                   f"{child.returncode} {out} {err}")


def vpp(case, c):
    """The plugin of VPP compiles against a stub of what it uses, and holds packets in order where VPP's time
    runs backwards."""
    headers = c.directory / "vpp"
    for name in re.findall(r"#include <(v[^>]+)>", (ROOT / "examples/vpp/slipstream.c").read_text()):
        (headers / name).parent.mkdir(parents=True, exist_ok=True)
        (headers / name).touch()
    # VPP itself is not built with -Wextra.
    program = c.compile(ROOT / "tests/vpp_time.c", "vpp-time", f"-I{headers}", "-Wno-unused-parameter", "-Wno-sign-compare",
                        *SANITIZE, *c.static())
    said = run(program, timeout=60)
    case.check("28 packets, runs of one flow 1.00 -> 14.00" in said, said)


def dpdk(case, c):
    """l2fwd over net_pcap gives the trains of `slipstream reframe`; by the clock, it loses nothing and keeps
    the order."""
    # DPDK's own headers are not free of warnings.
    system = [word.replace("-I", "-isystem", 1) if word.startswith("-I") else word for word in c.flags("libdpdk")]
    program = c.compile(EXAMPLES / "l2fwd.c", "l2fwd", "-O2", *c.flags("slipstream"), *system)
    total = len(c.packets)

    out = c.directory / "l2fwd.pcap"
    eal = ("--no-huge", "-m", "512", "--no-pci", "--no-telemetry", f"--file-prefix=slip{os.getpid()}", "-l", "0",
           "--vdev", f"net_pcap0,rx_pcap={c.coarse},tx_pcap={c.directory}/unused.pcap",
           "--vdev", f"net_pcap1,rx_pcap={c.coarse},tx_pcap={out}")

    def forward(*options):
        said = run(program, *eal, "--", "-n", total, *options, env=c.env, timeout=120)
        case.check(f"{total} packets in, {total} out, 0 dropped" in said, said[-300:])
        return contents(out)

    case.check(forward("-c") == contents(c.reframed(c.coarse)), "other trains")
    # By the clock the trains are others each time; a hold of 1 ms still makes some.
    got = forward("-t", 1_000_000)
    came = [r.data for r in c.packets]
    case.check(sorted(got) == sorted(came), "other packets")
    flow = lambda data: capture.flow_key(1, data)
    case.check(order(got, flow) == order(came, flow), "a packet overtook another of its flow")
    # Without a number of packets a signal ends it, also in the time of the capture.
    out.unlink()
    runs = subprocess.Popen([program, *eal, "--", "-c"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            env={**os.environ, **c.env})
    end = time.monotonic() + 60
    while time.monotonic() < end and runs.poll() is None and not (out.exists() and out.stat().st_size > 1000):
        time.sleep(0.02)
    case.check(runs.poll() is None, "it ended by itself")
    runs.send_signal(signal.SIGINT)
    said = runs.communicate(timeout=60)[0]
    counts = re.search(r"^(\d+) packets in, (\d+) out, 0 dropped", said, re.M)
    case.check(runs.returncode == 0 and counts and counts[1] == counts[2] != "0", f"{runs.returncode}: {said[-300:]}")


def order(packets, flow):
    """Packets by flow, in their order."""
    flows = {}
    for packet in packets:
        flows.setdefault(flow(packet), []).append(packet)
    return flows


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def stranger(directory, manifest, files):
    """A package outside of the workspace, which depends on its crates by path."""
    directory.mkdir()
    (directory / "src").mkdir()
    shutil.copy(ROOT / "Cargo.lock", directory)
    (directory / "Cargo.toml").write_text(manifest)
    for name, text in files.items():
        (directory / "src" / name).write_text(text)
    return directory


DEPENDS = f"""slipstream-reframe = {{ path = "{ROOT}/crates/reframe", default-features = false }}"""
PACKAGE = f"""
[package]
name = "stranger"
version = "0.0.0"
edition = "2024"

[dependencies]
{DEPENDS}

[workspace]
"""


def readme(case, c):
    """The README's program has 30 lines, compiles as it stands there, outside of the workspace, and prints
    what is shown."""
    text = (ROOT / "README.md").read_text()
    program, shown = blocks(text, "rust")[0], blocks(text, "text")[0]
    case.check(program.strip().count("\n") < 30, "more than 30 lines")
    case.check(program in (ROOT / "crates" / "reframe" / "README.md").read_text(), "the crate's own README has another")
    place = stranger(c.directory / "stranger", PACKAGE, {"main.rs": program})
    said = cargo("run", "--quiet", "--offline", cwd=place, env=c.strangers)
    case.equal(said, shown, "output")


FREESTANDING = """
#![no_std]

extern crate alloc;

use core::alloc::{GlobalAlloc, Layout};
use slipstream_reframe::embed::Reframer;
use slipstream_reframe::{Nanos, ReframeConfig};

struct Nothing;

unsafe impl GlobalAlloc for Nothing {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        core::ptr::null_mut()
    }
    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static ALLOCATOR: Nothing = Nothing;

#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(no_mangle)]
pub extern "C" fn trains(bytes: *const u8, now: u64) -> u32 {
    let Ok(mut reframer) = Reframer::new(&ReframeConfig::default()) else { return 0 };
    let bytes = unsafe { core::slice::from_raw_parts(bytes, 60) };
    let _ = reframer.push(Nanos(now), 1, bytes);
    reframer.drain();
    reframer.poll(Nanos(now)).map_or(0, |train| train.handles.len() as u32)
}
"""


def freestanding(case, c):
    """The reframer alone needs no standard library and has at most four crates below it."""
    tree = cargo("tree", "--offline", "-p", "slipstream-reframe", "--no-default-features", "-e", "normal",
                 "--prefix", "none", cwd=ROOT)
    crates = {line.split()[0] for line in tree.splitlines() if line.strip()}
    case.check(len(crates) <= 5 and "slipstream-wire" in crates, sorted(crates))
    # With a panic handler of its own the library would not compile if anything in it took the standard
    # library.
    manifest = PACKAGE + '\n[lib]\ncrate-type = ["staticlib"]\n\n[profile.dev]\npanic = "abort"\n'
    place = stranger(c.directory / "freestanding", manifest, {"lib.rs": FREESTANDING})
    cargo("build", "--quiet", "--offline", cwd=place, env=c.strangers)
    names = run("nm", "--undefined-only", Path(c.strangers["CARGO_TARGET_DIR"]) / "debug" / "libstranger.a")
    system = {name for name in ("malloc", "open64", "pthread_create", "clock_gettime", "write") if re.search(rf"\bU {name}$", names, re.M)}
    case.equal(system, set(), "asked of the system")
    # The check can fail: with one more crate below it, which takes the standard library, it does.
    stranger(c.directory / "std", '[package]\nname = "takes-std"\nversion = "0.0.0"\nedition = "2024"\n', {"lib.rs": "pub use std::fs::File;\n"})
    more = manifest.replace(DEPENDS, DEPENDS + '\ntakes-std = { path = "../std" }')
    other = stranger(c.directory / "hosted", more, {"lib.rs": FREESTANDING + "pub use takes_std::File;\n"})
    done = subprocess.run(["cargo", "build", "--quiet", "--offline"], cwd=other, capture_output=True, text=True, check=False,
                          env={**os.environ, **c.strangers})
    case.check("panic_impl" in done.stderr, "the standard library went unnoticed")


# The C library is installed from here, the Python package is built by maturin.
NOT_CRATES = ("slipstream-capi", "slipstream-py")


def packages(case, c):
    """Every crate can be packaged: what it depends on has a version, and it brings what its manifest
    names, and the licence."""
    excluded = [word for name in NOT_CRATES for word in ("--exclude", name)]
    target = c.directory / "packages"
    cargo("package", "--quiet", "--workspace", *excluded, "--no-verify", "--allow-dirty", "--locked", cwd=ROOT,
          env={"CARGO_TARGET_DIR": str(target)})
    made = {re.sub(r"-[0-9.]+$", "", path.stem): path for path in (target / "package").glob("*.crate")}
    manifests = [path.read_text() for path in (ROOT / "crates").glob("*/Cargo.toml")]
    names = {re.search(r'^name = "(.*)"$', text, re.M).group(1) for text in manifests} - set(NOT_CRATES)
    case.equal(set(made), names, "packages")
    for name, path in made.items():
        with tarfile.open(path) as packed:
            files = {member.name.split("/", 1)[1]: member for member in packed.getmembers()}
            licence = packed.extractfile(files["LICENSE"]).read() if "LICENSE" in files else b""
        case.check({"README.md", "Cargo.toml"} <= set(files), f"{name}: README.md is missing")
        case.check(licence == (ROOT / "LICENSE").read_bytes(), f"{name}: LICENSE is missing, or not the licence")


CHECKS = (header, loader, wrong_input, plain_c, live, dpdk, vpp, readme, freestanding, packages)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", nargs="?", default=ROOT / "target/release/slipstream", type=Path)
    parser.add_argument("--only", default="", help="only checks that have this text in their name")
    arguments = parser.parse_args()
    harness.ends_tidily()
    binary = harness.program(arguments.binary)
    harness.needed("cc", "c++", "pkg-config", "nm", "readelf", "prlimit")
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        installed = Installed(Path(directory), binary)
        harness.one_by_one([(check.__name__, check) for check in CHECKS], arguments.only, lambda check, case: check(case, installed))


if __name__ == "__main__":
    main()
