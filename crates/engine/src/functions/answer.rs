//! Packets that functions make in answer to others, with the link-layer header turned round.

use slipstream_wire::classify;

use super::function::{Made, Scene};
use super::icmp::Link;
use super::packet::is_ethernet;
use crate::frame::{Frame, Info};
use crate::pool::PacketMeta;
use crate::stage::Context;

/// The IP packet of a frame: what stands behind its link-layer header, as far as it was captured.
#[inline]
pub(crate) fn ip_packet<'a>(cx: &'a Context<'_>, frame: &Frame) -> &'a [u8] {
    cx.data(frame).get(usize::from(frame.info.l3())..).unwrap_or_default()
}

/// Whether a frame was sent to one station.
pub(crate) fn link_of(cx: &Context<'_>, frame: &Frame) -> Link {
    let group = is_ethernet(cx, frame) && cx.data(frame).first().is_some_and(|b| b & 1 != 0);
    if group { Link::Group } else { Link::Unicast }
}

/// Sends an IP packet back to where `frame` came from, by `port`.
pub(crate) fn send_back(scene: &mut Scene<'_, '_>, frame: &Frame, ip: &[u8], port: u8) {
    let cx = &mut *scene.cx;
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
    scene.made.push(Made { frame: made, port });
}
