//! Any packets through the cores of the network functions: nothing panics, a right checksum stays right, a
//! translated packet translates back, and what is answered is answered by the rules.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream::functions::conntrack::{Conntrack, ConntrackConfig, CtState, Tracked};
use slipstream::functions::encap::Tunnel;
use slipstream::functions::icmp::{Link, MAX_ICMPV6, Message, Silent, answer, reset};
use slipstream::functions::nat::{
    Filtering, Kind, Nat, NatConfig, Packet, Side, StaticMapping, Tuple, Verdict,
};
use slipstream::time::Nanos;
use slipstream_wire::checksum::{Verdict as Checksum, verify_ip, verify_transport};
use slipstream_wire::{Headers, LinkType, classify};

fn nat(settings: u8) -> Nat {
    let config = NatConfig {
        pool: vec![[192, 0, 2, 1].into()],
        ports: 1024..=1030,
        low_ports: 1000..=1001,
        statics: vec![
            StaticMapping::Address { inside: [10, 0, 0, 9].into(), external: [192, 0, 2, 9].into() },
            StaticMapping::Port {
                protocol: 6,
                inside: ([10, 0, 0, 1].into(), 80),
                external: ([192, 0, 2, 1].into(), 80),
            },
        ],
        filtering: match settings & 3 {
            0 => Filtering::EndpointIndependent,
            1 => Filtering::AddressDependent,
            _ => Filtering::AddressAndPortDependent,
        },
        sessions: 8,
        mappings: 8,
        ..NatConfig::default()
    };
    Nat::new(&config).unwrap()
}

/// Wrong checksums of the IP header and of the transport.
fn faults(packet: &[u8], headers: &Headers) -> [bool; 2] {
    [verify_ip(packet, headers), verify_transport(packet, headers)].map(|v| v == Checksum::Wrong)
}

fn translate(nat: &mut Nat, side: Side, packet: &mut [u8], now: Nanos) {
    let Ok(read) = Packet::read(packet, 0) else { return };
    let Ok(headers) = classify(LinkType::RawIp, packet) else { return };
    let before = faults(packet, &headers);
    let verdict = if side == Side::Inside { nat.outbound(&read, now) } else { nat.inbound(&read, now) };
    let l4 = usize::from(headers.l4);
    match verdict {
        Verdict::Rewrite { rewrite, session } => {
            rewrite.apply(packet, 0, l4).unwrap();
            nat.observe(session, side, read.tcp_flags, now);
            let after = Packet::read(packet, 0).unwrap();
            assert_eq!(after.key, rewrite.endpoints());
            if side == Side::Inside {
                let kind = if after.kind == Kind::Asks { Kind::Reply } else { after.kind };
                let reply = Packet { key: Tuple::of(after.key).reversed().key(), kind, ..after };
                // A packet to an outside address of another inside host is answered from inside, too.
                let hairpin = after.key.0[0] as u32 != read.key.0[0] as u32;
                let back = if hairpin { nat.outbound(&reply, now) } else { nat.inbound(&reply, now) };
                if let Verdict::Rewrite { rewrite, .. } = back {
                    assert_eq!(Tuple::of(rewrite.endpoints()).reversed().key(), read.key);
                }
            }
        }
        // A quoted packet with a wrong checksum keeps it, and with it the message's.
        Verdict::Error(rewrite) => {
            rewrite.apply(packet, 0, l4).unwrap();
        }
        Verdict::Pass | Verdict::Drop(_) => {}
    }
    let headers = classify(LinkType::RawIp, packet).unwrap();
    assert_eq!(faults(packet, &headers), before);
}

fuzz_target!(|data: &[u8]| {
    let Some((&settings, mut rest)) = data.split_first() else { return };
    let mut nat = nat(settings);
    let mut tracker =
        Conntrack::new(&ConntrackConfig { connections_v4: 4, connections_v6: 4, ..Default::default() });
    let tunnel = Tunnel::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 100).unwrap();
    let mut now = Nanos(1 << 60);
    let mut out = vec![];
    // A packet: how long it is, how much later it comes, from which side.
    while let Some((&[length, how], bytes)) = rest.split_first_chunk() {
        let (packet, next) = bytes.split_at(usize::from(length).min(bytes.len()));
        rest = next;
        now = now.after(u64::from(how & 0x7f) * 2_000_000_000);
        let side = if how & 0x80 == 0 { Side::Inside } else { Side::Outside };
        translate(&mut nat, side, &mut packet.to_vec(), now);
        nat.expire(now, 4);
        let Ok(headers) = classify(LinkType::RawIp, packet) else { continue };
        let tracked = Tracked::read(packet, &headers);
        let seen = tracker.look_up(&tracked, now);
        if tracker.accept(&tracked, &seen, now).is_ok() && seen.state == CtState::New {
            assert!(matches!(tracker.look_up(&tracked, now).state, CtState::New | CtState::Invalid));
        }
        if let Ok(outer) = tunnel.header(packet, 1) {
            let whole = [outer.bytes(), packet].concat();
            assert_eq!(verify_ip(&whole, &classify(LinkType::RawIp, &whole).unwrap()), Checksum::Right);
        }
        let router =
            if packet[0] >> 4 == 4 { [10, 0, 0, 1].into() } else { [1_u16, 0, 0, 0, 0, 0, 0, 1].into() };
        if answer(Message::TooBig { mtu: 1300 }, packet, Link::Unicast, router, &mut out).is_ok() {
            assert!(out.len() <= MAX_ICMPV6);
            assert_eq!(faults(&out, &classify(LinkType::RawIp, &out).unwrap()), [false; 2]);
            let again = out.clone();
            assert_eq!(
                answer(Message::TimeExceeded, &again, Link::Unicast, router, &mut out),
                Err(Silent::Error)
            );
        }
        if reset(packet, 0, Link::Unicast, &mut out).is_ok() {
            assert_eq!(faults(&out, &classify(LinkType::RawIp, &out).unwrap()), [false; 2]);
        }
    }
});
