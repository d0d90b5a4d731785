//! A stretch as bytes. The book, `book/src/partials.md`, has the layout.
//!
//! `SLIPPART`, version (u16), number of sections (u16), CRC-32 of these 12 bytes (u32); then seven sections,
//! each a name of four letters, the length of its content (u64), the content, and CRC-32 of all three (u32).
//! All numbers are little-endian; those in sections, but for addresses and ports, have a variable length
//! (LEB128). A reader believes no length: it allocates what the bytes at hand can fill.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use slipstream_stats::{Histogram, SignedHistogram};
use slipstream_wire::{Encapsulation, FlowKey};
use thiserror::Error;

use super::order::{Order, Phases, tail_len};
use super::{Ending, FlowPart, Key, MAX_BATCH, Place, Stretch, Window};
use crate::analyzer::Acknowledged;
use crate::block::{ADVANCES, CLASS, NO_FLOW, Row};
use crate::config::Config;
use crate::flows::FlowTable;
use crate::partial::{Settings, Totals};
use crate::report::Skipped;
use crate::trains::{Body, Counts, Held, Open, Output, Sent};

const MAGIC: &[u8; 8] = b"SLIPPART";
/// Version 2 added how a part ends.
const VERSION: u16 = 2;
const SECTIONS: [&[u8; 4]; 7] = [b"PLAC", b"SETT", b"TOTL", b"FLOW", b"ORDR", b"HEAD", b"WIND"];
/// No count of packets is so large: sums of a few don't overflow.
const MOST: u64 = 1 << 56;
/// Of a row in the head: the bits of a packet, and whether it has no flow, or its time was moved.
const NONE: u8 = 0x40;
const MOVED: u8 = 0x80;

/// Why bytes are no saved part of an analysis. Bytes are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StretchError {
    /// Something else altogether.
    #[error("byte 0: this is no saved part of an analysis")]
    Magic,
    /// Of a version that is not known.
    #[error(
        "byte 8: a saved part of an analysis of version {found}; this program reads versions 1 to {reads}: read it \
         with a newer program"
    )]
    Version {
        /// In the bytes.
        found: u16,
        /// The newest that can be read.
        reads: u16,
    },
    /// The bytes end too early.
    #[error("byte {byte}: the saved part of an analysis ends in the middle of what begins here")]
    Cut {
        /// Where something begins of which the end is missing.
        byte: usize,
    },
    /// Bits were changed or lost.
    #[error("byte {byte}: a damaged part of an analysis: the checksum of what begins here is wrong")]
    Checksum {
        /// Where it begins.
        byte: usize,
    },
    /// It can't be.
    #[error("byte {byte}: a damaged part of an analysis: {what}")]
    Damaged {
        /// Where the figure ends that can't be.
        byte: usize,
        /// Why not.
        what: &'static str,
    },
}

impl Stretch {
    /// As bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256 + 32 * self.flows.len() + 6 * self.head.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(SECTIONS.len() as u16).to_le_bytes());
        let sum = crc32fast::hash(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        let mut section = |name: &[u8; 4], write: &dyn Fn(&Self, &mut Out)| {
            let begin = out.len();
            out.extend_from_slice(name);
            out.extend_from_slice(&[0; 8]);
            let mut content = Out(std::mem::take(&mut out));
            write(self, &mut content);
            out = content.0;
            let len = (out.len() - begin - 12) as u64;
            if let Some(place) = out.get_mut(begin + 4..begin + 12) {
                place.copy_from_slice(&len.to_le_bytes());
            }
            let sum = crc32fast::hash(out.get(begin..).unwrap_or_default());
            out.extend_from_slice(&sum.to_le_bytes());
        };
        let [place, settings, totals, flows, orders, head, windows] = SECTIONS;
        section(place, &|s, out| s.place.write(out));
        section(settings, &|s, out| s.settings.write(out));
        section(totals, &Self::write_totals);
        section(flows, &Self::write_flows);
        section(orders, &Self::write_orders);
        section(head, &Self::write_head);
        section(windows, &Self::write_windows);
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// [`StretchError`] for anything that [`Stretch::to_bytes`] doesn't write.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, StretchError> {
        if bytes.get(..8) != Some(MAGIC) {
            return Err(StretchError::Magic);
        }
        let mut all = In { bytes, at: 8, end: bytes.len() };
        let (version, sections) = (u16::from_le_bytes(all.array()?), u16::from_le_bytes(all.array()?));
        let sum = u32::from_le_bytes(all.array()?);
        if version == 0 || version > VERSION {
            return Err(StretchError::Version { found: version, reads: VERSION });
        }
        if crc32fast::hash(bytes.get(..12).unwrap_or_default()) != sum {
            return Err(StretchError::Checksum { byte: 0 });
        }
        if usize::from(sections) != SECTIONS.len() {
            return all.damaged("another number of sections than its version has");
        }
        let mut contents = [In { bytes, at: 0, end: 0 }; SECTIONS.len()];
        for (content, name) in contents.iter_mut().zip(SECTIONS) {
            *content = all.section(name)?;
        }
        if all.at != bytes.len() {
            return all.damaged("there is more behind its last section");
        }
        let [mut place, mut settings, mut totals, mut flows, mut orders, mut head, mut windows] = contents;
        let place = Place::read(&mut place, version)?;
        let settings = Settings::read(&mut settings)?;
        let (opens, totals, opening, clock) = read_totals(&mut totals)?;
        let (table, twins, flows) = read_flows(&mut flows)?;
        let known = Known { flows: flows.len() as u64, clock };
        let (ip, tcp, temporal) = known.orders(&mut orders, &settings)?;
        let within = |flow: &FlowPart| flow.ip[1] <= ip.packets && flow.tcp[1] <= tcp.packets;
        orders.check(flows.iter().all(within), "positions beyond the last packet")?;
        let (kept, head) = known.head(&mut head)?;
        let windows = known.windows(&mut windows, &settings, head.len())?;
        Ok(Self {
            settings,
            place,
            opens,
            totals,
            opening,
            clock,
            table,
            twins,
            flows,
            ip,
            tcp,
            temporal,
            head,
            kept,
            windows,
        })
    }

    fn write_totals(&self, out: &mut Out) {
        let Totals {
            records,
            bytes,
            first_ns,
            last_ns,
            clock_backwards,
            skipped,
            ipv6,
            fragments,
            pure_acks,
            ack_flags,
        } = self.totals;
        let Skipped { non_ip, unsupported_link_type, truncated, malformed } = skipped;
        out.byte(u8::from(self.opens));
        out.numbers(&[records, bytes, first_ns, last_ns, self.opening, self.clock, clock_backwards]);
        out.numbers(&[
            non_ip,
            unsupported_link_type,
            truncated,
            malformed,
            ipv6,
            fragments,
            pure_acks,
            ack_flags,
        ]);
    }

    fn write_flows(&self, out: &mut Out) {
        out.number(self.flows.len() as u64);
        for (key, flow) in self.keys().zip(&self.flows) {
            match key {
                Key::Flow(key) => out.key(&key),
                Key::Twin(of) => {
                    out.byte(0);
                    out.number(of.into());
                }
            }
            out.byte(flow.class);
            out.number(flow.packets);
            for [first, last] in [flow.ip, flow.tcp] {
                out.numbers(&[first, last.wrapping_sub(first)]);
            }
            let [first, last] = flow.captured;
            out.number(first);
            out.signed(last.wrapping_sub(first) as i64);
            for ack in flow.ack {
                out.byte(u8::from(ack.seen) | u8::from(ack.pure) << 1);
                if ack.pure {
                    out.number(ack.number.into());
                }
            }
        }
    }

    fn write_orders(&self, out: &mut Out) {
        for order in [&self.ip, &self.tcp] {
            out.numbers(&[order.packets, order.runs]);
            out.flow(order.first);
            out.flow(order.last);
            out.histogram(&order.spatial);
            for phases in &order.phases {
                out.numbers(&phases.changes);
                out.numbers(&phases.fresh);
            }
            out.number(order.tail.len() as u64);
            order.tail.iter().for_each(|flow| out.flow(*flow));
        }
        for part in &self.temporal {
            let (below, above) = part.sides();
            out.histogram(below);
            out.histogram(above);
        }
    }

    fn write_head(&self, out: &mut Out) {
        out.byte(u8::from(self.kept));
        out.number(self.head.len() as u64);
        let mut before = 0;
        for row in &self.head {
            let none = if row.flow == NO_FLOW { NONE } else { 0 };
            let moved = if row.captured == row.time { 0 } else { MOVED };
            out.byte(row.bits | none | moved);
            out.number(row.time - before);
            if none == 0 {
                out.flow(row.flow);
            }
            if moved != 0 {
                out.number(row.time - row.captured);
            }
            before = row.time;
        }
    }

    fn write_windows(&self, out: &mut Out) {
        for window in &self.windows {
            out.number(window.certain.map_or(0, |rows| rows as u64 + 1));
            if window.certain.is_none() {
                continue;
            }
            out.number(window.met_at);
            out.held(&window.meeting);
            let Body { counts, sent, first } = &window.body;
            let sizes = counts.sizes.iter().enumerate().filter(|(_, n)| **n > 0);
            out.number(sizes.clone().count() as u64);
            sizes.for_each(|(i, n)| out.numbers(&[i as u64, *n]));
            let bits = counts.bits.iter().enumerate().filter(|(_, n)| **n > 0);
            out.number(bits.clone().count() as u64);
            bits.for_each(|(i, n)| out.numbers(&[i as u64, *n]));
            out.number(counts.advancing);
            for (output, first) in [(sent.ip, first[0]), (sent.tcp, first[1])] {
                out.flow(first);
                out.flow(output.last);
                out.number(output.runs);
            }
            out.held(&window.end);
        }
    }
}

/// Bytes that are being written.
struct Out(Vec<u8>);

impl Out {
    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    fn number(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    fn numbers(&mut self, numbers: &[u64]) {
        numbers.iter().for_each(|n| self.number(*n));
    }

    /// Small amounts of either sign are short.
    fn signed(&mut self, n: i64) {
        self.number((n << 1 ^ n >> 63) as u64);
    }

    /// 0 is none.
    fn flow(&mut self, flow: u32) {
        self.number(if flow == NO_FLOW { 0 } else { u64::from(flow) + 1 });
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    fn key(&mut self, key: &FlowKey) {
        self.byte(if key.is_ipv6() { 6 } else { 4 });
        for address in [key.src(), key.dst()] {
            match address {
                IpAddr::V4(a) => self.0.extend_from_slice(&a.octets()),
                IpAddr::V6(a) => self.0.extend_from_slice(&a.octets()),
            }
        }
        self.byte(key.protocol());
        self.0.extend_from_slice(&key.src_port().to_le_bytes());
        self.0.extend_from_slice(&key.dst_port().to_le_bytes());
        let vlans = key.vlans();
        self.number(vlans.len() as u64);
        vlans.for_each(|id| self.number(id.into()));
    }

    fn histogram(&mut self, h: &Histogram) {
        self.number(h.counts().len() as u64);
        // Runs of empty buckets are one number.
        let mut empty = 0;
        for n in h.counts() {
            if *n == 0 {
                empty += 1;
                continue;
            }
            self.numbers(&[empty, *n]);
            empty = 0;
        }
        if h.count() > 0 {
            let (sum, min, max) = (h.sum(), h.min().unwrap_or(0), h.max().unwrap_or(0));
            self.numbers(&[sum as u64, (sum >> 64) as u64, min, max]);
        }
    }

    fn held(&mut self, held: &Held) {
        self.numbers(&[held.full_at, held.open.len() as u64]);
        let mut before = 0;
        for open in &held.open {
            self.flow(open.flow);
            self.signed(open.base.wrapping_sub(before) as i64);
            self.number(open.packets.into());
            self.byte(open.bits | if open.full { MOVED } else { 0 });
            before = open.base;
        }
    }
}

/// Bytes that are being read.
#[derive(Clone, Copy)]
struct In<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> In<'a> {
    fn damaged<T>(&self, what: &'static str) -> Result<T, StretchError> {
        Err(StretchError::Damaged { byte: self.at, what })
    }

    fn check(&self, holds: bool, what: &'static str) -> Result<(), StretchError> {
        if holds { Ok(()) } else { self.damaged(what) }
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], StretchError> {
        let end = self.at.saturating_add(n);
        let taken = self.bytes.get(self.at..end).filter(|_| end <= self.end);
        let taken = taken.ok_or(StretchError::Cut { byte: self.at })?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StretchError> {
        let taken = self.take(N)?;
        Ok(taken.first_chunk().copied().unwrap_or([0; N]))
    }

    fn section(&mut self, name: &[u8; 4]) -> Result<Self, StretchError> {
        let begin = self.at;
        let found = self.array::<4>()?;
        let len = u64::from_le_bytes(self.array()?);
        let content = self.at;
        let cut = StretchError::Cut { byte: begin };
        if found != *name {
            return Err(StretchError::Damaged {
                byte: begin,
                what: "another section than its version has here",
            });
        }
        let end = usize::try_from(len).ok().and_then(|len| content.checked_add(len)).ok_or(cut.clone())?;
        let all = self.bytes.get(begin..end).ok_or(cut.clone())?;
        self.at = end;
        let sum = u32::from_le_bytes(self.array().map_err(|_| cut)?);
        if crc32fast::hash(all) != sum {
            return Err(StretchError::Checksum { byte: begin });
        }
        Ok(Self { bytes: self.bytes, at: content, end })
    }

    fn done(&self) -> Result<(), StretchError> {
        self.check(self.at == self.end, "a section that is longer than its content")
    }

    fn byte(&mut self) -> Result<u8, StretchError> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    fn flag(&mut self) -> Result<bool, StretchError> {
        let byte = self.byte()?;
        self.check(byte < 2, "neither yes nor no")?;
        Ok(byte == 1)
    }

    fn number(&mut self) -> Result<u64, StretchError> {
        let mut n = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            n |= bits << shift;
            if byte & 0x80 == 0 {
                self.check(byte != 0 || shift == 0, "a number that is longer than it need be")?;
                return Ok(n);
            }
        }
        self.damaged("a number of more than 64 bits")
    }

    fn numbers<const N: usize>(&mut self) -> Result<[u64; N], StretchError> {
        let mut numbers = [0; N];
        for n in &mut numbers {
            *n = self.number()?;
        }
        Ok(numbers)
    }

    fn signed(&mut self) -> Result<i64, StretchError> {
        let n = self.number()?;
        Ok((n >> 1) as i64 ^ -((n & 1) as i64))
    }

    /// A number of things, each of which takes a byte at least.
    fn count(&mut self) -> Result<usize, StretchError> {
        let n = self.number()?;
        self.check(n <= (self.end - self.at) as u64, "more things than there are bytes")?;
        Ok(n as usize)
    }

    fn narrow<T: TryFrom<u64>>(&mut self, what: &'static str) -> Result<T, StretchError> {
        let n = self.number()?;
        T::try_from(n).or_else(|_| self.damaged(what))
    }

    fn text(&mut self) -> Result<String, StretchError> {
        let len = self.count()?;
        let text = std::str::from_utf8(self.take(len)?);
        text.map(str::to_owned).or_else(|_| self.damaged("a name that is not UTF-8"))
    }

    fn key(&mut self, version: u8) -> Result<FlowKey, StretchError> {
        let (src, dst): (IpAddr, IpAddr) = match version {
            4 => (Ipv4Addr::from(self.array::<4>()?).into(), Ipv4Addr::from(self.array::<4>()?).into()),
            6 => (Ipv6Addr::from(self.array::<16>()?).into(), Ipv6Addr::from(self.array::<16>()?).into()),
            _ => return self.damaged("an IP version that is neither 4 nor 6"),
        };
        let protocol = self.byte()?;
        let ports = [u16::from_le_bytes(self.array()?), u16::from_le_bytes(self.array()?)];
        let mut vlans = Vec::new();
        for _ in 0..self.count()? {
            vlans.push(self.narrow("a VLAN id beyond 4095")?);
        }
        let [src_port, dst_port] = ports;
        match FlowKey::new(&vlans, src, dst, protocol, src_port, dst_port) {
            Ok(key) if (key.src_port(), key.dst_port()) == (src_port, dst_port) => Ok(key),
            _ => self.damaged("a flow that can't be"),
        }
    }

    /// Numbers of trains by index, those that are not 0.
    fn counts(&mut self, counts: &mut [u64]) -> Result<(), StretchError> {
        for _ in 0..self.count()? {
            let [i, n] = self.numbers()?;
            match usize::try_from(i).ok().and_then(|i| counts.get_mut(i)) {
                Some(count) if n > 0 && n < MOST => *count = n,
                _ => return self.damaged("trains that can't be"),
            }
        }
        Ok(())
    }

    fn histogram(&mut self) -> Result<Histogram, StretchError> {
        // There are 7,424 buckets at most.
        let len: u16 = self.narrow("a histogram of more buckets than there are")?;
        let mut counts = Vec::new();
        while counts.len() < usize::from(len) {
            let [empty, n] = self.numbers()?;
            self.check(empty < u64::from(len) - counts.len() as u64 && n > 0, "a histogram that can't be")?;
            counts.resize(counts.len() + empty as usize, 0);
            counts.push(n);
        }
        let [low, high, min, max] = if len > 0 { self.numbers()? } else { [0; 4] };
        let sum = u128::from(high) << 64 | u128::from(low);
        Histogram::from_counts(counts, sum, min, max)
            .filter(|h| h.count() < MOST)
            .map_or_else(|| self.damaged("a histogram that can't be"), Ok)
    }
}

impl Place {
    fn write(&self, out: &mut Out) {
        out.text(&self.file);
        out.numbers(&[self.from, self.to, self.context_from, self.context_to]);
        out.byte(u8::from(self.truncated_at_byte.is_some()));
        out.number(self.truncated_at_byte.unwrap_or(0));
        out.byte(match self.ending {
            Ending::Unknown => 0,
            Ending::Continues => 1,
            Ending::Ends => 2,
        });
    }

    fn read(from: &mut In<'_>, version: u16) -> Result<Self, StretchError> {
        let file = from.text()?;
        let [begin, to, context_from, context_to] = from.numbers()?;
        let (damaged, byte) = (from.flag()?, from.number()?);
        from.check(damaged || byte == 0, "a place of no damage")?;
        let ending = match if version == 1 { 0 } else { from.byte()? } {
            0 => Ending::Unknown,
            1 => Ending::Continues,
            2 => Ending::Ends,
            _ => return from.damaged("an end that can't be"),
        };
        from.done()?;
        let truncated_at_byte = damaged.then_some(byte);
        Ok(Self { file, from: begin, to, context_from, context_to, truncated_at_byte, ending })
    }
}

impl Settings {
    fn write(&self, out: &mut Out) {
        out.number(self.windows_ns.len() as u64);
        out.numbers(&self.windows_ns);
        out.number(self.burst.into());
        out.number(self.switch_batches.len() as u64);
        self.switch_batches.iter().for_each(|size| out.number((*size).into()));
        out.number(self.top as u64);
        out.byte(u8::from(self.encapsulation != Encapsulation::Outer));
    }

    fn read(from: &mut In<'_>) -> Result<Self, StretchError> {
        let mut windows_ns = Vec::new();
        for _ in 0..from.count()? {
            windows_ns.push(from.number()?);
        }
        let burst = from.narrow("a burst that can't be")?;
        let mut switch_batches = Vec::new();
        for _ in 0..from.count()? {
            switch_batches.push(from.narrow("a batch that can't be")?);
        }
        let top = from.narrow("more top addresses than there can be")?;
        let encapsulation = if from.flag()? { Encapsulation::Inner } else { Encapsulation::Outer };
        from.done()?;
        let config = Config { windows_ns, burst, switch_batches, top, encapsulation, threads: 1 };
        let small = config.switch_batches.iter().all(|size| *size <= MAX_BATCH);
        from.check(small && config.validate().is_ok(), "settings that can't be")?;
        Ok(Self::of(&config))
    }
}

fn read_totals(from: &mut In<'_>) -> Result<(bool, Totals, u64, u64), StretchError> {
    let opens = from.flag()?;
    let [records, bytes, first_ns, last_ns, opening, clock, clock_backwards] = from.numbers()?;
    let [non_ip, unsupported_link_type, truncated, malformed, ipv6, fragments, pure_acks, ack_flags] =
        from.numbers()?;
    from.done()?;
    let counts = [records, bytes, clock_backwards, ipv6, fragments, pure_acks, ack_flags];
    let skips = [non_ip, unsupported_link_type, truncated, malformed];
    from.check(counts.iter().chain(&skips).all(|n| *n < MOST), "more packets than there can be")?;
    let skipped = Skipped { non_ip, unsupported_link_type, truncated, malformed };
    let totals = Totals {
        records,
        bytes,
        first_ns,
        last_ns,
        clock_backwards,
        skipped,
        ipv6,
        fragments,
        pure_acks,
        ack_flags,
    };
    from.check(
        records == 0 || (first_ns <= opening && opening <= clock && clock == last_ns),
        "times that can't be",
    )?;
    Ok((opens, totals, opening, clock))
}

type Flows = (FlowTable, HashMap<u32, u32>, Vec<FlowPart>);

fn read_flows(from: &mut In<'_>) -> Result<Flows, StretchError> {
    let (mut table, mut twins, mut flows) = (FlowTable::new(), HashMap::new(), Vec::new());
    for number in 0..from.count()? as u32 {
        match from.byte()? {
            0 => {
                let of: u32 = from.narrow("a flow that is not there")?;
                from.check(of < number && twins.insert(of, number).is_none(), "a flow that is not there")?;
                table.spare_number();
            }
            version => {
                let key = from.key(version)?;
                from.check(table.get(&key).is_none(), "a flow that was there before")?;
                let hash = table.hash(&key);
                table.number(&key, hash);
            }
        }
        flows.push(FlowPart::read(from)?);
    }
    from.done()?;
    Ok((table, twins, flows))
}

impl FlowPart {
    fn read(from: &mut In<'_>) -> Result<Self, StretchError> {
        let (class, packets) = (from.byte()?, from.number()?);
        from.check((1..=CLASS).contains(&class) && packets > 0, "a flow without packets")?;
        let mut positions = [[0; 2]; 2];
        for (place, bit) in positions.iter_mut().zip([1, 2]) {
            let [first, span] = from.numbers()?;
            let last = first.checked_add(span);
            let sound =
                if class & bit == 0 { first == 0 && span == 0 } else { first > 0 && span + 1 >= packets };
            from.check(sound && last.is_some(), "positions of a flow that can't be")?;
            *place = [first, last.unwrap_or(0)];
        }
        let (first, span) = (from.number()?, from.signed()?);
        let mut ack = [Acknowledged::default(); 2];
        for ack in &mut ack {
            let flags = from.byte()?;
            from.check(matches!(flags, 0 | 1 | 3), "an acknowledgement that can't be")?;
            let number = if flags == 3 { from.narrow("an acknowledgement that can't be")? } else { 0 };
            *ack = Acknowledged { number, pure: flags == 3, seen: flags != 0 };
        }
        let [ip, tcp] = positions;
        Ok(Self { class, packets, ip, tcp, captured: [first, first.wrapping_add(span as u64)], ack })
    }
}

/// What figures of later sections must fit to.
struct Known {
    flows: u64,
    clock: u64,
}

type Orders = (Order, Order, [SignedHistogram; CLASS as usize + 1]);

impl Known {
    fn flow(&self, from: &mut In<'_>) -> Result<u32, StretchError> {
        let n = from.number()?;
        from.check(n <= self.flows, "a flow that is not there")?;
        Ok(if n == 0 { NO_FLOW } else { (n - 1) as u32 })
    }

    fn a_flow(&self, from: &mut In<'_>) -> Result<u32, StretchError> {
        let flow = self.flow(from)?;
        from.check(flow != NO_FLOW, "a flow that is not there")?;
        Ok(flow)
    }

    fn orders(&self, from: &mut In<'_>, settings: &Settings) -> Result<Orders, StretchError> {
        let ip = self.order(from, settings)?;
        let tcp = self.order(from, settings)?;
        let mut temporal: [SignedHistogram; CLASS as usize + 1] = Default::default();
        for part in &mut temporal {
            let (below, above) = (from.histogram()?, from.histogram()?);
            *part = SignedHistogram::from_sides(below, above)
                .map_or_else(|| from.damaged("a histogram that can't be"), Ok)?;
        }
        from.done()?;
        Ok((ip, tcp, temporal))
    }

    fn order(&self, from: &mut In<'_>, settings: &Settings) -> Result<Order, StretchError> {
        let [packets, runs] = from.numbers()?;
        from.check(packets < MOST, "more packets than there can be")?;
        let (first, last) = (self.flow(from)?, self.flow(from)?);
        let some = first != NO_FLOW && last != NO_FLOW && runs > 0 && runs <= packets;
        from.check(
            some || packets == 0 && runs == 0 && first == last && last == NO_FLOW,
            "runs that can't be",
        )?;
        let spatial = from.histogram()?;
        from.check(packets.saturating_sub(runs) <= spatial.count(), "runs that can't be")?;
        let mut phases = Vec::new();
        for size in &settings.switch_batches {
            from.check(
                u64::from(*size) * 2 <= (from.end - from.at) as u64,
                "more figures than there are bytes",
            )?;
            let mut one = Phases::new(*size);
            for n in one.changes.iter_mut().chain(&mut one.fresh) {
                *n = from.number()?;
                from.check(*n <= packets, "more switches than packets")?;
            }
            phases.push(one);
        }
        let len = from.count()?;
        let most = (tail_len(&settings.switch_batches) as u64).min(packets);
        from.check(len as u64 == most, "the flows of the last packets: too many or too few")?;
        let tail = (0..len).map(|_| self.a_flow(from)).collect::<Result<_, _>>()?;
        Ok(Order { packets, runs, first, last, spatial, phases, tail, notes: Vec::new() })
    }

    fn head(&self, from: &mut In<'_>) -> Result<(bool, Vec<Row>), StretchError> {
        let (kept, len) = (from.flag()?, from.count()?);
        let (mut rows, mut time) = (Vec::new(), 0u64);
        for _ in 0..len {
            let flags = from.byte()?;
            let bits = flags & (2 * ADVANCES - 1);
            let none = flags & NONE != 0;
            from.check(flags & 0x20 == 0 && none == (bits & CLASS == 0), "a packet that can't be")?;
            time = match time.checked_add(from.number()?) {
                Some(time) if time <= self.clock => time,
                _ => return from.damaged("a packet later than the last one"),
            };
            let flow = if none { NO_FLOW } else { self.a_flow(from)? };
            let earlier = if flags & MOVED == 0 { 0 } else { from.number()? };
            from.check((flags & MOVED != 0) == (earlier > 0) && earlier <= time, "a time that can't be")?;
            rows.push(Row { time, captured: time - earlier, flow, bits });
        }
        from.done()?;
        Ok((kept, rows))
    }

    fn windows(
        &self,
        from: &mut In<'_>,
        settings: &Settings,
        head: usize,
    ) -> Result<Vec<Window>, StretchError> {
        let burst = u16::try_from(settings.burst).unwrap_or(u16::MAX);
        let mut windows = Vec::new();
        for _ in &settings.windows_ns {
            let mut window = Window::new(burst, false);
            let rows = from.number()?;
            if rows > 0 {
                from.check(rows - 1 <= head as u64, "a window that meets behind the first packets")?;
                window.certain = Some((rows - 1) as usize);
                window.met_at = from.number()?;
                from.check(window.met_at <= self.clock, "a packet later than the last one")?;
                window.meeting = self.held(from, burst)?;
                window.body = self.body(from, burst)?;
                window.end = self.held(from, burst)?;
            }
            windows.push(window);
        }
        from.done()?;
        Ok(windows)
    }

    fn held(&self, from: &mut In<'_>, burst: u16) -> Result<Held, StretchError> {
        let full_at = from.number()?;
        let (mut open, mut before) = (Vec::new(), 0u64);
        for _ in 0..from.count()? {
            let flow = self.a_flow(from)?;
            let base = before.wrapping_add(from.signed()? as u64);
            let packets: u16 = from.narrow("more packets than a burst")?;
            let flags = from.byte()?;
            let (full, bits) = (flags & MOVED != 0, flags & !MOVED);
            let some = if full { packets == burst } else { packets > 0 && packets < burst };
            let sound =
                some && bits & CLASS != 0 && base >= before && base <= self.clock && full_at <= self.clock;
            from.check(sound, "a train that can't be")?;
            open.push(Open { base, flow, packets, bits, full });
            before = base;
        }
        let mut flows: Vec<u32> = open.iter().filter(|o| !o.full).map(|o| o.flow).collect();
        flows.sort_unstable();
        from.check(flows.windows(2).all(|pair| pair.first() != pair.last()), "two trains of one flow")?;
        Ok(Held { open, full_at })
    }

    fn body(&self, from: &mut In<'_>, burst: u16) -> Result<Body, StretchError> {
        let mut body = Body { counts: Counts::new(burst), sent: Sent::NEW, first: [NO_FLOW; 2] };
        from.counts(&mut body.counts.sizes)?;
        from.counts(&mut body.counts.bits)?;
        body.counts.advancing = from.number()?;
        from.check(body.counts.advancing < MOST, "more packets than there can be")?;
        for (first, output) in body.first.iter_mut().zip([&mut body.sent.ip, &mut body.sent.tcp]) {
            *first = self.flow(from)?;
            *output = Output { last: self.flow(from)?, runs: from.number()? };
            let some = *first != NO_FLOW && output.last != NO_FLOW && (1..MOST).contains(&output.runs);
            let none = *first == NO_FLOW && output.last == NO_FLOW && output.runs == 0;
            from.check(some || none, "runs that can't be")?;
        }
        Ok(body)
    }
}
