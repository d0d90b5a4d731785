#!/bin/bash
# Synthesis with Yosys: gates (cells of no technology) and Lattice ECP5, with --all Xilinx UltraScale+ too;
# with LIBERTY=FILE also cells of that library, their area, and with OpenSTA the worst path at 2.56 ns and
# 2.26 ns, and the power. WIRES=MODEL names a wire load model of the library: the worst path with it as well.
# ENTRIES (default 250) and DATA_W (default 256) choose the size. --library does what needs the library alone,
# --check takes one module through it with a library of no process. Results: build/synth/*, which table.py
# prints.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-build/synth}
mkdir -p "$out"
entries=${ENTRIES:-250}
width=${DATA_W:-256}
wires=${WIRES:-}

# The payload memory stays one cell, as a compiled SRAM would: its bits are counted, not its gates. For Xilinx
# it becomes block memory.
sources=$(echo rtl/*.sv | sed 's|rtl/payload_ram.sv||')
size="chparam -set ENTRIES $entries -set DATA_W $width slice_splice; hierarchy -check -top slice_splice"
outside="read_verilog -sv -lib rtl/payload_ram.sv; read_verilog -sv $sources; $size"
inside="read_verilog -sv rtl/payload_ram.sv $sources; $size"

run() { # name, script
    local since=$SECONDS
    yosys -q -l "$out/$1.log" -p "$2" > "$out/$1.out" 2>&1 || { tail -5 "$out/$1.out"; exit 1; }
    echo "== $1: $((SECONDS - since)) s"
}

# Cells of a library, buffers in trees where many inputs hang on one output, and the worst path for each
# period given. The payload memory is outside, and its ports are ends of paths. `if -g` balances the logic for
# its depth.
mapped() { # top, script that reads it, library, periods
    local top=$1 library=$3 power=1
    printf '%s\n' strash ifraig scorr "dch -f" "if -g -K 6 -C 8" strash "dch -f" "map -B 0.9 -D 1800" > "$out/abc.txt"
    run liberty "$2; synth -flatten -noabc -top $top; dfflibmap -liberty $library; abc -liberty $library -script $out/abc.txt
        opt_clean; setparam -unset WIDTH -unset DEPTH -unset ADDR_W t:payload_ram; write_json $out/mapped.json"
    python3 synth/trees.py "$out/mapped.json" "$library" "$out/placed.json"
    run netlist "read_json $out/placed.json; tee -q -o $out/liberty.txt stat -liberty $library; write_verilog -noattr -noexpr -simple-lhs $out/netlist.v"
    if ! command -v sta > /dev/null; then
        echo "OpenSTA is not installed (Debian: opensta): no timing"
        return
    fi
    for period in $4; do
        sed "s|PERIOD|$period|; s|LIBERTY|$library|; s|NETLIST|$out/netlist.v|; s|TOP|$top|; s|POWER|$power|; s|WIRES|$wires|g" synth/timing.tcl > "$out/timing.tcl"
        sta -no_init -no_splash -exit "$out/timing.tcl" > "$out/timing_$period.txt"
        grep -q "worst slack" "$out/timing_$period.txt" || { tail -5 "$out/timing_$period.txt"; echo "OpenSTA found no path"; exit 1; }
        power=0
    done
}

if [ "${1:-}" = --check ]; then
    out=$out/check
    mkdir -p "$out"
    mapped token_maker "read_verilog -sv rtl/token_maker.sv rtl/aes_tag.sv; hierarchy -check -top token_maker" synth/unit.lib "100"
    area=$(sed -n "s/.*Chip area for .*: //p" "$out/liberty.txt")
    slack=$(sed -n 's/worst slack //p' "$out/timing_100.txt" 2> /dev/null || true)
    echo "token maker in a library of no process: area $area${slack:+, $(python3 -c "print(round(100 - float('$slack')))") delays of a gate on the longest path}"
    exit
fi

rm -f "$out"/*.json "$out"/*.txt
if [ "${1:-}" = --library ]; then
    mapped slice_splice "$outside" "${LIBERTY:?names the liberty file}" "2.56 2.26"
    python3 synth/table.py "$out" "$entries" "$width"
    exit
fi
# Look-up arrays stay memories, too, so that their bits are counted; a path ends at any memory.
# Shifts and selections go first, as whole words: most of theirs is constant, and never becomes gates.
run gates "$outside; proc -norom; flatten; opt_clean; tee -q -o $out/memory.json stat -json; synth -noabc -top slice_splice -run coarse:fine
    opt -fast -full; techmap t:\$shiftx t:\$shr t:\$pmux; opt_expr -fine; clean; techmap; opt -fast; opt_clean; tee -q -o $out/gates.json stat -json; delete t:payload_ram t:\$mem*
    tee -q -o $out/depth.txt ltp -noff" &
gates=$!
# Beside it, on another core. Up to names of cells, which nobody reads here and which take longer than the
# mapping; then what `check` does beside them.
run ecp5 "$outside; synth_ecp5 -top slice_splice -run begin:check; hierarchy -check; check -noinit; blackbox =A:whitebox
    tee -q -o $out/ecp5.json stat -json" &
ecp5=$!
status=0
wait "$gates" || status=1
wait "$ecp5" || status=1
[ "$status" -eq 0 ] || exit 1
if [ "${1:-}" = --all ]; then
    run xilinx "$inside; synth_xilinx -family xcup -flatten -top slice_splice -noiopad; tee -q -o $out/xilinx.json stat -json"
fi
if [ -n "${LIBERTY:-}" ]; then
    mapped slice_splice "$outside" "$LIBERTY" "2.56 2.26"
else
    echo "LIBERTY is not set: no area and no timing of a technology"
fi
python3 synth/table.py "$out" "$entries" "$width"
