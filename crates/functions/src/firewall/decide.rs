//! Decisions of the firewall's stage: the rule that a packet meets, the state of its connection, and what
//! follows for the packets that share the decision.

use slipstream_core::frame::Frame;
use slipstream_core::packet::{any_key_of, key_of};
use slipstream_core::prefetch::prefetch;
use slipstream_core::stage::{Context, DropReason, Verdict};
use slipstream_core::table::NONE;
use slipstream_core::time::Nanos;
use slipstream_wire::{Flags, FlowKey, LinkType, WideKey, protocol};

use super::{DENIED, Decided, FirewallStage, HIDDEN, LOGGED, Logged};
use crate::conntrack::{CtState, Tracked};
use crate::firewall::ahead::Found;
use crate::firewall::fields::{NO_ICMP, icmp_word};
use crate::firewall::{Action, ConnState, PacketFields, Verdict as Fate};
use crate::sound::{has_wrong_checksum, is_sound, without_trailer};
use crate::{FunctionContext, NetworkFunction};

impl FirewallStage {
    /// Returns true if the first rule that matches a packet follows from the packet alone.
    #[inline(always)]
    pub(super) const fn depends_on_packet_alone(&self) -> bool {
        self.cache.is_none() && self.conntrack.is_none()
    }

    #[inline(always)]
    pub(super) fn first_rule(&mut self, found: &Found, packet: &PacketFields) -> Option<u32> {
        if self.depends_on_packet_alone() {
            return found.first();
        }
        match self.cache {
            None => self.firewall.lookup_ahead(packet, &found.leaves),
            Some(_) => self.first_rule_by_flow(&found.key, packet),
        }
    }

    #[inline(never)]
    fn first_rule_by_flow(&mut self, key: &FlowKey, packet: &PacketFields) -> Option<u32> {
        let Some(cache) = &mut self.cache else { return self.firewall.lookup(packet) };
        let hash = key.hash64(self.seed);
        if let Some(rule) = cache.get(key, hash, packet) {
            self.cached += 1;
            return rule;
        }
        let rule = self.firewall.lookup(packet);
        cache.put(key, hash, packet, rule);
        rule
    }

    /// Notes what there is to know of a packet with this key and length on the wire.
    #[inline(always)]
    pub(super) fn find(
        &self,
        cx: &Context<'_>,
        frame: &Frame,
        (key, length): (&FlowKey, u32),
        found: &mut Found,
    ) {
        (found.known, found.fate, found.by_context) = (true, None, false);
        found.packet = PacketFields::of(key, frame.info.word(), length);
        if self.keeps_keys {
            found.key = *key;
        }
        if let Some(conntrack) = &self.conntrack {
            let packet = Tracked::read(cx.data(frame), &frame.headers(*key));
            (found.kept, found.by_context) = self.kept_connection(cx, frame);
            match found.kept.connection {
                NONE => conntrack.prefetch_connection(&packet, conntrack.hash(&packet)),
                connection => conntrack.prefetch_known(&packet, connection),
            }
        }
    }

    #[inline(never)]
    pub(super) fn look_at_any(&self, cx: &Context<'_>, frame: &Frame, found: &mut Found) {
        let key = any_key_of(cx, frame);
        found.hidden = match &key {
            Some(key) => hides_its_protocol(frame, key),
            None => cx.link(frame) == LinkType::Ethernet && has_too_many_tags(cx.data(frame)),
        };
        match key.filter(|_| !found.hidden) {
            Some(key) => {
                self.find(cx, frame, (&key, cx.pool.meta(frame.buf).original_len), found);
                if self.reads_icmp {
                    found.packet.icmp = icmp_of(cx, frame, &key);
                }
            }
            None => (found.known, found.fate, found.by_context) = (false, None, false),
        }
    }

    /// The fields of a packet with the state of its connection.
    #[inline(never)]
    pub(super) fn track_packet(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        first: &Frame,
        found: &Found,
    ) -> PacketFields {
        self.tracked = self.conntrack.as_mut().map(|conntrack| {
            let (data, headers) = (fx.cx.data(first), first.headers(found.key));
            let tracked = Tracked::read(without_trailer(data, &headers), &headers);
            let mut seen = conntrack.look_up_known(&tracked, found.kept.connection, fx.cx.now);
            let verify = self.checksums.of(seen.begins(), headers.tcp_flags);
            if !is_sound(data, &headers) || verify && has_wrong_checksum(data, &headers) {
                seen.state = CtState::Invalid;
            }
            (tracked, seen)
        });
        let packet = found.packet.clone();
        match &self.tracked {
            Some((_, seen)) => packet.with_state(state_of(seen.state)),
            None => packet,
        }
    }

    /// For how many packets behind the first of a train its decision holds, where more than fields counts. Of
    /// a connection that is tracked, each must be as fit for it as the first.
    #[inline(never)]
    pub(super) fn sharing_with_care(&self, cx: &Context<'_>, first: &Frame, others: &[Frame]) -> usize {
        let shared = others.iter().take_while(|other| self.shares(cx, first, other)).count();
        let others = others.get(..shared).unwrap_or_default();
        let Some(key) = key_of(cx, first).filter(|_| self.conntrack.is_some()) else { return shared };
        let fit = |frame: &Frame| {
            let (data, headers) = (cx.data(frame), frame.headers(key));
            // If what comes before it is denied, any of them may be the one that begins the connection.
            let verify = self.checksums.of(true, headers.tcp_flags);
            is_sound(data, &headers) && !(verify && has_wrong_checksum(data, &headers))
        };
        if fit(first) { others.iter().take_while(|other| fit(other)).count() } else { 0 }
    }

    /// Looks up the first rules that match packets, and asks for what is counted of them.
    #[inline(always)]
    pub(super) fn prefetch_rules(&self, found: &mut [Found]) {
        let Self { firewall, hits, .. } = self;
        firewall.lookup_together(found);
        for found in found.iter_mut().filter(|found| found.known) {
            let place = firewall.place(found.first());
            prefetch(hits.get(place as usize));
            found.fate = firewall.plain_verdict(place);
        }
    }

    /// Counts packets for the rules that were passed on the way.
    #[inline(never)]
    pub(super) fn count_passed(&mut self, packets: u64, bytes: u64, now: Nanos) {
        for rule in std::mem::take(&mut self.passed) {
            let before = self.hits.get(rule as usize).map_or(0, |h| h.packets);
            self.hit(rule as usize, packets, bytes);
            let Some(Action::Log { one_in }) = self.firewall.rules().action(rule) else { continue };
            let one_in = u64::from(one_in.get());
            let picked = (before + packets) / one_in - before / one_in;
            self.logged_packets += picked;
            if picked > 0 {
                if self.logged.len() == LOGGED {
                    self.logged.remove(0);
                }
                self.logged.push(Logged { rule, time: now, key: self.key });
            }
        }
    }

    /// Notes connections of what may pass, and sees to it that the rest does not.
    #[inline(never)]
    pub(super) fn conclude(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        fate: Fate,
        frames: &[Frame],
        verdicts: &mut [Verdict],
    ) {
        match (fate, &self.tracked, &mut self.conntrack) {
            (Fate::Allow, Some((packet, seen)), Some(conntrack)) => {
                let last = frames.last().map_or(fx.cx.now, |f| f.arrival.max(fx.cx.now));
                if conntrack.accept(packet, seen, last).is_err() {
                    verdicts.fill(Verdict::drop(DropReason::TableFull));
                }
            }
            (Fate::Allow, ..) => {}
            (Fate::Deny, ..) => verdicts.fill(Verdict::port(DENIED)),
            (Fate::Reset, ..) => {
                let key = self.key;
                let now = fx.cx.now;
                match self.datagram.take() {
                    Some(datagram) => self.reply(fx, &datagram, &key),
                    None => {
                        for (at, frame) in frames.iter().enumerate() {
                            fx.cx.now = now.max(frame.arrival);
                            let made_before = fx.made.len();
                            self.reply(fx, frame, &key);
                            fx.made_by(made_before, at);
                        }
                    }
                }
                verdicts.fill(Verdict::port(DENIED));
            }
        }
    }

    /// Decides about any packet.
    #[inline(never)]
    pub(super) fn decide_any(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        first: &Frame,
        found: &Found,
    ) -> Decided {
        self.passed.clear();
        let default = self.hits.len() - 1;
        if !found.known {
            self.tracked = None;
            if found.hidden {
                return Decided { fate: Fate::Deny, rule: HIDDEN };
            }
            self.unclassified += 1;
            let fate = if self.allow_other { Fate::Allow } else { Fate::Deny };
            return Decided { fate, rule: usize::MAX };
        }
        let tracked;
        let packet = if self.conntrack.is_some() {
            tracked = self.track_packet(fx, first, found);
            &tracked
        } else {
            &found.packet
        };
        let seen = self.tracked.as_ref().map(|(_, seen)| *seen);
        let rule = match seen.filter(|_| found.by_context) {
            Some(seen) if seen.state == found.kept.state => Some(found.kept.rule).filter(|r| *r != NONE),
            // The context was to have the rule, so that the trees were not asked ahead.
            Some(_) => self.firewall.lookup(packet),
            None => self.first_rule(found, packet),
        };
        if let Some(seen) = seen
            && fx.cx.pool.flows().is_some()
            && !(found.by_context
                && seen.state == found.kept.state
                && seen.connection() == Some(found.kept.connection))
        {
            self.keep_connection(fx, first, rule);
        }
        let (passed, credits, now) = (&mut self.passed, &mut self.credits, fx.cx.now);
        let decision = self.firewall.decide_within(rule, packet, |rule, action| {
            match action {
                Action::Skip { .. } => {}
                Action::Limit { limit, .. } => {
                    return credits.get_mut(*limit as usize).is_none_or(|credit| credit.take(now));
                }
                _ => passed.push(rule),
            }
            true
        });
        if decision.verdict == Fate::Reset || !self.passed.is_empty() {
            self.key = found.key;
            self.datagram = Some(*first).filter(|first| first.info.is_datagram());
        }
        let rule = decision.rule.map_or(default, |r| r as usize);
        Decided { fate: decision.verdict, rule }
    }

    #[inline]
    pub(super) fn hit(&mut self, rule: usize, packets: u64, bytes: u64) {
        if let Some(hits) = self.hits.get_mut(rule) {
            hits.packets += packets;
            hits.bytes += bytes;
        }
    }
}

/// Returns true if rules about protocols and ports can't be asked about a packet: the way through its IPv6
/// extension headers ended at one of them, after 32 or where the packet ends. Its receiver may go on.
fn hides_its_protocol(frame: &Frame, key: &FlowKey) -> bool {
    // A datagram that came in fragments may be marked as one, and is whole.
    let whole = frame.info.is_datagram() || frame.info.flags() & Flags::FRAGMENT == 0;
    key.is_ipv6() && protocol::is_extension(key.protocol()) && whole
}

/// Returns true if an Ethernet frame has more VLAN tags than are read: IP may stand behind them. What takes
/// tags off goes on where this one stopped.
fn has_too_many_tags(frame: &[u8]) -> bool {
    let tags = frame.get(12..).unwrap_or_default().as_chunks::<4>().0;
    let is_tag = |tag: &&[u8; 4]| protocol::is_vlan(u16::from_be_bytes([tag[0], tag[1]]));
    tags.iter().take_while(is_tag).count() > WideKey::MAX_TAGS
}

/// Type and code of ICMP or ICMPv6, as rules have them.
fn icmp_of(cx: &Context<'_>, frame: &Frame, key: &FlowKey) -> u32 {
    let expected = if key.is_ipv6() { protocol::ICMPV6 } else { protocol::ICMP };
    let at = usize::from(frame.info.l4());
    match cx.data(frame).get(at..).unwrap_or_default() {
        [kind, code, ..] if key.protocol() == expected && frame.info.flags() & Flags::FRAGMENT == 0 => {
            icmp_word(*kind, *code)
        }
        _ => NO_ICMP,
    }
}

fn state_of(state: CtState) -> ConnState {
    match state {
        CtState::New => ConnState::New,
        CtState::Established => ConnState::Established,
        CtState::Related => ConnState::Related,
        CtState::Invalid => ConnState::Invalid,
        CtState::Untracked => ConnState::Untracked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Behind more tags than are read may stand anything, which no rule saw.
    #[test]
    fn tags_beyond_those_that_are_read_are_seen() {
        for tags in 0..WideKey::MAX_TAGS + 3 {
            let frame = [&[2; 12][..], &[0x81, 0, 0, 5].repeat(tags), &[8, 0, 0x45, 0]].concat();
            assert_eq!(has_too_many_tags(&frame), tags > WideKey::MAX_TAGS, "{tags}");
        }
        assert!(!has_too_many_tags(&[]));
    }
}
