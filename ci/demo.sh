#!/bin/bash
# What holding packets does to a trace: how it comes, what reframe makes of it, and what that costs, for some
# hold times. usage: ci/demo.sh SLIPSTREAM TRACE
set -euo pipefail
slipstream=$1
trace=$2
dir=target/demo
mkdir -p "$dir"

say() { printf '\n── %s\n\n' "$*"; }
run() { printf '$ slipstream %s\n' "$*"; "$slipstream" "$@"; }

# A number out of JSON as slipstream prints it, one key a line; the path is that of --fail-if. A key that is
# not there is an error.
value() {
    awk -v want="$2" '
        function path(   i, p) { p = name[1]; for (i = 2; i <= depth; i++) p = p "." name[i]; return p }
        {
            line = $0
            gsub(/^[ \t]+|,$/, "", line)
            if (line ~ /^[\]}]/) { depth--; next }
            if (depth > 0 && list[depth]) name[depth] = ++index_of[depth] - 1
            if (match(line, /^"[^"]*": /)) { name[depth] = substr(line, 2, RLENGTH - 4); line = substr(line, RLENGTH + 1) }
            if (depth > 0 && path() == want && line !~ /^[\[{]/) { print line; found = 1; exit }
            if (line ~ /^[\[{]$/) { depth++; list[depth] = line == "["; index_of[depth] = 0 }
        }
        END { if (!found) { print FILENAME " has no " want > "/dev/stderr"; exit 1 } }' "$1"
}

say "How the packets come"
run analyze "$trace"

say "The same packets, held for up to 64 µs"
run reframe "$trace" "$dir/trains.pcapng"

say "Before and after"
holds=(0 16us 64us 128us)
for hold in "${holds[@]}"; do
    "$slipstream" reframe "$trace" null --hold "$hold" --format json > "$dir/$hold.json"
done
row() { # label, key, factor, decimals
    local cells=() hold
    for hold in "${holds[@]}"; do
        cells+=("$(value "$dir/$hold.json" "$2" | awk -v f="$3" -v d="$4" '{ printf "%.*f", d, $1 * f }')")
    done
    printf '  %-44s%12s%12s%12s%12s\n' "$1" "${cells[@]}"
}
printf '  %-44s%12s%12s%12s%12s\n' "hold" "none" "${holds[@]:1}"
row "spatial locality factor (SLF)" slf_out 1 3
row "packets a train, mean" mean_train 1 3
row "packets in trains of one" train_lengths.0.count 1 0
row "added delay, mean (us)" delay_ns.mean 0.001 1
row "added delay, longest (us)" delay_ns.max 0.001 1
row "futile wait, all together (ms)" futile_wait_ns 0.000001 1
row "... trains that waited in vain" futile_trains 1 0
