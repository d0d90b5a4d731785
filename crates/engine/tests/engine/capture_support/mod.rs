//! The common parts of the capture tests: files made byte by byte, a slow reader to compare with, and the
//! captures' paths.
#![allow(dead_code, unreachable_pub)] // Every test binary uses a part.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use slipstream::io::capture::{CaptureReader, Part, Parts};

/// A record that owns its bytes: time (ns), interface, link number, original length, data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    pub time: u64,
    pub interface: u32,
    pub link_number: u32,
    pub original_len: u32,
    pub data: Vec<u8>,
}

/// All that a reader delivers, and where it met damage.
pub fn read_all(mut reader: CaptureReader) -> (Vec<Owned>, Option<u64>) {
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        let (time, interface, link) = (record.time.0, record.interface, record.link);
        let (original_len, data) = (record.original_len, record.data.to_vec());
        let described = &reader.interfaces()[interface as usize];
        assert_eq!(link, described.link());
        records.push(Owned { time, interface, link_number: described.link_number, original_len, data });
    }
    assert!(reader.next_record().unwrap().is_none(), "the end stays the end");
    (records, reader.damage().map(|damage| damage.byte))
}

/// [`read_all`] of bytes in memory; None where they are not accepted as a capture. A thread that reads ahead
/// changes nothing.
pub fn read_bytes(bytes: &[u8]) -> Option<(Vec<Owned>, Option<u64>)> {
    let open = || CaptureReader::from_reader(std::io::Cursor::new(bytes.to_vec()), "memory").ok();
    let read = open().map(read_all);
    let ahead = open().map(|mut reader| {
        reader.read_ahead();
        read_all(reader)
    });
    assert!(read == ahead, "a thread that reads ahead makes a difference");
    read
}

/// Reads a file by several threads, each a part at a time; None if only one can read it.
pub fn read_in_parts(path: &Path, threads: usize, bytes: u64) -> Option<(Vec<Owned>, Option<u64>)> {
    let parts = Parts::of(CaptureReader::open(path).ok()?, bytes).ok()?;
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut part = Part::default();
                while parts.next(&mut part).unwrap() {
                    let records: Vec<_> = part
                        .records()
                        .map(|r| (r.time.0, r.interface, r.link, r.original_len, r.data.to_vec()))
                        .collect();
                    found.lock().unwrap().push((part.number(), records));
                }
            });
        }
    });
    let reader = parts.into_reader();
    let mut found = found.into_inner().unwrap();
    found.sort_by_key(|(number, _)| *number);
    let records = found.into_iter().flat_map(|(_, records)| records).map(
        |(time, interface, link, original_len, data)| {
            let described = &reader.interfaces()[interface as usize];
            assert_eq!(link, described.link());
            Owned { time, interface, link_number: described.link_number, original_len, data }
        },
    );
    Some((records.collect(), reader.damage().map(|damage| damage.byte)))
}

/// Integers in one byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    pub big: bool,
}

impl Ends {
    pub fn put16(self, n: u16) -> [u8; 2] {
        if self.big { n.to_be_bytes() } else { n.to_le_bytes() }
    }
    pub fn put32(self, n: u32) -> [u8; 4] {
        if self.big { n.to_be_bytes() } else { n.to_le_bytes() }
    }
    pub fn put64(self, n: i64) -> [u8; 8] {
        if self.big { n.to_be_bytes() } else { n.to_le_bytes() }
    }
    pub fn get16(self, b: &[u8]) -> u16 {
        let b = [b[0], b[1]];
        if self.big { u16::from_be_bytes(b) } else { u16::from_le_bytes(b) }
    }
    pub fn get32(self, b: &[u8]) -> u32 {
        let b = [b[0], b[1], b[2], b[3]];
        if self.big { u32::from_be_bytes(b) } else { u32::from_le_bytes(b) }
    }
}

/// A pcap file made byte by byte.
pub struct PcapFile {
    pub ends: Ends,
    pub magic: u32,
    pub bytes: Vec<u8>,
}

impl PcapFile {
    pub fn new(big: bool, magic: u32, minor: u16, snap: u32, link: u32) -> Self {
        let ends = Ends { big };
        let mut bytes = Vec::new();
        bytes.extend(ends.put32(magic));
        bytes.extend(ends.put16(2));
        bytes.extend(ends.put16(minor));
        bytes.extend([0; 8]);
        bytes.extend(ends.put32(snap));
        bytes.extend(ends.put32(link));
        Self { ends, magic, bytes }
    }

    pub fn record(mut self, seconds: u32, fraction: u32, original: u32, data: &[u8]) -> Self {
        for word in [seconds, fraction, data.len() as u32, original] {
            self.bytes.extend(self.ends.put32(word));
        }
        if self.magic == 0xa1b2_cd34 {
            self.bytes.extend([9, 0, 0, 0, 0, 8, 1, 0]);
        }
        self.bytes.extend(data);
        self
    }
}

/// A pcapng file made byte by byte.
pub struct NgFile {
    pub ends: Ends,
    pub bytes: Vec<u8>,
}

impl NgFile {
    pub fn new(big: bool) -> Self {
        Self { ends: Ends { big }, bytes: Vec::new() }.section(big)
    }

    pub fn block(mut self, kind: u32, body: &[u8]) -> Self {
        let padding = body.len().next_multiple_of(4) - body.len();
        let len = (12 + body.len() + padding) as u32;
        self.bytes.extend(self.ends.put32(kind));
        self.bytes.extend(self.ends.put32(len));
        self.bytes.extend(body);
        self.bytes.extend(vec![0; padding]);
        self.bytes.extend(self.ends.put32(len));
        self
    }

    pub fn section(mut self, big: bool) -> Self {
        self.ends = Ends { big };
        let mut body = Vec::new();
        body.extend(self.ends.put32(0x1a2b_3c4d));
        body.extend(self.ends.put16(1));
        body.extend(self.ends.put16(0));
        body.extend([0xff; 8]);
        self.block(0x0a0d_0d0a, &body)
    }

    pub fn interface(self, link: u16, snap: u32, options: &[(u16, Vec<u8>)]) -> Self {
        let ends = self.ends;
        let mut body = Vec::new();
        body.extend(ends.put16(link));
        body.extend([0; 2]);
        body.extend(ends.put32(snap));
        for (code, value) in options {
            body.extend(ends.put16(*code));
            body.extend(ends.put16(value.len() as u16));
            body.extend(value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        if !options.is_empty() {
            body.extend([0; 4]);
        }
        self.block(1, &body)
    }

    pub fn enhanced(self, interface: u32, stamp: u64, original: u32, data: &[u8]) -> Self {
        let mut body = Vec::new();
        for word in [interface, (stamp >> 32) as u32, stamp as u32, data.len() as u32, original] {
            body.extend(self.ends.put32(word));
        }
        body.extend(data);
        self.block(6, &body)
    }

    pub fn old(self, interface: u16, stamp: u64, original: u32, data: &[u8]) -> Self {
        let mut body = Vec::new();
        body.extend(self.ends.put16(interface));
        body.extend(self.ends.put16(7));
        for word in [(stamp >> 32) as u32, stamp as u32, data.len() as u32, original] {
            body.extend(self.ends.put32(word));
        }
        body.extend(data);
        self.block(2, &body)
    }

    pub fn simple(self, original: u32, data: &[u8]) -> Self {
        let mut body = self.ends.put32(original).to_vec();
        body.extend(data);
        self.block(3, &body)
    }
}

const LONGEST: u32 = 0x400_0000;

/// The obvious reader: the whole file as a slice, one step after another. Returns the records and where
/// damage begins; None where the header is not one of a capture.
pub fn twin(file: &[u8]) -> Option<(Vec<Owned>, Option<u64>)> {
    if file.len() >= 24 {
        for big in [false, true] {
            let magic = Ends { big }.get32(file);
            if [0xa1b2_c3d4, 0xa1b2_3c4d, 0xa1b2_cd34].contains(&magic) {
                return twin_pcap(file, Ends { big }, magic);
            }
        }
    }
    if file.len() >= 28 && file[..4] == [10, 13, 13, 10] { twin_ng(file) } else { None }
}

fn twin_pcap(file: &[u8], ends: Ends, magic: u32) -> Option<(Vec<Owned>, Option<u64>)> {
    let (major, minor) = (ends.get16(&file[4..]), ends.get16(&file[6..]));
    if major != 2 && (major, minor) != (543, 0) {
        return None;
    }
    let unit = if magic == 0xa1b2_3c4d { 1 } else { 1000 };
    let header = if magic == 0xa1b2_cd34 { 24 } else { 16 };
    let link_number = ends.get32(&file[20..]);
    let mut records = Vec::new();
    let mut at = 24;
    while at < file.len() {
        let damaged = Some(at as u64);
        if file.len() - at < header {
            return Some((records, damaged));
        }
        let word = |i: usize| ends.get32(&file[at + 4 * i..]);
        let (mut captured, mut original_len) = (word(2), word(3));
        if minor < 4 && captured > original_len {
            std::mem::swap(&mut captured, &mut original_len);
        }
        let begin = at + header;
        // Another file's header, made of a magic number, a version and eight zeros.
        let is_header = [false, true].into_iter().map(|big| Ends { big }).any(|ends| {
            [0xa1b2_c3d4, 0xa1b2_3c4d, 0xa1b2_cd34].contains(&ends.get32(&file[at..]))
                && (ends.get16(&file[at + 4..]), ends.get16(&file[at + 6..]) <= 4) == (2, true)
                && file[at + 8..at + 16] == [0; 8]
        });
        let is_zero = file[at..at + 16] == [0; 16];
        if is_header || is_zero || captured > LONGEST || file.len() - begin < captured as usize {
            return Some((records, damaged));
        }
        let time = u64::from(word(0)) * 1_000_000_000 + u64::from(word(1)) * unit;
        at = begin + captured as usize;
        records.push(Owned { time, interface: 0, link_number, original_len, data: file[begin..at].to_vec() });
    }
    Some((records, None))
}

/// An interface: link number, ticks per second, offset in seconds, snap length.
type Described = (u32, Option<u128>, i64, u32);

fn twin_ng(file: &[u8]) -> Option<(Vec<Owned>, Option<u64>)> {
    let mut records = Vec::new();
    match twin_blocks(file, &mut records) {
        // Nothing to read at all: the first section header is bad.
        Some(0) => None,
        damaged => Some((records, damaged)),
    }
}

/// Walks the blocks; returns where damage begins.
fn twin_blocks(file: &[u8], records: &mut Vec<Owned>) -> Option<u64> {
    let mut ends = Ends { big: false };
    let (mut locals, mut earlier) = (Vec::<Described>::new(), 0u32);
    let mut at = 0;
    while at < file.len() {
        let damaged = Some(at as u64);
        let rest = &file[at..];
        if rest.len() < 12 {
            return damaged;
        }
        let section = rest[..4] == [10, 13, 13, 10];
        let mut local_ends = ends;
        if section {
            let big = [false, true].into_iter().find(|&big| Ends { big }.get32(&rest[8..]) == 0x1a2b_3c4d);
            let Some(big) = big else { return damaged };
            local_ends = Ends { big };
        }
        let (kind, len) = (local_ends.get32(rest), local_ends.get32(&rest[4..]) as usize);
        let least = match kind {
            0x0a0d_0d0a => 28,
            1 => 20,
            2 | 6 => 32,
            3 => 16,
            _ => 12,
        };
        if len < least || len % 4 != 0 || len > rest.len() {
            return damaged;
        }
        if local_ends.get32(&rest[len - 4..]) as usize != len {
            return damaged;
        }
        let block = &rest[..len];
        match kind {
            0x0a0d_0d0a => {
                if local_ends.get16(&block[12..]) != 1 {
                    return damaged;
                }
                ends = local_ends;
                earlier += locals.len() as u32;
                locals.clear();
            }
            1 => match twin_interface(ends, block) {
                Some(described) if earlier as usize + locals.len() < 65_536 => locals.push(described),
                _ => return damaged,
            },
            2 | 3 | 6 => match twin_packet(ends, kind, block, &locals, earlier) {
                Some(mut record) => {
                    if kind == 3 {
                        record.time = records.last().map_or(0, |before| before.time);
                    }
                    records.push(record);
                }
                None => return damaged,
            },
            _ => {}
        }
        at += len;
    }
    None
}

fn twin_interface(ends: Ends, block: &[u8]) -> Option<Described> {
    let (mut ticks, mut offset) = (Some(1_000_000), 0);
    let (link, mut fcs) = (u32::from(ends.get16(&block[8..])), 0);
    let mut at = 16;
    while at + 4 <= block.len() - 4 {
        let (code, len) = (ends.get16(&block[at..]), ends.get16(&block[at + 2..]) as usize);
        if code == 0 {
            break;
        }
        if at + 4 + len > block.len() - 4 {
            return None;
        }
        let value = &block[at + 4..at + 4 + len];
        if code == 9 && len >= 1 {
            let base: u128 = if value[0] >= 128 { 2 } else { 10 };
            ticks = base.checked_pow(u32::from(value[0] % 128));
        }
        if code == 13 && len >= 1 && (value[0].is_multiple_of(16) || [2, 4].contains(&value[0])) {
            let bits = if value[0] < 16 { value[0] * 8 } else { value[0] };
            fcs = u32::from(bits) << 24 | 0x400_0000;
        }
        if code == 14 && len >= 8 {
            let (a, b) = (ends.get32(value), ends.get32(&value[4..]));
            let (high, low) = if ends.big { (a, b) } else { (b, a) };
            offset = (u64::from(high) << 32 | u64::from(low)) as i64;
        }
        at += 4 + len.div_ceil(4) * 4;
    }
    Some((link | fcs, ticks, offset, ends.get32(&block[12..])))
}

fn twin_packet(ends: Ends, kind: u32, block: &[u8], locals: &[Described], earlier: u32) -> Option<Owned> {
    let word = |at: usize| ends.get32(&block[at..]);
    let id = match kind {
        6 => word(8),
        2 => u32::from(ends.get16(&block[8..])),
        _ => 0,
    };
    let (link, ticks, offset, snap) = *locals.get(id as usize)?;
    let room = block.len() as u32 - if kind == 3 { 16 } else { 32 };
    let (begin, captured, original_len, time) = if kind == 3 {
        let original = word(8);
        (12, original.min(room).min(if snap == 0 { original } else { snap }), original, 0)
    } else {
        let stamp = u128::from(word(12)) << 32 | u128::from(word(16));
        let since = ticks.map_or(0, |ticks| stamp * 1_000_000_000 / ticks) as i128;
        let time = since + i128::from(offset) * 1_000_000_000;
        (28, word(20), word(24), time.clamp(0, i128::from(u64::MAX)) as u64)
    };
    if captured > room || captured > LONGEST {
        return None;
    }
    let data = block[begin..begin + captured as usize].to_vec();
    Some(Owned { time, interface: earlier + id, link_number: link, original_len, data })
}

/// The directory of captures to test with; `None` where `SLIPSTREAM_TRACES=none` says that there is none.
pub fn traces() -> Option<PathBuf> {
    let path = std::env::var_os("SLIPSTREAM_TRACES")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces")));
    if path.is_dir() {
        return Some(path);
    }
    assert_eq!(
        path,
        Path::new("none"),
        "no captures there: SLIPSTREAM_TRACES names their folder, or is `none`"
    );
    eprintln!("SLIPSTREAM_TRACES=none: nothing was tested");
    None
}

/// Unpacks a whole file, if it is compressed.
pub fn unpacked(file: Vec<u8>) -> Vec<u8> {
    use std::io::Read;
    if file.starts_with(&[0x1f, 0x8b]) {
        let mut plain = Vec::new();
        flate2::read::MultiGzDecoder::new(&file[..]).read_to_end(&mut plain).unwrap();
        return plain;
    }
    file
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}
