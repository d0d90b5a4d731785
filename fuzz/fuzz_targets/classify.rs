//! Any bytes of any link type: the fast paths equal the reference, and whatever is read from the result makes
//! sense.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream_wire::view::{Ipv4, Ipv6, Tcp, Udp};
use slipstream_wire::{
    Flags, FlowKey, LinkType, Skip, classify, classify_reference, ip_end, tcp_segment, ttl,
};

/// Ethernet first and twice: it has the fast paths.
const LINKS: [u16; 8] = [1, 1, 101, 0, 113, 276, 12, 147];

fuzz_target!(|data: &[u8]| {
    let Some((&first, frame)) = data.split_first() else { return };
    let link = LinkType::from_number(LINKS[usize::from(first) % LINKS.len()]);
    let result = classify(link, frame);
    assert_eq!(result, classify_reference(link, frame));
    let headers = match result {
        Ok(headers) => headers,
        Err(skip) => {
            assert_eq!(skip == Skip::UnsupportedLinkType, matches!(link, LinkType::Other(_)));
            return;
        }
    };

    let key = headers.key;
    let vlans: Vec<u16> = key.vlans().collect();
    let parts = FlowKey::new(&vlans, key.src(), key.dst(), key.protocol(), key.src_port(), key.dst_port());
    assert_eq!(parts, Ok(key));
    assert_eq!(key.reversed().reversed(), key);
    assert_eq!(key.bidirectional(), key.reversed().bidirectional());
    assert_eq!(key.hash64(1), parts.unwrap().hash64(1));
    assert!(!key.to_string().is_empty());

    let flags = headers.flags;
    assert_eq!(flags.has(Flags::IPV6), key.is_ipv6());
    assert!(!flags.has(Flags::INNER));
    assert!(!flags.has(Flags::FRAGMENT) || !flags.has(Flags::PORTS));
    let _ = (ip_end(frame, &headers), ttl(frame, &headers));
    let l3 = &frame[usize::from(headers.l3)..];
    if key.is_ipv6() {
        let ip = Ipv6::new_checked(l3).unwrap();
        assert_eq!(
            (ip.src(), ip.dst(), ip.traffic_class()),
            (key_v6(key.src()), key_v6(key.dst()), headers.tos)
        );
        let mut extensions = ip.extensions();
        let fragment = extensions.by_ref().any(|extension| extension.is_fragment());
        assert_eq!((extensions.protocol(), fragment), (key.protocol(), flags.has(Flags::FRAGMENT)));
        assert_eq!(u16::try_from(usize::from(headers.l3) + extensions.at()).unwrap_or(u16::MAX), headers.l4);
    } else {
        let ip = Ipv4::new_unchecked(l3);
        assert_eq!((ip.src(), ip.dst(), ip.tos()), (key_v4(key.src()), key_v4(key.dst()), headers.tos));
        assert_eq!(ip.is_fragment(), flags.has(Flags::FRAGMENT));
    }
    if headers.l4 == u16::MAX {
        return;
    }
    if let Some(segment) = tcp_segment(frame, &headers) {
        let tcp = Tcp::new_unchecked(&frame[usize::from(headers.l4)..]);
        assert_eq!((segment.seq, segment.ack, segment.flags), (tcp.seq(), tcp.ack(), tcp.flags()));
        assert_eq!(segment.flags as u8, headers.tcp_flags);
        let _ = &frame[segment.payload_range(frame)];
        if segment.complete {
            let _ = &frame[segment.options_range()];
        }
        assert!(segment.options(frame).count() <= 40);
    } else {
        assert!(!flags.has(Flags::TCP));
    }
    if flags.has(Flags::PORTS) {
        let udp = Udp::new_unchecked(&frame[usize::from(headers.l4)..]);
        assert_eq!((udp.src_port(), udp.dst_port()), (key.src_port(), key.dst_port()));
    }
});

fn key_v4(address: std::net::IpAddr) -> std::net::Ipv4Addr {
    match address {
        std::net::IpAddr::V4(v4) => v4,
        std::net::IpAddr::V6(_) => panic!("an IPv6 address in an IPv4 key"),
    }
}

fn key_v6(address: std::net::IpAddr) -> std::net::Ipv6Addr {
    match address {
        std::net::IpAddr::V6(v6) => v6,
        std::net::IpAddr::V4(_) => panic!("an IPv4 address in an IPv6 key"),
    }
}
