#!/bin/bash
# Proves what stands in the files of this folder: the parser for every frame; the boundary for every sequence
# of 24 cycles from reset; the table for every sequence of STEPS cycles (default 8). Yosys' own solver, but
# for the boundary, where z3 is the quicker one.
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/formal
mkdir -p "$out"

prove() { # name, files under proof, what is proved, options of sat
    local name=$1 said=$3 files=""
    for file in $2; do files+=" rtl/$file.sv"; done
    shift 3
    if ! yosys -q -l "$out/$name.log" -p "read_verilog -sv -formal$files formal/$name.sv; prep -flatten -top $name
        memory_map; async2sync; dffunmap; opt -full; sat $* -prove-asserts -set-assumes -verify $name" > "$out/$name.result" 2>&1; then
        tail -5 "$out/$name.result"
        echo "FAIL $name"
        exit 1
    fi
    grep -q "no model found: SUCCESS" "$out/$name.log" || { echo "FAIL $name: nothing was proved"; exit 1; }
    echo "ok   $name ($said)"
}

prove parser_proof "ip_parser transport_parser" "every frame"
prove table_proof metadata_table "every sequence of ${STEPS:-8} cycles" -seq "${STEPS:-8}"

yosys -q -l "$out/skid_proof.log" -p "read_verilog -sv -formal rtl/skid_buffer.sv formal/skid_proof.sv; prep -flatten -top skid_proof
    async2sync; dffunmap; write_smt2 -wires $out/skid_proof.smt2"
if ! yosys-smtbmc -s z3 -t 24 "$out/skid_proof.smt2" > "$out/skid_proof.result"; then
    tail -20 "$out/skid_proof.result"
    echo "FAIL skid_proof"
    exit 1
fi
echo "ok   skid_proof (every sequence of 24 cycles)"
