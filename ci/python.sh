#!/bin/bash
# Prints the path of a Python 3.9 or later that has numpy and scipy: that of $PYTHON, of the path, of Debian,
# of pyenv; else of a virtual environment made for the purpose (Debian's own Python takes no packages outside
# one).
set -euo pipefail
cd "$(dirname "$0")/.."

good() { "$1" -c 'import sys, numpy, scipy; assert sys.version_info >= (3, 9)' > /dev/null 2>&1 < /dev/null; }

venv="${CARGO_TARGET_DIR:-target}/python"
for python in "${PYTHON:-}" "$venv/bin/python3" python3 /usr/bin/python3 "$HOME"/.pyenv/versions/*/bin/python3; do
    if [ -n "$python" ] && found=$(command -v "$python") && good "$found"; then
        echo "$found"
        exit
    fi
done

for python in python3 /usr/bin/python3; do
    rm -rf "$venv"
    if "$python" -m venv "$venv" >&2 < /dev/null && "$venv/bin/pip" install --quiet numpy scipy >&2 < /dev/null && good "$venv/bin/python3"; then
        echo "$venv/bin/python3"
        exit
    fi
done
echo "no python3 with numpy and scipy; on Debian: apt-get install python3-numpy python3-scipy" >&2
exit 1
