//! The steps of forwarding, packet by packet: checks, time to live, fragments (RFC 1812 §5.2, §5.3; RFC 8200
//! §3).

use slipstream_wire::checksum::{Delta, FoldedDelta, is_right_ipv4, sum};

use super::{ETHERNET, FunctionContext, Macs, Message, NewPacket, Router};
use crate::bytes::be16;
use crate::fragment;
use slipstream_core::frame::Frame;
use slipstream_core::pool::{Lengths, Pool};
use slipstream_core::stage::{Context, DropReason, Verdict};

/// Why a packet is not forwarded as it is.
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

/// Length of an IPv6 packet in the same way.
pub(super) fn check_v6(ip: &[u8], on_wire: u32) -> Option<u32> {
    let total = u32::from(be16(ip, 4)?) + 40;
    (ip.len() >= 40 && total <= on_wire).then_some(total)
}

/// Makes an IPv4 packet ready for a link of this MTU: one less to live. Where it can't go on nothing is
/// changed. The `lengths` are those from the header on.
pub(super) fn forward_v4(ip: &mut [u8], lengths: Lengths, mtu: u32) -> Result<(), Stop> {
    let total = check_v4(ip, lengths.here).ok_or(MALFORMED)?;
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
/// link. Whether the packet is one; else nothing is changed. `start` is where the IP header begins.
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
            let rest = (frames.get(done..).unwrap_or_default(), rest);
            self.forward_any(fx, (port, mtu, macs), rest);
        }
    }

    /// As [`forward`](Self::forward), from the first packet on that the fast path declines.
    #[inline(never)]
    fn forward_any(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        (port, mtu, macs): (u8, u32, Option<Macs>),
        (frames, verdicts): (&[Frame], &mut [Verdict]),
    ) {
        // Once fragments have been made, what comes behind them goes the same way, so that it does not
        // overtake them.
        let mut behind = false;
        for (frame, verdict) in frames.iter().zip(verdicts) {
            fx.cx.now = fx.cx.now.max(frame.arrival);
            *verdict = match self.ready(fx, frame, mtu, macs) {
                Ok(()) => {
                    if behind {
                        fx.made.push(NewPacket { frame: *frame, port });
                        Verdict::KEPT
                    } else {
                        Verdict::port(port)
                    }
                }
                Err(Stop::Drop(reason, message)) => self.refuse(fx, frame, reason, message),
                Err(Stop::Fragment) => match self.fragment(fx, frame, mtu) {
                    Some(made) => {
                        behind = true;
                        for frame in made {
                            if let Some(macs) = macs {
                                macs.write_to(fx.cx.data_mut(&frame));
                            }
                            fx.made.push(NewPacket { frame, port });
                        }
                        fx.cx.pool.free(frame.buf);
                        Verdict::KEPT
                    }
                    None => Verdict::drop(DropReason::Malformed),
                },
            };
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
