//! The usual packet's own way and the general one are the same: bytes, verdicts and counters, of any traffic,
//! through buffers and through the pool. There the general way puts every sliced packet into a buffer of its
//! own, the other leaves it before its payload where it can.

use proptest::prelude::*;
use slipstream::frame::Frame;
use slipstream::pool::{PacketMeta, Pool};
use slipstream::rules::Rule;
use slipstream::slice::{
    Amount, Marked, PayloadTable, SliceConfig, Sliced, Slicer, Spliced, Splicer, Storage, TOKEN_LEN, Token,
    TokenKey, TokenMode,
};
use slipstream::time::Nanos;
use slipstream_wire::LinkType;

use super::packets::{Spec, spec};
use super::rewrite::{Rewrite, rewrite};

/// Mostly the packets that fill a link.
fn packet() -> impl Strategy<Value = Spec> {
    (spec(), 0u8..8).prop_map(|(mut spec, odd)| {
        if odd > 0 {
            (spec.ethernet, spec.six, spec.options) = (true, false, 0);
            spec.tags.clear();
        }
        if odd > 1 {
            spec.trailer = 0;
        }
        spec
    })
}

/// An event before a packet is sliced.
#[derive(Clone, Debug)]
enum Before {
    Nothing,
    /// A byte of the first 60 has another value.
    Byte(u8, u8),
    /// It is captured up to so many bytes.
    Cut(u16),
    /// It ends in the last token that was made.
    Replay,
}

/// An event on the way to the splicer.
#[derive(Clone, Debug)]
enum Between {
    Rewrite(Vec<Rewrite>),
    /// A byte of the first 70 has another value.
    Byte(u8, u8),
    /// A port pads it.
    Pad,
    Drop,
    Twice,
}

fn steps() -> impl Strategy<Value = Vec<(Spec, Before, Between, u8)>> {
    let before = prop_oneof![
        6 => Just(Before::Nothing),
        2 => (0u8..60, any::<u8>()).prop_map(|(at, value)| Before::Byte(at, value)),
        1 => (0u16..1600).prop_map(Before::Cut),
        1 => Just(Before::Replay),
    ];
    let between = prop_oneof![
        4 => prop::collection::vec(rewrite(), 0..3).prop_map(Between::Rewrite),
        3 => (0u8..70, any::<u8>()).prop_map(|(at, value)| Between::Byte(at, value)),
        1 => Just(Between::Pad),
        1 => Just(Between::Drop),
        1 => Just(Between::Twice),
    ];
    // The last number counts the packets that overtake it on the way to the splicer.
    prop::collection::vec((packet(), before, between, 0u8..4), 1..30)
}

fn config() -> impl Strategy<Value = SliceConfig> {
    let amount = prop_oneof![
        6 => Just(Amount::Share(1.0)),
        1 => (0.0f64..=1.0).prop_map(Amount::Share),
        1 => (0u16..600).prop_map(Amount::Bytes),
    ];
    let storage = prop_oneof![
        Just(Storage::InPlace),
        (1u32..3000).prop_map(|entry_bytes| Storage::Copied { entry_bytes }),
    ];
    let table = (prop_oneof![1u32..4, 8u32..20], 1u16..4, storage, any::<bool>());
    let what = (0u32..800, prop_oneof![3 => Just(0u16), 2 => 0u16..60], amount, any::<bool>());
    let more = (0u8..4, prop_oneof![2 => Just(65_535u32), 1 => 68u32..2000], prop::option::of(0u64..4));
    (table, what, more).prop_map(|(table, what, more)| SliceConfig {
        entries: table.0,
        ttl: table.1,
        storage: table.2,
        mode: if table.3 { TokenMode::Paper } else { TokenMode::Keyed },
        key: TokenKey::from_seed(11),
        threshold: what.0,
        keep_bytes: what.1,
        amount: what.2,
        rules: if what.3 { Rule::always() } else { Rule::parse("tcp").unwrap() },
        marked: [Marked::Slice, Marked::Slice, Marked::Drop, Marked::Remark(8)][usize::from(more.0)],
        mtu: more.1,
        max_age_ns: more.2,
        ..SliceConfig::default()
    })
}

/// One of the two ways.
struct Way {
    table: PayloadTable,
    slicer: Slicer,
    splicer: Splicer,
    pool: Pool,
}

impl Way {
    fn new(config: &SliceConfig, quick: bool) -> Self {
        let table = PayloadTable::new(config, 0).unwrap();
        let (slicer, splicer) = (Slicer::new(config).unwrap(), Splicer::new(config).unwrap());
        let (slicer, splicer) =
            if quick { (slicer, splicer) } else { (slicer.without_shortcuts(), splicer.without_shortcuts()) };
        Self { table, slicer, splicer, pool: Pool::new() }
    }

    /// Slices a copy of a frame in a buffer.
    fn slice(&mut self, link: LinkType, frame: &[u8], now: u64) -> (Sliced, Vec<u8>) {
        let mut buffer = frame.to_vec();
        buffer.resize(frame.len() + 8, 0xee);
        let done = self.slicer.slice(&mut self.table, link, &mut buffer, frame.len(), Nanos(now));
        buffer.truncate(match done {
            Sliced::Sliced { len, .. } | Sliced::Empty { len, .. } => len,
            _ => frame.len(),
        });
        (done, buffer)
    }

    fn splice(&mut self, link: LinkType, frame: &[u8], now: u64) -> (String, Vec<u8>) {
        let mut buffer = frame.to_vec();
        // Sometimes there is too little room.
        buffer.resize(frame.len() + 1200, 0xee);
        let done = self.splicer.splice(&mut self.table, link, &mut buffer, frame.len(), Nanos(now));
        buffer.truncate(match done {
            Ok(Spliced::Whole { len } | Spliced::Quote { len }) => len,
            _ => frame.len(),
        });
        (format!("{done:?}"), buffer)
    }

    /// Slices a packet in the pool; returns it and its handle's description.
    fn slice_frame(&mut self, link: LinkType, frame: &[u8], now: u64) -> (Sliced, Vec<u8>, Frame) {
        let meta = PacketMeta { original_len: frame.len() as u32 + 3, interface: 5, time: Nanos(now) };
        let buf = self.pool.insert(meta, frame);
        let mut handle = Frame::unclassified(Nanos(now), buf, frame.len() as u32);
        if let Ok(headers) = slipstream_wire::classify(link, frame) {
            handle.info = slipstream::frame::Info::new(&headers);
        }
        let Self { table, slicer, pool, .. } = self;
        let done = slicer.slice_frame(table, pool, link, &mut handle, Nanos(now), 3);
        (done, pool.data(handle.buf, handle.len).to_vec(), handle)
    }

    /// Gives the packet other bytes, and splices it. Returns what came out, with all that is known of it.
    fn splice_frame(
        &mut self,
        link: LinkType,
        mut handle: Frame,
        bytes: &[u8],
        now: u64,
    ) -> (String, Vec<u8>) {
        let Self { table, splicer, pool, .. } = self;
        if bytes.len() == handle.len as usize {
            // As functions do that leave the length of headers: the packet stays where it is.
            pool.data_mut(handle.buf, handle.len).copy_from_slice(bytes);
        } else {
            (handle.buf, handle.len) = pool.replace_front(handle.buf, handle.len, handle.len, bytes);
        }
        let done = splicer.splice_frame(table, pool, link, &mut handle, Nanos(now));
        let out = pool.data(handle.buf, handle.len).to_vec();
        let about = format!("{done:?} {:?} {:?}", pool.meta(handle.buf), handle.info);
        pool.free(handle.buf);
        pool.take_dropped(3, |token| {
            let _gone = table.release(Token(token));
        });
        (about, out)
    }

    fn counters(&self) -> String {
        let (table, slicer) = (self.table.counters(), self.slicer.counters());
        self.table.audit().unwrap();
        format!("{table:?} {slicer:?} {:?}", self.splicer.counters())
    }

    /// Buffers in use once no payload waits for a packet any more.
    fn left(mut self) -> u64 {
        self.table.reset();
        // The next packet that comes gives back what was given up.
        let (_, _, small) = self.slice_frame(LinkType::Ethernet, &[0; 20], 0);
        self.pool.free(small.buf);
        self.pool.live()
    }
}

fn before(mut frame: Vec<u8>, what: &Before, last: Option<Token>) -> Vec<u8> {
    match (what, last) {
        (Before::Byte(at, value), _) => {
            if let Some(byte) = frame.get_mut(usize::from(*at)) {
                *byte = *value;
            }
        }
        (Before::Cut(len), _) => frame.truncate(usize::from(*len)),
        (Before::Replay, Some(token)) if frame.len() >= TOKEN_LEN => {
            let at = frame.len() - TOKEN_LEN;
            frame[at..].copy_from_slice(&token.to_bytes());
        }
        _ => {}
    }
    frame
}

/// The packets that reach the splicer; only one that came whole can be rewritten.
fn between(link: LinkType, frame: &[u8], what: &Between, whole: bool) -> Vec<Vec<u8>> {
    let mut out = frame.to_vec();
    match what {
        Between::Rewrite(all) if whole => out = all.iter().fold(out, |frame, r| r.apply(link, frame)),
        Between::Byte(at, value) => {
            if let Some(byte) = out.get_mut(usize::from(*at)) {
                *byte = *value;
            }
        }
        Between::Pad => out.resize(out.len().max(60), 0),
        Between::Drop => return Vec::new(),
        Between::Twice => return vec![out.clone(), out],
        Between::Rewrite(_) => {}
    }
    vec![out]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn buffers(steps in steps(), config in config()) {
        let config = match config.storage {
            Storage::InPlace => SliceConfig { storage: Storage::Copied { entry_bytes: 2000 }, ..config },
            Storage::Copied { .. } => config,
        };
        let mut ways = [Way::new(&config, true), Way::new(&config, false)];
        let (mut waiting, mut last) = (Vec::new(), None);
        for (now, (spec, first, then, late)) in (0u64..).zip(&steps) {
            let (link, frame) = (spec.link(), before(spec.build(), first, last));
            let [(done, sliced), (slow, twin)] = ways.each_mut().map(|way| way.slice(link, &frame, now));
            prop_assert!((done, &sliced) == (slow, &twin), "{:?} {:?}\n{:02x?}\n{:02x?}", done, slow, sliced, twin);
            if let Sliced::Sliced { token, .. } | Sliced::Empty { token, .. } = done {
                last = Some(token);
            }
            for packet in between(link, &sliced, then, matches!(first, Before::Nothing)) {
                waiting.push((now + u64::from(*late), link, packet));
            }
            for (_, link, packet) in waiting.extract_if(.., |(when, ..)| *when <= now) {
                let [(done, out), (slow, twin)] = ways.each_mut().map(|way| way.splice(link, &packet, now));
                prop_assert!((&done, &out) == (&slow, &twin), "{} {}\n{:02x?}\n{:02x?}", done, slow, out, twin);
            }
            prop_assert_eq!(ways[0].counters(), ways[1].counters());
        }
    }

    #[test]
    fn pools(steps in steps(), config in config()) {
        let mut ways = [Way::new(&config, true), Way::new(&config, false)];
        let (mut waiting, mut last) = (Vec::new(), None);
        for (now, (spec, first, then, late)) in (0u64..).zip(&steps) {
            let (link, frame) = (spec.link(), before(spec.build(), first, last));
            let [(done, sliced, quick), (slow, twin, plain)] =
                ways.each_mut().map(|way| way.slice_frame(link, &frame, now));
            prop_assert!((done, &sliced) == (slow, &twin), "{:?} {:?}\n{:02x?}\n{:02x?}", done, slow, sliced, twin);
            if let Sliced::Sliced { token, .. } | Sliced::Empty { token, .. } = done {
                last = Some(token);
            }
            let reach = between(link, &sliced, then, matches!(first, Before::Nothing));
            let handles = [quick, plain];
            match reach.first() {
                Some(packet) => waiting.push((now + u64::from(*late), link, packet.clone(), handles)),
                None => ways.iter_mut().zip(handles).for_each(|(way, handle)| way.pool.free(handle.buf)),
            }
            if let [_, copied] = &*reach {
                // A copy in a buffer of its own, which comes as much later or sooner.
                let copies = ways.each_mut().map(|way| {
                    let meta = PacketMeta { original_len: frame.len() as u32 + 3, interface: 5, time: Nanos(now) };
                    Frame { buf: way.pool.insert(meta, &sliced), ..handles[0] }
                });
                let first = now + u64::from(*late ^ 2);
                waiting.push((first, link, copied.clone(), copies));
            }
            for (_, link, packet, handles) in waiting.extract_if(.., |(when, ..)| *when <= now) {
                let [quick, plain] = &mut ways;
                let (done, out) = quick.splice_frame(link, handles[0], &packet, now);
                let (slow, twin) = plain.splice_frame(link, handles[1], &packet, now);
                prop_assert!((&done, &out) == (&slow, &twin), "{} {}\n{:02x?}\n{:02x?}", done, slow, out, twin);
            }
            prop_assert_eq!(ways[0].counters(), ways[1].counters());
        }
        for (.., handles) in waiting {
            ways.iter_mut().zip(handles).for_each(|(way, handle)| way.pool.free(handle.buf));
        }
        // However packets and payloads left, every buffer is free.
        prop_assert_eq!(ways.map(Way::left), [0, 0]);
    }
}
