//! Super-frames of real traffic: what they are of, and what is left when they are cut again.

use std::path::{Path, PathBuf};

use slipstream::batch::{Arrivals, Batch};
use slipstream::classify::Classifier;
use slipstream::io::capture::{CaptureReader, Interface};
use slipstream::io::super_frame::there_and_back;
use slipstream::io::synth::{Synth, SynthConfig};
use slipstream::pool::Pool;
use slipstream::reframe::{Reframe, ReframeConfig, Rule};
use slipstream::runtime::{CaptureSource, Source, SynthSource};
use slipstream::source::SourceError;
use slipstream::stage::Output;
use slipstream_wire::gro::Refusal;

use crate::capture_support::traces;

/// Puts what leaves into super-frames and cuts them again.
#[derive(Default)]
struct Cut {
    super_frames: u64,
    packets: u64,
    marked: u64,
    left: u64,
}

impl Output for Cut {
    fn emit(&mut self, pool: &mut Pool, batch: &mut Batch) {
        for (_, frames) in batch.iter() {
            let mut came = frames.iter();
            let (supers, packets) = there_and_back(pool, frames, &mut |bytes| {
                let frame = came.next().expect("more packets than there were");
                assert_eq!(bytes, pool.data(frame.buf, frame.len));
            });
            assert_eq!(came.next(), None, "a packet is missing");
            assert!(!frames[0].info.joins(), "a super-frame goes beyond its train");
            (self.super_frames, self.packets) = (self.super_frames + supers, self.packets + packets);
            self.marked += frames.iter().filter(|f| f.info.joins()).count() as u64;
        }
        self.left += batch.frames.len() as u64;
        batch.frames.iter().for_each(|f| pool.free(f.buf));
        batch.clear();
    }
}

/// Sends packets through a reframer; what came of it, the packets that there were, and those that it refused
/// for a wrong checksum.
fn cut(source: &mut dyn Source, hold_ns: u64, gro_verify: bool, name: &str) -> (Cut, u64, u64) {
    let (bypass, compress_gro) = (Rule::never(), true);
    let mut config = ReframeConfig { compress_gro, gro_verify, bypass, ..ReframeConfig::default() };
    (config.default.hold_ns, config.default.burst) = (hold_ns, 64);
    let (mut reframe, mut pool) = (Reframe::new(&config).unwrap(), Pool::new());
    let (mut arrivals, mut out, mut packets) = (Arrivals::default(), Cut::default(), 0);
    let mut classifier = Classifier::default();
    while let Ok(n @ 1..) = source.fill(&mut pool, &mut arrivals, 256) {
        classifier.interfaces(source.interfaces());
        classifier.classify(&pool, &mut arrivals);
        reframe.process(&mut pool, &mut arrivals, &mut out);
        packets += n as u64;
    }
    reframe.finish(&mut pool, &mut out);
    let stats = reframe.stats().gro.unwrap();
    assert_eq!(stats.merged(), out.marked);
    assert_eq!(pool.live(), 0);
    // Each packet of a train of two and more begins it, joins the one before, or is refused.
    let refused: u64 = stats.refused().map(|(_, n)| n).sum();
    let lengths = &reframe.stats().total().lengths;
    let longer: u64 = lengths.iter().enumerate().skip(2).map(|(n, trains)| n as u64 * trains).sum();
    assert_eq!(stats.trains + stats.merged() + refused, longer, "{name}");
    let wrong = stats.refused().find(|(reason, _)| *reason == Refusal::Checksum);
    (out, packets, wrong.map_or(0, |(_, packets)| packets))
}

/// All captures below a directory.
fn captures(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()) {
        if entry.is_dir() {
            captures(&entry, found);
        } else if !entry.extension().is_some_and(|e| ["md", "py", "jsonl"].iter().any(|other| e == *other)) {
            found.push(entry);
        }
    }
}

#[test]
fn super_frames_of_every_capture_are_cut_into_what_came() {
    let Some(traces) = traces() else { return };
    let mut paths = Vec::new();
    captures(&traces, &mut paths);
    let (mut super_frames, mut read) = (0, 0);
    for path in &paths {
        // Some files are no captures, or end before their first packet.
        let Ok(reader) = CaptureReader::open(path) else { continue };
        let name = path.display().to_string();
        let (out, packets, wrong) = cut(&mut CaptureSource::new(reader), 10_000_000, false, &name);
        assert_eq!((out.left, wrong), (packets, 0), "{name}");
        super_frames += out.super_frames;
        read += packets;
        // Who has checksums verified beforehand marks no packet that does not travel with others after all.
        let reader = CaptureReader::open(path).unwrap();
        let (verified, _, wrong) = cut(&mut CaptureSource::new(reader), 10_000_000, true, &name);
        assert_eq!(verified.left, packets, "{name}");
        let figures = |cut: &Cut| (cut.super_frames, cut.packets, cut.marked);
        if wrong == 0 {
            assert_eq!(figures(&out), figures(&verified), "{name}");
        } else {
            assert!(out.marked > verified.marked && out.packets <= verified.packets, "{name}");
        }
    }
    assert!(
        paths.len() > 30 && super_frames > 500,
        "{super_frames} of {read} packets in {} files",
        paths.len()
    );
}

#[test]
fn most_packets_of_a_campus_travel_in_super_frames() {
    let config = SynthConfig::from_text("profile=campus,packets=20000,seed=7").unwrap();
    let mut source = SynthSource::new(Synth::new(config).unwrap());
    let (out, packets, _) = cut(&mut source, 1_000_000, false, "campus");
    assert_eq!((out.left, packets), (20_000, 20_000));
    // The marks are those that a port makes use of, too: no identification stays the same here.
    assert_eq!(out.packets - out.super_frames, out.marked);
    assert!(out.packets > packets / 2, "{} of {packets} in super-frames", out.packets);
}

/// A source whose packets are damaged now and then: one byte behind the link-layer header is another.
struct Damaged<S> {
    source: S,
    random: u64,
}

impl<S: Source> Source for Damaged<S> {
    fn fill(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, most: usize) -> Result<usize, SourceError> {
        let before = arrivals.frames.len();
        let n = self.source.fill(pool, arrivals, most)?;
        for frame in &arrivals.frames[before..] {
            self.random =
                self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (when, at, bits) = (self.random >> 60, self.random >> 30, (self.random >> 20) as u8 | 1);
            let data = pool.data_mut(frame.buf, frame.len);
            if when < 2 && data.len() > 14 {
                let at = 14 + (at as usize) % (data.len() - 14);
                data[at] ^= bits;
            }
        }
        Ok(n)
    }

    fn interfaces(&self) -> &[Interface] {
        self.source.interfaces()
    }
}

#[test]
fn damaged_packets_come_back_as_damaged_as_they_were() {
    for seed in 1..5 {
        let config = SynthConfig::from_text(&format!("profile=campus,packets=20000,seed={seed}")).unwrap();
        let source =
            || Damaged { source: SynthSource::new(Synth::new(config.clone()).unwrap()), random: seed };
        let (out, packets, _) = cut(&mut source(), 1_000_000, false, "damaged");
        let (verified, _, wrong) = cut(&mut source(), 1_000_000, true, "damaged");
        assert_eq!((out.left, verified.left, packets), (20_000, 20_000, 20_000));
        // By far most packets travel with others, whoever finds the wrong ones.
        assert!(wrong > 500 && out.packets > packets / 3, "{wrong} wrong, {} in super-frames", out.packets);
        assert!(out.packets <= verified.packets && out.packets + wrong > verified.packets);
    }
}
