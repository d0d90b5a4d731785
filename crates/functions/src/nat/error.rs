//! ICMP errors through a NAT (RFC 5508 §4): the packet that an error quotes says which session it is about.
//! An error neither begins nor ends a session, nor does it keep one alive (REQ-7).

use slipstream_wire::NarrowKey;
use slipstream_wire::protocol::ICMP;

use super::packet::{Tuple, key_of};
use super::rewrite::ErrorRewrite;
use super::{DropReason, Nat, Side, Verdict};
use slipstream_core::table::NONE;
use slipstream_core::time::Nanos;

impl Nat {
    /// An error from inside about a packet that came from outside. Its source is the host that the packet was
    /// for, or a router before it, which has no external address of its own and takes the host's.
    pub(super) fn outbound_error(&self, outer: NarrowKey, quoted: NarrowKey, now: Nanos) -> Verdict {
        let (from, about) = (Tuple::of(outer), Tuple::of(quoted));
        // An error goes to the source of the packet that it is about.
        let known = self.quoted_outside(&about, now).filter(|_| from.dst == about.src);
        let Some(external) = known else {
            let inside = |address| self.concerns(Side::Inside, address, 0);
            let ours = inside(from.src) || inside(about.dst) || self.mappings.owns(from.dst);
            return if ours { Verdict::Drop(DropReason::UnknownError) } else { Verdict::Pass };
        };
        let outer_src = self.mappings.whole_external(from.src).unwrap_or(external.dst);
        let (mut dst, mut about_now) = (from.dst, external);
        if self.mappings.owns(from.dst) {
            // The packet came by hairpin from another inside host.
            let Some(inside) = self.quoted_inside(&external, now) else {
                return Verdict::Drop(DropReason::UnknownError);
            };
            (dst, about_now) = (inside.src, inside);
        }
        let new_outer = key_of(ICMP, outer_src, 0, dst, 0);
        Verdict::Error(ErrorRewrite::between([outer, new_outer], [quoted, about_now.key()]))
    }

    /// An error from outside about a packet that came from inside. Its source stays: the router that sent it.
    pub(super) fn inbound_error(&self, outer: NarrowKey, quoted: NarrowKey, now: Nanos) -> Verdict {
        let (to, about) = (Tuple::of(outer), Tuple::of(quoted));
        match self.quoted_inside(&about, now).filter(|_| to.dst == about.src) {
            Some(inside) => {
                let new_outer = key_of(ICMP, to.src, 0, inside.src, 0);
                Verdict::Error(ErrorRewrite::between([outer, new_outer], [quoted, inside.key()]))
            }
            None if self.mappings.owns(to.dst) => Verdict::Drop(DropReason::UnknownError),
            None => Verdict::Pass,
        }
    }

    /// A quoted packet, as it went to an inside host, as it was outside.
    fn quoted_outside(&self, about: &Tuple, now: Nanos) -> Option<Tuple> {
        let key = about.reversed().key();
        let found =
            self.sessions.find(&key, self.sessions.hash(&key)).filter(|&id| !self.sessions.is_due(id, now));
        if let Some(session) = found.and_then(|id| self.sessions.get(id)) {
            return Some(Tuple::of(session.outside));
        }
        // A static mapping has no sessions, nor has a stranger whom a mapping let in.
        let mapped = self.mappings.present(&about.reversed(), now)?;
        Some(Tuple { dst: mapped.address, dst_port: mapped.port, ..*about })
    }

    /// A quoted packet, as it left for outside, as it was inside.
    fn quoted_inside(&self, about: &Tuple, now: Nanos) -> Option<Tuple> {
        let found = self.find_outside(about.reversed().key()).filter(|&id| !self.sessions.is_due(id, now));
        if let Some(key) = found.and_then(|id| self.sessions.key(id)) {
            return Some(Tuple::of(*key));
        }
        let mapped = self.mappings.inbound(&about.reversed(), now).filter(|m| m.mapping == NONE)?;
        Some(Tuple { src: mapped.address, src_port: mapped.port, ..*about })
    }
}
