#!/bin/bash
# Proves what stands in the files of this folder, with Yosys and z3: the parser for all frames, the
# boundary for every sequence of 24 cycles from reset, the table for every sequence of STEPS cycles (default 12).
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/formal
mkdir -p "$out"

prove() { # name, steps, files
    local name=$1 steps=$2
    shift 2
    local sources=()
    for file in "$@"; do sources+=("rtl/$file.sv"); done
    yosys -q -l "$out/$name.log" -p "read_verilog -sv -formal ${sources[*]} formal/$name.sv; prep -flatten -top $name
        memory_map; async2sync; dffunmap; opt_clean; write_smt2 -wires $out/$name.smt2"
    if ! yosys-smtbmc -s z3 -t "$steps" --dump-vcd "$out/$name.vcd" "$out/$name.smt2" > "$out/$name.result"; then
        tail -20 "$out/$name.result"
        echo "FAIL $name"
        return 1
    fi
    echo "ok   $name ($steps steps)"
}

prove skid_proof 24 skid_buffer
prove parser_proof 1 header_parser
prove table_proof "${STEPS:-12}" metadata_table
