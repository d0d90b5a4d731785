//! A NAT as its operator sees it: other settings while it runs, sessions listed, saved and restored, and a
//! log of those that begin and end (RFC 6888 §4).
//!
//! A record of a session is 32 bytes, integers in little-endian order: inside address (4 bytes) and port (2),
//! protocol, TCP state, remote address (4) and port (2), flags (1: begun from outside, 4: the inside host has
//! sent there, 8: the inside host has ended its direction, 16: the outside host has, 32: a SYN came before
//! the connection was over), a zero, external address (4) and port (2), two zeros, and the time that is left
//! (8, in ns). A record of a mapping that has
//! no session, which packets from outside may keep alive, is 24 bytes: inside address (4) and port (2),
//! protocol, a zero, external address (4) and port (2), two zeros, and the time left.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::json;
use slipstream_core::operate::{EntryEnds, Events, Fields, Operate, SessionEvent, StateTable, Update};
use slipstream_core::time::Nanos;
use slipstream_wire::NarrowKey;
use slipstream_wire::protocol::TCP;

use super::mapping::Made;
use super::{Nat, NatConfig, NatStage, Tuple};
use crate::tcp_state::TcpState;

/// Tables of a NAT, as its operator sees them. Sessions come first: a mapping is theirs, where it has any.
pub(super) const TABLES: &[StateTable] = &[
    StateTable {
        name: "sessions",
        version: 1,
        record: SESSION,
        describe: describe_session,
        names: &[("tcp_state", &TcpState::NAMES)],
        ends: |record| Saved::read(record).map(|saved| ends(&saved.from, saved.external)),
    },
    StateTable {
        name: "mappings",
        version: 1,
        record: MAPPING,
        describe: describe_mapping,
        names: &[],
        ends: |record| mapping(record).map(|(from, external, _)| ends(&from, external)),
    },
];

const SESSION: usize = 32;
const MAPPING: usize = 24;
/// Places of tables that are looked at a time when settings have changed.
const SWEEP: u32 = 512;

/// The fields of a session's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Saved {
    /// Of its packets from inside.
    pub(super) from: Tuple,
    pub(super) external: (u32, u16),
    pub(super) tcp: TcpState,
    pub(super) marks: u8,
    pub(super) left: u64,
}

impl Saved {
    fn put(&self, out: &mut Vec<u8>) {
        let Self { from, external, tcp, marks, left } = self;
        out.extend(from.src.to_le_bytes());
        out.extend(from.src_port.to_le_bytes());
        out.extend([from.protocol, *tcp as u8]);
        out.extend(from.dst.to_le_bytes());
        out.extend(from.dst_port.to_le_bytes());
        out.extend([*marks, 0]);
        out.extend(external.0.to_le_bytes());
        out.extend(external.1.to_le_bytes());
        out.extend([0, 0]);
        out.extend(left.to_le_bytes());
    }

    fn read(record: &[u8]) -> Option<Self> {
        let mut fields = Fields(record);
        let (src, src_port, protocol, tcp) = (fields.u32(), fields.u16(), fields.u8(), fields.u8());
        let (dst, dst_port, marks, _) = (fields.u32(), fields.u16(), fields.u8(), fields.u8());
        let (external, _) = ((fields.u32(), fields.u16()), fields.u16());
        let from = Tuple { protocol, src, src_port, dst, dst_port };
        let (tcp, left) = (TcpState::of_number(tcp)?, fields.u64());
        (record.len() == SESSION).then_some(Self { from, external, tcp, marks, left })
    }
}

fn address(bits: u32) -> IpAddr {
    Ipv4Addr::from_bits(bits).into()
}

fn ends(from: &Tuple, external: (u32, u16)) -> EntryEnds {
    EntryEnds {
        protocol: from.protocol,
        source: (address(from.src), from.src_port),
        destination: (address(from.dst), from.dst_port),
        external: Some((address(external.0), external.1)),
    }
}

fn describe_session(record: &[u8]) -> Option<serde_json::Value> {
    let Saved { from, external, tcp, marks, left } = Saved::read(record)?;
    Some(json!({
        "protocol": from.protocol,
        "inside": address(from.src),
        "inside_port": from.src_port,
        "external": address(external.0),
        "external_port": external.1,
        "remote": address(from.dst),
        "remote_port": from.dst_port,
        "from_outside": marks & 1 != 0,
        "tcp_state": (from.protocol == TCP).then(|| tcp.name()),
        "expires_in_s": left as f64 / 1e9,
    }))
}

/// A mapping's record: inside endpoint, external one, time left.
fn mapping(record: &[u8]) -> Option<(Tuple, (u32, u16), u64)> {
    let mut fields = Fields(record);
    let (src, src_port, protocol, _) = (fields.u32(), fields.u16(), fields.u8(), fields.u8());
    let (external, _, left) = ((fields.u32(), fields.u16()), fields.u16(), fields.u64());
    let from = Tuple { protocol, src, src_port, dst: 0, dst_port: 0 };
    (record.len() == MAPPING).then_some((from, external, left))
}

fn describe_mapping(record: &[u8]) -> Option<serde_json::Value> {
    let (from, external, left) = mapping(record)?;
    Some(json!({
        "protocol": from.protocol,
        "inside": address(from.src),
        "inside_port": from.src_port,
        "external": address(external.0),
        "external_port": external.1,
        "expires_in_s": left as f64 / 1e9,
    }))
}

/// The progress of the search for what another configuration doesn't let be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sweep {
    /// Sessions from this place on.
    Sessions(u32),
    /// Mappings without sessions from this place on.
    Mappings(u32),
}

/// Other settings for a NAT that runs.
#[derive(Debug)]
pub(super) struct NatUpdate {
    config: NatConfig,
    made: Made,
}

impl NatUpdate {
    pub(super) fn new(config: NatConfig) -> Self {
        Self { made: Made::of(&config), config }
    }
}

impl Nat {
    /// Goes by other settings. Sizes of tables, seeds and the filter stay as they are. Sessions that may be
    /// under the new settings stay as they are, too; the others end within a few milliseconds.
    pub(super) fn update(&mut self, update: &mut NatUpdate) {
        let NatUpdate { config, made } = update;
        let NatConfig { seed, choices, sessions, mappings, filtering, .. } = self.config;
        std::mem::swap(&mut self.config, config);
        self.config = NatConfig { seed, choices, sessions, mappings, filtering, ..self.config.clone() };
        self.mappings.update(&self.config, made);
        self.sweep = Some(Sweep::Sessions(0));
    }

    /// Ends sessions and mappings that the settings don't let be any longer, among so many places; returns
    /// true if there may be more.
    pub(super) fn sweep_on(&mut self, now: Nanos) -> bool {
        self.sweep = match self.sweep {
            Some(Sweep::Sessions(from)) => {
                let (ids, next) = self.sessions.ids_from(from, SWEEP);
                let is_over = |id: &u32| {
                    let (Some(key), Some(session)) = (self.sessions.key(*id), self.sessions.get(*id)) else {
                        return false;
                    };
                    let (from, external) = (Tuple::of(*key), Tuple::of(session.outside));
                    !self.mappings.fits(&self.config, &from, (external.dst, external.dst_port))
                        || !self.leads_where_it_may(&from, session)
                };
                let over: Vec<u32> = ids.filter(is_over).collect();
                over.into_iter().for_each(|id| self.release(id, now));
                Some(next.map_or(Sweep::Mappings(0), Sweep::Sessions))
            }
            Some(Sweep::Mappings(from)) => {
                let (next, released) = self.mappings.sweep(&self.config, from, SWEEP);
                self.counters.mappings_released += released;
                next.map(Sweep::Mappings)
            }
            None => None,
        };
        self.sweep.is_some()
    }

    pub(super) fn is_sweeping(&self) -> bool {
        self.sweep.is_some()
    }

    fn save_sessions(&self, from: u32, places: u32, now: Nanos, out: &mut Vec<u8>) -> Option<u32> {
        let (ids, next) = self.sessions.ids_from(from, places);
        for id in ids.filter(|&id| !self.sessions.is_due(id, now)) {
            let (Some(key), Some(session)) = (self.sessions.key(id), self.sessions.get(id)) else { continue };
            let outside = Tuple::of(session.outside);
            let (external, left) = ((outside.dst, outside.dst_port), self.sessions.deadline(id).since(now));
            let (from, tcp, marks) = (Tuple::of(*key), session.tcp, session.marks);
            Saved { from, external, tcp, marks, left }.put(out);
        }
        next
    }

    fn restore_any(&mut self, table: usize, record: &[u8], away: u64, now: Nanos) -> bool {
        let until = |left: u64| left.checked_sub(away).filter(|left| *left > 0).map(|left| now.after(left));
        if table == 0 {
            let Some(saved) = Saved::read(record) else { return false };
            return until(saved.left).is_some_and(|until| self.restore_session(&saved, until, now));
        }
        let Some((from, external, left)) = mapping(record) else { return false };
        let Some(until) = until(left).filter(|_| self.mappings.fits(&self.config, &from, external)) else {
            return false;
        };
        let Some(mapping) = self.mappings.restore(&from, external) else { return false };
        self.mappings.keep(mapping, until);
        self.mappings.let_go(mapping, 0, now);
        self.look_later(now);
        true
    }

    /// Notes that a session begins or ends, for whoever asks.
    #[inline(never)]
    pub(super) fn note_event(&mut self, begins: bool, inside: NarrowKey, outside: NarrowKey, now: Nanos) {
        let Some(events) = &mut self.events else { return };
        if events.sessions.len() == events.sessions.capacity() {
            events.missed += 1;
            return;
        }
        let (from, to) = (Tuple::of(inside), Tuple::of(outside));
        events.sessions.push(SessionEvent {
            time: now,
            begins,
            protocol: from.protocol,
            inside: (address(from.src), from.src_port),
            external: (address(to.dst), to.dst_port),
            remote: (address(from.dst), from.dst_port),
        });
    }
}

impl Operate for NatStage {
    fn update(&mut self, new: Update, now: Nanos) -> Update {
        match new.downcast::<NatUpdate>() {
            Ok(mut update) => {
                self.nat.update(&mut update);
                self.sweep_at = now;
                update
            }
            Err(other) => other,
        }
    }

    fn save(&self, table: usize, from: u32, places: u32, now: Nanos, out: &mut Vec<u8>) -> Option<u32> {
        match table {
            0 => self.nat.save_sessions(from, places, now, out),
            1 => self.nat.mappings.save(from, places, now, |from, external, left| {
                out.extend(from.src.to_le_bytes());
                out.extend(from.src_port.to_le_bytes());
                out.extend([from.protocol, 0]);
                out.extend(external.0.to_le_bytes());
                out.extend(external.1.to_le_bytes());
                out.extend([0, 0]);
                out.extend(left.to_le_bytes());
            }),
            _ => None,
        }
    }

    fn restore(&mut self, table: usize, record: &[u8], away: u64, now: Nanos) -> bool {
        self.nat.restore_any(table, record, away, now)
    }

    fn remove(&mut self, table: usize, record: &[u8], now: Nanos) -> bool {
        if table == 0 {
            return Saved::read(record).is_some_and(|saved| self.nat.end(&saved.from.key(), now));
        }
        let known = mapping(record).filter(|_| table == 1);
        let removed = known.is_some_and(|(from, external, _)| self.nat.mappings.forget(&from, external));
        self.nat.counters.mappings_released += u64::from(removed);
        removed
    }

    fn expire(&mut self, now: Nanos) {
        self.nat.expire(now, u32::MAX);
    }

    fn end_all(&mut self, from: u32, places: u32, now: Nanos) -> Option<u32> {
        let (ids, next) = self.nat.sessions.ids_from(from, places);
        let ids: Vec<u32> = ids.collect();
        ids.into_iter().for_each(|id| self.nat.release(id, now));
        next
    }

    fn events(&mut self, empty: &mut Events) {
        self.nat.events.get_or_insert_default().swap(empty);
    }
}

#[cfg(test)]
#[path = "operate_tests.rs"]
mod tests;
