//! TCP segments of classified frames.

use slipstream_wire::view::TcpOption;
use slipstream_wire::{Flags, LinkType, TcpSegment, classify, ip_end, tcp_segment, ttl};

use crate::frames::*;

const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 3, 0, 0, 0, 4];

/// Data offset 8: twelve bytes of options.
fn with_options(payload: &[u8]) -> Vec<u8> {
    let mut header = tcp(80, 1234);
    header[12] = 0x81;
    [&header[..], &TIMESTAMPS, payload].concat()
}

fn segment(frame: &[u8]) -> Option<TcpSegment> {
    tcp_segment(frame, &classify(LinkType::Ethernet, frame).unwrap())
}

#[test]
fn whole_header() {
    let frame = padded(ethernet(0x800, &ipv4(6, &with_options(b"data"))), 80);
    let found = segment(&frame).unwrap();
    assert_eq!(
        found,
        TcpSegment {
            seq: 7,
            ack: 9,
            flags: 0x118,
            window: 256,
            at: 34,
            header_len: 32,
            complete: true,
            payload_len: 4,
        }
    );
    assert_eq!(&frame[found.options_range()], TIMESTAMPS);
    assert_eq!(&frame[found.payload_range(&frame)], b"data");
    let options: Vec<_> = found.options(&frame).map(Result::unwrap).collect();
    let timestamps = TcpOption::Timestamps { value: 3, echo: 4 };
    assert_eq!(options, [TcpOption::NoOperation, TcpOption::NoOperation, timestamps]);
}

#[test]
fn over_ipv6_behind_an_extension() {
    let frame = ethernet(0x86dd, &ipv6(60, &extension(6, 0, 0, &with_options(b"data"))));
    let headers = classify(LinkType::Ethernet, &frame).unwrap();
    let found = tcp_segment(&frame, &headers).unwrap();
    assert_eq!((found.at, found.header_len, found.payload_len), (62, 32, 4));
    assert_eq!((ip_end(&frame, &headers), ttl(&frame, &headers)), (frame.len(), 64));
}

#[test]
fn cut_captures() {
    let whole = ethernet(0x800, &ipv4(6, &with_options(b"data")));
    for (description, length, complete, window, payload_captured) in [
        ("in the payload", 68, true, 256, 2),
        ("in the options", 60, false, 256, 0),
        ("after the flags", 48, false, 0, 0),
    ] {
        let frame = cut(whole.clone(), length);
        let found = segment(&frame).unwrap();
        assert_eq!((found.complete, found.window), (complete, window), "{description}");
        assert_eq!(found.payload_len, 4, "{description}: by the IP length, captured or not");
        assert_eq!(found.payload_range(&frame).len(), payload_captured, "{description}");
        assert_eq!(found.options(&frame).count(), if complete { 3 } else { 0 }, "{description}");
    }
    assert_eq!(segment(&cut(whole, 47)), None, "before the flags");
}

#[test]
fn lengths_that_lie() {
    let mut no_length = ethernet(0x800, &ipv4(6, &with_options(b"data")));
    no_length[16..18].fill(0);
    let found = segment(&no_length).unwrap();
    assert_eq!((found.payload_len, found.complete), (0, true));

    let mut short_header = ethernet(0x800, &ipv4(6, &with_options(b"data")));
    short_header[46] = 0x41;
    let found = segment(&short_header).unwrap();
    assert_eq!((found.header_len, found.complete, found.payload_len), (16, false, 20));
    assert_eq!(found.options(&short_header).count(), 0);
}

#[test]
fn not_tcp() {
    let udp = ethernet(0x800, &ipv4(17, &udp(53, 99, &[0; 30])));
    assert_eq!(segment(&udp), None);
    let fragment = ethernet(0x800, &ipv4_with(6, 0x2000, &[], &with_options(b"data")));
    assert_eq!(segment(&fragment), None);
    // Headers of a longer frame than the one given.
    let whole = ethernet(0x800, &ipv4(6, &with_options(b"data")));
    let headers = classify(LinkType::Ethernet, &whole).unwrap();
    assert!(headers.flags.has(Flags::TCP));
    assert_eq!(tcp_segment(&whole[..20], &headers), None);
}
