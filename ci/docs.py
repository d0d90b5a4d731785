#!/usr/bin/env python3
"""Does the documentation say what is so? Links and anchors lead somewhere; commands shown run; outputs and
code shown are real.

usage: ci/docs.py SLIPSTREAM [--refresh]

Of every `console` block, lines that begin with `$ slipstream` (or a `zcat` into it) are run, in one scratch
directory a file, in which names like `in.pcap` stand for the bundled trace. Lines shown below a command must
occur in its output, in this order; `...` stands for anything. Exit status 0 is expected, or 1 where a check
was asked for. Sentences are no wider than ci/columns.py allows. Ends with `N passed, N failed`.

Below `<!-- excerpt: PATH -->` stands a block of code whose lines occur in that file in this order, `...`
standing for anything; indentation doesn't count, nor do the marks of comments in documentation.

The costs in examples/notebooks/holding.ipynb are those of the book's chain.

Tables of settings stand between `<!-- settings: TYPE -->` and `<!-- end of settings -->`, and are what
`slipstream list --markdown TYPE` prints. With --refresh they are written anew, and the picture of the crates
(ci/house.py); nothing else is done. Each function's table stands on some page.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import columns
import house

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "traces" / "README.md", *sorted((ROOT / "book" / "src").rglob("*.md"))]
# Names in examples that stand for a capture of the reader's.
STAND_INS = ("IN", "in.pcap", "mine.pcap", "your.pcap", "a.pcap", "big.pcap", "campus.pcap.gz")
SECONDS = 60
# Lines that differ from run to run.
VOLATILE = re.compile(r"CPU a packet")


def anchor(heading):
    """The anchor of a heading, as mdBook and GitHub make it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def parts(page):
    """Text outside of code, the headings, and the blocks of code with their languages."""
    prose, blocks, code = [], [], None
    for line in page.read_text(encoding="utf-8").splitlines():
        if code is not None:
            if line.startswith("```"):
                blocks.append(code)
                code = None
            else:
                code[1].append(line)
        elif line.startswith("```"):
            code = (line[3:].strip(), [])
        else:
            prose.append(line)
    headings = [re.sub(r"^#+\s*", "", line) for line in prose if line.startswith("#")]
    return "\n".join(prose), {anchor(h) for h in headings}, blocks


def check_links(page, fail):
    """Yields once a link; `fail` takes what is wrong."""
    prose, _, _ = parts(page)
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", prose)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        yield
        if not file.exists():
            fail(f"{page.relative_to(ROOT)}: {target} does not exist")
        elif fragment and fragment not in parts(file)[1]:
            fail(f"{page.relative_to(ROOT)}: no heading #{fragment} in {file.name}")


SETTINGS = re.compile(r"<!-- settings: (\w+) -->\n(.*?)<!-- end of settings -->", re.DOTALL)


def with_tables(text, binary):
    """The text of a page with its tables of settings as the definitions say."""

    def table(found):
        made = subprocess.run([binary, "list", "--markdown", found[1]], capture_output=True, text=True, check=True)
        return f"<!-- settings: {found[1]} -->\n\n{made.stdout.strip()}\n\n<!-- end of settings -->"

    return SETTINGS.sub(table, text)


def check_tables(page, binary, fail):
    """Yields once a page with tables of settings; `fail` takes what is wrong."""
    text = page.read_text(encoding="utf-8")
    if SETTINGS.search(text):
        yield
        if with_tables(text, binary) != text:
            fail(f"{page.relative_to(ROOT)}: its tables of settings differ from the definitions: ci/docs.py SLIPSTREAM --refresh")


def check_settings(binary, fail):
    """Yields once a stage type with settings; `fail` takes one whose settings stand nowhere."""
    listed = subprocess.run([binary, "list", "--format", "json"], capture_output=True, text=True, check=True)
    told = {name for page in PAGES for name, _ in SETTINGS.findall(page.read_text(encoding="utf-8"))}
    for stage in json.loads(listed.stdout)["stages"]:
        if stage["settings"]:
            yield
            if stage["name"] not in told:
                fail(f"book/src: no page has a table of the settings of {stage['name']}")


EXCERPT = re.compile(r"<!-- excerpt: (\S+) -->\n+```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)


def check_excerpts(page, fail):
    """Yields once a piece of code from a file; `fail` takes what is wrong."""
    for path, block in EXCERPT.findall(page.read_text(encoding="utf-8")):
        yield
        file = ROOT / path
        if not file.is_file():
            fail(f"{page.relative_to(ROOT)}: an excerpt of {path}, which does not exist")
            continue
        text = "\n".join(re.sub(r"^\s*(//[/!] ?)?\s*", "", line) for line in file.read_text(encoding="utf-8").splitlines())
        line = missing_line([line.strip() for line in block.splitlines()], text)
        if line is not None:
            fail(f"{page.relative_to(ROOT)}: this line is not in {path}, or not there: {line}")


def check_costs(fail):
    """The costs that a notebook begins with are those of the book's chain, per train."""
    yield
    results = (ROOT / "book" / "src" / "results.md").read_text(encoding="utf-8")
    notebook = (ROOT / "examples" / "notebooks" / "holding.ipynb").read_text(encoding="utf-8")
    row = re.search(r"^\| chain \| [^|]*\| (\d+)/SLF \+ (\d+) ", results, re.M)
    told = [re.search(rf"PER_{what}_NS = (\d+)\.0", notebook) for what in ("TRAIN", "PACKET")]
    if row is None or None in told or list(row.groups()) != [number[1] for number in told]:
        fail("examples/notebooks/holding.ipynb: its costs of a train and a packet are not those of the chain in "
             "book/src/results.md")


def commands(block):
    """The commands of a console block, with the lines shown below each."""
    shown = []
    for line in block:
        if line.startswith("$ ") or line.startswith("# "):
            shown.append(([line[2:]] if line.startswith("$ ") else None, []))
        elif shown and shown[-1][0] and not shown[-1][1] and shown[-1][0][-1].endswith("\\"):
            shown[-1][0].append(line)
        elif shown:
            shown[-1][1].append(line)
    return [("\n".join(words), output) for words, output in shown if words]


def runnable(command):
    """True if the command is ours, or feeds ours, and this machine has the programs beside it."""
    words = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=True)
    words.whitespace_split = True
    programs, first = [], True
    for word in words:
        if first:
            programs.append(word)
        first = word in ("|", "&&", ";")
    return programs[:1] in (["slipstream"], ["zcat"]) and all(p == "slipstream" or shutil.which(p) for p in programs)


def smaller(command):
    """Big inputs of benchmarks, and turns, made small: what is checked is that the command works."""
    command = re.sub(r"--loop \d+", "--loop 2", command)
    command = re.sub(r"--duration \d+(s|min)", "--duration 1s", command)
    command = re.sub(r"--packets (\d{6,}|\d+M)", "--packets 20000", command)
    command = re.sub(r"packets=(\d{6,}|\d+[kM])", "packets=20000", command)
    return command


def missing_line(shown, output):
    """The first line shown that the output doesn't have, in order."""
    # Columns are as wide as the times in them.
    lines = iter([line.split() for line in output.splitlines()])
    for line in shown:
        line = line.rstrip()
        if line in ("", "...", "  ...") or VOLATILE.search(line):
            continue
        if not any(line.split() == other for other in lines):
            return line
    return None


def check_commands(page, binary, scratch, fail):
    # Copies, not links: a command may write to what it is given.
    for directory in ("traces", "configs"):
        shutil.copytree(ROOT / directory, scratch / directory)
    for name in STAND_INS:
        shutil.copy(ROOT / "traces" / "campus.pcap.gz", scratch / name)
    (scratch / "bypass.rules").write_text("tcp syn\nudp port 53\n", encoding="utf-8")
    environment = {**os.environ, "HOME": str(scratch / "home"), "PATH": f"{binary.parent}:{os.environ['PATH']}"}
    (scratch / "home" / ".local/share/bash-completion/completions").mkdir(parents=True)
    for language, block in parts(page)[2]:
        if language != "console":
            continue
        for command, shown in commands(block):
            if not runnable(command):
                continue
            yield
            small = smaller(command)
            where = f"{page.relative_to(ROOT)}: {shlex.quote(command)}"
            try:
                done = subprocess.run(["bash", "-c", small], cwd=scratch, env=environment, capture_output=True,
                                      text=True, errors="replace", timeout=SECONDS, stdin=subprocess.DEVNULL,
                                      check=False)
            except subprocess.TimeoutExpired:
                fail(f"{where}: not done after {SECONDS} s")
                continue
            allowed = (0, 1) if "--fail-if" in command else (0,)
            if done.returncode not in allowed:
                fail(f"{where}: exit status {done.returncode}: {done.stderr.strip()[:300]}")
            elif small == command and (line := missing_line(shown, done.stderr + done.stdout)) is not None:
                fail(f"{where}: this line is not in its output: {line}")


def main():
    if len(sys.argv) < 2 or not os.access(sys.argv[1], os.X_OK):
        sys.exit(f"usage: {sys.argv[0]} SLIPSTREAM [--refresh], where SLIPSTREAM is the program that was built (make build)")
    binary = Path(sys.argv[1]).resolve()
    if "--refresh" in sys.argv:
        for page in PAGES:
            text = page.read_text(encoding="utf-8")
            page.write_text(with_tables(text, binary), encoding="utf-8")
        house.write()
        return 0
    failures, checked = [*columns.wrong()], 1
    checked += max(1, len(failures))
    checked += sum(1 for _ in check_costs(failures.append))
    checked += sum(1 for _ in check_settings(binary, failures.append))
    if wrong := house.wrong():
        failures.append(wrong)
    for page in PAGES:
        checked += sum(1 for _ in check_links(page, failures.append))
        checked += sum(1 for _ in check_excerpts(page, failures.append))
        checked += sum(1 for _ in check_tables(page, binary, failures.append))
        with tempfile.TemporaryDirectory() as scratch:
            checked += sum(1 for _ in check_commands(page, binary, Path(scratch), failures.append))
    for failure in failures:
        print(f"FAIL {failure}")
    print(f"{checked - len(failures)} passed, {len(failures)} failed (documentation)")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
