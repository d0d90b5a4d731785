#!/bin/bash
# Installs the C library: ci/install_c.sh RELEASE_DIRECTORY PREFIX. With DESTDIR set, everything goes below
# it.
set -euo pipefail
cd "$(dirname "$0")/.."

from=$1 prefix=$2 to=${DESTDIR:-}$2
version=$(sed -n '/^\[workspace.package\]/,/^\[/ s/^version = "\(.*\)"/\1/p' Cargo.toml)
# What a program needs besides that takes the static library: rustc --print native-static-libs says so.
private="-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc"

install -d "$to/include" "$to/lib/pkgconfig"
install -m 644 crates/capi/include/slipstream.h "$to/include/"
install -m 644 "$from/libslipstream_capi.a" "$to/lib/libslipstream.a"
install -m 755 "$from/libslipstream_capi.so" "$to/lib/libslipstream.so.$version"
ln -sf "libslipstream.so.$version" "$to/lib/libslipstream.so.0"
ln -sf libslipstream.so.0 "$to/lib/libslipstream.so"
sed -e "s|@PREFIX@|$prefix|; s|@VERSION@|$version|; s|@PRIVATE@|$private|" crates/capi/slipstream.pc.in > "$to/lib/pkgconfig/slipstream.pc"
