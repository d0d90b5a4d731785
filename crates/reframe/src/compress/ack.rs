//! The ACK compressor: of pure acknowledgements in a row, those that the next one makes superfluous are taken
//! out.
//!
//! RFC 3449 §5.2 calls it ACK filtering and warns of what a careless one destroys. Here an acknowledgement
//! goes only if the very next packet of the train tells the data sender everything that it told:
//!
//! - **Both are pure acknowledgements**: no payload by the IP length, of the flags ACK alone or ACK and ECE,
//!   whole headers captured, right checksums. PSH, FIN, RST, SYN and URG carry meaning of their own; a wrong
//!   checksum makes the receiver drop the packet, so it neither goes nor stands in for another.
//! - **It advances**: its number is beyond every one of its flow so far, so it is no duplicate, which loss
//!   recovery counts (RFC 5681 §3.2). As long as nothing is known of the flow, the first acknowledgement
//!   stays.
//! - **The next one goes further**, from the same place: same link-layer header, IP header (but for IPv4's
//!   identification), ports and sequence number. Anything else that differs there differs for a reason that
//!   is not ours to judge. IPv4 options are left alone altogether.
//! - **The window still reaches as far** (RFC 7323 §2): the sender may use bytes up to `ack + (window <<
//!   scale)`. The scale is agreed on in the handshake, which may never have been seen; with a window field
//!   that is not smaller, and a number that is greater, the edge is not further back for any scale.
//! - **The same options**, in the same order, with the same content, but for timestamps, which must not run
//!   backwards (mod 2³²): the newest echo (RFC 7323 §4) is the one that stays. SACK blocks are the same (RFC
//!   2018), and none is a duplicate SACK, each of which reports a packet of its own (RFC 2883).
//! - **No congestion news goes** (RFC 3168): equal ECE. Of AccECN (RFC 9768) nothing is taken out, because
//!   the sender judges from the packets that an acknowledgement covers whether its three-bit counter may have
//!   come round. It shows in the handshake, in the flags AE and CWR, in AccECN options, or in an
//!   acknowledgement that is itself ECN-capable.
//!
//! Only the pace is lost: the sender hears of the same bytes at once that it would have heard of piece by
//! piece, at most a train's worth, all of which would have arrived within the train anyway.
//!
//! One pass looks at neighbours as they came. Where the packet between two others went, a second pass might
//! find those two neighbours, and one of them superfluous (its window was above that of the one between, but
//! not above that of the last): it loses nothing either, but need not be made.

use alloc::vec::Vec;

use slipstream_wire::field::be32;
use slipstream_wire::view::{SackBlocks, Tcp, TcpOption};

use super::{PacketView, Segment};

const ACK: u16 = Tcp::<&[u8]>::ACK;
const SYN: u16 = Tcp::<&[u8]>::SYN;
const RST: u16 = Tcp::<&[u8]>::RST;
const ECE: u16 = Tcp::<&[u8]>::ECE;
const CWR: u16 = Tcp::<&[u8]>::CWR;
const AE: u16 = Tcp::<&[u8]>::AE;

/// The largest window (RFC 7323 §2.3), and so the furthest that one acknowledgement can advance.
const MAX_ADVANCE: u32 = 1 << 30;

/// TCP options with AccECN's byte counters (RFC 9768 §3.2.3).
const ACCECN_OPTIONS: [u8; 2] = [172, 174];

/// The compressor's memory of one direction of a connection between trains. The default: nothing is known.
///
/// Every packet of the flow has to be shown to [`AckCompressor::compress`], also those that pass alone: a
/// duplicate of an acknowledgement that went by unseen looks like an advance. Where packets may have been
/// missed, begin anew with the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AckState {
    /// The highest acknowledgement number so far (mod 2³²).
    highest: Option<u32>,
    /// The connection was opened with AccECN.
    accecn: bool,
    /// A packet of the connection could not be read: nobody knows what it acknowledged, and so which of those
    /// that follow are duplicates of it.
    unknown: bool,
}

impl AckState {
    /// A packet has passed whose numbers can't be read: nothing of its connection goes any more.
    pub(crate) fn unreadable(&mut self) {
        self.unknown = true;
    }

    /// Such a packet has passed.
    pub(crate) fn is_unknown(&self) -> bool {
        self.unknown
    }

    /// Takes note of a packet; true if its acknowledgement number is beyond all before.
    pub(crate) fn note(&mut self, packet: &PacketView<'_>) -> bool {
        let Some((flags, ack)) = packet.acknowledgement() else {
            self.unreadable();
            return false;
        };
        if flags & (SYN | RST) != 0 {
            // A new connection, or the end of one. What it acknowledges is the other side's affair.
            *self = Self { accecn: flags & SYN != 0 && opens_accecn(flags), ..Self::default() };
            return false;
        }
        if flags & ACK == 0 {
            return false;
        }
        match self.highest {
            None => {
                self.highest = Some(ack);
                false
            }
            Some(highest) if advance(highest, ack) => {
                self.highest = Some(ack);
                !self.unknown
            }
            Some(_) => false,
        }
    }
}

/// Returns true if `to` is beyond `from` (mod 2³²), and not by more than a window can hold.
fn advance(from: u32, to: u32) -> bool {
    (1..=MAX_ADVANCE).contains(&to.wrapping_sub(from))
}

/// Returns true if the flags of a SYN or SYN-ACK ask for or agree to AccECN (RFC 9768 §3.1, table 2).
fn opens_accecn(flags: u16) -> bool {
    match (flags & AE != 0, flags & CWR != 0, flags & ECE != 0) {
        (true, true, true) => true,
        // Of the answers, ECE alone is RFC 3168's, AE with ECE that of the ECN nonce.
        (ae, cwr, ece) => flags & ACK != 0 && (cwr || ae && !ece),
    }
}

/// Takes superfluous acknowledgements out of trains.
#[derive(Clone, Copy, Debug, Default)]
pub struct AckCompressor;

impl AckCompressor {
    /// Decides which packets of a released train stay: `keep` becomes one flag a packet, in their order.
    /// Returns the number of those that go. `state` is that of the flow.
    pub fn compress(&self, state: &mut AckState, train: &[PacketView<'_>], keep: &mut Vec<bool>) -> usize {
        keep.clear();
        keep.resize(train.len(), true);
        let mut dropped = 0;
        let candidate = |i: usize| train.get(i).filter(|_| train.len() > 1).and_then(pure_ack);
        let mut next = candidate(0);
        for (i, (packet, keep)) in train.iter().zip(keep.iter_mut()).enumerate() {
            let here = next;
            next = candidate(i + 1);
            let advances = state.note(packet);
            if let (true, false, Some(here), Some(next)) = (advances, state.accecn, here, next) {
                *keep = !supersedes(&next, &here);
                dropped += usize::from(!*keep);
            }
        }
        dropped
    }
}

/// The packet, if it is a pure acknowledgement that may go or stand in for another.
fn pure_ack<'a>(packet: &PacketView<'a>) -> Option<Segment<'a>> {
    let segment = packet.segment()?;
    let plain = !segment.has_payload()
        && segment.flags() & !ECE == ACK
        && segment.tcp.urgent() == 0
        && plain_ip(&segment)
        && segment.tcp.options().all(|option| option.is_ok_and(may_repeat));
    (plain && segment.checksums_are_right()).then_some(segment)
}

/// No IPv4 options, the reserved bit beside the fragment flags clear, not ECN-capable.
fn plain_ip(segment: &Segment<'_>) -> bool {
    match *segment.ip {
        [a, b, ..] if a >> 4 == 6 => b & 0x30 == 0,
        [0x45, tos, _, _, _, _, fragment, ..] => tos & 3 == 0 && fragment & 0x80 == 0,
        _ => false,
    }
}

/// Returns true if an option leaves the same behind when it is seen once as when it is seen twice.
fn may_repeat(option: TcpOption<'_>) -> bool {
    !matches!(option, TcpOption::Unknown { kind, .. } if ACCECN_OPTIONS.contains(&kind))
}

/// Returns true if `later` tells everything that `earlier`, the packet before it, told. Both are pure
/// acknowledgements.
fn supersedes(later: &Segment<'_>, earlier: &Segment<'_>) -> bool {
    let fixed = |s: &Segment<'_>| {
        (s.tcp.src_port(), s.tcp.dst_port(), s.tcp.seq(), s.tcp.header_len(), s.tcp.flags())
    };
    fixed(later) == fixed(earlier)
        && advance(earlier.tcp.ack(), later.tcp.ack())
        && later.tcp.window() >= earlier.tcp.window()
        && later.link == earlier.link
        && same_ip(later.ip, earlier.ip)
        && options_cover(later, earlier)
}

/// Returns true if two IP headers are the same but for IPv4's identification, and the checksum that depends
/// on it.
fn same_ip(a: &[u8], b: &[u8]) -> bool {
    match (a, b) {
        ([0x45, ..], [0x45, ..]) => {
            let parts = |ip: &'_ [u8]| (be32(ip, 0), be32(ip, 6));
            parts(a) == parts(b) && a.get(12..) == b.get(12..)
        }
        _ => a == b,
    }
}

/// Returns true if the options are the same, but for timestamps that don't run backwards; and none would be
/// missed.
fn options_cover(later: &Segment<'_>, earlier: &Segment<'_>) -> bool {
    let (mut new, mut old) = (later.tcp.options(), earlier.tcp.options());
    loop {
        match (old.next(), new.next()) {
            (None, None) => return true,
            (
                Some(Ok(TcpOption::Timestamps { value: v1, echo: e1 })),
                Some(Ok(TcpOption::Timestamps { value: v2, echo: e2 })),
            ) if not_before(v2, v1) && not_before(e2, e1) => {}
            (Some(Ok(TcpOption::Sack(old))), Some(Ok(TcpOption::Sack(new))))
                if old == new && !reports_duplicate(old, earlier.tcp.ack()) => {}
            (Some(Ok(TcpOption::Timestamps { .. } | TcpOption::Sack(_))), _) => return false,
            (Some(Ok(old)), Some(Ok(new))) if old == new => {}
            _ => return false,
        }
    }
}

/// Returns true if `b` is not before `a` (mod 2³²).
fn not_before(b: u32, a: u32) -> bool {
    b.wrapping_sub(a) as i32 >= 0
}

/// Returns true if the first block reports a packet that came twice (RFC 2883 §4): it begins below the
/// acknowledgement number, or lies within the second block.
fn reports_duplicate(mut blocks: SackBlocks<'_>, ack: u32) -> bool {
    match (blocks.next(), blocks.next()) {
        (Some((first, _)), _) if !not_before(first, ack) => true,
        (Some((first, end)), Some((second, second_end))) => {
            not_before(first, second) && not_before(second_end, end)
        }
        _ => false,
    }
}
