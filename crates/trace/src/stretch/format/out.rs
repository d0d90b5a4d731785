//! A stretch's sections as they are written.

use std::net::IpAddr;

use slipstream_stats::Histogram;
use slipstream_wire::{Encapsulation, FlowKey};

use super::{MOVED, NONE};
use crate::block::NO_FLOW;
use crate::partial::{Settings, Totals};
use crate::report::Skipped;
use crate::stretch::{Ending, Key, Place, Stretch};
use crate::trains::{Body, Held};

/// Bytes that are being written.
pub(super) struct Out(pub(super) Vec<u8>);

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

impl Place {
    pub(super) fn write(&self, out: &mut Out) {
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
}

impl Settings {
    pub(super) fn write(&self, out: &mut Out) {
        out.number(self.windows_ns.len() as u64);
        out.numbers(&self.windows_ns);
        out.number(self.burst.into());
        out.number(self.switch_batches.len() as u64);
        self.switch_batches.iter().for_each(|size| out.number((*size).into()));
        out.number(self.top as u64);
        out.byte(u8::from(self.encapsulation != Encapsulation::Outer));
    }
}

impl Stretch {
    pub(super) fn write_totals(&self, out: &mut Out) {
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

    pub(super) fn write_flows(&self, out: &mut Out) {
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

    pub(super) fn write_orders(&self, out: &mut Out) {
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

    pub(super) fn write_head(&self, out: &mut Out) {
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

    pub(super) fn write_windows(&self, out: &mut Out) {
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
