#!/bin/bash
# The compiler, as `make unit` has cargo call it (RUSTC_WRAPPER). Cargo gives a crate and its own tests the
# same optimisation. These crates are optimised since other crates' tests run them for long. Their own tests
# are short: to optimise them takes a minute, and saves ten seconds. usage: ci/rustc.sh RUSTC OPTION…
quick="core slice stats trace wire"

words=" $* "
if [[ $words == *" --test "* ]]; then
    for crate in $quick; do
        if [[ $words == *" --crate-name slipstream_$crate "* || $words == *" --crate-name $crate "* ]]; then
            # Of options that are given twice the compiler takes the last.
            set -- "$@" -C opt-level=0 -C codegen-units=16
        fi
    done
fi
exec "$@"
