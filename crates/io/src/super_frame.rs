//! Super-frames on their way out: packets of a train that were marked as belonging together
//! ([`Info::joins`](slipstream_core::frame::Info::joins)) are handed to the kernel as one, behind a header
//! that says how they are to be cut (`virtio_net_hdr`).
//!
//! Since they were marked, stages may have rewritten them, dropped some, or put others between. So their
//! headers are held against each other once more, and checksums are verified, since the kernel writes new
//! ones. What leaves as one is what the kernel's segmentation turns into the very packets that are here. The
//! kernel copies payloads next, so that reading them costs little more.

use slipstream_core::frame::Frame;
use slipstream_core::pool::Pool;
use slipstream_wire::gro::{Kind, Limits, Segment, SuperFrame, SuperHeader};

use crate::offload::HEADER;

/// Bytes of the header before a frame.
pub const HEADER_BYTES: usize = HEADER;

/// Most packets that leave as one: as many as a batch has.
pub(crate) const MOST: usize = slipstream_core::batch::BATCH;

/// The frames that a port may send as one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Takes {
    /// Longest packet in bytes, from its IP header on.
    pub(crate) mtu: u32,
    /// UDP as well; kernels before 6.2 can't.
    pub(crate) udp: bool,
}

/// A super-frame without its payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Super {
    /// The header before it.
    pub(crate) offload: [u8; HEADER],
    /// Its own headers.
    pub(crate) headers: SuperHeader,
    /// Packets that it is of, at the start of the frames that were given: at least 2.
    pub(crate) packets: usize,
}

/// A packet that is whole, with Ethernet before it.
fn segment<'a>(pool: &'a Pool, frame: &Frame) -> Option<Segment<'a>> {
    let (wire, data) = pool.unsliced(frame.buf, frame.len)?;
    let whole = wire == frame.len && frame.info.classified() && frame.info.l3() >= 14;
    whole.then(|| Segment::parse(data, frame.info.l3(), frame.info.l4()).ok())?
}

impl Super {
    /// Of packets at the start of `frames`; `None` where the first one leaves by itself. Packets that leave
    /// by themselves for a wrong checksum are added to `wrong`.
    pub(crate) fn of(pool: &Pool, frames: &[Frame], takes: Takes, wrong: &mut u64) -> Option<Self> {
        let (one, others) = frames.split_first()?;
        if !others.first()?.info.joins() {
            return None;
        }
        let first = segment(pool, one)?;
        let (mut run, mut last) = (SuperFrame::start(&first), first);
        if run.bytes() > takes.mtu {
            return None;
        }
        let limits = Limits { bytes: Limits::MOST_BYTES, segments: MOST as u16 };
        for frame in others {
            if !frame.info.joins() {
                break;
            }
            let Some(next) = segment(pool, frame) else { break };
            let mut longer = run;
            // Whoever cuts it numbers IPv4 packets.
            if longer.join(&last, &next, limits).is_err() || longer.has_fixed_id() {
                break;
            }
            if run.segments() == 1 && !first.checksums_are_right() {
                // One that was to join the packet before it has been counted by then.
                *wrong += u64::from(!one.info.joins());
                return None;
            }
            if !next.checksums_are_right() {
                *wrong += 1;
                break;
            }
            (run, last) = (longer, next);
        }
        let packets = usize::from(run.segments());
        let headers = SuperHeader::new(&run, &first, &last);
        if packets < 2 || (headers.kind == Kind::Udp && !takes.udp) {
            return None;
        }
        Some(Self { offload: offload(&headers), headers, packets })
    }

    /// The payload of one of its packets.
    pub(crate) fn payload<'a>(&self, pool: &'a Pool, frame: &Frame) -> &'a [u8] {
        // All have headers of one length.
        pool.data(frame.buf, frame.len).get(self.headers.bytes().len()..).unwrap_or_default()
    }
}

/// The header before a super-frame: the kernel is to calculate checksums, and to cut (virtio 1.2, §5.1.6.2).
fn offload(headers: &SuperHeader) -> [u8; HEADER] {
    const NEEDS_CHECKSUM: u8 = 1;
    let kind = match headers.kind {
        Kind::Tcp4 => 1,
        Kind::Tcp6 => 4,
        Kind::Udp => 5,
    };
    let [h0, h1] = (headers.bytes().len() as u16).to_ne_bytes();
    let [s0, s1] = headers.size.to_ne_bytes();
    let (start, offset) = headers.checksum_place();
    let ([c0, c1], [o0, o1]) = (start.to_ne_bytes(), offset.to_ne_bytes());
    [NEEDS_CHECKSUM, kind, h0, h1, s0, s1, c0, c1, o0, o1]
}

/// Packets as super-frames, and these cut again, as a whole: for tests and measurements of both.
///
/// Calls `each` with the packets that come of `frames`, in their order, after all that may be sent as one was
/// put into one frame, and cut by its header as the receiving side of a port cuts what the kernel hands over.
/// Returns super-frames and the packets in them.
pub fn there_and_back(pool: &Pool, frames: &[Frame], each: &mut dyn FnMut(&[u8])) -> (u64, u64) {
    let mut segmenter = crate::offload::Segmenter::default();
    let (mut bytes, mut packet, mut rest) = (Vec::new(), Vec::new(), frames);
    let (mut supers, mut packets, mut wrong) = (0, 0, 0);
    while let Some(one) = rest.first() {
        let Some(whole) = Super::of(pool, rest, Takes { mtu: u32::MAX, udp: true }, &mut wrong) else {
            each(pool.data(one.buf, one.len));
            rest = rest.get(1..).unwrap_or_default();
            continue;
        };
        bytes.clear();
        bytes.extend_from_slice(whole.headers.bytes());
        let (those, after) = rest.split_at_checked(whole.packets).unwrap_or_default();
        for frame in those {
            bytes.extend_from_slice(whole.payload(pool, frame));
        }
        rest = after;
        (supers, packets) = (supers + 1, packets + whole.packets as u64);
        if segmenter.take(&bytes, crate::offload::Offload::read(&whole.offload)) {
            while segmenter.next(&mut packet) {
                each(&packet);
            }
        }
    }
    (supers, packets)
}

/// A frame that came behind a header (`virtio_net_hdr`) of any bytes, as a port with such headers takes it:
/// for tests.
///
/// Calls `each` with the packets that a super-frame is cut into, or with the frame, its checksum completed.
/// Returns false where it is a super-frame that can't be cut: ports count it, and nothing comes of it.
pub fn taken_in(header: &[u8; HEADER_BYTES], frame: &mut [u8], each: &mut dyn FnMut(&[u8])) -> bool {
    let offload = crate::offload::Offload::read(header);
    if !offload.is_super_frame() {
        offload.complete(frame);
        each(frame);
        return true;
    }
    let (mut segmenter, mut packet) = (crate::offload::Segmenter::default(), Vec::new());
    let cuts = segmenter.take(frame, offload);
    while segmenter.next(&mut packet) {
        each(&packet);
    }
    cuts
}
