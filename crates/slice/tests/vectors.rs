//! Vectors for the hardware: what comes in, and what this crate makes of it, bit for bit.
//! `tests/vectors/slice.txt` is held against what is generated here; with `SLIPSTREAM_WRITE_VECTORS` set it
//! is written anew.
//!
//! A line is `slice` or `splice`, the frame that comes in, the result, and the frame that leaves (`-`: none),
//! or `token` and a token. Frames are hexadecimal; `~S,N` at their end stands for the first N bytes of the
//! pattern S, whose byte i is 31 S + 7 i + i / 256, modulo 256. Only frames that the hardware knows are here:
//! what it leaves to software (tunnels, extension headers, quoted packets) is listed in the book.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::fmt::Write as _;
use std::path::Path;

use slipstream_core::time::Nanos;
use slipstream_slice::{
    Marked, PayloadTable, SliceConfig, Sliced, Slicer, Spliced, Splicer, Storage, TokenKey,
};
use slipstream_wire::LinkType;

const KEY: [u64; 2] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];

fn config(entries: u32, tag_bits: u32) -> SliceConfig {
    SliceConfig {
        entries,
        tag_bits,
        key: TokenKey::new(KEY),
        storage: Storage::Copied { entry_bytes: 1454 },
        ttl: 2,
        threshold: 120,
        marked: Marked::Remark(0),
        mtu: 1500,
        ..SliceConfig::default()
    }
}

fn pattern(seed: u8, i: usize) -> u8 {
    (usize::from(seed) * 31 + i * 7 + i / 256) as u8
}

fn text(frame: &[u8], seed: u8) -> String {
    let is_pattern = |at: usize| frame[at..].iter().enumerate().all(|(i, b)| *b == pattern(seed, i));
    let at = (0..frame.len().min(160)).find(|at| is_pattern(*at)).unwrap_or(frame.len());
    let mut out: String = frame[..at].iter().fold(String::new(), |mut out, b| {
        write!(out, "{b:02x}").unwrap();
        out
    });
    if at < frame.len() {
        write!(out, "~{seed},{}", frame.len() - at).unwrap();
    }
    out
}

fn sum(bytes: &[u8], from: u32) -> u32 {
    let pairs = bytes.chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(*c.get(1).unwrap_or(&0)));
    let mut sum = from + pairs.sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

/// A kind of frame.
#[derive(Clone, Copy)]
struct Kind {
    tags: usize,
    six: bool,
    tcp: bool,
    ip_options: usize,
    tcp_options: usize,
    tos: u8,
    payload: usize,
    /// 0: none (UDP); 1: right; 2: wrong.
    checksum: u8,
}

const UDP: Kind = Kind {
    tags: 0,
    six: false,
    tcp: false,
    ip_options: 0,
    tcp_options: 0,
    tos: 0,
    payload: 600,
    checksum: 1,
};
const TCP: Kind = Kind { tcp: true, ..UDP };

fn frame(kind: Kind, seed: u8) -> Vec<u8> {
    let mut f = vec![2, 0, 0, 0, 0, seed, 2, 0, 0, 0, 1, 1];
    for tag in 0..kind.tags {
        f.extend(if tag == 0 && kind.tags > 1 { [0x88, 0xa8, 0, 7] } else { [0x81, 0, 0x20, 9] });
    }
    let l4_len = kind.payload + if kind.tcp { 20 + kind.tcp_options } else { 8 };
    let protocol = if kind.tcp { 6 } else { 17 };
    let l3 = f.len() + 2;
    if kind.six {
        f.extend([0x86, 0xdd, 0x60 | kind.tos >> 4, kind.tos << 4 | 0xa, 0xbc, 0xde]);
        f.extend((l4_len as u16).to_be_bytes());
        f.extend([protocol, 64]);
        f.extend((0..32u8).map(|i| if i % 16 == 0 { 0x20 } else { seed ^ i }));
    } else {
        let header = 20 + kind.ip_options;
        f.extend([8, 0, 0x40 | (header / 4) as u8, kind.tos]);
        f.extend(((header + l4_len) as u16).to_be_bytes());
        f.extend([0x12, seed, 0x40, 0, 64, protocol, 0, 0, 10, 1, 2, seed, 192, 0, 2, 1]);
        f.extend(vec![1; kind.ip_options]);
        let ip = !sum(&f[l3..], 0) as u16;
        f[l3 + 10..l3 + 12].copy_from_slice(&ip.to_be_bytes());
    }
    let l4 = f.len();
    f.extend([4, 210, 0, 80]);
    if kind.tcp {
        f.extend([0, 0, 0, seed, 0, 0, 1, 0, ((20 + kind.tcp_options) / 4 * 16) as u8, 16, 1, 0, 0, 0, 0, 0]);
        f.extend((0..kind.tcp_options).map(|i| if i % 4 == 3 { seed } else { 1 }));
    } else {
        f.extend((l4_len as u16).to_be_bytes());
        f.extend([0, 0]);
    }
    f.extend((0..kind.payload).map(|i| pattern(seed, i)));
    let addresses = if kind.six { l3 + 8..l3 + 40 } else { l3 + 12..l3 + 20 };
    let pseudo = sum(&f[addresses], protocol as u32 + l4_len as u32);
    let mut value = !sum(&f[l4..], pseudo) as u16;
    if !kind.tcp && value == 0 {
        value = 0xffff;
    }
    let at = l4 + if kind.tcp { 16 } else { 6 };
    match kind.checksum {
        0 => {}
        1 => f[at..at + 2].copy_from_slice(&value.to_be_bytes()),
        _ => f[at..at + 2].copy_from_slice(&(value ^ 0x1234).to_be_bytes()),
    }
    f
}

struct Writer {
    out: String,
    table: PayloadTable,
    slicer: Slicer,
    splicer: Splicer,
}

impl Writer {
    fn new(config: &SliceConfig) -> Self {
        let table = PayloadTable::new(config, 0).unwrap();
        let (slicer, splicer) = (Slicer::new(config).unwrap(), Splicer::new(config).unwrap());
        Self { out: String::new(), table, slicer, splicer }
    }

    fn slice(&mut self, frame: &[u8], seed: u8) -> Vec<u8> {
        let mut buffer = frame.to_vec();
        buffer.resize(frame.len() + 8, 0);
        let done = self.slicer.slice(&mut self.table, LinkType::Ethernet, &mut buffer, frame.len(), Nanos(0));
        let (len, name) = match done {
            Sliced::Sliced { len, .. } => (len, "sliced".to_owned()),
            Sliced::Whole(why) => (frame.len(), why.name().to_owned()),
            Sliced::Remarked => (frame.len(), "remarked".to_owned()),
            other => panic!("{other:?}"),
        };
        buffer.truncate(len);
        writeln!(self.out, "slice {} {name} {}", text(frame, seed), text(&buffer, seed)).unwrap();
        buffer
    }

    fn splice(&mut self, frame: &[u8], seed: u8) {
        let mut buffer = frame.to_vec();
        buffer.resize(4096, 0);
        let done =
            self.splicer.splice(&mut self.table, LinkType::Ethernet, &mut buffer, frame.len(), Nanos(0));
        let (len, name) = match done {
            Ok(Spliced::Untouched) => (frame.len(), "untouched".to_owned()),
            Ok(Spliced::Whole { len }) => (len, "spliced".to_owned()),
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => (0, format!("{refusal:?}").to_lowercase()),
        };
        let left = if len == 0 { "-".to_owned() } else { text(&buffer[..len], seed) };
        writeln!(self.out, "splice {} {name} {left}", text(frame, seed)).unwrap();
    }
}

/// Changes a word that IPv4's checksum covers, as a function does (RFC 1624).
fn patch_ip(f: &mut [u8], l3: usize, at: usize, value: u16) {
    let word = |f: &[u8], at: usize| u16::from_be_bytes([f[at], f[at + 1]]);
    let (old, check) = (word(f, l3 + at), word(f, l3 + 10));
    let new = !(sum(&[], u32::from(!check) + u32::from(!old) + u32::from(value)) as u16);
    f[l3 + at..l3 + at + 2].copy_from_slice(&value.to_be_bytes());
    f[l3 + 10..l3 + 12].copy_from_slice(&new.to_be_bytes());
}

fn patch_l4(f: &mut [u8], at: usize, old: u16, new: u16) {
    let check = u16::from_be_bytes([f[at], f[at + 1]]);
    let value = !(sum(&[], u32::from(!check) + u32::from(!old) + u32::from(new)) as u16);
    f[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Gives a marked packet this DSCP, and adds to its source what the sum of the IP header loses by it.
fn make_up(mut f: Vec<u8>, dscp: u8) -> Vec<u8> {
    let word = |f: &[u8], at: usize| u16::from_be_bytes([f[at], f[at + 1]]);
    let (first, low, before) = (word(&f, 14), word(&f, 28), word(&f, 24));
    let other = first & 0xff03 | u16::from(dscp) << 2;
    patch_ip(&mut f, 14, 0, other);
    patch_ip(&mut f, 14, 14, low + (first - other));
    patch_l4(&mut f, 40, low, low + (first - other));
    assert_eq!(word(&f, 24), before);
    f
}

fn every_row() -> String {
    let mut w = Writer::new(&config(8, 24));
    every_kind(&mut w);
    every_length(&mut w);
    nothing_to_slice(&mut w);
    changed_by_functions(&mut w);
    forged_replayed_and_stale(&mut w);
    no_token_of_ours(&mut w);
    a_full_table(&mut w);
    w.out
}

/// Every kind, there and back, padded to what Ethernet asks for.
fn every_kind(w: &mut Writer) {
    let kinds = [
        UDP,
        TCP,
        Kind { tags: 1, ..UDP },
        Kind { tags: 2, ..TCP },
        Kind { six: true, ..UDP },
        Kind { six: true, tags: 1, ..TCP },
        Kind { ip_options: 8, ..UDP },
        Kind { ip_options: 16, tcp_options: 12, ..TCP },
        Kind { tcp_options: 40, ..TCP },
        Kind { checksum: 0, ..UDP },
        Kind { checksum: 2, ..UDP },
        Kind { checksum: 2, ..TCP },
        // The mark, and ECN, which stays.
        Kind { tos: 0xff, ..UDP },
        Kind { tos: 0xfd, six: true, ..TCP },
        Kind { tos: 0x2a, ..TCP },
    ];
    for (seed, kind) in (1..).zip(kinds) {
        let mut back = w.slice(&frame(kind, seed), seed);
        back.resize(back.len().max(60), 0);
        w.splice(&back, seed);
    }
}

/// Every length of the end of a beat, and those around the threshold and the longest.
fn every_length(w: &mut Writer) {
    for payload in (78..=81).chain(88..=124).chain([1400, 1446, 1453, 1454]) {
        let back = w.slice(&frame(Kind { payload, ..UDP }, 77), 77);
        w.splice(&back, 77);
    }
    for payload in [66, 67, 1446, 1455, 1460] {
        let back = w.slice(&frame(Kind { payload, ..TCP }, 78), 78);
        w.splice(&back, 78);
    }
}

/// Small, marked and small, to many, a fragment, another protocol, no IP, lengths that don't agree.
fn nothing_to_slice(w: &mut Writer) {
    w.slice(&frame(Kind { payload: 20, ..UDP }, 3), 3);
    w.slice(&frame(Kind { payload: 20, tos: 0xfe, ..UDP }, 3), 3);
    w.slice(&frame(Kind { payload: 20, six: true, tos: 0xfe, ..TCP }, 3), 3);
    let mut many = frame(UDP, 4);
    many[30] = 224;
    w.slice(&many, 4);
    let mut group = frame(UDP, 4);
    group[0] |= 1;
    w.slice(&group, 4);
    let mut part = frame(UDP, 5);
    part[20] = 0x20;
    w.slice(&part, 5);
    let mut other = frame(UDP, 6);
    other[23] = 132;
    w.slice(&other, 6);
    let mut arp = frame(UDP, 7);
    arp[12..14].copy_from_slice(&[8, 6]);
    w.slice(&arp, 7);
    let mut wrong = frame(UDP, 8);
    wrong[38] ^= 1;
    w.slice(&wrong, 8);
    let mut cut = frame(TCP, 8);
    cut[46] = 0x40;
    w.slice(&cut, 8);
}

/// Functions change addresses and ports (NAT), TTL, MAC addresses and DSCP, and push and pop tags.
fn changed_by_functions(w: &mut Writer) {
    for (seed, kind, step) in [
        (20, UDP, 0),
        (21, TCP, 0),
        (22, UDP, 1),
        (23, TCP, 2),
        (24, UDP, 2),
        (25, TCP, 3),
        (26, UDP, 4),
        (27, TCP, 5),
    ] {
        let kind = if step == 4 { Kind { tags: 1, ..kind } } else { kind };
        let mut back = w.slice(&frame(kind, seed), seed);
        let check = if kind.tcp { 50 } else { 40 };
        match step {
            0 => {
                for (at, new) in [(26, 0xc633), (28, 0x6407)] {
                    let old = u16::from_be_bytes([back[at], back[at + 1]]);
                    patch_ip(&mut back, 14, at - 14, new);
                    patch_l4(&mut back, check, old, new);
                }
                patch_l4(&mut back, check, 1234, 40_000);
                back[34..36].copy_from_slice(&40_000u16.to_be_bytes());
            }
            1 => {
                let ttl = u16::from_be_bytes([back[22], back[23]]) - 0x100;
                patch_ip(&mut back, 14, 8, ttl);
                back[..6].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
            }
            2 => patch_ip(&mut back, 14, 0, 0x45b9),
            3 => {
                back.splice(12..12, [0x81, 0, 0, 5]);
            }
            4 => {
                back.drain(12..16);
            }
            _ => back[50] ^= 0x55,
        }
        back.resize(back.len().max(60), 0);
        w.splice(&back, seed);
    }
    // A checksum that the function computed anew over what it saw is repaired as well.
    let mut back = w.slice(&frame(Kind { tcp_options: 4, ..TCP }, 30), 30);
    patch_l4(&mut back, 50, 0x1010, 0x2020);
    w.splice(&back, 30);

    // The DSCP loses what an address wins: the sum of the sliced header stays, that of the whole one doesn't.
    for (seed, tos, dscp) in [(31, 0, 10), (32, 0xb9, 46), (33, 0x28, 0)] {
        let back = make_up(w.slice(&frame(Kind { tos, ..UDP }, seed), seed), dscp);
        w.splice(&back, seed);
    }
}

/// Every bit of a token; then the token itself, twice, and once its entry holds a later payload.
fn forged_replayed_and_stale(w: &mut Writer) {
    let back = w.slice(&frame(UDP, 40), 40);
    for bit in (0..64).step_by(5) {
        let mut forged = back.clone();
        let at = forged.len() - 8 + bit / 8;
        forged[at] ^= 0x80 >> (bit % 8);
        if bit < 16 || (40..64).contains(&bit) {
            w.splice(&forged, 40);
        }
    }
    w.splice(&back, 40);
    w.splice(&back, 40);
    let old = back;
    for seed in 41..51 {
        let back = w.slice(&frame(UDP, seed), seed);
        w.splice(&back, seed);
    }
    w.splice(&old, 40);
}

/// Marked, and no token of ours; unmarked, and eight bytes of payload; neither; another transport than was
/// sliced.
fn no_token_of_ours(w: &mut Writer) {
    w.splice(&frame(Kind { payload: 8, tos: 0xfc, ..UDP }, 9), 9);
    w.splice(&frame(Kind { payload: 8, ..UDP }, 9), 9);
    w.splice(&frame(Kind { payload: 30, ..TCP }, 9), 9);
    w.splice(&frame(UDP, 9), 9);
    // Another transport than the one that was sliced.
    let mut back = w.slice(&frame(UDP, 52), 52);
    w.splice(&frame(Kind { payload: 1450, ..UDP }, 52), 52);
    back.resize(60, 0);
    w.splice(&back, 52);
}

/// The table fills, entries age, and late packets find nothing.
fn a_full_table(w: &mut Writer) {
    let all: Vec<_> = (60..68).map(|seed| (seed, w.slice(&frame(UDP, seed), seed))).collect();
    for seed in 70..92 {
        w.slice(&frame(TCP, seed), seed);
    }
    for (seed, back) in all {
        w.splice(&back, seed);
    }
}

/// The generation of 8 bits goes round: what two entries give out, one after the other.
fn tokens() -> String {
    let config = config(2, 40);
    let mut table = PayloadTable::new(&config, 0).unwrap();
    let (mut slicer, mut splicer) = (Slicer::new(&config).unwrap(), Splicer::new(&config).unwrap());
    let mut out = String::new();
    for _ in 0..530 {
        let mut buffer = frame(Kind { payload: 100, ..UDP }, 1);
        let len = buffer.len();
        let done = slicer.slice(&mut table, LinkType::Ethernet, &mut buffer, len, Nanos(0));
        let Sliced::Sliced { len, token, .. } = done else { panic!("{done:?}") };
        splicer.splice(&mut table, LinkType::Ethernet, &mut buffer, len, Nanos(0)).unwrap();
        writeln!(out, "token {:016x}", token.0).unwrap();
    }
    out
}

#[test]
fn a_dscp_and_an_address_that_make_up_for_each_other_leave_right_checksums() {
    let config = config(8, 24);
    for (tos, dscp) in [(0, 10), (0xb9, 46), (0x28, 0), (0x28, 10)] {
        let mut table = PayloadTable::new(&config, 0).unwrap();
        let (mut slicer, mut splicer) = (Slicer::new(&config).unwrap(), Splicer::new(&config).unwrap());
        let mut buffer = frame(Kind { tos, ..UDP }, 1);
        let whole = buffer.len();
        buffer.resize(whole + 8, 0);
        let done = slicer.slice(&mut table, LinkType::Ethernet, &mut buffer, whole, Nanos(0));
        let Sliced::Sliced { len, .. } = done else { panic!("{done:?}") };
        buffer.truncate(len);
        let mut buffer = make_up(buffer, dscp);
        buffer.resize(whole, 0);
        let done = splicer.splice(&mut table, LinkType::Ethernet, &mut buffer, len, Nanos(0));
        assert_eq!(done, Ok(Spliced::Whole { len: whole }));
        assert_eq!(sum(&buffer[14..34], 0), 0xffff, "TOS {tos:#x}, DSCP {dscp}");
        let pseudo = sum(&buffer[26..34], 17 + (whole - 34) as u32);
        assert_eq!(sum(&buffer[34..], pseudo), 0xffff, "TOS {tos:#x}, DSCP {dscp}");
    }
}

#[test]
fn the_vectors_are_those_of_the_hardware() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors");
    for (name, made) in [("slice.txt", every_row()), ("tokens.txt", tokens())] {
        let path = folder.join(name);
        if std::env::var_os("SLIPSTREAM_WRITE_VECTORS").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        let differs = kept.lines().zip(made.lines()).position(|(a, b)| a != b);
        assert!(
            kept == made,
            "{}: line {:?} differs from what the slicer and the splicer make; if they are right, \
             SLIPSTREAM_WRITE_VECTORS=1 writes it anew",
            path.display(),
            differs.map(|n| n + 1)
        );
    }
}
