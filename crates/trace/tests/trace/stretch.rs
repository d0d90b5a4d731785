//! Stretches of a trace, joined: exactly what one pass makes of it, wherever the cuts are, in whatever order
//! they are joined, and through bytes.

use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use slipstream::io::capture::CaptureReader;
use slipstream_trace::{
    Config, Ending, MergeError, Opening, Partial, Place, Report, Stretch, StretchAnalyzer, StretchError,
};
use slipstream_wire::LinkType;

use crate::expected::traces;
use crate::twin::slow::{self, Packet};
use crate::twin::{config, stream};

fn stretch<'a>(config: &Config, opening: Opening, packets: impl IntoIterator<Item = &'a Packet>) -> Stretch {
    let mut analyzer = StretchAnalyzer::new(config.clone(), opening).unwrap();
    for packet in packets {
        analyzer.packet(packet.time, packet.link, packet.bytes.len() as u32, &packet.bytes);
    }
    let made = analyzer.finish(Place::default());
    through_bytes(&made)
}

/// A state as it comes back from a file.
fn through_bytes(stretch: &Stretch) -> Stretch {
    let bytes = stretch.to_bytes();
    let again = Stretch::from_bytes(&bytes).unwrap();
    assert_eq!(again.to_bytes(), bytes);
    again
}

/// Joins; where times run back farther than packets were kept, with the later stretch made anew.
fn join(mut first: Stretch, next: &Stretch, config: &Config, packets: &[Packet]) -> (Stretch, bool) {
    match first.join(next) {
        Ok(()) => (through_bytes(&first), true),
        Err(MergeError::Unresolved) => {
            first.join(&stretch(config, Opening::MiddleKept, packets)).unwrap();
            (through_bytes(&first), false)
        }
        Err(other) => panic!("{other}"),
    }
}

/// The pieces between cuts, joined from the left.
fn left_to_right(config: &Config, packets: &[Packet], cuts: &[usize], opening: Opening) -> (Stretch, usize) {
    let mut cuts = cuts.to_vec();
    cuts.sort_unstable();
    cuts.push(packets.len());
    let (mut whole, mut from, mut anew) = (None, 0, 0);
    for to in cuts {
        let piece = &packets[from..to];
        whole = Some(match whole {
            None => stretch(config, opening, piece),
            Some(whole) => {
                let (joined, at_once) = join(whole, &stretch(config, Opening::Middle, piece), config, piece);
                anew += usize::from(!at_once);
                joined
            }
        });
        from = to;
    }
    (whole.unwrap(), anew)
}

/// The pieces joined two and two, as a tree. Makes no piece anew: none if some join needs that.
fn as_a_tree(config: &Config, packets: &[Packet], cuts: &[usize]) -> Option<Stretch> {
    let cuts: Vec<usize> = cuts.iter().copied().filter(|c| *c > 0 && *c < packets.len()).collect();
    if cuts.is_empty() {
        return Some(stretch(config, Opening::Middle, packets));
    }
    let cut = cuts[cuts.len() / 2];
    let before: Vec<usize> = cuts.iter().copied().filter(|c| *c < cut).collect();
    let behind: Vec<usize> = cuts.iter().filter(|c| **c > cut).map(|c| c - cut).collect();
    let mut left = as_a_tree(config, &packets[..cut], &before)?;
    let right = as_a_tree(config, &packets[cut..], &behind)?;
    left.join(&right).ok().map(|()| through_bytes(&left))
}

pub(crate) fn check(got: Partial, want: &Partial, what: &str) {
    let flows = |p: &Partial| p.flows_in_order().collect::<Vec<_>>();
    assert_eq!(flows(&got), flows(want), "{what}: flows");
    same(&got.report(), &want.report(), what);
}

fn same(got: &Report, want: &Report, what: &str) {
    if got != want {
        let (got, want) = (serde_json::to_string(got).unwrap(), serde_json::to_string(want).unwrap());
        let at = got.bytes().zip(want.bytes()).position(|(a, b)| a != b).unwrap_or(0).saturating_sub(200);
        let text = |s: &str| s.get(at..(at + 300).min(s.len())).unwrap_or_default().to_owned();
        panic!("{what}: got …{}…, expected …{}…", text(&got), text(&want));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(384))]

    #[test]
    fn any_cuts_give_the_whole(
        packets in stream(120), config in config(), cuts in vec(any::<prop::sample::Index>(), 0..7), opens in any::<bool>(),
    ) {
        let cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(packets.len() + 1)).collect();
        let want = slow::partial(&config, &packets);
        let opening = if opens { Opening::Trace } else { Opening::Middle };
        let (whole, _) = left_to_right(&config, &packets, &cuts, opening);
        prop_assert_eq!(whole.opens(), opens);
        check(whole.into_partial(), &want, "from the left");
        let mut sorted = cuts;
        sorted.sort_unstable();
        if let Some(whole) = as_a_tree(&config, &packets, &sorted) {
            check(whole.into_partial(), &want, "as a tree");
        }
    }

    /// Nothing has to be made anew where times never run backwards.
    #[test]
    fn where_the_clock_goes_on_every_tree_joins(
        packets in stream(120), config in config(), cuts in vec(any::<prop::sample::Index>(), 0..7),
    ) {
        let mut packets = packets;
        let mut time = 0;
        for packet in &mut packets {
            time = time.max(packet.time);
            packet.time = time;
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(packets.len() + 1)).collect();
        cuts.sort_unstable();
        let want = slow::partial(&config, &packets);
        let (whole, anew) = left_to_right(&config, &packets, &cuts, Opening::Trace);
        prop_assert_eq!(anew, 0);
        check(whole.into_partial(), &want, "from the left");
        let whole = as_a_tree(&config, &packets, &cuts);
        check(whole.unwrap().into_partial(), &want, "as a tree");
    }

    #[test]
    fn bits_that_change_are_noticed(packets in stream(40), config in config(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let bytes = stretch(&config, Opening::Middle, &packets).to_bytes();
        let mut wrong = bytes.clone();
        let at = at.index(bytes.len());
        wrong[at] ^= 1 << bit;
        let error = Stretch::from_bytes(&wrong).unwrap_err();
        prop_assert!(error.to_string().starts_with("byte "), "{}", error);
        prop_assert!(Stretch::from_bytes(&bytes[..at]).is_err());
    }
}

/// Cuts at every packet, and 1, 2, 3 and 7 pieces at random places, of every capture.
#[test]
fn captures_cut_anywhere_give_the_whole() {
    let Some(dir) = traces() else { return };
    let mut captures: Vec<_> = ["multi", "odd", "large"].iter().flat_map(|d| files(&dir.join(d))).collect();
    captures.sort();
    let (mut judged, mut anew, mut seed) = (0, 0, 1u64);
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below.max(1)
    };
    let config = Config::default();
    for path in captures {
        let Some(packets) = packets(&path) else { continue };
        let want = slow::partial(&config, &packets);
        let what = path.display().to_string();
        for pieces in [1, 2, 3, 7] {
            let cuts: Vec<usize> = (1..pieces).map(|_| random(packets.len() + 1)).collect();
            let (whole, more) = left_to_right(&config, &packets, &cuts, Opening::Trace);
            check(whole.into_partial(), &want, &format!("{what} in {pieces}"));
            anew += more;
            if packets.len() > 50_000 {
                continue;
            }
            let (whole, _) = left_to_right(&config, &packets, &cuts, Opening::Middle);
            check(
                whole.into_partial(),
                &want,
                &format!("{what} in {pieces}, of which the first doesn't begin it"),
            );
        }
        if packets.len() <= 150 {
            let everywhere: Vec<usize> = (1..packets.len()).collect();
            let (whole, _) = left_to_right(&config, &packets, &everywhere, Opening::Trace);
            check(whole.into_partial(), &want, &format!("{what} cut everywhere"));
            for cut in 0..=packets.len() {
                let (whole, _) = left_to_right(&config, &packets, &[cut], Opening::Middle);
                check(whole.into_partial(), &want, &format!("{what} cut at {cut}"));
            }
        }
        judged += 1;
    }
    assert!(judged > 60, "only {judged} captures");
    println!("{judged} captures; {anew} pieces were made anew");
}

fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// The packets of a capture; at most 15,000 of it.
fn packets(path: &Path) -> Option<Vec<Packet>> {
    let mut reader = CaptureReader::open(path).ok()?;
    let mut packets = Vec::new();
    while let Some(record) = reader.next_record().ok()? {
        packets.push(Packet { time: record.time.0, link: record.link, bytes: record.data.to_vec() });
        if packets.len() == 15_000 {
            break;
        }
    }
    Some(packets)
}

/// A flow that fills bursts is half of the trace: its trains depend on where the trace began, ever.
#[test]
fn half_of_the_trace_is_one_flow() {
    let packet = |n: u32| {
        let mut bytes = vec![0; 54];
        bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
        bytes[16..18].copy_from_slice(&40u16.to_be_bytes());
        bytes[22..24].copy_from_slice(&[64, 6]);
        let mixed = (n ^ n >> 7).wrapping_mul(0x7feb_352d);
        let mixed = (mixed ^ mixed >> 15).wrapping_mul(0x846c_a68b);
        let other = if n.is_multiple_of(2) { 0 } else { 1 + (mixed ^ mixed >> 16) % 3000 };
        bytes[26..30].copy_from_slice(&(0x0a00_0000 + other).to_be_bytes());
        bytes[34..38].copy_from_slice(&[1, 187, 4, 0]);
        bytes[46..48].copy_from_slice(&[0x50, 0x10]);
        Packet { time: u64::from(n) * 100, link: LinkType::Ethernet, bytes }
    };
    let packets: Vec<Packet> = (0..40_000).map(packet).collect();
    let config = Config::default();
    let want = slow::partial(&config, &packets);
    for cuts in [&[10_001][..], &[1, 2, 3, 20_000], &[13_337, 26_672]] {
        let (whole, anew) = left_to_right(&config, &packets, cuts, Opening::Trace);
        assert_eq!(anew, 0);
        check(whole.into_partial(), &want, "half");
    }
    let piece = stretch(&config, Opening::Middle, &packets[20_000..]);
    assert_eq!(piece.kept_packets(), 20_000);
    // Without it, a fraction of a millisecond is kept.
    let others: Vec<Packet> = packets.into_iter().filter(|p| p.bytes[29] != 0 || p.bytes[28] != 0).collect();
    let piece = stretch(&config, Opening::Middle, &others);
    assert!(piece.kept_packets() < 4_000, "{}", piece.kept_packets());
}

#[test]
fn what_does_not_follow_is_refused() {
    let config = Config::default();
    let place = |from, to| Place { file: "a.pcap".into(), from, to, ..Place::default() };
    let make = |opening, place| {
        let mut analyzer = StretchAnalyzer::new(Config::default(), opening).unwrap();
        analyzer.packet(1, LinkType::Ethernet, 60, &[0; 60]);
        analyzer.finish(place)
    };
    let first = make(Opening::Trace, place(24, 100));
    let joined = |next: &Stretch| first.clone().join(next);
    assert_eq!(joined(&make(Opening::Middle, place(100, 200))), Ok(()));
    assert_eq!(joined(&make(Opening::Trace, place(100, 200))), Err(MergeError::Opens));
    let gap = Err(MergeError::Gap { ends: 100, begins: 104 });
    assert_eq!(joined(&make(Opening::Middle, place(104, 200))), gap);
    let elsewhere = Place { file: "b.pcap".into(), ..place(100, 200) };
    assert_eq!(joined(&make(Opening::Middle, elsewhere)), Err(MergeError::OtherTrace));
    let other = Config { burst: 7, ..config.clone() };
    assert_eq!(joined(&stretch(&other, Opening::Middle, [])), Err(MergeError::Settings));
    let damaged = make(Opening::Trace, Place { truncated_at_byte: Some(90), ..place(24, 100) });
    assert_eq!(damaged.clone().join(&make(Opening::Middle, place(100, 200))), Err(MergeError::OtherTrace));
    assert_eq!(through_bytes(&damaged).place(), damaged.place());
    let ending = |opening, ending| make(opening, Place { ending, ..place(24, 100) });
    assert_eq!(ending(Opening::Trace, Ending::Ends).complete(), Ok(()));
    assert_eq!(ending(Opening::Trace, Ending::Unknown).complete(), Ok(()));
    assert_eq!(ending(Opening::Trace, Ending::Continues).complete(), Err(MergeError::Last { ends: 100 }));
    assert_eq!(ending(Opening::Middle, Ending::Ends).complete(), Err(MergeError::First { begins: 24 }));
    let mut both = ending(Opening::Trace, Ending::Continues);
    both.join(&make(Opening::Middle, Place { ending: Ending::Ends, ..place(100, 200) })).unwrap();
    assert_eq!((both.complete(), through_bytes(&both).place()), (Ok(()), both.place()));
    let nothing = StretchAnalyzer::new(Config::default(), Opening::Middle).unwrap();
    let nothing = nothing.finish(place(u64::MAX, 0));
    assert!(nothing.is_nothing() && !damaged.is_nothing());
    let error =
        StretchAnalyzer::new(Config { switch_batches: vec![1 << 17], ..config }, Opening::Trace).unwrap_err();
    assert_eq!(
        error.to_string(),
        "flow switches in batches of 131072 packets: in a part of a trace these must be 1 to 65536"
    );
}

/// The bytes of a small state are what they were: whoever changes them gives the format another version, and
/// goes on reading this one.
#[test]
fn golden_files_are_read_and_the_newest_is_written() {
    let golden = include_bytes!("golden/version2.partial").as_slice();
    let config = Config {
        windows_ns: vec![4, 100],
        burst: 3,
        switch_batches: vec![2, 4],
        top: 3,
        ..Config::default()
    };
    let packet = |(time, flow): (u64, u8)| {
        let mut bytes = vec![0; 54];
        bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
        bytes[16..18].copy_from_slice(&40u16.to_be_bytes());
        bytes[22..24].copy_from_slice(&[64, if flow == 3 { 17 } else { 6 }]);
        bytes[26..30].copy_from_slice(&[10, 0, 0, flow]);
        bytes[46..48].copy_from_slice(&[0x50, 0x10]);
        if flow == 2 {
            bytes[34..38].copy_from_slice(&[0, 80, 1, 0]);
        }
        if flow == 0 {
            bytes[12] = 0;
        }
        Packet { time, link: LinkType::Ethernet, bytes }
    };
    let made = [(10, 1), (11, 2), (11, 0), (13, 1), (16, 3), (12, 2), (20, 2), (21, 3), (40, 2)].map(packet);
    let made = stretch(&config, Opening::Middle, &made).to_bytes();
    assert_eq!(made, golden);
    let first = Stretch::from_bytes(include_bytes!("golden/version1.partial")).unwrap();
    assert_eq!(first.to_bytes(), golden, "a state of version 1 has all but how it ends");
    let state = Stretch::from_bytes(golden).unwrap();
    assert_eq!((state.records(), state.kept_packets(), state.opens()), (9, 11, false));
    assert_eq!(state.to_bytes(), golden);
    let report = state.into_partial().report();
    assert_eq!((report.ip.packets, report.ip.flows, report.tcp.runs, report.clock_backwards), (8, 3, 4, 1));

    let mut newer = golden.to_vec();
    newer[8] = 3;
    assert_eq!(Stretch::from_bytes(&newer).unwrap_err(), StretchError::Version { found: 3, reads: 2 });
    assert_eq!(Stretch::from_bytes(b"SLIPMEAS").unwrap_err(), StretchError::Magic);
    for cut in 0..golden.len() {
        Stretch::from_bytes(&golden[..cut]).unwrap_err();
    }
    for at in 0..golden.len() {
        let mut wrong = golden.to_vec();
        wrong[at] ^= 0x10;
        Stretch::from_bytes(&wrong).unwrap_err();
    }
}
