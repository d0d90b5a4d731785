//! Super-frames: TCP segments and UDP datagrams of a train that are in sequence travel as one, as far as
//! there are ways out that take them as one.
//!
//! The packets that belong together are found by [`slipstream_wire::gro`], whose rules are those of Linux.
//! Here they are marked ([`Info::joins`](slipstream_core::frame::Info::joins)), no more: a super-frame is a
//! stretch of a train, each of whose packets keeps its own headers, checksum and length in a place of its
//! own. So
//!
//! - cutting it again is to do nothing: every stage and every port that knows nothing of super-frames sees
//!   the packets that came, byte for byte;
//! - a function decides once for the train anyway, and what it writes into the headers of each packet it need
//!   not write anew when the super-frame is cut;
//! - no payload is copied, until a port that takes super-frames gathers it into the kernel.
//!
//! All packets of a batch that leaves are looked at in one go. Their headers are read and no payload is: a
//! port that sends a super-frame verifies the checksums of its packets, just before the kernel copies them.
//! A user who wants to know beforehand which packets those will be has them verified here as well.

use slipstream_core::batch::{Batch, Train};
use slipstream_core::frame::Frame;
use slipstream_core::pool::Pool;
use slipstream_wire::Flags;
use slipstream_wire::gro::{Limits, Refusal, Segment, SuperFrame};

/// Packets whose headers are asked for ahead of use, and those of which all is, where payloads are read.
const AHEAD: usize = 8;
const AHEAD_WHOLE: usize = 2;
/// Longest packet in bytes whose headers are all of it that is worth asking for.
const SHORT: u32 = 112;

/// Counters of super-frames. All trains of two packets and more are looked at: each packet of such a train
/// begins it, joins the packet before it, or is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroStats {
    /// Super-frames of two packets and more.
    pub super_frames: u64,
    /// Packets in them.
    pub segments: u64,
    /// Bytes of super-frames, each from its IP header on, with one header.
    pub bytes: u64,
    /// Bytes of the longest.
    pub longest: u32,
    /// Trains of two packets and more.
    pub trains: u64,
    /// Packets in them that did not join the one before, in the order of [`Refusal::ALL`].
    pub refused: [u64; Refusal::ALL.len()],
}

impl GroStats {
    /// Packets a super-frame; `None` without one.
    #[must_use]
    pub fn mean_segments(&self) -> Option<f64> {
        (self.super_frames > 0).then(|| self.segments as f64 / self.super_frames as f64)
    }

    /// Packets that need no headers of their own: those that joined the one before.
    #[must_use]
    pub fn merged(&self) -> u64 {
        self.segments - self.super_frames
    }

    /// The reasons that there were, with their packets.
    pub fn refused(&self) -> impl Iterator<Item = (Refusal, u64)> {
        Refusal::ALL.into_iter().zip(self.refused).filter(|(_, packets)| *packets > 0)
    }

    /// As it is reported.
    #[cfg(feature = "std")]
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let refused: serde_json::Map<_, _> =
            self.refused().map(|(reason, packets)| (reason.name().into(), packets.into())).collect();
        serde_json::json!({
            "super_frames": self.super_frames,
            "segments": self.segments,
            "mean_segments": self.mean_segments(),
            "bytes": self.bytes,
            "longest": self.longest,
            "trains": self.trains,
            "refused": refused,
        })
    }

    /// Adds another worker's counters.
    pub fn merge(&mut self, other: &Self) {
        self.super_frames += other.super_frames;
        self.segments += other.segments;
        self.bytes += other.bytes;
        self.longest = self.longest.max(other.longest);
        self.trains += other.trains;
        self.refused.iter_mut().zip(other.refused).for_each(|(a, b)| *a += b);
    }

    /// Counts a super-frame that is complete; a packet alone is none.
    #[inline]
    fn count(&mut self, run: &SuperFrame) {
        if run.segments() > 1 {
            self.super_frames += 1;
            self.segments += u64::from(run.segments());
            self.bytes += u64::from(run.bytes());
            self.longest = self.longest.max(run.bytes());
        }
    }
}

/// Marks super-frames in trains that leave.
#[derive(Clone, Debug)]
pub struct Gro {
    limits: Limits,
    /// Checksums are verified here.
    verify: bool,
    stats: GroStats,
}

/// A super-frame that is being made.
struct Open<'a> {
    run: SuperFrame,
    last: Segment<'a>,
    /// The first packet's checksums, as far as they were verified.
    right: Option<bool>,
}

impl Gro {
    /// With these limits. `verify`: a packet whose checksum is wrong is marked as part of no super-frame;
    /// else that is left to whoever sends one.
    #[must_use]
    pub fn new(limits: Limits, verify: bool) -> Self {
        Self { limits, verify, stats: GroStats::default() }
    }

    /// The counters so far.
    #[must_use]
    pub fn stats(&self) -> GroStats {
        self.stats.clone()
    }

    /// Goes on counting where one that had other settings has ended.
    #[cfg(feature = "std")]
    pub(crate) fn follow(&mut self, before: &GroStats) {
        self.stats = before.clone();
    }

    /// Marks the packets of a batch that belong to a super-frame with the packet before them.
    #[inline(never)]
    pub fn mark(&mut self, pool: &Pool, batch: &mut Batch) {
        let Batch { frames, trains, .. } = batch;
        if trains.len() == frames.len() {
            return;
        }
        for frame in frames.iter().take(AHEAD) {
            pool.prefetch_headers(frame.buf, frame.len);
        }
        for &Train { start, len, .. } in trains.iter() {
            if len > 1 {
                let (start, len) = (start as usize, len as usize);
                let frames = frames.get_mut(start..).unwrap_or_default();
                if self.verify {
                    self.train::<true>(pool, frames, len);
                } else {
                    self.train::<false>(pool, frames, len);
                }
            }
        }
    }

    /// Marks those of a train, the first `len` of `frames`.
    #[inline]
    fn train<const VERIFY: bool>(&mut self, pool: &Pool, frames: &mut [Frame], len: usize) {
        let Self { limits, stats, .. } = self;
        stats.trains += 1;
        let mut open: Option<Open<'_>> = None;
        for at in 0..len {
            if let Some(ahead) = frames.get(at + AHEAD) {
                pool.prefetch_headers(ahead.buf, ahead.len);
            }
            if VERIFY && let Some(ahead) = frames.get(at + AHEAD_WHOLE).filter(|ahead| ahead.len > SHORT) {
                pool.prefetch_all(ahead.buf, ahead.len);
            }
            let Some(frame) = frames.get_mut(at) else { break };
            let refusal = match segment(pool, frame) {
                Ok(next) => match &mut open {
                    Some(open) => match open.join::<VERIFY>(&next, *limits) {
                        Ok(()) => {
                            frame.info = frame.info.joined();
                            continue;
                        }
                        Err((reason, right)) => {
                            stats.count(&open.run);
                            *open = Open { run: SuperFrame::start(&next), last: next, right };
                            reason
                        }
                    },
                    None => {
                        open = Some(Open { run: SuperFrame::start(&next), last: next, right: None });
                        // Behind a packet that can be in no super-frame.
                        Refusal::Ended
                    }
                },
                Err(reason) => {
                    if let Some(open) = open.take() {
                        stats.count(&open.run);
                    }
                    reason
                }
            };
            if at > 0
                && let Some(n) = stats.refused.get_mut(refusal as usize)
            {
                *n += 1;
            }
        }
        if let Some(open) = open {
            stats.count(&open.run);
        }
    }
}

impl<'a> Open<'a> {
    /// Takes the next packet; or the reason why it can't be, and what is known of its checksums by then.
    #[inline]
    fn join<const VERIFY: bool>(
        &mut self,
        next: &Segment<'a>,
        limits: Limits,
    ) -> Result<(), (Refusal, Option<bool>)> {
        if !VERIFY {
            self.run.join(&self.last, next, limits).map_err(|reason| (reason, None))?;
            self.last = *next;
            return Ok(());
        }
        let mut run = self.run;
        run.join(&self.last, next, limits).map_err(|reason| (reason, None))?;
        let right = next.checksums_are_right();
        let (first, last) = (&mut self.right, &self.last);
        if !right || !*first.get_or_insert_with(|| last.checksums_are_right()) {
            return Err((Refusal::Checksum, Some(right)));
        }
        (self.run, self.last) = (run, *next);
        Ok(())
    }
}

/// The packet, if it may be in a super-frame.
#[inline]
fn segment<'a>(pool: &'a Pool, frame: &Frame) -> Result<Segment<'a>, Refusal> {
    let (info, flags) = (frame.info, Flags(frame.info.flags()));
    if !info.classified() || flags.has(Flags::FRAGMENT | Flags::INNER) || !flags.has(Flags::PORTS) {
        return Err(Refusal::Protocol);
    }
    match pool.unsliced(frame.buf, frame.len) {
        Some((wire, data)) if wire == frame.len => Segment::parse(data, info.l3(), info.l4()),
        _ => Err(Refusal::Truncated),
    }
}
