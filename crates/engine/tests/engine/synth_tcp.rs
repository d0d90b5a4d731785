//! TCP connections of plain traffic make sense, packet by packet.

use std::collections::HashMap;

use crate::synth_support::{ACK, FIN, PSH, SYN, Seen, all, check_tcp, flow_numbers, runs};
use slipstream::io::synth::{Lifetime, Order, Protocol, Size, SynthConfig};

fn config() -> SynthConfig {
    SynthConfig {
        packets: 20_000,
        flows: 40,
        protocol: Protocol::Tcp,
        size: Size::Range(80, 1500),
        ..SynthConfig::default()
    }
}

#[test]
fn connections_open_transfer_and_close() {
    let lifetime = Lifetime { min: 5, max: 200, shape: 1.1 };
    for order in [Order::Random, Order::RoundRobin] {
        for slf in [1.0, 2.5, 4.0] {
            for zipf in if order == Order::Random { [0.0, 1.2] } else { [0.0, 0.0] } {
                let seen = all(SynthConfig {
                    lifetime: Some(lifetime),
                    order,
                    slf,
                    zipf,
                    ipv6: 0.3,
                    vlan: 0.2,
                    size: Size::Range(94, 600),
                    ..config()
                });
                let (opened, closed) = check_tcp(&seen);
                assert!(opened > 100 && closed + 40 >= opened, "{opened} opened, {closed} closed");
            }
        }
    }
}

#[test]
fn endless_connections_never_close() {
    let seen = all(config());
    assert_eq!(check_tcp(&seen), (20, 0));
    assert!(seen.iter().all(|p| p.tcp.as_ref().unwrap().flags & FIN == 0));
}

#[test]
fn a_run_ends_with_push_and_has_slf_segments_once_open() {
    let seen = all(SynthConfig { order: Order::RoundRobin, slf: 4.0, ..config() });
    // One segment of each flow opens the connections.
    let flows = flow_numbers(&seen[40..]);
    assert!(runs(&flows).iter().rev().skip(1).all(|&r| r == 4));
    for run in seen[200..].chunks_exact(4) {
        let flags: Vec<u8> = run.iter().map(|p| p.tcp.as_ref().unwrap().flags).collect();
        assert_eq!(flags, [ACK, ACK, ACK, ACK | PSH]);
    }
}

#[test]
fn timestamps_come_where_they_fit() {
    let has = |p: &Seen| p.tcp.as_ref().unwrap().options.iter().any(|o| o.0 == 8);
    assert!(all(config()).iter().all(has));
    assert!(!all(SynthConfig { size: Size::Fixed(60), ..config() }).iter().any(has));
    assert!(!all(SynthConfig { tcp_timestamps: Some(false), ..config() }).iter().any(has));
}

#[test]
fn equal_positions_of_a_stream_hold_equal_bytes() {
    // The stream of each direction, put together, repeats with the period of the payload block.
    let mut streams: HashMap<_, Vec<u8>> = HashMap::new();
    for p in all(config()) {
        streams.entry(p.flow).or_default().extend(p.payload);
    }
    for stream in streams.values() {
        assert!(stream.len() > 8192);
        assert_eq!(stream[..4096], stream[4096..8192]);
        assert_ne!(stream[..64], stream[64..128]);
    }
}

#[test]
fn a_mix_has_the_share_asked_for() {
    let seen = all(SynthConfig { protocol: Protocol::Mix(0.4), flows: 4001, packets: 40_000, ..config() });
    check_tcp(&seen);
    let mut flows: Vec<_> = seen.iter().map(|p| &p.flow).collect();
    flows.sort();
    flows.dedup();
    let tcp = flows.iter().filter(|f| f.protocol == 6).count() as f64 / flows.len() as f64;
    // 2,000 pairs: five standard deviations are 0.055.
    assert!((tcp - 0.4).abs() < 0.055, "{tcp}");
    let opening = seen.iter().filter_map(|p| p.tcp.as_ref()).find(|t| t.flags & SYN != 0).unwrap();
    assert_eq!(opening.flags, SYN);
}
