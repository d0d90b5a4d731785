#!/bin/bash
# Proves what stands in the files of this folder, with Yosys and z3: the parser for all frames, the
# boundary for every sequence of 24 cycles from reset, the table for every sequence of STEPS cycles (default 8).
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
        memory_map; async2sync; dffunmap; opt_clean; write_smt2 -wires $out/$name.smt2" > "$out/$name.synth" 2>&1
    if ! yosys-smtbmc -s z3 -t "$steps" --dump-vcd "$out/$name.vcd" "$out/$name.smt2" > "$out/$name.result"; then
        tail -20 "$out/$name.result"
        echo "FAIL $name"
        return 1
    fi
    echo "ok   $name ($steps steps)"
}

prove skid_proof 24 skid_buffer

# No state: one step, for which Yosys' own solver is the quicker one.
if ! yosys -q -l "$out/parser_proof.log" -p "read_verilog -sv -formal rtl/header_parser.sv formal/parser_proof.sv
    prep -flatten -top parser_proof; memory_map; opt -full; sat -prove-asserts -set-assumes -verify parser_proof" > "$out/parser_proof.result"; then
    echo "FAIL parser_proof"
    exit 1
fi
echo "ok   parser_proof (every frame)"
prove table_proof "${STEPS:-8}" metadata_table
