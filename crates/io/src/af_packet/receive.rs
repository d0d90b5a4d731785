//! The way in: the ring as a source of packets.

use std::any::Any;
use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use slipstream_wire::{LinkType, checksum::fill_transport, classify};

use super::ring::{Ring, Slot};
use super::send::{SEND_AT_ONCE, Sender};
use super::{Port, PortError};
use crate::offload::{LONGEST, Offload, Segmenter};
use slipstream_core::batch::Arrivals;
use slipstream_core::clock::LiveClock;
use slipstream_core::frame::Frame;
use slipstream_core::interface::Interface;
use slipstream_core::pool::{PacketMeta, Pool};
use slipstream_core::source::{Came, LiveSource, Source, SourceError};
use slipstream_core::time::Nanos;

/// Interval of comparisons of the two clocks, in ns.
const COMPARE_EVERY: u64 = 100_000_000;

/// Packets as an interface receives them.
#[derive(Debug)]
pub struct Receiver {
    port: Arc<Port>,
    ring: Ring,
    interface: [Interface; 1],
    clock: LiveClock,
    /// Lead of the clock of the kernel's time stamps over ours, in ns, and the time of the last comparison.
    ahead: i64,
    compared: Nanos,
    last: Nanos,
    /// For a frame that is put together anew.
    scratch: Vec<u8>,
    /// The kernel tells of offloads.
    offloads: bool,
    /// For a super-frame that was too long for the ring.
    long: Vec<u8>,
    /// A super-frame that is being cut: when it came, by both clocks, and what is left of it.
    cut: Option<(Nanos, Nanos)>,
    segmenter: Segmenter,
    sequence: u64,
    counts: Counts,
    /// Packets that found no place in the ring. The kernel forgets its count when it is asked.
    dropped: Cell<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    bytes: u64,
    too_long: u64,
    own: u64,
    tags: u64,
    checksums: u64,
    super_frames: u64,
    segments: u64,
    uncut: u64,
}

impl Receiver {
    pub(super) fn new(port: Arc<Port>, ring: Ring, offloads: bool) -> Self {
        let interface = Interface { link_number: 1, snap_len: 0, name: Some(port.name.clone()) };
        Self {
            port,
            ring,
            interface: [interface],
            clock: LiveClock::get(),
            ahead: 0,
            compared: Nanos(0),
            last: Nanos(0),
            scratch: Vec::new(),
            offloads,
            long: if offloads { vec![0; LONGEST] } else { Vec::new() },
            cut: None,
            segmenter: Segmenter::default(),
            sequence: 0,
            counts: Counts::default(),
            dropped: Cell::new(0),
        }
    }

    pub(super) fn port(&self) -> Arc<Port> {
        Arc::clone(&self.port)
    }

    pub(super) fn has_offloads(&self) -> bool {
        self.offloads
    }

    /// Adds what the kernel has dropped since this was last asked.
    fn count_dropped(&self) -> io::Result<()> {
        self.dropped.set(self.dropped.get() + self.port.socket.dropped()?);
        Ok(())
    }

    /// Once in a while: what the kernel counted, and whether somebody set the clock.
    fn look_around(&mut self, now: Nanos) -> Result<(), PortError> {
        if self.compared != Nanos(0) && now.since(self.compared) < COMPARE_EVERY {
            return Ok(());
        }
        self.compared = now;
        self.ahead = self.clock.real_time_ahead(self.ahead);
        let failed = |what| PortError::of(&self.port.name, what);
        self.count_dropped().map_err(failed("asking for counters"))?;
        // The kernel tells that the interface went down: it may come up again. One that is gone doesn't come
        // back, and was down before.
        self.port.socket.take_error().map_err(failed("asking for errors"))?;
        self.port.gone().map_or(Ok(()), Err)
    }

    /// Appends up to `max` packets that have come; returns how many. Their times are the kernel's, but never
    /// before the packet before nor after `now`.
    fn take(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, max: usize, now: Nanos) -> usize {
        arrivals.first = self.sequence;
        let Self { ring, scratch, counts, ahead, last, long, cut, segmenter, offloads, port, .. } = self;
        let mut n = 0;
        let mut insert = |pool: &mut Pool, counts: &mut Counts, arrival: Nanos, time: Nanos, data: &[u8]| {
            let meta = PacketMeta { original_len: data.len() as u32, interface: 0, time };
            let buf = pool.insert(meta, data);
            arrivals.frames.push(Frame::unclassified(arrival, buf, data.len() as u32));
            counts.bytes += data.len() as u64;
        };
        let ready = ring.ready(max);
        let mut taken = 0;
        while n < max {
            if let Some((arrival, time)) = *cut {
                if segmenter.next(scratch) {
                    insert(pool, counts, arrival, time, scratch);
                    (counts.segments, n) = (counts.segments + 1, n + 1);
                } else {
                    *cut = None;
                }
                continue;
            }
            if taken == ready {
                break;
            }
            let Some(slot) = ring.look(taken) else { break };
            taken += 1;
            let mut offload = if *offloads { slot.offload() } else { Offload::default() };
            let mut data = slot.data();
            if slot.waits_beside()
                && let Ok(len) = port.socket.receive(long)
                && let Some((header, frame)) = long.get(..len).and_then(|bytes| bytes.split_first_chunk())
            {
                offload = Offload::read(header);
                // Without a super-frame's header it is just longer than the interface's MTU says.
                data = if offload.is_super_frame() { frame } else { data };
            }
            if slot.kind == libc::PACKET_OUTGOING {
                counts.own += 1;
                continue;
            }
            if data.is_empty() || (data.len() as u64) < u64::from(slot.wire_len()) {
                counts.too_long += 1;
                continue;
            }
            let (arrival, time) = arrived(&slot, *ahead, last, now);
            if offload.is_super_frame() {
                counts.super_frames += 1;
                let offload = offload.behind(tag_bytes(slot.vlan()));
                if segmenter.take(whole(data, slot.vlan(), None, scratch, counts), offload) {
                    *cut = Some((arrival, time));
                } else {
                    counts.uncut += 1;
                }
                continue;
            }
            let lacks = slot.lacks_checksum().then_some(offload);
            let data = whole(data, slot.vlan(), lacks, scratch, counts);
            insert(pool, counts, arrival, time, data);
            n += 1;
        }
        ring.release(taken);
        self.sequence += n as u64;
        n
    }
}

/// The frame as it was on the wire: with its VLAN tag (EtherType and control information), where the kernel
/// took one out, and its transport checksum, where the sender left that to its network card.
fn whole<'a>(
    data: &'a [u8],
    tag: Option<(u16, u16)>,
    lacks_checksum: Option<Offload>,
    scratch: &'a mut Vec<u8>,
    counts: &mut Counts,
) -> &'a [u8] {
    if tag.is_none() && lacks_checksum.is_none() {
        return data;
    }
    scratch.clear();
    match (tag, data.split_at_checked(12)) {
        (Some((tpid, tci)), Some((addresses, rest))) => {
            counts.tags += 1;
            for part in [addresses, &tpid.to_be_bytes(), &tci.to_be_bytes(), rest] {
                scratch.extend_from_slice(part);
            }
        }
        _ => scratch.extend_from_slice(data),
    }
    if let Some(offload) = lacks_checksum {
        // The header says where the checksum is, tunnel or not; where there is none, the packet's own headers
        // do.
        let by_header = offload.behind(tag_bytes(tag)).complete(scratch);
        let filled = by_header
            || classify(LinkType::Ethernet, scratch).is_ok_and(|headers| fill_transport(scratch, &headers));
        counts.checksums += u64::from(filled);
    }
    scratch
}

/// Bytes that a frame has more with its VLAN tag, if the kernel took one out.
fn tag_bytes(tag: Option<(u16, u16)>) -> usize {
    if tag.is_some() { 4 } else { 0 }
}

/// When a packet came, by the engine's clock and by the kernel's, which is `ahead` by so many ns: never
/// before the `last` one nor after `now`.
#[inline]
fn arrived(slot: &Slot<'_>, ahead: i64, last: &mut Nanos, now: Nanos) -> (Nanos, Nanos) {
    let time = Nanos(slot.time());
    *last = Nanos(time.0.saturating_add_signed(-ahead).min(now.0)).max(*last);
    (*last, time)
}

/// Returns true if the ring has a packet just as it was on the wire, and all of it.
fn is_as_sent(slot: &Slot<'_>, offloads: bool) -> bool {
    let len = slot.data().len();
    let whole = len > 0 && len as u64 >= u64::from(slot.wire_len()) && !slot.waits_beside();
    whole
        && slot.kind != libc::PACKET_OUTGOING
        && slot.vlan().is_none()
        && !slot.lacks_checksum()
        && !(offloads && slot.offload().is_super_frame())
}

impl LiveSource for Receiver {
    fn poll(
        &mut self,
        pool: &mut Pool,
        arrivals: &mut Arrivals,
        max: usize,
        now: Nanos,
    ) -> Result<usize, SourceError> {
        self.look_around(now)?;
        Ok(self.take(pool, arrivals, max, now))
    }

    /// The kernel copies packets from where they lie in the ring to their way out. What would have to be
    /// changed is left to be polled.
    fn relay(
        &mut self,
        _: &mut Pool,
        to: &mut dyn Any,
        max: usize,
        now: Nanos,
        came: &mut Vec<Came>,
    ) -> bool {
        let Some(to) = to.downcast_mut::<Sender>() else { return false };
        if self.cut.is_some() {
            return true;
        }
        let ready = self.ring.ready(max);
        let mut n = 0;
        while n < ready {
            let mut chunk = [&[][..]; SEND_AT_ONCE];
            let mut same = 0;
            let slots = (n..ready).map_while(|ahead| self.ring.look(ahead));
            for (place, slot) in
                chunk.iter_mut().zip(slots.take_while(|slot| is_as_sent(slot, self.offloads)))
            {
                let (arrival, time) = arrived(&slot, self.ahead, &mut self.last, now);
                Came::add(came, arrival, time);
                *place = slot.data();
                self.counts.bytes += place.len() as u64;
                same += 1;
            }
            to.relay(chunk.get(..same).unwrap_or_default());
            n += same;
            if same < SEND_AT_ONCE {
                break;
            }
        }
        self.ring.release(n);
        self.sequence += n as u64;
        true
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.port.socket.fd())
    }
}

impl Source for Receiver {
    fn fill(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, max: usize) -> Result<usize, SourceError> {
        self.poll_now(pool, arrivals, max)
    }

    fn interfaces(&self) -> &[Interface] {
        &self.interface
    }

    fn live(&mut self) -> Option<&mut dyn LiveSource> {
        Some(self)
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let Counts { bytes, too_long, own, tags, checksums, super_frames, segments, uncut } = self.counts;
        let _ = self.count_dropped();
        visit("bytes", bytes);
        visit("dropped_by_kernel", self.dropped.get());
        visit("too_long", too_long);
        visit("own_packets_ignored", own);
        visit("vlan_tags_restored", tags);
        visit("checksums_filled_in", checksums);
        visit("super_frames", super_frames);
        visit("segments", segments);
        visit("super_frames_uncut", uncut);
        visit("left_in_ring", self.ring.waiting());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::{Synth, SynthConfig};
    use proptest::prelude::*;
    use slipstream_wire::checksum::{Verdict, verify_transport};

    proptest! {
        /// Against the obvious twin: what the kernel does on the way in, undone.
        #[test]
        fn tags_are_put_back(frame in proptest::collection::vec(any::<u8>(), 0..200), tag in any::<Option<(u16, u16)>>()) {
            let (mut scratch, mut counts) = (Vec::new(), Counts::default());
            let mut stripped = frame.clone();
            let mut taken = None;
            if let (Some((tpid, tci)), true) = (tag, frame.len() >= 16) {
                stripped.drain(12..16);
                let mut tagged = frame.clone();
                tagged[12..14].copy_from_slice(&tpid.to_be_bytes());
                tagged[14..16].copy_from_slice(&tci.to_be_bytes());
                taken = Some((tpid, tci));
                prop_assert_eq!(whole(&stripped, taken, None, &mut scratch, &mut counts), &tagged[..]);
            } else {
                prop_assert_eq!(whole(&stripped, taken, None, &mut scratch, &mut counts), &frame[..]);
            }
            prop_assert_eq!(counts.tags, u64::from(taken.is_some()));
        }
    }

    #[test]
    fn missing_checksums_are_filled_in() {
        let config = SynthConfig { packets: 200, ipv6: 0.5, ..SynthConfig::default() };
        let mut synth = Synth::new(config).unwrap();
        let (mut frame, mut scratch, mut counts) = (Vec::new(), Vec::new(), Counts::default());
        let mut n = 0;
        while synth.next_packet(&mut frame).is_some() {
            let headers = classify(LinkType::Ethernet, &frame).unwrap();
            let at = usize::from(headers.l4) + if headers.key.protocol() == 6 { 16 } else { 6 };
            let right = frame.clone();
            frame[at] ^= 0x5a;
            assert_eq!(verify_transport(&frame, &headers), Verdict::Wrong);
            assert_eq!(whole(&frame, None, Some(Offload::default()), &mut scratch, &mut counts), &right[..]);
            n += 1;
        }
        assert_eq!((n, counts.checksums), (200, 200));
    }
}
