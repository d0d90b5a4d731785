#!/usr/bin/env python3
"""Inputs for fuzz targets to begin with, made of the golden files of saved states: into fuzz/corpus/TARGET.

Targets that make checksums right take what stands before them.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def write(target, path, data):
    folder = ROOT / "fuzz/corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"seed-{path.name}").write_bytes(data)


def main():
    for path in sorted((ROOT / "crates/sketch/tests/golden").glob("*.sketch")):
        state = path.read_bytes()
        version, kind = int.from_bytes(state[8:10], "little"), state[10]
        write("sketch_state", path, state[:-4])
        write("sketch_tables", path, bytes([kind - 1, version]) + state[24:-4])
    for path in sorted((ROOT / "crates/measure/tests/golden").glob("*.state")):
        write("measure_state", path, path.read_bytes()[:-4])
    for path in sorted((ROOT / "crates/trace/tests/trace/golden").glob("*.partial")):
        write("trace_part", path, path.read_bytes())


if __name__ == "__main__":
    main()
