//! Code that several targets share.

use std::path::{Path, PathBuf};

use slipstream::functions::firewall::{ConnState, Firewall, Method, PacketFields, RuleSet, RuleSetErrors};
use slipstream::io::capture::{CaptureReader, CaptureWriter, Compression, Format, Interface, WriterOptions};
use slipstream::operate::StateTable;
use slipstream::pipeline::stage_type;
use slipstream::runtime::Driver;
use slipstream::time::Nanos;
use slipstream_wire::checksum::{fill_ip, fill_transport};
use slipstream_wire::{LinkType, classify};

/// Bytes at the end of the input that make the packet.
const PACKET: usize = 60;

/// Text for `parse`, and the bytes of a packet behind it: both classifiers decide alike, and an error lies
/// within the text.
pub fn classifiers_agree(data: &[u8], parse: impl Fn(&str) -> Result<RuleSet, RuleSetErrors>) {
    let (text, packet) = data.split_at(data.len().saturating_sub(PACKET));
    let Ok(text) = std::str::from_utf8(text) else { return };
    let rules = match parse(text) {
        Ok(rules) => rules,
        Err(errors) => {
            assert!((1..=20).contains(&errors.errors.len()));
            for error in &errors.errors {
                assert!(text.is_char_boundary(error.offset));
                assert_eq!(error.line, text[..error.offset].matches('\n').count() + 1);
            }
            return;
        }
    };
    let linear = Firewall::new(rules.clone(), Method::Linear);
    let fast = Firewall::new(rules, Method::Fast);
    for link in [LinkType::RawIp, LinkType::Ethernet] {
        let Ok(headers) = classify(link, packet) else { continue };
        for state in [ConnState::Untracked, ConnState::New] {
            let fields = PacketFields::new(&headers, packet.len() as u32).with_state(state);
            let (mut one, mut other) = (Vec::new(), Vec::new());
            let a = linear.decide(&fields, |i, action| one.push((i, *action)));
            let b = fast.decide(&fields, |i, action| other.push((i, *action)));
            assert_eq!((a, one), (b, other));
        }
    }
}

/// The bytes of an input, from which a target takes what it makes of them; behind their end they are 0.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// The next number, mostly a large one.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// The next number, of any size.
    pub fn u64(&mut self) -> u64 {
        let bytes = std::array::from_fn(|_| self.byte());
        u64::from_le_bytes(bytes) >> (self.byte() & 63)
    }

    /// The next bytes, as many as are left at most.
    pub fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

/// The time at which packets begin to come, in ns.
pub const BEGIN: u64 = 1_700_000_000_000_000_000;

/// Starts of packets, behind an Ethernet header: of TCP, UDP, an ICMP error, IPv6 with both, a fragment, ARP.
const STARTS: [&[u8]; 8] = [
    &[],
    &[
        8, 0, 0x45, 0, 0, 44, 0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 5, 192, 0, 2, 1, 16, 0, 0, 80, 0, 0, 0, 1,
        0, 0, 0, 2, 0x50, 2, 1, 0, 0, 0, 0, 0,
    ],
    &[8, 0, 0x45, 0, 0, 44, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 5, 192, 0, 2, 1, 0, 7, 0, 53, 0, 24, 0, 0],
    &[
        8, 0, 0x45, 0, 0, 72, 0, 1, 0, 0, 64, 1, 0, 0, 192, 0, 2, 7, 192, 0, 2, 1, 3, 4, 0, 0, 0, 0, 5, 0,
        0x45, 0, 0, 44, 0, 1, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 8, 4, 0, 0, 53, 0, 24, 0, 0,
    ],
    &[
        0x86, 0xdd, 0x60, 0, 0, 0, 0, 28, 6, 64, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5,
        0x20, 1, 0xd, 0xb8, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 16, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50,
        0x10, 1, 0, 0, 0, 0, 0,
    ],
    &[8, 0, 0x45, 0, 0, 44, 0, 9, 0x20, 0, 64, 17, 0, 0, 10, 0, 0, 5, 192, 0, 2, 1, 0, 7, 0, 53, 0, 40, 0, 0],
    &[8, 0, 0x45, 0, 0, 36, 0, 9, 0, 3, 64, 17, 0, 0, 10, 0, 0, 5, 192, 0, 2, 1],
    &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2, 2, 2, 2, 2, 2, 2, 192, 0, 2, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1],
];

/// A packet, and the time at which it comes.
pub type Packet = (u64, Vec<u8>);

/// Packets of two sources: of each a byte that says of which source and kind it is, one for the time that has
/// passed, one for the length of what comes behind the start, and edits.
pub fn packets(mut data: &[u8]) -> [Vec<Packet>; 2] {
    let (mut all, mut now) = ([Vec::new(), Vec::new()], BEGIN);
    while let Some((&[kind, gap, len, edits], rest)) = data.split_first_chunk::<4>() {
        let (body, mut rest) = rest.split_at(usize::from(len & 63).min(rest.len()));
        now += u64::from(gap) << if len & 64 == 0 { 10 } else { 26 };
        let mut frame = vec![2, 0, 0, 0, 0, 1 + (kind >> 5 & 1), 2, 0, 0, 0, 0, 9];
        let start = STARTS[usize::from(kind & 7)];
        frame.extend(start);
        frame.extend(body);
        for _ in 0..edits & 3 {
            let Some((&[at, value], after)) = rest.split_first_chunk::<2>() else { break };
            rest = after;
            if let Some(byte) = frame.get_mut(usize::from(at)) {
                *byte = value;
            }
        }
        if edits & 4 != 0 && frame.len() >= 34 {
            // The other way round, as an answer would come.
            let (from, to): ([u8; 4], [u8; 4]) =
                (frame[26..30].try_into().unwrap(), frame[30..34].try_into().unwrap());
            frame[26..30].copy_from_slice(&to);
            frame[30..34].copy_from_slice(&from);
        }
        if edits & 8 == 0 {
            let length = frame.len().saturating_sub(14) as u16;
            if frame.len() > 18 && frame[12..14] == [8, 0] {
                frame[16..18].copy_from_slice(&length.to_be_bytes());
            }
        }
        if edits & 16 == 0
            && let Ok(headers) = classify(LinkType::Ethernet, &frame)
        {
            fill_ip(&mut frame, &headers);
            fill_transport(&mut frame, &headers);
        }
        data = rest;
        all[usize::from(kind >> 6 & 1)].push((now, frame));
    }
    all
}

/// Writes a capture of packets.
pub fn write(path: &Path, packets: &[Packet]) {
    let options = WriterOptions { format: Format::Pcap, compression: Compression::None };
    let mut writer = CaptureWriter::to_writer(std::fs::File::create(path).unwrap(), "in", options).unwrap();
    writer.add_interface(&Interface { link_number: 1, snap_len: 0, name: None });
    for (time, data) in packets {
        writer.write(0, Nanos(*time), data.len() as u32, data).unwrap();
    }
    writer.finish().unwrap();
}

/// The packets of a capture.
pub fn read(path: &Path) -> Vec<Packet> {
    let mut reader = CaptureReader::open(path).unwrap();
    let mut all = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        all.push((record.time.0, record.data.to_vec()));
    }
    all
}

/// A folder for the files of a target, in memory where there is one.
pub fn folder(target: &str) -> PathBuf {
    let shared = Path::new("/dev/shm");
    let base = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
    let folder = base.join(format!("slipstream-fuzz-{target}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The records of all tables of a stage, each of which says what it is.
pub fn saved(driver: &mut Driver, name: &str, kind: &str, now: Nanos) -> Vec<Vec<Vec<u8>>> {
    let tables = stage_type(kind).unwrap().properties.tables;
    let Some(stage) = driver.operate(name) else { return Vec::new() };
    stage.expire(now);
    let records = |(number, table): (usize, &StateTable)| {
        let (mut bytes, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            from = stage.save(number, at, 3, now, &mut bytes);
        }
        let mut records: Vec<Vec<u8>> = bytes.chunks(table.record).map(<[u8]>::to_vec).collect();
        for record in &records {
            assert!((table.describe)(record).is_some() && (table.ends)(record).is_some());
        }
        records.sort();
        records
    };
    tables.iter().enumerate().map(records).collect()
}
