//! The steps of forwarding, packet by packet: checks, time to live, fragments (RFC 1812 §5.2, §5.3; RFC 8200
//! §3).

use slipstream_wire::checksum::{Delta, FoldedDelta, is_right_ipv4, sum};
use slipstream_wire::protocol::HOP_BY_HOP;

use super::{ETHERNET, FunctionContext, Macs, Message, NewPacket, Router};
use crate::bytes::{be16, be32};
use crate::fragment;
use slipstream_core::frame::Frame;
use slipstream_core::pool::{Lengths, Pool};
use slipstream_core::stage::{Context, DropReason, Verdict};

/// The reason why a packet is not forwarded as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Dropped; its sender may be told.
    Drop(DropReason, Option<Message>),
    /// IPv4, longer than the link takes, and may be fragmented.
    Fragment,
}

const MALFORMED: Stop = Stop::Drop(DropReason::Malformed, None);
const EXPIRED: Stop = Stop::Drop(DropReason::HopLimit, Some(Message::TimeExceeded));
/// In the upper byte of its word.
const DONT_FRAGMENT: u8 = 0x40;
/// One less to live, in the word of time to live and protocol.
const ONE_LESS: FoldedDelta = Delta::new().word(0x0100, 0).folded();

fn too_big(mtu: u32) -> Stop {
    Stop::Drop(DropReason::TooBig, Some(Message::TooBig { mtu }))
}

/// Length of an IPv4 packet, whose header begins with `ip`, if the header is as it must be; `on_wire` is what
/// is left of the frame from there on.
pub(super) fn check_v4(ip: &[u8], on_wire: u32) -> Option<u32> {
    let header = ip.get(..usize::from(ip.first()? & 15) * 4)?;
    let total = u32::from(be16(ip, 2)?);
    let right = header.len() >= 20 && sum(header) == 0xffff;
    (right && total >= header.len() as u32 && total <= on_wire).then_some(total)
}

/// Checks the options of a packet whose IPv4 header is right: that each lies within the header (RFC 791
/// §3.1), and that none is a source route, by which the sender chooses the way (RFC 7126 §4.3, §4.4).
pub(super) fn check_options(ip: &[u8]) -> Result<(), DropReason> {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    const LOOSE_ROUTE: u8 = 131;
    const STRICT_ROUTE: u8 = 137;
    let header = usize::from(ip.first().map_or(0, |first| first & 15)) * 4;
    let mut options = ip.get(20..header).unwrap_or_default();
    loop {
        options = match options {
            [] | [END, ..] => return Ok(()),
            [NOTHING, rest @ ..] => rest,
            [LOOSE_ROUTE | STRICT_ROUTE, ..] => return Err(DropReason::Unsupported),
            [_, len, ..] if *len >= 2 => options.get(usize::from(*len)..).ok_or(DropReason::Malformed)?,
            _ => return Err(DropReason::Malformed),
        }
    }
}

/// Length of an IPv6 packet in the same way. A payload length of 0 is that of a packet without one, or of a
/// jumbogram, whose length an option says (RFC 2675 §3).
pub(super) fn check_v6(ip: &[u8], on_wire: u32) -> Option<u32> {
    const NO_NEXT: u8 = 59;
    let header = ip.first_chunk::<40>()?;
    let payload = match (be16(header, 4)?, header[6]) {
        (0, HOP_BY_HOP) => jumbo(ip)?,
        (0, NO_NEXT) => 0,
        (0, _) => return None,
        (payload, _) => payload.into(),
    };
    let total = payload.checked_add(40)?;
    (total <= on_wire).then_some(total)
}

/// The type of the option that says a jumbogram's length (RFC 2675 §2).
pub(super) const JUMBO: u8 = 0xc2;

/// The payload length that a jumbogram's hop-by-hop options say (RFC 2675 §2).
fn jumbo(ip: &[u8]) -> Option<u32> {
    let [_, words, ..] = *ip.get(40..)? else { return None };
    let header = ip.get(40..48 + 8 * usize::from(words))?;
    let mut options = options_v6(header).map_while(|option| option);
    let (.., length) = options.find(|(_, kind, data)| *kind == JUMBO && data.len() == 4)?;
    be32(length, 0).filter(|length| *length > u32::from(u16::MAX))
}

/// The options of a hop-by-hop or destination options header (RFC 8200 §4.2), without padding of one byte:
/// the offset of each in the header, its type and its data; `None`, and no more, for one that doesn't end
/// within the header.
pub(super) fn options_v6(header: &[u8]) -> impl Iterator<Item = Option<(usize, u8, &[u8])>> {
    const PAD1: u8 = 0;
    let mut next = 2;
    std::iter::from_fn(move || {
        while header.get(next) == Some(&PAD1) {
            next += 1;
        }
        let (at, kind) = (next, *header.get(next)?);
        let data = header.get(at + 1).and_then(|len| header.get(at + 2..at + 2 + usize::from(*len)));
        next = data.map_or(header.len(), |data| at + 2 + data.len());
        Some(data.map(|data| (at, kind, data)))
    })
}

/// Makes an IPv4 packet ready for a link of this MTU: one less to live. Where it can't go on nothing is
/// changed. The `lengths` are those from the header on.
pub(super) fn forward_v4(ip: &mut [u8], lengths: Lengths, mtu: u32) -> Result<(), Stop> {
    let total = check_v4(ip, lengths.here).ok_or(MALFORMED)?;
    check_options(ip).map_err(|reason| Stop::Drop(reason, None))?;
    let Some([_, _, _, _, _, _, fragment, _, lives, _, c0, c1, ..]) = ip.first_chunk_mut::<20>() else {
        return Err(MALFORMED);
    };
    if *lives < 2 {
        return Err(EXPIRED);
    }
    if lengths.whole(total) > mtu {
        return Err(match lengths.elsewhere {
            _ if *fragment & DONT_FRAGMENT != 0 => too_big(mtu),
            0 => Stop::Fragment,
            // A payload that waits elsewhere can't be cut, nor can a token.
            _ => Stop::Drop(DropReason::TooBig, None),
        });
    }
    *lives -= 1;
    [*c0, *c1] = ONE_LESS.apply(u16::from_be_bytes([*c0, *c1])).to_be_bytes();
    Ok(())
}

/// The same for an IPv6 packet.
pub(super) fn forward_v6(ip: &mut [u8], lengths: Lengths, mtu: u32) -> Result<(), Stop> {
    let total = check_v6(ip, lengths.here).ok_or(MALFORMED)?;
    let hops = ip.get_mut(7).ok_or(MALFORMED)?;
    if *hops < 2 {
        return Err(EXPIRED);
    }
    if lengths.whole(total) > mtu {
        return Err(too_big(mtu));
    }
    *hops -= 1;
    Ok(())
}

/// As [`Router::ready`], for what most packets are: IPv4 without options, right in every way, that fits the
/// link. Returns true if the packet is one; else nothing is changed.
#[inline(always)]
fn ready_fast(pool: &mut Pool, frame: &Frame, mtu: u32, macs: Option<Macs>) -> bool {
    let (meta, data) = pool.meta_and_data_mut(frame.buf, frame.len);
    let Some(macs) = macs else {
        return data.first_chunk_mut().is_some_and(|ip| one_less(ip, meta.original_len, mtu));
    };
    let Some(bytes) = data.first_chunk_mut::<{ ETHERNET + 20 }>() else { return false };
    let Some((link, ip)) = bytes.split_first_chunk_mut::<ETHERNET>() else { return false };
    let Some(ip) = ip.first_chunk_mut() else { return false };
    if !one_less(ip, meta.original_len.saturating_sub(ETHERNET as u32), mtu) {
        return false;
    }
    if let Some(place) = link.first_chunk_mut() {
        macs.write(place);
    }
    true
}

/// Takes one from the time to live, if this is the header of a packet that can go on as it is; else nothing
/// is changed. All of what was on the wire has to fit, also what waits elsewhere of a sliced packet.
#[inline(always)]
fn one_less(ip: &mut [u8; 20], on_wire: u32, mtu: u32) -> bool {
    let total = u32::from(u16::from_be_bytes([ip[2], ip[3]]));
    let fits = total >= 20 && total <= on_wire && on_wire <= mtu;
    if ip[0] != 0x45 || ip[8] < 2 || !fits || !is_right_ipv4(ip) {
        return false;
    }
    ip[8] -= 1;
    [ip[10], ip[11]] = ONE_LESS.apply(u16::from_be_bytes([ip[10], ip[11]])).to_be_bytes();
    true
}

impl Router {
    /// Makes one packet ready to go out by a link of this MTU, between these Ethernet addresses.
    fn ready(
        &self,
        fx: &mut FunctionContext<'_, '_>,
        frame: &Frame,
        mtu: u32,
        macs: Option<Macs>,
    ) -> Result<(), Stop> {
        let start = self.start();
        let lengths = fx.cx.pool.lengths(frame.buf, frame.len).behind(start as u32);
        let Some((link, ip)) = fx.cx.data_mut(frame).split_at_mut_checked(start) else {
            return Err(MALFORMED);
        };
        match ip.first().map(|b| b >> 4) {
            Some(4) => forward_v4(ip, lengths, mtu)?,
            Some(6) => forward_v6(ip, lengths, mtu)?,
            _ => return Err(MALFORMED),
        }
        if let Some(macs) = macs {
            macs.write_to(link);
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn forward(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        (port, mtu, macs): (u8, u32, Option<Macs>),
        frames: &[Frame],
        verdicts: &mut [Verdict],
    ) {
        // Without Ethernet addresses to write there is no Ethernet header either.
        let fast = (self.start() == 0) == macs.is_none();
        let Context { pool, now, .. } = &mut *fx.cx;
        let mut done = 0;
        if fast {
            for frame in frames {
                *now = (*now).max(frame.arrival);
                if !ready_fast(pool, frame, mtu, macs) {
                    break;
                }
                done += 1;
            }
        }
        let Some((these, rest)) = verdicts.split_at_mut_checked(done) else { return };
        these.fill(Verdict::port(port));
        if done < frames.len() {
            self.forward_any(fx, (port, mtu, macs), done, frames, rest);
        }
    }

    /// As [`forward`](Self::forward), from the first packet on that the fast path declines, which is at
    /// `done`; these are the verdicts from there on.
    #[inline(never)]
    fn forward_any(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        (port, mtu, macs): (u8, u32, Option<Macs>),
        done: usize,
        frames: &[Frame],
        verdicts: &mut [Verdict],
    ) {
        for ((at, frame), verdict) in frames.iter().enumerate().skip(done).zip(verdicts) {
            fx.cx.now = fx.cx.now.max(frame.arrival);
            // All are of the first one's link type, as they agree in where IP begins.
            self.capture = fx.cx.pool.meta(frame.buf).interface;
            let made_before = fx.made.len();
            *verdict = match self.ready(fx, frame, mtu, macs) {
                Ok(()) => Verdict::port(port),
                Err(Stop::Drop(reason, message)) => self.refuse(fx, frame, reason, message),
                Err(Stop::Fragment) => match self.fragment(fx, frame, mtu) {
                    Some(made) => {
                        for frame in made {
                            if let Some(macs) = macs {
                                macs.write_to(fx.cx.data_mut(&frame));
                            }
                            fx.made.push(NewPacket::new(frame, port));
                        }
                        fx.cx.pool.free(frame.buf);
                        Verdict::KEPT
                    }
                    None => Verdict::drop(DropReason::Malformed),
                },
            };
            fx.made_by(made_before, at);
        }
    }

    pub(super) fn wait(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        (neighbour, mtu): (u32, u32),
        frames: &[Frame],
        verdicts: &mut [Verdict],
    ) {
        for (frame, verdict) in frames.iter().zip(verdicts) {
            fx.cx.now = fx.cx.now.max(frame.arrival);
            *verdict = match self.ready(fx, frame, mtu, None) {
                Ok(()) => {
                    self.hold(fx, neighbour, *frame);
                    Verdict::KEPT
                }
                Err(Stop::Drop(reason, message)) => self.refuse(fx, frame, reason, message),
                Err(Stop::Fragment) => match self.fragment(fx, frame, mtu) {
                    Some(made) => {
                        made.into_iter().for_each(|f| self.hold(fx, neighbour, f));
                        fx.cx.pool.free(frame.buf);
                        Verdict::KEPT
                    }
                    None => Verdict::drop(DropReason::Malformed),
                },
            };
        }
    }

    /// Lets a packet wait; where too many do, one of them is dropped.
    pub(super) fn hold(&mut self, fx: &mut FunctionContext<'_, '_>, neighbour: u32, frame: Frame) {
        if let Some(dropped) = self.neighbours.wait(neighbour, frame) {
            self.drops.add(DropReason::Unresolved, 1);
            fx.cx.pool.free(dropped.buf);
        }
    }

    fn fragment(&mut self, fx: &mut FunctionContext<'_, '_>, frame: &Frame, mtu: u32) -> Option<Vec<Frame>> {
        let start = self.start();
        // One less to live.
        let parts = fragment::of_ipv4(fx.cx.data(frame).get(start..)?, mtu, 1)?;
        self.counters.fragmented += 1;
        self.counters.fragments += parts.len() as u64;
        fragment::frames(fx.cx, frame, start, parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_lie_within_the_header_and_lead_nowhere() {
        let check = |options: &[u8]| {
            let words = 5 + options.len() as u8 / 4;
            check_options(&[&[0x40 | words][..], &[0; 19], options, &[7, 9, 8, 6]].concat())
        };
        let (right, wrong, routed) = (Ok(()), Err(DropReason::Malformed), Err(DropReason::Unsupported));
        for (options, expected) in [
            (&[][..], right),
            (&[1, 1, 1, 1], right),
            (&[0, 131, 0, 0], right),
            (&[148, 4, 0, 0], right),
            (&[7, 7, 4, 0, 0, 0, 0, 0], right),
            (&[1, 7, 7, 4, 0, 0, 0, 0], right),
            (&[1, 1, 1, 7], wrong),
            (&[7, 0, 4, 0], wrong),
            (&[7, 1, 4, 0], wrong),
            (&[7, 5, 4, 0], wrong),
            (&[1, 68, 255, 0], wrong),
            (&[131, 7, 4, 8, 8, 8, 8, 0], routed),
            (&[1, 137, 7, 4, 8, 8, 8, 8], routed),
            (&[148, 4, 0, 0, 1, 131, 0, 0], routed),
        ] {
            assert_eq!(check(options), expected, "{options:?}");
        }
    }

    #[test]
    fn a_payload_length_of_zero_is_that_of_nothing_or_of_a_jumbogram() {
        let header = |next: u8, behind: &[u8]| {
            let mut ip = vec![0; 40];
            (ip[0], ip[6]) = (0x60, next);
            [&ip, behind].concat()
        };
        let jumbo = |length: u32| [&[17, 0, 0xc2, 4][..], &length.to_be_bytes(), &[0; 8]].concat();
        let padded = [&[17, 1, 0, 0, 1, 4, 0, 0, 0, 0, 0xc2, 4][..], &70_000u32.to_be_bytes()].concat();
        for (ip, on_wire, length) in [
            (header(59, &[]), 40, Some(40)),
            (header(59, &[0; 6]), 46, Some(40)),
            (header(17, &[0; 3000]), 3040, None),
            (header(HOP_BY_HOP, &jumbo(70_000)), 70_040, Some(70_040)),
            (header(HOP_BY_HOP, &jumbo(70_000)), 70_039, None),
            (header(HOP_BY_HOP, &jumbo(u32::MAX)), u32::MAX, None),
            (header(HOP_BY_HOP, &jumbo(3000)), 3040, None),
            (header(HOP_BY_HOP, &padded), 70_040, Some(70_040)),
            (header(HOP_BY_HOP, &padded[..11]), 70_040, None),
            (header(HOP_BY_HOP, &[17, 0, 1, 4, 0, 0, 0, 0]), 48, None),
            (header(HOP_BY_HOP, &[]), 40, None),
        ] {
            assert_eq!(check_v6(&ip, on_wire), length, "{:?} of {on_wire}", &ip[40..]);
        }
    }
}
