#!/bin/bash
# Synthesis with Yosys: gates (cells of no technology), Xilinx UltraScale+ and Lattice ECP5; with LIBERTY=FILE
# also cells of that library, their area, and with OpenSTA the worst path at 2.56 ns and 2.26 ns. `synth.sh
# [--all]`: without --all the gates and one FPGA alone. ENTRIES (default 250) and DATA_W (default 256) choose
# the size. Results: build/synth/*.json, for table.py.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-build/synth}
mkdir -p "$out"
entries=${ENTRIES:-250}
width=${DATA_W:-256}

# The payload memory stays one cell, as a compiled SRAM would: its bits are counted, not its gates. For Xilinx
# it becomes block memory.
sources=$(echo rtl/*.sv | sed 's|rtl/payload_ram.sv||')
size="chparam -set ENTRIES $entries -set DATA_W $width slice_splice; hierarchy -check -top slice_splice"
outside="read_verilog -sv -lib rtl/payload_ram.sv; read_verilog -sv $sources; $size"
inside="read_verilog -sv rtl/payload_ram.sv $sources; $size"

run() { # name, script
    echo "== $1"
    yosys -q -l "$out/$1.log" -p "$2; tee -q -o $out/$1.json stat -json" > "$out/$1.out" 2>&1 || { tail -5 "$out/$1.out"; exit 1; }
}

run gates "$outside; synth -flatten -noabc -top slice_splice; opt_clean; tee -q -o $out/depth.txt ltp -noff"
run ecp5 "$outside; synth_ecp5 -abc2 -top slice_splice"
if [ "${1:-}" = --all ]; then
    run xilinx "$inside; synth_xilinx -family xcup -flatten -top slice_splice -noiopad"
fi
if [ -n "${LIBERTY:-}" ]; then
    run liberty "$outside; synth -flatten -top slice_splice; dfflibmap -liberty $LIBERTY; abc -liberty $LIBERTY; opt_clean
        tee -q -o $out/liberty.txt stat -liberty $LIBERTY; write_verilog -noattr $out/netlist.v"
    if command -v sta > /dev/null; then
        for period in 2.56 2.26; do
            sed "s/PERIOD/$period/; s|LIBERTY|$LIBERTY|; s|NETLIST|$out/netlist.v|" synth/timing.tcl > "$out/timing.tcl"
            sta -no_init -no_splash -exit "$out/timing.tcl" > "$out/timing_$period.txt"
            grep -E 'slack|worst' "$out/timing_$period.txt" || true
        done
    else
        echo "OpenSTA is not installed (Debian: opensta): no timing"
    fi
else
    echo "LIBERTY is not set: no area and no timing of a technology"
fi
python3 synth/table.py "$out" "$entries" "$width"
