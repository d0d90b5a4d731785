#!/bin/bash
# Builds the Python package as a wheel, for CPython 3.9 and every later one, and tries it in a fresh virtual
# environment. usage: ci/wheels.sh [FOLDER [OPTION OF maturin build]…]; without options it is built with all
# optimisations.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
out=${1:-${CARGO_TARGET_DIR:-target}/wheels}
shift || true
[ $# -gt 0 ] || set -- --release
python=${PYTHON:-python3}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/build" < /dev/null
"$work/build/bin/pip" install --quiet --disable-pip-version-check 'maturin>=1.7,<2' < /dev/null
rm -rf "$out"
"$work/build/bin/maturin" build --quiet --locked --strip --out "$out" "$@" < /dev/null
wheels=("$out"/*.whl)
if [ ${#wheels[@]} -ne 1 ] || [[ ${wheels[0]} != *-cp39-abi3-* ]]; then
    echo "not one wheel of CPython's stable ABI from 3.9 on: ${wheels[*]}" >&2
    exit 1
fi
wheel=$(realpath "${wheels[0]}")
"$python" -m venv --without-pip "$work/fresh" < /dev/null
"$work/build/bin/pip" --quiet --disable-pip-version-check --python "$work/fresh/bin/python" install --no-index "$wheel" < /dev/null
cd "$work"
"$work/fresh/bin/python" - "$root/traces/campus.pcap.gz" << 'END'
import sys

import slipstream

result = slipstream.analyze(sys.argv[1])
assert result.total.records == 24_000 and 1.2 < result.total.ip.slf < 1.3, result
part = slipstream.partial(sys.argv[1])
assert slipstream.merge([slipstream.Partial.from_bytes(part.to_bytes())]).to_dict() == result.to_dict()
assert sys.prefix in slipstream.__file__, slipstream.__file__
print(f"slipstream {slipstream.__version__} works in a fresh environment of Python {sys.version.split()[0]}")
END
echo "$wheel"
