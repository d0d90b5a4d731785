#!/bin/bash
# The compiler, as `make unit` has cargo call it (RUSTC_WRAPPER). Cargo gives a crate and its own tests the
# same optimisation. These crates are optimised since other crates' tests run them for long. Their own tests
# are short: to optimise them takes a minute, and saves ten seconds. usage: ci/rustc.sh RUSTC OPTION…
quick=" slipstream_core slipstream_slice slipstream_stats slipstream_trace slipstream_wire "
crate=
tests=
before=
for word in "$@"; do
    [ "$before" = --crate-name ] && crate=$word
    [ "$word" = --test ] && tests=yes
    before=$word
done
if [ -n "$tests" ] && [[ $quick == *" $crate "* ]]; then
    words=()
    for word in "$@"; do
        case $word in
        opt-level=*) word=opt-level=0 ;;
        codegen-units=*) word=codegen-units=16 ;;
        esac
        words+=("$word")
    done
    exec "${words[@]}"
fi
exec "$@"
