//! A function that does whatever can go wrong, between slicer and splicer: it drops, delays past the TTL,
//! duplicates, reorders, truncates and forges; and a network that replays, guesses and floods. No packet may
//! leave with somebody else's payload, no entry may be lost, and all counters must add up.
//!
//! The test runs it for a moment, `cargo run --release -p slipstream --example chaos` for as long as one
//! likes.

use std::collections::VecDeque;

use slipstream::frame::Frame;
use slipstream::pool::{PacketMeta, Pool};
use slipstream::slice::splicer::token_of;
use slipstream::slice::{
    PayloadTable, Refusal, SliceConfig, SliceCounters, Sliced, Slicer, SpliceCounters, Spliced, Splicer,
    Storage, TableCounters, Token, TokenKey, TokenMode,
};
use slipstream::time::Nanos;
use slipstream_wire::LinkType;
use slipstream_wire::checksum::{Delta, Verdict, checksum, verify_ip, verify_transport};

const LINK: LinkType = LinkType::Ethernet;
const ENTRIES: u32 = 256;
const TTL: u16 = 4;
/// Offsets in the frames: Ethernet, IPv4, TCP.
const L3: usize = 14;
const TCP: usize = 34;
const PAYLOAD: usize = 54;
const LONGEST: usize = 1514;

/// The counters of a run in which nothing went wrong; a wrong splice panics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// Packets that came from the network, those of attackers included.
    pub(crate) came: u64,
    /// Those of attackers.
    pub(crate) attacks: u64,
    /// Packets that left whole again, each compared with what it was, byte for byte.
    pub(crate) whole: u64,
    /// Packets that were forwarded whole and left as they came.
    pub(crate) untouched: u64,
    /// Counters of the ends and of the table.
    pub(crate) slicer: SliceCounters,
    pub(crate) splicer: SpliceCounters,
    pub(crate) table: TableCounters,
}

/// Numbers that look random (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

/// Both ends and the table, and packets as one or the other way keeps them.
struct Ends {
    pool: Pool,
    table: PayloadTable,
    slicer: Slicer,
    splicer: Splicer,
    in_place: bool,
    spare: Vec<Vec<u8>>,
}

enum Packet {
    Pooled(Frame),
    Bytes(Vec<u8>, usize),
}

impl Ends {
    fn new(config: &SliceConfig) -> Self {
        Self {
            pool: Pool::new(),
            table: PayloadTable::new(config, 0).unwrap(),
            slicer: Slicer::new(config).unwrap(),
            splicer: Splicer::new(config).unwrap(),
            in_place: config.storage == Storage::InPlace,
            spare: Vec::new(),
        }
    }

    fn packet(&mut self, frame: &[u8]) -> Packet {
        if self.in_place {
            let meta = PacketMeta { original_len: frame.len() as u32, ..PacketMeta::default() };
            let buf = self.pool.insert(meta, frame);
            return Packet::Pooled(Frame::unclassified(Nanos(0), buf, frame.len() as u32));
        }
        let mut bytes = self.spare.pop().unwrap_or_else(|| vec![0; LONGEST + 64]);
        bytes[..frame.len()].copy_from_slice(frame);
        Packet::Bytes(bytes, frame.len())
    }

    fn bytes<'a>(&'a self, packet: &'a Packet) -> &'a [u8] {
        match packet {
            Packet::Pooled(frame) => self.pool.data(frame.buf, frame.len),
            Packet::Bytes(bytes, len) => &bytes[..*len],
        }
    }

    fn bytes_mut<'a>(&'a mut self, packet: &'a mut Packet) -> &'a mut [u8] {
        match packet {
            Packet::Pooled(frame) => self.pool.data_mut(frame.buf, frame.len),
            Packet::Bytes(bytes, len) => &mut bytes[..*len],
        }
    }

    fn copy(&mut self, packet: &Packet) -> Packet {
        match packet {
            Packet::Pooled(frame) => {
                Packet::Pooled(Frame { buf: self.pool.copy(frame.buf, frame.len), ..*frame })
            }
            Packet::Bytes(bytes, len) => {
                let bytes = bytes[..*len].to_vec();
                self.packet(&bytes)
            }
        }
    }

    fn truncate(&mut self, packet: &mut Packet, to: usize) {
        match packet {
            Packet::Pooled(frame) => frame.len = to as u32,
            Packet::Bytes(_, len) => *len = to,
        }
    }

    fn free(&mut self, packet: Packet) {
        match packet {
            Packet::Pooled(frame) => self.pool.free(frame.buf),
            Packet::Bytes(bytes, _) => self.spare.push(bytes),
        }
    }

    fn slice(&mut self, packet: &mut Packet, now: Nanos) -> Sliced {
        match packet {
            Packet::Pooled(frame) => {
                self.slicer.slice_frame(&mut self.table, &mut self.pool, LINK, frame, now, 0)
            }
            Packet::Bytes(bytes, len) => {
                let done = self.slicer.slice(&mut self.table, LINK, bytes, *len, now);
                if let Sliced::Sliced { len: new, .. } | Sliced::Empty { len: new, .. } = done {
                    *len = new;
                }
                done
            }
        }
    }

    fn splice(&mut self, packet: &mut Packet, now: Nanos) -> Result<Spliced, Refusal> {
        match packet {
            Packet::Pooled(frame) => {
                self.splicer.splice_frame(&mut self.table, &mut self.pool, LINK, frame, now)
            }
            Packet::Bytes(bytes, len) => {
                let done = self.splicer.splice(&mut self.table, LINK, bytes, *len, now)?;
                if let Spliced::Whole { len: new } | Spliced::Quote { len: new } = done {
                    *len = new;
                }
                Ok(done)
            }
        }
    }
}

/// The word that a packet's payload is made of, over and over.
fn word(id: u64) -> [u8; 8] {
    (id.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x5851_f42d_4c95_7f2d).to_le_bytes()
}

/// A TCP segment that says in its header and everywhere in its payload which packet it is. The checksum is
/// one of headers alone, so that most are wrong, and have to stay wrong by as much.
fn write(frame: &mut [u8; LONGEST], id: u64, payload: usize, tos: u8) -> usize {
    let total = (PAYLOAD - L3 + payload) as u16;
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    frame[L3..L3 + 20]
        .copy_from_slice(&[0x45, tos, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 0, 10, 1, 1, 1]);
    frame[L3 + 2..L3 + 4].copy_from_slice(&total.to_be_bytes());
    frame[L3 + 13..L3 + 16].copy_from_slice(&(id >> 32).to_be_bytes()[5..]);
    let sum = checksum(&frame[L3..L3 + 20]);
    frame[L3 + 10..L3 + 12].copy_from_slice(&sum.to_be_bytes());
    frame[TCP..PAYLOAD].copy_from_slice(&[4, 1, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 2, 0, 0, 0, 0, 0]);
    frame[TCP + 4..TCP + 8].copy_from_slice(&(id as u32).to_be_bytes());
    frame[TCP + 16..TCP + 18].copy_from_slice(&((id >> 3) as u16 | 1).to_be_bytes());
    let word = word(id);
    for chunk in frame[PAYLOAD..PAYLOAD + payload].chunks_mut(8) {
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    PAYLOAD + payload
}

fn id_of(frame: &[u8]) -> u64 {
    let high = u64::from_be_bytes([0, 0, 0, 0, 0, frame[L3 + 13], frame[L3 + 14], frame[L3 + 15]]);
    high << 32
        | u64::from(u32::from_be_bytes([frame[TCP + 4], frame[TCP + 5], frame[TCP + 6], frame[TCP + 7]]))
}

/// Payload and TOS of the packet of this number: a fifth is short, one in sixty carries the mark.
fn shape(id: u64) -> (usize, u8) {
    let mix = Random(id ^ 0xabcd).next();
    let payload = if mix.is_multiple_of(5) { mix >> 8 & 63 } else { 40 + (mix >> 16) % 400 };
    (payload as usize, if mix >> 40 & 63 == 0 { 0xfc } else { (mix >> 48) as u8 & 0x7f })
}

/// The origin of a packet of the network.
#[derive(Clone, Copy, PartialEq)]
enum Origin {
    /// One of ours, with what became of it at the slicer.
    Ours { sliced: bool },
    /// One that the function has spoilt: it may leave only without a payload.
    Spoilt,
}

struct Waiting {
    packet: Packet,
    origin: Origin,
    ready: u64,
}

/// The network and the function around both ends.
struct Chaos {
    ends: Ends,
    random: Random,
    queue: VecDeque<Waiting>,
    late: Vec<Waiting>,
    /// Which packets have left, one bit each: each may once, unless it was never sliced.
    left: Vec<u64>,
    seen: [Vec<u8>; 32],
    scratch: [u8; LONGEST],
    outcome: Outcome,
    keyed: bool,
    clock: u64,
}

impl Chaos {
    fn new(config: &SliceConfig, seed: u64, packets: u64) -> Self {
        Self {
            ends: Ends::new(config),
            random: Random(seed),
            queue: VecDeque::new(),
            late: Vec::new(),
            left: vec![0; (packets / 64 + 1) as usize],
            seen: std::array::from_fn(|_| Vec::new()),
            scratch: [0; LONGEST],
            outcome: Outcome::default(),
            keyed: config.mode == TokenMode::Keyed,
            clock: 0,
        }
    }

    /// A packet of ours comes.
    fn arrives(&mut self, id: u64) {
        let (payload, tos) = shape(id);
        let len = write(&mut self.scratch, id, payload, tos);
        let mut packet = self.ends.packet(&self.scratch[..len]);
        self.outcome.came += 1;
        let done = self.ends.slice(&mut packet, Nanos(self.clock));
        let sliced = matches!(done, Sliced::Sliced { .. } | Sliced::Empty { .. });
        if sliced && self.random.below(16) == 0 {
            let at = self.random.below(32) as usize;
            self.seen[at].clear();
            self.seen[at].extend_from_slice(self.ends.bytes(&packet));
        }
        self.function(packet, Origin::Ours { sliced });
    }

    /// Applies the function to a packet.
    fn function(&mut self, mut packet: Packet, origin: Origin) {
        let chance = self.random.below(100);
        let sliced = origin == Origin::Ours { sliced: true };
        match chance {
            0..5 => return self.ends.free(packet),
            5..8 => {
                // Dropped, and said so.
                let token = token_of(LINK, self.ends.bytes(&packet));
                if let Some(token) = token.filter(|_| sliced) {
                    let _gone = self.ends.table.release(token);
                    if self.random.below(2) == 0 {
                        // And yet it comes.
                        return self.later(packet, Origin::Spoilt);
                    }
                }
                return self.ends.free(packet);
            }
            8..11 => {
                let copy = self.ends.copy(&packet);
                self.later(copy, origin);
            }
            11..13 if sliced => {
                let len = self.random.below(self.ends.bytes(&packet).len() as u64) as usize;
                self.ends.truncate(&mut packet, len);
                if len >= L3 + 20 && self.random.below(2) == 0 {
                    let bytes = self.ends.bytes_mut(&mut packet);
                    bytes[L3 + 2..L3 + 4].copy_from_slice(&((len - L3) as u16).to_be_bytes());
                }
                return self.later(packet, Origin::Spoilt);
            }
            13..15 if sliced && self.keyed => {
                // The function forges: some bits of the token, or of the payload's length.
                let bit = self.random.below(64) as usize;
                let bytes = self.ends.bytes_mut(&mut packet);
                let end = bytes.len();
                bytes[end - 8 + bit / 8] ^= 1 << (bit % 8);
                return self.later(packet, Origin::Spoilt);
            }
            15..17 if self.keyed => self.rewrite_dscp(&mut packet),
            _ => {}
        }
        self.later(packet, origin);
    }

    /// Another DSCP, and the header checksum with it; put back when the packet is compared.
    fn rewrite_dscp(&mut self, packet: &mut Packet) {
        let bytes = self.ends.bytes_mut(packet);
        let old = u16::from_be_bytes([bytes[L3], bytes[L3 + 1]]);
        let new = old & 0xff03 | 0x11 << 2;
        let sum = u16::from_be_bytes([bytes[L3 + 10], bytes[L3 + 11]]);
        bytes[L3..L3 + 2].copy_from_slice(&new.to_be_bytes());
        bytes[L3 + 10..L3 + 12].copy_from_slice(&Delta::new().word(old, new).apply(sum).to_be_bytes());
    }

    /// A packet waits in the function: mostly a little, sometimes for longer than its payload does.
    fn later(&mut self, packet: Packet, origin: Origin) {
        let turn = u64::from(ENTRIES);
        let wait = match self.random.below(100) {
            0..60 => 0,
            60..97 => self.random.below(turn / 2),
            _ => turn * u64::from(TTL) + self.random.below(turn * 2 * u64::from(TTL)),
        };
        let waiting = Waiting { packet, origin, ready: self.clock + wait };
        if wait > turn { self.late.push(waiting) } else { self.queue.push_back(waiting) }
    }

    /// Something that an attacker sends in from the network.
    fn attack(&mut self) {
        let seen = self.random.below(32) as usize;
        let kind = self.random.below(8);
        let payload = [8, 8, 16, 40, 100, 300][self.random.below(6) as usize];
        let tos = if kind.is_multiple_of(2) { 0xfc } else { 0 };
        let len = if kind < 2 && !self.seen[seen].is_empty() {
            // Replayed as it was.
            let replayed = &self.seen[seen];
            self.scratch[..replayed.len()].copy_from_slice(replayed);
            replayed.len()
        } else {
            let len = write(&mut self.scratch, u64::MAX, payload, tos);
            let token = match kind {
                // A token that was seen, perhaps with another bit in it.
                2..5 => {
                    let bytes = self.seen[seen].last_chunk().copied().unwrap_or_default();
                    let flip = if kind == 4 { 1 << self.random.below(64) } else { 0 };
                    Token(Token::from_bytes(bytes).0 ^ flip)
                }
                // One that could be.
                5..7 => Token(self.random.below(u64::from(ENTRIES)) << 48 | self.random.next() >> 16),
                _ => Token(self.random.below(u64::from(ENTRIES)) | self.random.below(1 << 20) << 8),
            };
            self.scratch[len - 8..len].copy_from_slice(&token.to_bytes());
            len
        };
        let before = self.scratch[..len].to_vec();
        let mut packet = self.ends.packet(&before);
        self.outcome.came += 1;
        self.outcome.attacks += 1;
        if self.ends.slice(&mut packet, Nanos(self.clock)) == Sliced::Dropped {
            return self.ends.free(packet);
        }
        // Through the function at once: what counts is whether it is taken for another.
        let done = self.ends.splice(&mut packet, Nanos(self.clock));
        assert!(done.is_ok(), "a packet of the network was taken for a sliced one: {done:?}");
        let out = self.ends.bytes(&packet);
        // Without an entry for an empty slice its mark is gone, and nothing else.
        let same = out == before || out[L3 + 1] >> 2 == 0 && out[TCP..] == before[TCP..];
        assert!(same, "an attacker's packet has changed:\n{before:02x?}\n{out:02x?}");
        self.ends.free(packet);
    }

    /// A packet leaves the function.
    fn leaves(&mut self, waiting: Waiting) {
        let Waiting { mut packet, origin, .. } = waiting;
        let done = self.ends.splice(&mut packet, Nanos(self.clock));
        let out = self.ends.bytes(&packet);
        match (origin, done) {
            (_, Err(_)) => {}
            (Origin::Spoilt, Ok(done)) => {
                assert_eq!(done, Spliced::Untouched, "a spoilt packet got a payload:\n{out:02x?}");
            }
            (Origin::Ours { sliced }, Ok(done)) => {
                assert_eq!(sliced, matches!(done, Spliced::Whole { .. }), "{done:?}");
                let id = id_of(out);
                let (payload, tos) = shape(id);
                let len = write(&mut self.scratch, id, payload, tos);
                if out[L3 + 1] != tos {
                    // The function's DSCP, or that of a packet that came with the mark and could get no empty
                    // slice.
                    let dscp = u16::from_be_bytes([out[L3], out[L3 + 1]]);
                    let old = u16::from_be_bytes([0x45, tos]);
                    assert!(
                        out[L3 + 1] >> 2 == 0x11 || (tos == 0xfc && out[L3 + 1] == 0),
                        "TOS {:x}",
                        out[L3 + 1]
                    );
                    let sum = u16::from_be_bytes([self.scratch[L3 + 10], self.scratch[L3 + 11]]);
                    let sum = Delta::new().word(old, dscp).apply(sum).to_be_bytes();
                    self.scratch[L3 + 1] = out[L3 + 1];
                    self.scratch[L3 + 10..L3 + 12].copy_from_slice(&sum);
                }
                assert!(out == &self.scratch[..len], "packet {id} is not itself:\n{out:02x?}");
                if sliced {
                    self.outcome.whole += 1;
                    let (at, bit) = ((id / 64) as usize, 1 << (id % 64));
                    assert_eq!(self.left[at] & bit, 0, "packet {id} left twice");
                    self.left[at] |= bit;
                } else {
                    self.outcome.untouched += 1;
                }
            }
        }
        self.ends.free(packet);
    }

    fn step(&mut self, id: u64) {
        self.clock += 1;
        self.arrives(id);
        match self.random.below(40) {
            0 => self.attack(),
            // A flood now and then.
            1 if self.random.below(200) == 0 => (0..ENTRIES * 2).for_each(|_| self.attack()),
            _ => {}
        }
        // Out of order: from either end of what waits.
        while self.queue.len() > 40 || self.random.below(3) == 0 {
            let last = self.random.below(4) == 0;
            let Some(next) = (if last { self.queue.pop_back() } else { self.queue.pop_front() }) else {
                break;
            };
            if next.ready > self.clock && self.queue.len() < 200 {
                self.queue.push_back(next);
                break;
            }
            self.leaves(next);
        }
        if id.is_multiple_of(64) {
            let mut at = 0;
            while at < self.late.len() {
                if self.late[at].ready <= self.clock {
                    let late = self.late.swap_remove(at);
                    self.leaves(late);
                } else {
                    at += 1;
                }
            }
        }
    }

    fn finish(mut self, packets: u64) -> Outcome {
        while let Some(next) = self.queue.pop_front().or_else(|| self.late.pop()) {
            self.leaves(next);
        }
        self.ends.table.audit().unwrap();
        // Whoever was dropped is forgotten after `TTL` turns: no entry is lost.
        for n in 0..u64::from(ENTRIES) * (u64::from(TTL) + 1) {
            let len = write(&mut self.scratch, packets + n, 100, 0);
            let mut packet = self.ends.packet(&self.scratch[..len]);
            self.outcome.came += 1;
            self.ends.slice(&mut packet, Nanos(self.clock));
            self.ends.splice(&mut packet, Nanos(self.clock)).unwrap();
            self.ends.free(packet);
        }
        let ends = &self.ends;
        ends.table.audit().unwrap();
        assert_eq!(ends.table.waiting(), 0, "entries are lost: {:?}", ends.table.counters());
        let mut outcome = self.outcome;
        (outcome.slicer, outcome.splicer, outcome.table) =
            (ends.slicer.counters(), ends.splicer.counters(), ends.table.counters());
        let Outcome { slicer, splicer, table, came, .. } = outcome;
        assert_eq!(slicer.packets(), came);
        assert_eq!(slicer.sliced + slicer.empty, table.parked);
        assert_eq!(splicer.spliced, table.spliced);
        assert_eq!(ends.pool.live(), 0, "buffers are lost");
        outcome
    }
}

/// Runs so many packets through the chaos.
pub(crate) fn run(packets: u64, seed: u64, mode: TokenMode, storage: Storage) -> Outcome {
    let config = SliceConfig {
        entries: ENTRIES,
        ttl: TTL,
        mode,
        storage,
        key: TokenKey::from_seed(seed),
        threshold: 100,
        ..SliceConfig::default()
    };
    let mut chaos = Chaos::new(&config, seed, packets);
    for id in 0..packets {
        chaos.step(id);
    }
    chaos.finish(packets)
}

/// Checks the events that every run must have seen, if it was long enough.
pub(crate) fn check(outcome: &Outcome, mode: TokenMode) {
    let Outcome { slicer, splicer, table, attacks, whole, untouched, .. } = *outcome;
    assert!(attacks > 0 && whole > 0 && untouched > 0, "{outcome:?}");
    assert!(
        slicer.sliced > slicer.packets() / 4 && slicer.empty > 0 && table.expired > 0 && table.released > 0
    );
    let [forged, stale, late, duplicate, released, mangled, ..] = splicer.refused;
    assert!(stale > 0 && late > 0 && duplicate > 0 && released > 0 && mangled > 0, "{outcome:?}");
    if mode == TokenMode::Keyed {
        assert!(forged > 0 && slicer.tokens_from_network > 0, "{outcome:?}");
    }
    // The frames of this file are right but for the transport checksum.
    let mut frame = [0; LONGEST];
    let len = write(&mut frame, 5, 300, 0);
    let headers = slipstream_wire::classify(LINK, &frame[..len]).unwrap();
    assert_eq!(verify_ip(&frame[..len], &headers), Verdict::Right);
    assert_eq!(verify_transport(&frame[..len], &headers), Verdict::Wrong);
}
