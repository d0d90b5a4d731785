#!/bin/bash
# Makes a Debian package: ci/deb.sh BINARY DIRECTORY. It has the command without symbols, its manual pages and
# completions, the unit for systemd, the board for Grafana, the alert rules for Prometheus and the
# configurations of the book as examples. Prints the package's path.
set -euo pipefail
# Everybody may read what is installed, whatever the builder's own files are like.
umask 022
cd "$(dirname "$0")/.."

binary=$(realpath "$1") into=$2
version=$(sed -n '/^\[workspace.package\]/,/^\[/ s/^version = "\(.*\)"/\1/p' Cargo.toml)
architecture=$(dpkg --print-architecture)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

install -Dm 755 "$binary" "$root/usr/bin/slipstream"
strip --strip-unneeded "$root/usr/bin/slipstream"
install -Dm 644 contrib/systemd/slipstream@.service "$root/lib/systemd/system/slipstream@.service"
install -d "$root/usr/share/man/man1" "$root/usr/share/bash-completion/completions" \
    "$root/usr/share/zsh/vendor-completions" "$root/usr/share/fish/vendor_completions.d" \
    "$root/usr/share/doc/slipstream/examples" "$root/etc/slipstream" "$root/DEBIAN"
"$binary" man --into "$root/usr/share/man/man1"
gzip -9n "$root"/usr/share/man/man1/*
"$binary" completions bash > "$root/usr/share/bash-completion/completions/slipstream"
"$binary" completions zsh > "$root/usr/share/zsh/vendor-completions/_slipstream"
"$binary" completions fish > "$root/usr/share/fish/vendor_completions.d/slipstream.fish"
install -m 644 configs/*.toml configs/*.txt configs/*.rules configs/*.routes "$root/usr/share/doc/slipstream/examples/"
# Examples name it as the repository has it: ../traces.
install -Dm 644 traces/campus.pcap.gz "$root/usr/share/doc/slipstream/traces/campus.pcap.gz"
install -Dm 644 contrib/grafana/slipstream.json "$root/usr/share/slipstream/grafana/slipstream.json"
install -Dm 644 contrib/prometheus/slipstream.rules.yml "$root/usr/share/slipstream/prometheus/slipstream.rules.yml"
install -m 644 LICENSE "$root/usr/share/doc/slipstream/copyright"
gzip -9nc CHANGELOG.md > "$root/usr/share/doc/slipstream/changelog.gz"

cat > "$root/DEBIAN/control" <<END
Package: slipstream
Version: $version
Architecture: $architecture
Maintainer: The Slipstream developers <slipstream@localhost>
Depends: libc6 (>= 2.36), libgcc-s1
Installed-Size: $(du -ks --exclude=DEBIAN "$root" | cut -f1)
Section: net
Priority: optional
Description: packet-locality engine
 Puts packets of a flow back to back, does expensive work once per train, and tells what that gains: on capture files, and
 on live interfaces.
END

# Pipelines that run go on with the old program over an upgrade, since a restart interrupts them. They end
# with the package, and stay enabled until it is purged.
script() {
    { echo '#!/bin/sh'; echo 'set -e'; cat; } > "$root/DEBIAN/$1"
    chmod 755 "$root/DEBIAN/$1"
}
script postinst <<'END'
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload || true
fi
END
script prerm <<'END'
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl stop 'slipstream@*.service' || true
fi
END
script postrm <<'END'
if [ "$1" = purge ]; then
    rm -f /etc/systemd/system/*.wants/slipstream@*.service
fi
if [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload || true
fi
END
mkdir -p "$into"
package="$into/slipstream_${version}_$architecture.deb"
dpkg-deb --root-owner-group -Zxz --build "$root" "$package.new" > /dev/null
mv "$package.new" "$package"
echo "$package"
