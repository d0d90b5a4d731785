//! The way in: the ring as a source of packets.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use slipstream_wire::{LinkType, checksum::fill_transport, classify};

use super::ring::Ring;
use super::{Port, PortError};
use slipstream_core::batch::Arrivals;
use slipstream_core::clock::LiveClock;
use slipstream_core::frame::Frame;
use slipstream_core::interface::Interface;
use slipstream_core::pool::{PacketMeta, Pool};
use slipstream_core::source::{LiveSource, Source, SourceError};
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
    sequence: u64,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    bytes: u64,
    kernel_dropped: u64,
    too_long: u64,
    own: u64,
    tags: u64,
    checksums: u64,
}

impl Receiver {
    pub(super) fn new(port: Arc<Port>, ring: Ring) -> Self {
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
            sequence: 0,
            counts: Counts::default(),
        }
    }

    /// Once in a while: what the kernel counted, and whether somebody set the clock.
    fn look_around(&mut self, now: Nanos) -> Result<(), PortError> {
        if self.compared != Nanos(0) && now.since(self.compared) < COMPARE_EVERY {
            return Ok(());
        }
        self.compared = now;
        self.ahead = self.clock.real_time_ahead(self.ahead);
        let failed = |what| PortError::of(&self.port.name, what);
        self.counts.kernel_dropped += self.port.socket.dropped().map_err(failed("asking for counters"))?;
        // An interface that is down may come up again; one that is gone doesn't come back.
        match self.port.socket.take_error().map_err(failed("asking for errors"))? {
            Some(_) => self.port.gone().map_or(Ok(()), Err),
            None => Ok(()),
        }
    }

    /// Appends up to `max` packets that have come; returns how many. Their times are the kernel's, but never before the
    /// packet before nor after `now`.
    fn take(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, max: usize, now: Nanos) -> usize {
        arrivals.first = self.sequence;
        let Self { ring, scratch, counts, ahead, last, .. } = self;
        let mut n = 0;
        while n < max {
            let Some(slot) = ring.next() else { break };
            if slot.kind == libc::PACKET_OUTGOING {
                counts.own += 1;
                continue;
            }
            let data = slot.data();
            if data.is_empty() || (data.len() as u64) < u64::from(slot.wire_len()) {
                counts.too_long += 1;
                continue;
            }
            let time = slot.time().saturating_add_signed(-*ahead);
            let arrival = Nanos(time.min(now.0)).max(*last);
            let data = whole(data, slot.vlan(), slot.lacks_checksum(), scratch, counts);
            let meta = PacketMeta { original_len: data.len() as u32, interface: 0, time: Nanos(slot.time()) };
            let buf = pool.insert(meta, data);
            arrivals.frames.push(Frame::unclassified(arrival, buf, data.len() as u32));
            counts.bytes += data.len() as u64;
            *last = arrival;
            n += 1;
        }
        self.sequence += n as u64;
        n
    }
}

/// The frame as it was on the wire: with its VLAN tag (EtherType and control information), where the kernel took one out,
/// and its transport checksum, where the sender left that to its network card.
fn whole<'a>(
    data: &'a [u8],
    tag: Option<(u16, u16)>,
    lacks_checksum: bool,
    scratch: &'a mut Vec<u8>,
    counts: &mut Counts,
) -> &'a [u8] {
    if tag.is_none() && !lacks_checksum {
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
    if lacks_checksum && let Ok(headers) = classify(LinkType::Ethernet, scratch) {
        counts.checksums += u64::from(fill_transport(scratch, &headers));
    }
    scratch
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

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.port.socket.fd())
    }

    fn ended(&self) -> bool {
        false
    }
}

impl Source for Receiver {
    /// Takes the packets that have come until now; 0 is no end, since more may come.
    fn fill(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, max: usize) -> Result<usize, SourceError> {
        let now = self.clock.now();
        self.poll(pool, arrivals, max, now)
    }

    fn interfaces(&self) -> &[Interface] {
        &self.interface
    }

    fn live(&mut self) -> Option<&mut dyn LiveSource> {
        Some(self)
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let Counts { bytes, kernel_dropped, too_long, own, tags, checksums } = self.counts;
        // The packets that the kernel dropped since the last look.
        let dropped = self.port.socket.dropped().unwrap_or(0);
        visit("bytes", bytes);
        visit("dropped_by_kernel", kernel_dropped + dropped);
        visit("too_long", too_long);
        visit("own_packets_ignored", own);
        visit("vlan_tags_restored", tags);
        visit("checksums_filled_in", checksums);
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
                prop_assert_eq!(whole(&stripped, taken, false, &mut scratch, &mut counts), &tagged[..]);
            } else {
                prop_assert_eq!(whole(&stripped, taken, false, &mut scratch, &mut counts), &frame[..]);
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
            assert_eq!(whole(&frame, None, true, &mut scratch, &mut counts), &right[..]);
            n += 1;
        }
        assert_eq!((n, counts.checksums), (200, 200));
    }
}
