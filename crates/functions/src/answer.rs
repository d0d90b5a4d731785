//! Packets that functions make in answer to others, with the link-layer header turned round.

use slipstream_wire::classify;

use super::bytes::be16;
use super::function::{FunctionContext, NewPacket};
use super::icmp::Link;
use super::packet::is_ethernet;
use slipstream_core::frame::{Frame, Info};
use slipstream_core::pool::PacketMeta;
use slipstream_core::stage::Context;

/// The IP packet of a frame: what stands behind its link-layer header, as far as it was captured.
#[inline]
pub(crate) fn ip_packet<'a>(cx: &'a Context<'_>, frame: &Frame) -> &'a [u8] {
    cx.data(frame).get(usize::from(frame.info.l3())..).unwrap_or_default()
}

/// Length in bytes of a frame's IP packet, as its header says it: short Ethernet frames are padded, and what
/// pads them is no part of the packet. Where the header says nothing that can be (0, as offloads leave it, or
/// more than there was on the wire), all that stands behind the link-layer header. Of a sliced packet it is
/// the length of the whole one.
#[inline(always)]
pub(crate) fn ip_length(cx: &Context<'_>, frame: &Frame) -> u32 {
    let l3 = usize::from(frame.info.l3());
    // Most packets: IPv4 without options, all of it here.
    if let Some((original_len, data)) = cx.pool.unsliced(frame.buf, frame.len)
        && let Some([0x45, _, high, low]) = data.get(l3..).and_then(<[u8]>::first_chunk)
        && let said = u32::from(u16::from_be_bytes([*high, *low]))
        && (20..=original_len.saturating_sub(l3 as u32)).contains(&said)
    {
        return said;
    }
    unusual_ip_length(cx, frame)
}

#[inline(never)]
fn unusual_ip_length(cx: &Context<'_>, frame: &Frame) -> u32 {
    let l3 = frame.info.l3();
    let lengths = cx.pool.lengths(frame.buf, frame.len).behind(u32::from(l3));
    let ip = ip_packet(cx, frame);
    let (said, least) = match ip.first().map(|b| b >> 4) {
        Some(4) => (be16(ip, 2).map(u32::from), 20),
        Some(6) => (be16(ip, 4).filter(|&payload| payload != 0).map(|payload| u32::from(payload) + 40), 40),
        _ => (None, 0),
    };
    said.filter(|said| (least..=lengths.here).contains(said)).map_or(lengths.wire, |said| lengths.whole(said))
}

/// Tells frames that were sent to one station from those sent to a group.
pub(crate) fn link_of(cx: &Context<'_>, frame: &Frame) -> Link {
    let group = is_ethernet(cx, frame) && cx.data(frame).first().is_some_and(|b| b & 1 != 0);
    if group { Link::Group } else { Link::Unicast }
}

/// Sends an IP packet back to where `frame` came from, by `port`.
pub(crate) fn send_back(fx: &mut FunctionContext<'_, '_>, frame: &Frame, ip: &[u8], port: u8) {
    let cx = &mut *fx.cx;
    let l3 = usize::from(frame.info.l3());
    let mut bytes = cx.data(frame).get(..l3).unwrap_or_default().to_vec();
    if is_ethernet(cx, frame)
        && let Some(macs) = bytes.first_chunk_mut::<12>()
    {
        macs.rotate_left(6);
    }
    bytes.extend_from_slice(ip);
    let meta = cx.pool.meta(frame.buf);
    let meta = PacketMeta { original_len: bytes.len() as u32, time: cx.now, ..meta };
    let link = cx.link(frame);
    let buf = cx.pool.insert(meta, &bytes);
    let mut made = Frame::unclassified(cx.now, buf, bytes.len() as u32);
    made.info = classify(link, &bytes).map_or(Info::default(), |h| Info::new(&h));
    fx.made.push(NewPacket::new(made, port));
}
