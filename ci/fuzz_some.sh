#!/bin/bash
# Builds all fuzz targets with the stable compiler, and gives each one some hundred inputs: a target that no
# longer fits the crates is found here. Fuzzing needs a nightly compiler and its library; see `make fuzz`.
# usage: ci/fuzz_some.sh [INPUTS]
set -euo pipefail
cd "$(dirname "$0")/.."
inputs=${1:-300}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
mkdir -p "$target/fuzz-some"
"${CC:-cc}" -O1 -Wall -Wextra -Werror -c ci/fuzz_some.c -o "$target/fuzz-some/main.o"
rm -f "$target/fuzz-some/libfuzzer.a"
ar rcs "$target/fuzz-some/libfuzzer.a" "$target/fuzz-some/main.o"
CUSTOM_LIBFUZZER_PATH="$target/fuzz-some/libfuzzer.a" \
    "${CARGO:-cargo}" build --manifest-path fuzz/Cargo.toml --bins --locked --target-dir "$target"
python3 ci/fuzz_seeds.py
failed=()
for file in fuzz/fuzz_targets/*.rs; do
    name=$(basename "$file" .rs)
    seeds=("fuzz/corpus/$name"/seed-*)
    [ -e "${seeds[0]}" ] || seeds=()
    # An input that takes for ever is a finding, too.
    status=0
    said=$(timeout 120 "$target/debug/$name" "$inputs" "${seeds[@]}" 2>&1) || status=$?
    if [ "$status" -ne 0 ]; then
        failed+=("$name")
        [ "$status" -ne 124 ] || said+=$'\nnot ready after 120 s'
        printf '%s\n' "$said"
    fi
    printf '%-20s %s\n' "$name" "${said##*$'\n'}"
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "fuzz targets that failed: ${failed[*]}" >&2
    exit 1
fi
