//! Fragments of packets that are longer than a link takes.

use slipstream_wire::checksum::checksum;
use slipstream_wire::{classify, protocol};

use super::bytes::{be16, put};
use slipstream_core::frame::{Frame, Info};
use slipstream_core::pool::PacketMeta;
use slipstream_core::stage::Context;

const MORE_FRAGMENTS: u16 = 0x2000;

/// A fragment: what it has of the captured bytes, and how long it is on the wire.
pub(crate) type Fragment = (Vec<u8>, u32);

/// The fragments (RFC 791 §2.3) of an IPv4 packet whose header is right, for a link of this MTU; each has so
/// many hops less to live.
pub(crate) fn of_ipv4(ip: &[u8], mtu: u32, hops: u8) -> Option<Vec<Fragment>> {
    let total = usize::from(be16(ip, 2)?);
    let header = ip.get(..usize::from(ip.first()? & 15) * 4)?;
    let word = be16(header, 6)?;
    let (first_offset, more) = (usize::from(word & 0x1fff), word & MORE_FRAGMENTS != 0);
    let later = with_copied_options(header)?;
    let length = total.checked_sub(header.len())?;
    let mut made = Vec::new();
    let mut at = 0;
    while at < length {
        let header = if at == 0 { header } else { &later };
        let room = (mtu as usize).checked_sub(header.len())? & !7;
        let here = room.min(length - at);
        if here == 0 {
            return None;
        }
        let last = at + here == length;
        let mut bytes = header.to_vec();
        let flags = if last && !more { 0 } else { MORE_FRAGMENTS };
        let offset = u16::try_from(first_offset + at / 8).ok().filter(|offset| *offset < 0x2000)?;
        put(&mut bytes, 2, &((header.len() + here) as u16).to_be_bytes());
        put(&mut bytes, 6, &(flags | offset).to_be_bytes());
        let lives = bytes.get_mut(8)?;
        *lives = lives.saturating_sub(hops);
        put(&mut bytes, 10, &[0, 0]);
        let sum = checksum(&bytes);
        put(&mut bytes, 10, &sum.to_be_bytes());
        let on_wire = (header.len() + here) as u32;
        let start = (total - length + at).min(ip.len());
        bytes.extend_from_slice(ip.get(start..(start + here).min(ip.len()))?);
        made.push((bytes, on_wire));
        at += here;
    }
    Some(made)
}

/// A header with those options that all fragments carry.
fn with_copied_options(header: &[u8]) -> Option<Vec<u8>> {
    let mut made = header.get(..20)?.to_vec();
    let mut rest = header.get(20..)?;
    while let Some(&kind) = rest.first() {
        let len = match kind {
            0 => break,
            1 => 1,
            _ => usize::from(*rest.get(1)?).max(2),
        };
        let option = rest.get(..len)?;
        if kind & 0x80 != 0 {
            made.extend(option);
        }
        rest = rest.get(len..)?;
    }
    made.resize(made.len().next_multiple_of(4), 0);
    *made.first_mut()? = 0x40 | (made.len() / 4) as u8;
    Some(made)
}

/// The fragments (RFC 8200 §4.5) of an IPv6 packet without extension headers, for a link of this MTU.
pub(crate) fn of_ipv6(ip: &[u8], mtu: u32, ident: u32) -> Option<Vec<Fragment>> {
    let header = ip.get(..40)?;
    let (length, next) = (usize::from(be16(header, 4)?), *header.get(6)?);
    let room = (mtu as usize).checked_sub(48).map(|room| room & !7).filter(|room| *room > 0)?;
    let fragment = |at: usize| {
        let here = room.min(length - at);
        let mut bytes = header.to_vec();
        put(&mut bytes, 4, &((here + 8) as u16).to_be_bytes());
        put(&mut bytes, 6, &[protocol::FRAGMENT]);
        let offset = at as u16 | u16::from(at + here < length);
        bytes.extend([next, 0]);
        bytes.extend(offset.to_be_bytes());
        bytes.extend(ident.to_be_bytes());
        let start = (40 + at).min(ip.len());
        bytes.extend_from_slice(ip.get(start..(start + here).min(ip.len())).unwrap_or_default());
        (bytes, (48 + here) as u32)
    };
    Some((0..length).step_by(room).map(fragment).collect())
}

/// The fragments of a frame's packet as frames, each behind what stands before the packet, which begins at
/// `start`. The frame stays.
pub(crate) fn frames(
    cx: &mut Context<'_>,
    frame: &Frame,
    start: usize,
    parts: Vec<Fragment>,
) -> Option<Vec<Frame>> {
    let link = cx.link(frame);
    let meta = cx.pool.meta(frame.buf);
    let front = cx.data(frame).get(..start)?.to_vec();
    let store = |(ip, on_wire): Fragment| {
        let bytes = [front.as_slice(), &ip].concat();
        let meta = PacketMeta { original_len: start as u32 + on_wire, ..meta };
        let buf = cx.pool.insert(meta, &bytes);
        let info = classify(link, &bytes).map_or(Info::default(), |h| Info::new(&h));
        Frame { buf, len: bytes.len() as u32, info, flow: Frame::NO_FLOW, ..*frame }
    };
    Some(parts.into_iter().map(store).collect())
}
