//! A trace in sections, read by several threads: exactly what one pass makes of it, wherever the sections
//! begin.

use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::collection::vec;
use proptest::prelude::*;
use slipstream_trace::{Config, ConfigError, Partial, analyze_sections};
use slipstream_wire::LinkType;

use crate::stretch::check;
use crate::twin::slow::{self, Packet};
use crate::twin::{config, stream};

/// The packets between cuts, each a section.
fn in_sections(config: &Config, packets: &[Packet], cuts: &[usize]) -> Option<Partial> {
    let mut ends = cuts.to_vec();
    ends.push(packets.len());
    ends.sort_unstable();
    analyze_sections(config, ends.len(), |number, section| {
        let from = if number == 0 { 0 } else { ends[number - 1] };
        for packet in &packets[from..ends[number]] {
            section.packet(packet.time, packet.link, packet.bytes.len() as u32, &packet.bytes);
        }
        Ok::<_, ConfigError>(true)
    })
    .unwrap()
}

fn cuts(packets: &[Packet], at: &[prop::sample::Index]) -> Vec<usize> {
    at.iter().map(|cut| cut.index(packets.len() + 1)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(384))]

    #[test]
    fn any_cuts_give_the_whole_or_nothing(
        packets in stream(120), config in config(), at in vec(any::<prop::sample::Index>(), 0..7), threads in 1usize..5,
    ) {
        let config = Config { threads, ..config };
        if let Some(got) = in_sections(&config, &packets, &cuts(&packets, &at)) {
            check(got, &slow::partial(&config, &packets), "in sections");
        }
    }

    /// There is always a result where times never run backwards.
    #[test]
    fn where_the_clock_goes_on_there_is_a_whole(
        packets in stream(120), config in config(), at in vec(any::<prop::sample::Index>(), 0..7), threads in 1usize..5,
    ) {
        let mut packets = packets;
        let mut time = 0;
        for packet in &mut packets {
            time = time.max(packet.time);
            packet.time = time;
        }
        let config = Config { threads, ..config };
        let got = in_sections(&config, &packets, &cuts(&packets, &at));
        check(got.unwrap(), &slow::partial(&config, &packets), "in sections");
    }
}

/// A packet of one of a few flows.
fn udp(flow: u16) -> Vec<u8> {
    let mut bytes = vec![0; 42];
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14] = 0x45;
    bytes[16..18].copy_from_slice(&28u16.to_be_bytes());
    bytes[22..24].copy_from_slice(&[64, 17]);
    bytes[34..36].copy_from_slice(&flow.to_be_bytes());
    bytes
}

#[test]
fn a_flow_that_never_pauses_for_a_window_is_noticed_and_one_that_does_is_no_trouble() {
    let config = Config { threads: 2, ..Config::default() };
    for (gap, whole) in [(100, false), (100_000, false), (200_000, true)] {
        let read = AtomicUsize::new(0);
        let got = analyze_sections(&config, 2, |number, section| {
            for n in 0..600_000u64 {
                if n % 1024 == 0 && section.gives_up() {
                    return Ok(false);
                }
                let time = (n + number as u64 * 600_000) * gap;
                section.packet(time, LinkType::Ethernet, 60, &udp(1));
                read.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, ConfigError>(true)
        });
        assert_eq!(got.unwrap().is_some(), whole, "a packet in {gap} ns");
        assert_eq!(read.into_inner() == 1_200_000, whole);
    }
}

#[test]
fn what_can_not_be_had_in_sections_is_said() {
    let sections = |config: &Config, count| {
        analyze_sections(config, count, |_, section| {
            section.packet(1, LinkType::Ethernet, 60, &udp(1));
            Ok::<_, ConfigError>(true)
        })
    };
    let config = Config { threads: 3, ..Config::default() };
    assert_eq!(sections(&config, 5).unwrap().unwrap().report().records, 5);
    assert!(sections(&config, 0).unwrap().is_none());
    let large = Config { switch_batches: vec![32, 32_768], ..config.clone() };
    assert!(sections(&large, 2).unwrap().is_none());
    let largest = Config { switch_batches: vec![32, 32_767], ..config.clone() };
    assert!(sections(&largest, 2).unwrap().is_some());
    let wrong = Config { burst: 0, ..config.clone() };
    assert_eq!(sections(&wrong, 2).unwrap_err(), ConfigError::Burst(0));
    let failed = analyze_sections(
        &config,
        4,
        |number, _| {
            if number == 2 { Err(ConfigError::Threads) } else { Ok(true) }
        },
    );
    assert_eq!(failed.unwrap_err(), ConfigError::Threads);
}
