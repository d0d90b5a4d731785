//! An Ethernet bridge (IEEE 802.1Q-2018 §8): a frame goes to the port where its destination was seen, or to
//! all others.
//!
//! Learned stations are kept apart by VLAN and forgotten after a while. In static mode nothing is learned:
//! stations are where the settings say, or all frames of a port go to another port whatever their addresses
//! (the "L2 forward" of packet processing benchmarks; paper: "Packet Order Matters!", §5.1). No frame leaves
//! by the port that it came in by.

mod stage;
#[cfg(test)]
mod tests;

pub use stage::L2FWD;

use super::bytes::be16;
use super::mac_table::{MacTable, Station};
use super::{FunctionContext, NetworkFunction, NewPacket, Reads, is_ethernet};
use slipstream_core::flow_context::{FlowUse, Trains};
use slipstream_core::frame::Frame;
use slipstream_core::stage::{Context, DropReason, Observe, Verdict};
use slipstream_core::time::Nanos;
use slipstream_wire::protocol::is_vlan;

/// A decision of a bridge about frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// They leave by this port.
    Port(u8),
    /// They leave by all ports but that which they came in by.
    Flood,
    /// They are dropped.
    Drop(DropReason),
}

/// A bridge.
#[derive(Debug)]
pub struct Bridge {
    ports: u8,
    /// Of each port, the one that its frames go to whatever their addresses.
    map: Vec<Option<u8>>,
    table: MacTable,
    learns: bool,
    /// True if frames to unknown stations go to all ports.
    floods: bool,
    /// True if frames to the addresses that bridges keep to themselves are forwarded.
    reserved: bool,
    flooded: u64,
    copies: u64,
    /// Up to when the last decision holds.
    until: Nanos,
}

/// The sender of a frame, and its receiver.
fn stations(data: &[u8]) -> Option<(Station, Station)> {
    let vlan = if is_vlan(be16(data, 12)?) { be16(data, 14)? & 0xfff } else { 0 };
    let to = Station { vlan, mac: *data.first_chunk()? };
    let from = Station { vlan, mac: *data.get(6..)?.first_chunk()? };
    Some((from, to))
}

impl Bridge {
    /// A bridge of so many ports, 2 to 128, that learns into this table.
    pub(super) fn new(ports: u8, table: MacTable) -> Self {
        Self {
            ports,
            map: vec![None; usize::from(ports)],
            table,
            learns: true,
            floods: true,
            reserved: false,
            flooded: 0,
            copies: 0,
            until: Nanos::MAX,
        }
    }

    fn choose(&mut self, fx: &mut FunctionContext<'_, '_>, first: &Frame) -> Decision {
        let (cx, input) = (&*fx.cx, fx.cx.input);
        self.until = Nanos::MAX;
        if !is_ethernet(cx, first) {
            return Decision::Drop(DropReason::Unsupported);
        }
        if let Some(to) = self.map.get(usize::from(input)).copied().flatten() {
            return Decision::Port(to);
        }
        let Some((from, to)) = stations(cx.data(first)) else { return Decision::Drop(DropReason::Malformed) };
        if from.is_group() {
            return Decision::Drop(DropReason::Martian);
        }
        let [known_from, known_to] = cx.pool.flow_words().unwrap_or_default();
        let mut entries = [known_from, known_to].map(|number: u32| number.wrapping_sub(1));
        let [from_entry, to_entry] = &mut entries;
        if self.learns {
            (_, *from_entry) = self.table.learn_known(from, *from_entry, input.into(), cx.now);
            self.until = self.table.holds_until(*from_entry, cx.now);
        }
        // IEEE 802.1Q-2018 §8.6.3: between neighbouring bridges.
        if matches!(to.mac, [0x01, 0x80, 0xc2, 0, 0, 0..=0x0f]) && !self.reserved {
            return Decision::Drop(DropReason::Unsupported);
        }
        *to_entry = self.table.entry(to, *to_entry, cx.now);
        let place = self.table.port(*to_entry);
        if place.is_some() {
            self.until = self.until.min(self.table.holds_until(*to_entry, cx.now));
        }
        let numbers = entries.map(|entry| entry.wrapping_add(1));
        if numbers != [known_from, known_to] {
            fx.cx.pool.keep_flow_words(numbers);
        }
        match place {
            Some(port) if port == u16::from(input) => Decision::Drop(DropReason::SamePort),
            Some(port) => Decision::Port(port as u8),
            None if to.is_group() || self.floods => Decision::Flood,
            None => Decision::Drop(DropReason::NoRoute),
        }
    }

    /// Copies frames to all ports but the one that they came in by; gives where the frames themselves go.
    fn flood(&mut self, fx: &mut FunctionContext<'_, '_>, frames: &[Frame]) -> Verdict {
        let input = fx.cx.input;
        let mut others = (0..self.ports).filter(|port| *port != input);
        let Some(own) = others.next() else { return Verdict::drop(DropReason::SamePort) };
        self.flooded += frames.len() as u64;
        for (at, frame) in frames.iter().enumerate() {
            let made_before = fx.made.len();
            for port in others.clone() {
                let buf = fx.cx.pool.copy(frame.buf, frame.len);
                fx.made.push(NewPacket::new(Frame { buf, ..*frame }, port));
                self.copies += 1;
            }
            fx.made_by(made_before, at);
        }
        Verdict::port(own)
    }
}

impl NetworkFunction for Bridge {
    type Decision = Decision;
    type Lookahead = ();

    fn reads(&self) -> Reads {
        Reads::KEY
    }

    /// Of a flow it keeps the numbers, plus one, of the entries of the stations that its frames come from and
    /// go to. Its frames may come from others at any time, which the table tells.
    fn flow_use(&self) -> FlowUse {
        FlowUse { words: 2, alone: false, trains: Trains::Pass }
    }

    /// The flow key has the VLANs, but not the Ethernet addresses.
    #[inline]
    fn shares(&self, cx: &Context<'_>, first: &Frame, other: &Frame) -> bool {
        let macs = |frame: &Frame| cx.data(frame).first_chunk::<12>().copied();
        first.info.classified() && macs(first) == macs(other) && Reads::KEY.agree(cx.pool, first, other)
    }

    fn holds_until(&self, _: &Decision, _: Nanos) -> Nanos {
        self.until
    }

    #[inline]
    fn look_ahead(&mut self, cx: &Context<'_>, first: &Frame, (): &mut ()) {
        match cx.pool.flow_words() {
            Some([from, to]) if from != 0 || to != 0 => {
                self.table.prefetch_known(from.wrapping_sub(1));
                self.table.prefetch_known(to.wrapping_sub(1));
            }
            _ => {
                if let Some((from, to)) = stations(cx.data(first)) {
                    self.table.prefetch(from);
                    self.table.prefetch(to);
                }
            }
        }
    }

    fn decide(&mut self, fx: &mut FunctionContext<'_, '_>, first: &Frame, (): &()) -> Decision {
        self.choose(fx, first)
    }

    fn apply(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        decision: &Decision,
        frames: &mut [Frame],
        verdicts: &mut [Verdict],
    ) {
        // A station is as fresh as the last frame that came from it. Frames that nothing is learned from, as
        // they have no Ethernet addresses or come from a group, teach nothing as a train either.
        if let [_, between @ .., last] = &*frames
            && self.learns
            && is_ethernet(fx.cx, last)
            && let Some((from, _)) = stations(fx.cx.data(last))
            && !from.is_group()
            && self.map.get(usize::from(fx.cx.input)).copied().flatten().is_none()
        {
            let learned = self.table.learn(from, fx.cx.input.into(), fx.cx.now.max(last.arrival));
            self.table.more(learned, between.len() as u64);
        }
        verdicts.fill(match *decision {
            Decision::Port(port) => Verdict::port(port),
            Decision::Drop(reason) => Verdict::drop(reason),
            Decision::Flood => self.flood(fx, frames),
        });
    }
}

impl Observe for Bridge {
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let c = self.table.counters();
        visit("stations", u64::from(self.table.stations()));
        visit("stations_learned", c.learned);
        visit("stations_moved", c.moved);
        visit("stations_aged", c.aged);
        visit("stations_full", c.full);
        visit("stations_refused", c.refused);
        visit("long_probes", self.table.long_probes());
        visit("flooded", self.flooded);
        visit("copies", self.copies);
    }
}
