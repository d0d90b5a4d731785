#!/usr/bin/env python3
"""Which sentences are wider than a window? Prose of Markdown, comments, and Python's docstrings.

usage: ci/columns.py

A line may have 110 columns. One may be wider where it can't be broken: a table's row, a heading, code, a long
word or link, the usage of a program. Wide code is not looked for; of Rust, rustfmt sees to it.
"""

import io
import os
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 110
# Made or fetched by programs, and inputs of tests.
ELSEWHERE = {".git", "target", "build", "corpus", "artifacts", "node_modules", "cases", "vectors", ".venv"}
# What sentences of a file begin with, by what its name ends with, or by its name.
MARKS = {
    ".md": "",
    **dict.fromkeys((".rs", ".c", ".h", ".sv", ".v"), "//!|///?"),
    **dict.fromkeys((".py", ".sh", ".toml", ".yml", ".yaml", "Makefile", "run"), "#"),
}
# A word, with a link or a span of code in one piece.
WORD = re.compile(r"(?:!?\[[^\[\]]*\](?:\([^()]*\))?|`[^`]*`|\S)+")
UNBROKEN = ("|", "#", "<", ">", "usage:")


def is_too_wide(line, start=0):
    """True if a line has more columns than it may, though a word of its text, which begins at `start`, could
    stand on the next one."""
    if len(line) <= COLUMNS or line[start:].lstrip().startswith(UNBROKEN):
        return False
    begins = [word.start() for word in WORD.finditer(line, start)]
    # The mark of an item and the word behind it can't be parted.
    return any(begin <= COLUMNS for begin in begins[2:])


def of_lines(text, mark):
    """Numbers, from 1, of the lines that are too wide among those that begin with a mark. Examples and tables
    are no sentences."""
    code = False
    for number, line in enumerate(text.splitlines(), 1):
        if not (found := re.match(rf"\s*(?:{mark})", line)):
            code = False
        elif line[found.end():].lstrip().startswith(("```", "~~~")):
            code = not code
        elif not code and is_too_wide(line, found.end()):
            yield number


def of_docstrings(text):
    """Numbers of the lines of docstrings that are too wide."""
    lines, before = text.splitlines(), None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        opens = before in (None, tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE, tokenize.NL, tokenize.COMMENT)
        if opens and token.type == tokenize.STRING and token.string.startswith('"""'):
            for number in range(token.start[0], token.end[0] + 1):
                if is_too_wide(lines[number - 1]):
                    yield number
        before = token.type


def wide(path):
    """Numbers of the lines of a file that are too wide."""
    mark = MARKS.get(path.suffix or path.name)
    if mark is None:
        return []
    text = path.read_text(encoding="utf-8")
    found = [*of_lines(text, mark)]
    return found + [*of_docstrings(text)] if path.suffix == ".py" else found


def files():
    """Everything that somebody wrote."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(f for f in folders if f not in ELSEWHERE and not (Path(folder) / f / "pyvenv.cfg").exists())
        yield from (Path(folder) / name for name in sorted(names))


def wrong():
    """What is wrong, a text for each file."""
    for path in files():
        if numbers := wide(path):
            lines = ", ".join(map(str, numbers[:10]))
            yield f"{path.relative_to(ROOT)}: more than {COLUMNS} columns in line {lines}{', …' if numbers[10:] else ''}"


def main():
    failures = [*wrong()]
    print("\n".join(failures) or f"nothing is wider than {COLUMNS} columns")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
