#!/bin/bash
# Installs what the tests need and this machine lacks, where apt-get may be used; else says what is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
export DEBIAN_FRONTEND=noninteractive
# Whoever comes while another one installs waits until that is done.
mkdir -p "${CARGO_TARGET_DIR:-target}"
exec 9> "${CARGO_TARGET_DIR:-target}/deps.lock"
flock 9

# program:package
needs=(
    tshark:tshark
    capinfos:wireshark-common
    editcap:wireshark-common
    tcpdump:tcpdump
    valgrind:valgrind
    prlimit:util-linux
    setpriv:util-linux
    groff:groff-base
    ps:procps
    zstd:zstd
    gzip:gzip
    python3:python3
    ip:iproute2
    ethtool:ethtool
    systemd-analyze:systemd
    strip:binutils
    sysctl:procps
    iperf3:iperf3
    wrk:wrk
    ping:iputils-ping
    traceroute:traceroute
    curl:curl
    nginx:nginx-light
    nft:nftables
    iptables:iptables
    java:openjdk-17-jre-headless
    dpdk-testpmd:dpdk,dpdk-dev,libdpdk-dev,pkg-config
)

missing=()
for need in "${needs[@]}"; do
    IFS=, read -ra packages <<< "${need##*:}"
    command -v "${need%%:*}" > /dev/null || missing+=("${packages[@]}")
done
has_scipy() {
    local python
    for python in python3 /usr/bin/python3 "$HOME"/.pyenv/versions/*/bin/python3; do
        "$python" -c 'import numpy, scipy' > /dev/null 2>&1 < /dev/null && return
    done
    return 1
}
has_scipy || missing+=(python3-numpy python3-scipy)

if [ ${#missing[@]} -eq 0 ]; then
    exit
fi
readarray -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
if [ "$(id -u)" -eq 0 ] && command -v apt-get > /dev/null; then
    echo "installing ${missing[*]}"
    apt-get update -qq < /dev/null
    apt-get install -y -qq --no-install-recommends "${missing[@]}" < /dev/null
else
    echo "missing, and not installed (only root can, with apt-get): ${missing[*]}" >&2
    echo "tests that need them say so; with CI set they fail" >&2
fi
