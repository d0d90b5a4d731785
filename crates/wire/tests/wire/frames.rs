//! Packets by hand: each function puts one header before what it is given.

use slipstream_wire::{Flags, Headers, Skip};

/// The row that a table expects of a frame: the key as written, offsets of layers 3 and 4, flags.
pub(crate) type Expected = Result<(&'static str, u16, u16, u8), Skip>;

pub(crate) fn seen(result: Result<Headers, Skip>) -> Result<(String, u16, u16, u8), Skip> {
    result.map(|h| (h.key.to_string(), h.l3, h.l4, h.flags.0))
}

pub(crate) fn expected(result: Expected) -> Result<(String, u16, u16, u8), Skip> {
    result.map(|(key, l3, l4, flags)| (key.to_owned(), l3, l4, flags))
}

pub(crate) const TCP: u8 = Flags::PORTS | Flags::TCP;
pub(crate) const UDP: u8 = Flags::PORTS;
pub(crate) const V6: u8 = Flags::IPV6;
pub(crate) const FRAGMENT: u8 = Flags::FRAGMENT;

pub(crate) fn ethernet(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&[2; 6][..], &[4; 6], &ethertype.to_be_bytes(), payload].concat()
}

/// VLAN tags, outermost first, as (ethertype, tag control information).
pub(crate) fn tagged(tags: &[(u16, u16)], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let tags: Vec<u8> =
        tags.iter().flat_map(|(t, tci)| [t.to_be_bytes(), tci.to_be_bytes()].concat()).collect();
    [&[2; 6][..], &[4; 6], &tags, &ethertype.to_be_bytes(), payload].concat()
}

/// From 10.0.0.1 to 10.0.0.2; `fragment` is the word of flags and offset.
pub(crate) fn ipv4_with(protocol: u8, fragment: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let length = (20 + options.len() + payload.len()) as u16;
    let [l0, l1] = length.to_be_bytes();
    let [f0, f1] = fragment.to_be_bytes();
    let fixed = [
        0x45 + (options.len() / 4) as u8,
        0xb8,
        l0,
        l1,
        0,
        1,
        f0,
        f1,
        64,
        protocol,
        0,
        0,
        10,
        0,
        0,
        1,
        10,
        0,
        0,
        2,
    ];
    [&fixed[..], options, payload].concat()
}

pub(crate) fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    ipv4_with(protocol, 0x4000, &[], payload)
}

/// From 2001:db8::1 to 2001:db8::2.
pub(crate) fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let [l0, l1] = (payload.len() as u16).to_be_bytes();
    let mut address = [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let mut header = vec![0x6b, 0x80, 0, 0, l0, l1, next, 64];
    header.extend(address);
    address[15] = 2;
    header.extend(address);
    header.extend(payload);
    header
}

/// An IPv6 extension header of eight bytes: number of the next, then length or reserved, then offset and
/// flags.
pub(crate) fn extension(next: u8, second: u8, word: u16, payload: &[u8]) -> Vec<u8> {
    let [w0, w1] = word.to_be_bytes();
    [&[next, second, w0, w1, 0, 0, 0, 0], payload].concat()
}

/// Sequence number 7, acknowledgement 9, flags AE, ACK and PSH, window 256, no options.
pub(crate) fn tcp(src: u16, dst: u16) -> Vec<u8> {
    [&src.to_be_bytes()[..], &dst.to_be_bytes(), &[0, 0, 0, 7, 0, 0, 0, 9, 0x51, 0x18, 1, 0, 0, 0, 0, 0]]
        .concat()
}

pub(crate) fn udp(src: u16, dst: u16, payload: &[u8]) -> Vec<u8> {
    let length = (8 + payload.len()) as u16;
    [&src.to_be_bytes()[..], &dst.to_be_bytes(), &length.to_be_bytes(), &[0, 0], payload].concat()
}

pub(crate) fn cut(mut frame: Vec<u8>, length: usize) -> Vec<u8> {
    assert!(length <= frame.len(), "nothing to cut");
    frame.truncate(length);
    frame
}

pub(crate) fn padded(mut frame: Vec<u8>, length: usize) -> Vec<u8> {
    assert!(length >= frame.len(), "nothing to pad");
    frame.resize(length, 0);
    frame
}
