#!/bin/bash
# Installs the C library: ci/install_c.sh RELEASE_DIRECTORY PREFIX. With DESTDIR set, everything goes below
# it. Else the loader's cache is renewed where the loader looks in PREFIX/lib; where it doesn't, this says so.
set -euo pipefail
cd "$(dirname "$0")/.."

from=$1 prefix=$(realpath -m "$2")
to=${DESTDIR:-}$prefix
case $prefix in *[[:space:]]*)
    echo "$prefix: pkg-config has no way to say a prefix with a space; name another one" >&2
    exit 2 ;;
esac
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

if [ -z "${DESTDIR:-}" ] && command -v ldconfig > /dev/null; then
    lib=$(cd "$prefix/lib" && pwd -P)
    if ! ldconfig -N -X -v 2> /dev/null | grep -F -e "$lib:" -e "$prefix/lib:" > /dev/null; then
        echo "The loader doesn't look in $prefix/lib: link with -Wl,-rpath,$prefix/lib, or set LD_LIBRARY_PATH to it." >&2
    elif [ "$(id -u)" = 0 ]; then
        ldconfig
    else
        echo "Programs find the library after ldconfig was run as root." >&2
    fi
fi
