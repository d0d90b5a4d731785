//! Slice, a permitted rewrite, splice equals the rewrite alone, byte for byte: both ways of keeping payloads,
//! every shape of packet.

use proptest::prelude::*;
use slipstream::frame::Frame;
use slipstream::pool::{PacketMeta, Pool};
use slipstream::slice::{
    Amount, DSCP_SLICED, PayloadTable, SliceConfig, Sliced, Slicer, Spliced, Splicer, Storage, TOKEN_LEN,
    TokenKey, TokenMode,
};
use slipstream::time::Nanos;
use slipstream_wire::checksum::{Verdict, fill_transport, verify_ip, verify_transport};
use slipstream_wire::{Flags, LinkType, classify, classify_reference, ip_end};

use super::packets::{Spec, spec};
use super::rewrite::{Rewrite, rewrite};

/// Both ends, and the table between them.
pub(crate) struct Pair {
    pub(crate) table: PayloadTable,
    pub(crate) slicer: Slicer,
    pub(crate) splicer: Splicer,
    /// The buffer in which packets are spliced.
    room: Vec<u8>,
}

impl Pair {
    pub(crate) fn new(config: &SliceConfig) -> Self {
        Self {
            table: PayloadTable::new(config, 0).unwrap(),
            slicer: Slicer::new(config).unwrap(),
            splicer: Splicer::new(config).unwrap(),
            room: vec![0xee; 80_000],
        }
    }

    /// Slices a copy of a frame.
    pub(crate) fn slice(&mut self, link: LinkType, frame: &[u8], now: u64) -> (Sliced, Vec<u8>) {
        let mut buffer = frame.to_vec();
        buffer.resize(frame.len() + 8, 0xee);
        let done = self.slicer.slice(&mut self.table, link, &mut buffer, frame.len(), Nanos(now));
        let len = match done {
            Sliced::Sliced { len, .. } | Sliced::Empty { len, .. } => len,
            _ => frame.len(),
        };
        buffer.truncate(len);
        (done, buffer)
    }

    /// Splices a copy of a frame.
    pub(crate) fn splice(
        &mut self,
        link: LinkType,
        frame: &[u8],
        now: u64,
    ) -> Result<(Spliced, Vec<u8>), slipstream::slice::Refusal> {
        let Self { table, splicer, room, .. } = self;
        room[..frame.len()].copy_from_slice(frame);
        let done = splicer.splice(table, link, room, frame.len(), Nanos(now))?;
        let len = match done {
            Spliced::Untouched => frame.len(),
            Spliced::Whole { len } | Spliced::Quote { len } => len,
        };
        Ok((done, room[..len].to_vec()))
    }
}

pub(crate) fn config() -> SliceConfig {
    SliceConfig {
        entries: 16,
        storage: Storage::Copied { entry_bytes: 0xffff },
        key: TokenKey::from_seed(5),
        threshold: 0,
        ..SliceConfig::default()
    }
}

/// Through the pool, the payload staying where it is.
fn in_place(config: &SliceConfig, link: LinkType, frame: &[u8], f: impl Fn(Vec<u8>) -> Vec<u8>) -> Vec<u8> {
    let config = SliceConfig { storage: Storage::InPlace, ..config.clone() };
    let (mut pool, mut pair) = (Pool::new(), Pair::new(&config));
    let meta = PacketMeta { original_len: frame.len() as u32, ..PacketMeta::default() };
    let buf = pool.insert(meta, frame);
    let mut handle = Frame::unclassified(Nanos(0), buf, frame.len() as u32);
    pair.slicer.slice_frame(&mut pair.table, &mut pool, link, &mut handle, Nanos(0), 1);
    let sliced = pool.data(handle.buf, handle.len).to_vec();
    let changed = f(sliced.clone());
    // As a function does that changes the front.
    let same = sliced.iter().rev().zip(changed.iter().rev()).take_while(|(a, b)| a == b).count();
    let front = &changed[..changed.len() - same];
    (handle.buf, handle.len) =
        pool.replace_front(handle.buf, handle.len, (sliced.len() - same) as u32, front);
    pair.splicer.splice_frame(&mut pair.table, &mut pool, link, &mut handle, Nanos(1)).unwrap();
    let out = pool.data(handle.buf, handle.len).to_vec();
    assert_eq!(pool.meta(handle.buf).original_len as usize, out.len(), "the length on the wire");
    pool.free(handle.buf);
    assert_eq!((pool.live(), pair.table.waiting()), (0, 0));
    pair.table.audit().unwrap();
    out
}

/// Ports pad what is shorter than an Ethernet frame may be.
fn padded(link: LinkType, mut frame: Vec<u8>) -> Vec<u8> {
    if link == LinkType::Ethernet && frame.len() < 60 {
        frame.resize(60, 0);
    }
    frame
}

fn rewrites() -> impl Strategy<Value = Vec<Rewrite>> {
    prop::collection::vec(rewrite(), 0..5).prop_map(|mut all| {
        // No more tunnels than are looked into.
        let mut tunnels = 0;
        all.retain(|r| {
            tunnels += u32::from(matches!(r, Rewrite::Tunnel { .. }));
            tunnels <= 3 || !matches!(r, Rewrite::Tunnel { .. })
        });
        all
    })
}

fn amount() -> impl Strategy<Value = Amount> {
    prop_oneof![
        4 => Just(Amount::Share(1.0)),
        1 => (0.0f64..=1.0).prop_map(Amount::Share),
        1 => prop_oneof![Just(160u16), Just(320), any::<u16>()].prop_map(Amount::Bytes),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn slice_rewrite_splice_is_the_rewrite_alone(
        spec in spec(),
        rewrites in rewrites(),
        keep_bytes in prop_oneof![3 => Just(0u16), 1 => 0u16..100],
        amount in amount(),
        paper in any::<bool>(),
    ) {
        let (link, frame) = (spec.link(), spec.build());
        let changes_dscp = rewrites.iter().any(|r| matches!(r, Rewrite::Dscp(_)))
            // Without the mark outside, only a keyed token is looked at.
            || rewrites.iter().any(|r| matches!(r, Rewrite::Tunnel { copies_tos: false, .. }));
        let mode = if paper && !changes_dscp { TokenMode::Paper } else { TokenMode::Keyed };
        let recomputes = |r: &Rewrite| matches!(r, Rewrite::Recompute(..));
        let f = |frame: Vec<u8>| {
            let mut frame = frame;
            for r in rewrites.iter().filter(|r| spec.is_right() || !recomputes(r)) {
                frame = r.apply(link, frame);
            }
            frame
        };
        let config = SliceConfig { keep_bytes, amount, mode, ..config() };
        let alone = f(frame.clone());
        let mut pair = Pair::new(&config);
        let (done, sliced) = pair.slice(link, &frame, 0);
        let sliceable = matches!(done, Sliced::Sliced { .. } | Sliced::Empty { .. });
        let back = f(sliced);
        let back = if sliceable { padded(link, back) } else { back };
        let (_, out) = pair.splice(link, &back, 1).unwrap();
        prop_assert!(out == alone, "{done:?}\n{out:02x?}\n{alone:02x?}");
        prop_assert_eq!(pair.table.waiting(), 0);
        pair.table.audit().unwrap();
        prop_assert!(in_place(&config, link, &frame, f) == alone, "in place: {:?}", done);
    }

    /// The slow way to slice: parse, put together anew, compute every checksum.
    #[test]
    fn a_sliced_packet_is_what_the_slow_way_makes(spec in spec(), keep_bytes in 0u16..100) {
        let (link, frame) = (spec.link(), spec.build());
        let mut pair = Pair::new(&SliceConfig { keep_bytes, ..config() });
        let (done, sliced) = pair.slice(link, &frame, 0);
        let Sliced::Sliced { len, parked, token } = done else { return Ok(()) };
        let headers = classify_reference(link, &frame).unwrap();
        let (l3, l4, end) = (usize::from(headers.l3), usize::from(headers.l4), ip_end(&frame, &headers));
        let header = if spec.tcp { usize::from(frame[l4 + 12] >> 4) * 4 } else { 8 };
        let at = l4 + header + usize::from(keep_bytes);
        prop_assert_eq!((parked, len), (end - at, at + TOKEN_LEN + frame.len() - end));
        let mut twin = [&frame[..at], &token.to_bytes(), &frame[end..]].concat();
        let new_end = at + TOKEN_LEN;
        if spec.six {
            twin[l3 + 4..l3 + 6].copy_from_slice(&((new_end - l3 - 40) as u16).to_be_bytes());
            twin[l3] |= 0x0f;
            twin[l3 + 1] |= 0xc0;
        } else {
            twin[l3 + 2..l3 + 4].copy_from_slice(&((new_end - l3) as u16).to_be_bytes());
            twin[l3 + 1] |= 0xfc;
            // Right if it was, and a wrong one stays wrong.
            let right = verify_ip(&frame, &headers) == Verdict::Right;
            prop_assert_eq!(verify_ip(&sliced, &headers) == Verdict::Right, right);
            twin[l3 + 10..l3 + 12].copy_from_slice(&sliced[l3 + 10..l3 + 12]);
        }
        if !spec.tcp {
            twin[l4 + 4..l4 + 6].copy_from_slice(&((new_end - l4) as u16).to_be_bytes());
        }
        if spec.tcp || !spec.no_checksum {
            let headers = classify(link, &twin).unwrap();
            prop_assert!(fill_transport(&mut twin, &headers));
        }
        prop_assert!(sliced == twin, "{sliced:02x?}\n{twin:02x?}");
        // Any function takes it for a packet.
        let headers = classify(link, &sliced).unwrap();
        prop_assert_eq!(headers.tos >> 2, DSCP_SLICED);
        prop_assert_ne!(verify_transport(&sliced, &headers), Verdict::Wrong);
        prop_assert!(!headers.flags.has(Flags::FRAGMENT));
    }
}

#[test]
fn a_plain_packet_travels_as_62_bytes() {
    let spec = Spec::plain(false, true);
    let mut pair = Pair::new(&config());
    let (done, sliced) = pair.slice(spec.link(), &spec.build(), 0);
    assert!(matches!(done, Sliced::Sliced { len: 62, parked: 1000, .. }), "{done:?}");
    assert_eq!(sliced.len(), 14 + 20 + 20 + 8);
    let (_, out) = pair.splice(spec.link(), &sliced, 1).unwrap();
    assert_eq!(out, spec.build());
}
