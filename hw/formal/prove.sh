#!/bin/bash
# Proves what stands in the files of this folder: the parser for every frame; the boundary for every sequence
# of 24 cycles from reset; the table for every sequence of STEPS cycles (default 8). Yosys' own solver, but
# for the boundary, where z3 is the quicker one.
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/formal
mkdir -p "$out"

# With these it reads the files under proof: name, files, parameters.
netlist() {
    local files=""
    for file in $2; do files+=" rtl/$file.sv"; done
    echo "read_verilog -defer -sv -formal$files formal/$1.sv; ${3:+chparam $3 $1;} prep -flatten -top $1
        memory_map; async2sync; dffunmap; opt -full"
}

prove() { # name, files under proof, parameters, what is proved, options of sat
    local name=$1 netlist said=$4
    netlist=$(netlist "$1" "$2" "$3")
    shift 4
    if ! yosys -q -l "$out/$name.log" -p "$netlist; sat $* -prove-asserts -set-assumes -verify $name" > "$out/$name.result" 2>&1; then
        tail -5 "$out/$name.result"
        echo "FAIL $name"
        exit 1
    fi
    grep -q "no model found: SUCCESS" "$out/$name.log" || { echo "FAIL $name: nothing was proved"; exit 1; }
    echo "ok   $name ($said)"
}

# A proof says nothing of what can't happen in it: each of these signals must be 1 in some last cycle.
reach() { # name, files under proof, parameters, cycles, signals
    local name=$1 cycles=$4 script found signal
    script=$(netlist "$1" "$2" "$3")
    shift 4
    for signal in "$@"; do script+="; sat -seq $cycles -set-assumes -set-at $cycles $signal 1 $name"; done
    if ! yosys -q -l "$out/$name.reach.log" -p "$script" > "$out/$name.reach.result" 2>&1; then
        tail -5 "$out/$name.reach.result"
        echo "FAIL $name: what it should reach"
        exit 1
    fi
    found=$(grep -c "SAT solving finished - model found" "$out/$name.reach.log" || true)
    [ "$found" -eq $# ] || { echo "FAIL $name: reaches $found of $*"; exit 1; }
    echo "ok   $name reaches $*"
}

steps=${STEPS:-8}
prove parser_proof "ip_parser transport_parser" "" "every frame"
for entries in 2 3; do
    prove table_proof metadata_table "-set ENTRIES $entries" "$entries entries, every sequence of $steps cycles" -seq "$steps"
done
reach table_proof metadata_table "-set ENTRIES 2" "$steps" reached_expiry reached_damage reached_second reached_collision

yosys -q -l "$out/skid_proof.log" -p "read_verilog -sv -formal rtl/skid_buffer.sv formal/skid_proof.sv; prep -flatten -top skid_proof
    async2sync; dffunmap; write_smt2 -wires $out/skid_proof.smt2"
if ! yosys-smtbmc -s z3 -t 24 "$out/skid_proof.smt2" > "$out/skid_proof.result"; then
    tail -20 "$out/skid_proof.result"
    echo "FAIL skid_proof"
    exit 1
fi
echo "ok   skid_proof (every sequence of 24 cycles)"

# Parameters that the block can't have end its elaboration, with a text that says why.
refused() { # parameter and value
    local said
    said=$(yosys -q -p "read_verilog -sv -lib rtl/payload_ram.sv; read_verilog -defer -sv ${sources[*]}; chparam -set $1 slice_splice
        hierarchy -check -top slice_splice" 2>&1) && { echo "FAIL $1 is taken"; exit 1; }
    grep -q "slice_splice.sv:.*FATAL" <<< "$said" || { echo "FAIL $1 ends otherwise: $said"; exit 1; }
}
sources=()
for file in rtl/*.sv; do [ "$file" = rtl/payload_ram.sv ] || sources+=("$file"); done
limits=("DATA_W 128" "DATA_W 384" "BYTES 16" "BYTES 64" "ENTRIES 1" "ENTRIES 65537" "TAG_W 23" "TAG_W 41" "MAX_PAYLOAD 8" "MAX_PAYLOAD 9601")
for limit in "${limits[@]}"; do refused "$limit"; done
echo "ok   ${#limits[@]} parameters out of range are refused"
