"""The Debian package: what is in it, and whether the command works as its service runs it, as a user without
root."""

import gzip
import json
import os
import subprocess

from harness import ROOT, Run, have
from netns import Middlebox, Net, is_udp, number_of, udp

CAPABILITIES = "+net_raw,+net_admin,+bpf"
UNIT = "lib/systemd/system/slipstream@.service"
FILES = (UNIT, "usr/bin/slipstream", "usr/share/man/man1/slipstream.1.gz", "usr/share/man/man1/slipstream-model-solve.1.gz",
         "usr/share/bash-completion/completions/slipstream", "usr/share/doc/slipstream/examples/gateway.toml",
         "usr/share/slipstream/grafana/slipstream.json", "usr/share/slipstream/prometheus/slipstream.rules.yml",
         "usr/share/doc/slipstream/copyright")
GRAPH = "a :: af_packet(interface=ma); b :: af_packet(interface=mb); a -> reframe(hold=64us) -> b; b -> a"


def said(*words):
    """What a command says, on stdout and stderr, and its status."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


def allowed(group):
    """The system calls of a group of systemd's, those of groups within it included."""
    names = [line.strip() for line in said("systemd-analyze", "--no-pager", "syscall-filter", group)[1].splitlines()]
    calls = {name for name in names if name and name[0] not in "@#"}
    return calls.union(*(allowed(name) for name in names if name.startswith("@") and name != group))


# A script of the package runs where it finds a manager that prints what it is told, and folders that only the
# script sees.
MANAGED = """mount -t tmpfs none /run && mkdir -p /run/systemd/system /run/bin
mount -t tmpfs none /etc/systemd/system && mkdir /etc/systemd/system/multi-user.target.wants
ln -s nowhere /etc/systemd/system/multi-user.target.wants/slipstream@x.service
ln -s nowhere /etc/systemd/system/multi-user.target.wants/other@x.service
printf '#!/bin/sh\\necho "$@"\\n' > /run/bin/systemctl && chmod 755 /run/bin/systemctl
PATH=/run/bin:$PATH "$@" && ls /etc/systemd/system/multi-user.target.wants"""
RELOADED, STOPPED, ENABLED, OTHER = ["--system daemon-reload"], ["stop slipstream@*.service"], ["slipstream@x.service"], ["other@x.service"]


def scripts(case, path, scratch):
    """The manager hears of a unit that comes or goes; services end with the package, not at an upgrade."""
    control = scratch / "control"
    case.equal(said("dpkg-deb", "-e", path, control)[0], 0, "its scripts unpacked")
    for words, told, left in ((("postinst", "configure"), RELOADED, OTHER + ENABLED), (("prerm", "upgrade", "2"), [], OTHER + ENABLED),
                              (("prerm", "remove"), STOPPED, OTHER + ENABLED), (("postrm", "remove"), RELOADED, OTHER + ENABLED),
                              (("postrm", "purge"), RELOADED, OTHER)):
        status, what = said("unshare", "-m", "sh", "-c", MANAGED, "sh", control / words[0], *words[1:])
        case.equal((status, what.splitlines()), (0, told + left), " ".join(words))


def package(case, binary, scratch):
    """The package has what it should, and its unit is one; the command needs three capabilities and no
    root."""
    if not have(case, "dpkg-deb", "setpriv", "systemd-analyze"):
        return
    status, path = said("sh", "-c", 'umask 077; exec "$@"', "sh", ROOT / "ci" / "deb.sh", binary, scratch)
    if not case.equal(status, 0, f"ci/deb.sh: {path}"):
        return
    root = scratch / "root"
    case.equal(said("dpkg-deb", "-x", path.strip(), root)[0], 0, "unpacked")
    for name in FILES:
        case.check((root / name).is_file(), f"{name} is not in the package")
    for example in sorted((root / "usr/share/doc/slipstream/examples").glob("*.toml")):
        status, what = said(binary, "validate", example)
        case.equal(status, 0, f"{example.name}: {what}")
    case.check("slipstream" in gzip.decompress((root / "usr/share/man/man1/slipstream.1.gz").read_bytes()).decode(), "the manual page is of something else")
    case.equal([p for p in root.rglob("*") if not p.stat().st_mode & 0o004], [], "what not everybody may read")
    scripts(case, path.strip(), scratch)
    program = root / "usr/bin/slipstream"
    case.check(Run(program, ["--version"]).stdout == Run(binary, ["--version"]).stdout, "it is another version")
    case.check(".symtab" not in said("readelf", "--section-headers", "--wide", program)[1], "its symbols were not taken out")
    version = said("dpkg-deb", "-f", path.strip(), "Version")[1].strip()
    case.check(version in Run(program, ["--version"]).stdout.decode(), f"the package says that it is {version}")

    # The unit as it stands, but for the path of the command.
    unit = scratch / "slipstream@.service"
    unit.write_text((root / UNIT).read_text().replace("/usr/bin/slipstream", str(program)))
    status, what = said("systemd-analyze", "verify", "--man=no", str(unit).replace("@.", "@x."))
    unit_lines = [line for line in what.splitlines() if "slipstream" in line]
    case.check(status == 0 and not unit_lines, f"systemd-analyze verify: {status} {what}")

    # What AF_XDP takes, and what a run takes that gives up system calls, the unit's filter lets pass.
    filters = next(line for line in unit.read_text().splitlines() if line.startswith("SystemCallFilter=")).partition("=")[2].split()
    passes = set(filters).union(*(allowed(name) for name in filters if name.startswith("@")))
    case.check({"bpf", "seccomp"} <= passes, f"system calls that the unit lets pass: {sorted(passes)}")

    # As the unit runs it: another user, with three capabilities.
    os.chmod(scratch, 0o755)
    service = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs", f"--inh-caps={CAPABILITIES}",
               f"--ambient-caps={CAPABILITIES}", program, "run", "--format", "json", "-e", GRAPH)
    with Net() as net:
        near, far = net.wire("a"), net.wire("b")
        box = Middlebox(net, *service).ready()
        for number in range(20):
            near.send(udp(net, number))
        case.equal([number_of(f)[1] for _, f in far.receive(2, is_udp, 20)], list(range(20)), "packets that passed")
        status, out, err = box.stop()
        if case.equal(status, 0, f"exit status ({err})"):
            case.equal(json.loads(out)["left_inside"], 0, "left inside")


PACKAGE = (package,)
