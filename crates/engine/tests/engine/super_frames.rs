//! Super-frames of real traffic: what they are of, and what is left when they are cut again.

use std::path::{Path, PathBuf};

use slipstream::batch::{Arrivals, Batch};
use slipstream::classify::Classifier;
use slipstream::io::capture::CaptureReader;
use slipstream::io::super_frame::there_and_back;
use slipstream::io::synth::{Synth, SynthConfig};
use slipstream::pool::Pool;
use slipstream::reframe::{Reframe, ReframeConfig, Rule};
use slipstream::runtime::{CaptureSource, Source, SynthSource};
use slipstream::stage::Output;

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

/// Sends packets through a reframer; what came of it, and the packets that there were.
fn cut(source: &mut dyn Source, hold_ns: u64, name: &str) -> (Cut, u64) {
    let mut config = ReframeConfig { compress_gro: true, bypass: Rule::never(), ..ReframeConfig::default() };
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
    (out, packets)
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
        let (out, packets) = cut(&mut CaptureSource::new(reader), 10_000_000, &name);
        assert_eq!(out.left, packets, "{name}");
        super_frames += out.super_frames;
        read += packets;
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
    let (out, packets) = cut(&mut source, 1_000_000, "campus");
    assert_eq!((out.left, packets), (20_000, 20_000));
    // The marks are those that a port makes use of, too: no identification stays the same here.
    assert_eq!(out.packets - out.super_frames, out.marked);
    assert!(out.packets > packets / 2, "{} of {packets} in super-frames", out.packets);
}
