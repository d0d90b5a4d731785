"""What the kernel says of an interface by netlink, in the few bytes that the checks need."""

import socket
import struct

RTM_GETLINK, NLM_F_REQUEST, IFLA_XDP, IFLA_XDP_ATTACHED = 18, 1, 43, 2
NESTED = 0x8000


def attributes(data):
    """Those of a netlink message, by number."""
    found, at = {}, 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("HH", data, at)
        if length < 4:
            break
        found[kind & ~NESTED] = data[at + 4:at + length]
        at += (length + 3) & ~3
    return found


def attached(net, interface, end="m"):
    """The way in which an interface runs an XDP program, by netlink: 0 none, 1 native, 2 generic. None: no
    interface."""
    index = net.sh(end, "cat", f"/sys/class/net/{interface}/ifindex", check=False).strip()
    if not index:
        return None
    with net.socket(end, socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        body = struct.pack("BxHiII", 0, 0, int(index), 0, 0)
        link.send(struct.pack("IHHII", 16 + len(body), RTM_GETLINK, NLM_F_REQUEST, 1, 0) + body)
        answer = link.recv(1 << 16)
    xdp = attributes(answer[32:]).get(IFLA_XDP, b"")
    return attributes(xdp).get(IFLA_XDP_ATTACHED, b"\0")[0]
