//! Sessions: which packets belong to one, what it becomes by them, how it begins and ends; and what is
//! translated without.

use slipstream_wire::NarrowKey;
use slipstream_wire::protocol::{ICMP, TCP, UDP};

use super::config::Filtering;
use super::mapping::Mapped;
use super::operate::Saved;
use super::packet::{Kind, Packet, Tuple};
use super::rewrite::{Deltas, Rewrite};
use super::{DropReason, Nat, Side, Verdict};
use crate::tcp_state::{ACK, Direction, FIN, RST, SYN, Step, TcpState};
use slipstream_core::table::{Key, NONE};
use slipstream_core::time::Nanos;

/// A session, beside the key of its packets from inside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    /// The key of its packets from outside, before translation.
    pub(super) outside: NarrowKey,
    mapping: u32,
    pub(super) tcp: TcpState,
    pub(super) marks: u8,
    /// Changes to the checksums of its packets from inside.
    deltas: Deltas,
}

/// A packet from outside opened the connection.
const FROM_OUTSIDE: u8 = 1;
/// Its packets from inside go to another inside host.
const HAIRPIN: u8 = 2;
/// Packets from inside went to its remote address, which may send to the mapping from other ports now.
const CONTACT: u8 = 4;
/// The inside host has ended its direction by a FIN.
const INSIDE_ENDED: u8 = 8;
/// The outside host has.
const OUTSIDE_ENDED: u8 = 16;
/// The opener has sent a SYN though the connection was not over: an answer to it begins another one.
const AGAIN: u8 = 32;
const ENDED: u8 = INSIDE_ENDED | OUTSIDE_ENDED;

const SYN_ACK: u8 = SYN | ACK;

impl Session {
    /// The state by whose timeout it lasts after a segment of its connection; `None` where that changes
    /// nothing. A connection that one end alone has closed lasts as long as an open one (RFC 7857 §2, RFC
    /// 6146 §3.5.2.2): the other end may go on, and a forged FIN must not cut a session short.
    fn step(&mut self, side: Side, flags: u8) -> Option<TcpState> {
        let from_opener = (side == Side::Outside) == (self.marks & FROM_OUTSIDE != 0);
        let direction = if from_opener { Direction::Original } else { Direction::Reply };
        match self.tcp.step(direction, flags) {
            Step::To(state) => self.tcp = state,
            Step::Reopen => {
                self.tcp = TcpState::SynSent;
                let opener = if side == Side::Outside { FROM_OUTSIDE } else { 0 };
                self.marks = self.marks & !(FROM_OUTSIDE | ENDED | AGAIN) | opener;
            }
            Step::Ignore if self.tcp.asks_again(direction, flags) => {
                self.marks |= AGAIN;
                return None;
            }
            Step::Ignore if self.marks & AGAIN != 0 && self.tcp.begins_again(direction, flags) => {
                self.tcp = TcpState::SynReceived;
                self.marks &= !(ENDED | AGAIN);
            }
            Step::Ignore | Step::Invalid => return None,
        }
        if flags & FIN != 0 {
            self.marks |= if side == Side::Outside { OUTSIDE_ENDED } else { INSIDE_ENDED };
        }
        match self.tcp {
            TcpState::FinWait | TcpState::CloseWait | TcpState::LastAck | TcpState::TimeWait
                if self.marks & ENDED != ENDED =>
            {
                Some(TcpState::Established)
            }
            state => Some(state),
        }
    }
}

impl Nat {
    #[inline]
    pub(super) fn outbound_session(&mut self, packet: &Packet, now: Nanos) -> Verdict {
        let key = packet.key;
        let hash = self.sessions.hash(&key);
        // A reply answers a stranger, by a static mapping.
        let found = if packet.kind == Kind::Reply { None } else { self.sessions.find(&key, hash) };
        match found {
            Some(id) if !self.sessions.is_due(id, now) => self.continue_outbound(id, packet, now),
            past => {
                if let Some(id) = past {
                    self.release(id, now);
                }
                self.open_outbound(packet, hash, now)
            }
        }
    }

    #[inline]
    pub(super) fn inbound_session(&mut self, packet: &Packet, now: Nanos) -> Verdict {
        let found = if packet.kind == Kind::Asks { None } else { self.find_outside(packet.key) };
        match found {
            Some(id) if !self.sessions.is_due(id, now) => {
                self.note_use(id, Side::Outside, packet.tcp_flags, now);
                Verdict::Rewrite { rewrite: self.inbound_rewrite(id, packet.key), session: id }
            }
            past => {
                if let Some(id) = past {
                    self.release(id, now);
                }
                self.open_inbound(packet, now)
            }
        }
    }

    /// The session whose packets from outside have this key.
    #[inline]
    pub(super) fn find_outside(&self, key: NarrowKey) -> Option<u32> {
        self.outside
            .find(key.hash(self.config.seed), |id| self.sessions.get(id).is_some_and(|s| s.outside == key))
    }

    /// Returns true if the packets of a session go from one inside host to another.
    pub(super) fn is_hairpin(&self, id: u32) -> bool {
        self.sessions.get(id).is_some_and(|session| session.marks & HAIRPIN != 0)
    }

    /// The rewrite of a session's packets from outside, which have this key.
    #[inline]
    pub(super) fn inbound_rewrite(&self, id: u32, key: NarrowKey) -> Rewrite {
        let inside = self.sessions.key(id).map_or(key, |k| Tuple::of(*k).reversed().key());
        Rewrite::between(key, inside)
    }

    /// The rewrite of a session's packets from inside, unless they come back in or are of ICMP.
    #[inline(always)]
    pub(super) fn simple_rewrite(&self, id: u32) -> Option<Rewrite> {
        let session = self.sessions.get(id)?;
        let outside = Tuple::of(session.outside);
        let simple = session.marks & HAIRPIN == 0 && outside.protocol != ICMP;
        simple.then(|| Rewrite::again(outside.reversed().key(), session.deltas))
    }

    #[inline]
    fn continue_outbound(&mut self, id: u32, packet: &Packet, now: Nanos) -> Verdict {
        self.note_use(id, Side::Inside, packet.tcp_flags, now);
        let Some(session) = self.sessions.get(id) else { return Verdict::Pass };
        let translated = Tuple::of(session.outside).reversed().key();
        if session.marks & HAIRPIN != 0 {
            return self.hairpin(id, packet, translated, now);
        }
        Verdict::Rewrite { rewrite: Rewrite::between(packet.key, translated), session: id }
    }

    /// A packet from inside to another inside host, by the external endpoints of both (RFC 4787 §6, REQ-9a):
    /// translated as on its way out, then as on its way in.
    fn hairpin(&mut self, id: u32, packet: &Packet, translated: NarrowKey, now: Nanos) -> Verdict {
        let half = Packet { key: translated, ..*packet };
        let endpoints = match self.inbound_session(&half, now) {
            Verdict::Rewrite { rewrite, .. } => rewrite.endpoints(),
            // The address was one of the NAT's when the session began, and is none by other settings now.
            Verdict::Pass => translated,
            other => return other,
        };
        Verdict::Rewrite { rewrite: Rewrite::between(packet.key, endpoints), session: id }
    }

    /// Returns true if a session's packets from inside may go where they go, as the settings are now: to
    /// another inside host if these let them, and only then to an address of the NAT's.
    pub(super) fn leads_where_it_may(&self, from: &Tuple, session: &Session) -> bool {
        let hairpin = session.marks & HAIRPIN != 0 && self.config.hairpin;
        hairpin || !self.mappings.owns(from.dst)
    }

    /// A packet from inside of no session, whose source has this external endpoint whatever its destination.
    fn without_session(&mut self, packet: &Packet, mapped: &Mapped, now: Nanos) -> Verdict {
        let from = Tuple::of(packet.key);
        let translated = Tuple { src: mapped.address, src_port: mapped.port, ..from }.key();
        if self.mappings.owns(from.dst) {
            return self.hairpin(NONE, packet, translated, now);
        }
        Verdict::Rewrite { rewrite: Rewrite::between(packet.key, translated), session: NONE }
    }

    /// Updates a session's state and deadline by a packet of it.
    #[inline(always)]
    pub(super) fn note_use(&mut self, id: u32, side: Side, flags: u8, now: Nanos) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let protocol = Tuple::of(session.outside).protocol;
        let deadline = if protocol == TCP {
            let timeouts = &self.config.timeouts.tcp;
            // An open connection, what most segments belong to, is open behind an ACK too. And after a reset
            // a segment that shows the connection alive brings it back (RFC 7857 §2.2): a forged reset must
            // not cut a session short.
            let open = matches!(session.tcp, TcpState::Close | TcpState::Established);
            if open && flags & (ACK | SYN | FIN | RST) == ACK {
                session.tcp = TcpState::Established;
                now.after(timeouts.established)
            } else if let Some(state) = session.step(side, flags) {
                timeouts.deadline(state, now)
            } else {
                // A NAT is no firewall: such a segment is translated, but keeps nothing alive.
                return;
            }
        } else if side == Side::Inside || self.config.inbound_refresh {
            now.after(if protocol == UDP { self.config.timeouts.udp } else { self.config.timeouts.icmp })
        } else {
            return;
        };
        let contact = side == Side::Inside && session.marks & CONTACT == 0;
        self.sessions.set_deadline(id, deadline);
        if contact && self.config.filtering == Filtering::AddressDependent {
            self.add_contact(id);
        }
    }

    #[inline(never)]
    fn open_outbound(&mut self, packet: &Packet, hash: u64, now: Nanos) -> Verdict {
        let from = Tuple::of(packet.key);
        // Packets that come in by a static mapping are answered by it, whoever else is translated.
        if !self.mappings.translates(&self.config, from.src) && !self.mappings.is_static(&from) {
            return Verdict::Pass;
        }
        if !self.config.hairpin && self.mappings.owns(from.dst) {
            return Verdict::Drop(DropReason::Hairpin);
        }
        self.make_room(now);
        let present = self.mappings.present(&from, now);
        if let Some(fixed) = present.filter(|m| m.mapping == NONE) {
            return self.without_session(packet, &fixed, now);
        }
        let begins = match from.protocol {
            TCP => TcpState::first(packet.tcp_flags, self.config.loose).is_some(),
            _ => matches!(packet.kind, Kind::Opens | Kind::Asks),
        };
        // A stranger whom the filter let in left no trace; that the inside host answers him is no reason to
        // doubt it.
        let answered = present.filter(|m| from.protocol == TCP && self.admits(&outside_of(&from, m)));
        match (begins, answered, packet.tcp_flags & (SYN | ACK | RST)) {
            (true, ..) => self.begin_outbound(packet, hash, present, 0, now),
            (false, Some(_), SYN_ACK) => self.begin_outbound(packet, hash, present, FROM_OUTSIDE, now),
            (false, Some(mapped), flags) if flags & RST != 0 => self.without_session(packet, &mapped, now),
            _ => Verdict::Drop(DropReason::NoSession),
        }
    }

    fn begin_outbound(
        &mut self,
        packet: &Packet,
        hash: u64,
        present: Option<Mapped>,
        opener: u8,
        now: Nanos,
    ) -> Verdict {
        if self.sessions.is_full() {
            return Verdict::Drop(DropReason::SessionsFull);
        }
        let from = Tuple::of(packet.key);
        let (mapped, fresh) = match self.mappings.outbound(&from, present) {
            Ok(found) => found,
            Err(reason) => return Verdict::Drop(reason),
        };
        self.counters.mappings_made += u64::from(fresh);
        let outside = outside_of(&from, &mapped).key();
        let hairpin = if self.mappings.owns(from.dst) { HAIRPIN } else { 0 };
        match self.begin(packet, hash, outside, mapped.mapping, hairpin | opener, now) {
            Ok(id) => self.continue_outbound(id, packet, now),
            Err(reason) => Verdict::Drop(reason),
        }
    }

    /// A packet from outside of no session is translated by the mapping alone, if there is one that is open
    /// to it, and leaves no trace: whatever strangers send, and however many they are, costs inside hosts
    /// nothing.
    fn open_inbound(&mut self, packet: &Packet, now: Nanos) -> Verdict {
        let to = Tuple::of(packet.key);
        if !self.mappings.owns(to.dst) {
            return Verdict::Pass;
        }
        self.make_room(now);
        let mapped = self.mappings.inbound(&to, now);
        let Some(Mapped { address, port, mapping, .. }) = mapped.filter(|m| may_be_opened(&to, packet, m))
        else {
            let replies = packet.kind == Kind::Reply;
            return Verdict::Drop(if replies { DropReason::NoSession } else { DropReason::NoMapping });
        };
        if mapping != NONE {
            if !self.admits(&to) {
                return Verdict::Drop(DropReason::Filtered);
            }
            // Only a SYN begins a connection to a host that did not ask for it.
            if to.protocol == TCP && TcpState::first(packet.tcp_flags, false).is_none() {
                return Verdict::Drop(DropReason::NoSession);
            }
            if self.config.inbound_refresh && to.protocol == UDP {
                self.mappings.keep(mapping, now.after(self.config.timeouts.udp));
            }
        }
        let inside = Tuple { dst: address, dst_port: port, ..to }.key();
        Verdict::Rewrite { rewrite: Rewrite::between(packet.key, inside), session: NONE }
    }

    /// Returns true if the filter of dynamic mappings lets in this packet from outside, which belongs to no
    /// session.
    fn admits(&self, to: &Tuple) -> bool {
        match self.config.filtering {
            Filtering::EndpointIndependent => true,
            Filtering::AddressDependent => {
                let key = contact_key(to);
                self.contacts.find(&key, self.contacts.hash(&key)).is_some()
            }
            Filtering::AddressAndPortDependent => false,
        }
    }

    fn begin(
        &mut self,
        packet: &Packet,
        hash: u64,
        outside: NarrowKey,
        mapping: u32,
        marks: u8,
        now: Nanos,
    ) -> Result<u32, DropReason> {
        let inside = packet.key;
        let tcp = TcpState::first(packet.tcp_flags, true).unwrap_or_default();
        let deltas = Rewrite::between(inside, Tuple::of(outside).reversed().key()).deltas();
        let session = Session { outside, mapping, tcp, marks, deltas };
        // The packet itself sets the deadline, as every later one does.
        let least = match Tuple::of(inside).protocol {
            TCP => self.config.timeouts.tcp.of(tcp),
            UDP => self.config.timeouts.udp,
            _ => self.config.timeouts.icmp,
        };
        match self.sessions.insert(inside, hash, session, now.after(least)) {
            Ok(id) => {
                self.outside.insert(outside.hash(self.config.seed), id);
                self.mappings.hold(mapping);
                self.counters.sessions_opened += 1;
                self.note_event(true, inside, outside, now);
                self.look_later(now);
                Ok(id)
            }
            Err(_) => {
                self.counters.mappings_released += u64::from(self.mappings.let_go(mapping, 0, now));
                Err(DropReason::SessionsFull)
            }
        }
    }

    /// Ends a session, and its mapping if that was its last. If its time had passed, it ended then.
    pub(super) fn release(&mut self, id: u32, now: Nanos) {
        let ended = self.sessions.deadline(id).min(now);
        let Some((key, session)) = self.sessions.remove(id) else { return };
        self.note_event(false, key, session.outside, ended);
        self.outside.remove(session.outside.hash(self.config.seed), id);
        self.counters.sessions_closed += 1;
        if session.marks & CONTACT != 0 {
            self.remove_contact(session.outside);
        }
        self.counters.mappings_released += u64::from(self.mappings.let_go(session.mapping, 1, now));
    }

    /// Ends the session with this key from inside, if there is one: whether there was.
    pub(super) fn end(&mut self, key: &NarrowKey, now: Nanos) -> bool {
        let found = self.sessions.find(key, self.sessions.hash(key));
        found.is_some_and(|id| {
            self.release(id, now);
            true
        })
    }

    /// Takes in a session that was known before, with the external endpoint that it had: whether it may be.
    pub(super) fn restore_session(&mut self, saved: &Saved, until: Nanos, now: Nanos) -> bool {
        let Saved { from, external, tcp, marks, .. } = *saved;
        let (inside, hash) = (from.key(), self.sessions.hash(&from.key()));
        let leads_inside = self.mappings.owns(from.dst);
        if !self.mappings.fits(&self.config, &from, external)
            || (leads_inside && !self.config.hairpin)
            || self.sessions.is_full()
            || self.sessions.find(&inside, hash).is_some()
        {
            return false;
        }
        let Some(mapping) = self.mappings.restore(&from, external) else { return false };
        if !self.mappings.may_hold(mapping) {
            return false;
        }
        let mapped = Mapped { address: external.0, port: external.1, mapping, whole: false };
        let outside = outside_of(&from, &mapped).key();
        let hairpin = if leads_inside { HAIRPIN } else { 0 };
        let deltas = Rewrite::between(inside, Tuple::of(outside).reversed().key()).deltas();
        let session = Session {
            outside,
            mapping,
            tcp,
            marks: marks & (FROM_OUTSIDE | ENDED | AGAIN) | hairpin,
            deltas,
        };
        let Ok(id) = self.sessions.insert(inside, hash, session, until) else {
            self.mappings.let_go(mapping, 0, now);
            return false;
        };
        self.counters.sessions_restored += 1;
        self.outside.insert(outside.hash(self.config.seed), id);
        self.mappings.hold(mapping);
        self.look_later(now);
        if marks & CONTACT != 0 && self.config.filtering == Filtering::AddressDependent {
            self.add_contact(id);
        }
        true
    }

    fn add_contact(&mut self, id: u32) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.marks |= CONTACT;
        let key = contact_key(&Tuple::of(session.outside));
        let hash = self.contacts.hash(&key);
        match self.contacts.find(&key, hash) {
            Some(contact) => {
                if let Some(count) = self.contacts.get_mut(contact) {
                    *count += 1;
                }
            }
            // There is room: there are never more contacts than sessions.
            None => drop(self.contacts.insert(key, hash, 1, Nanos::MAX)),
        }
    }

    fn remove_contact(&mut self, outside: NarrowKey) {
        let key = contact_key(&Tuple::of(outside));
        let Some(contact) = self.contacts.find(&key, self.contacts.hash(&key)) else { return };
        if let Some(count) = self.contacts.get_mut(contact) {
            *count -= 1;
            if *count == 0 {
                self.contacts.remove(contact);
            }
        }
    }
}

/// Returns true if a packet from outside may begin a session with what its destination is mapped to: replies,
/// and ICMP queries (whose destination has no port), only where the whole address is.
fn may_be_opened(to: &Tuple, packet: &Packet, mapped: &Mapped) -> bool {
    mapped.whole || (packet.kind == Kind::Opens && to.protocol != ICMP)
}

/// The packets from outside that answer those from this source, which has this external endpoint.
const fn outside_of(from: &Tuple, mapped: &Mapped) -> Tuple {
    Tuple { src: mapped.address, src_port: mapped.port, ..*from }.reversed()
}

/// External endpoint and remote address.
fn contact_key(outside: &Tuple) -> NarrowKey {
    Tuple { src_port: 0, ..*outside }.key()
}
