//! Reading captures: every variant, cut at every byte, changed at every byte, and against the obvious reader.

use std::io::Write;

use crate::capture_support::{
    self, NgFile, Owned, PcapFile, gzip, read_all, read_bytes, read_in_parts, traces, twin, unpacked, zstd,
};
use proptest::prelude::*;
use slipstream::io::capture::{CaptureReader, Compression, Format, Interface};

const SECOND: u64 = 1_000_000_000;

fn record(time: u64, interface: u32, link_number: u32, original_len: u32, data: &[u8]) -> Owned {
    Owned { time, interface, link_number, original_len, data: data.to_vec() }
}

fn pcap(big: bool, magic: u32) -> Vec<u8> {
    PcapFile::new(big, magic, 4, 96, 0x3400_0001)
        .record(1, 2, 1500, b"first")
        .record(4_294_967_295, 999_999, 3, b"abc")
        .record(7, 4_000_000_000, 0, b"")
        .bytes
}

fn pcap_records(unit: u64) -> Vec<Owned> {
    vec![
        record(SECOND + 2 * unit, 0, 0x3400_0001, 1500, b"first"),
        record(4_294_967_295 * SECOND + 999_999 * unit, 0, 0x3400_0001, 3, b"abc"),
        // The fraction is more than a second: it counts all the same.
        record(7 * SECOND + 4_000_000_000 * unit, 0, 0x3400_0001, 0, b""),
    ]
}

/// Two sections, the second in the other byte order, and every kind of block.
fn ng(big: bool) -> Vec<u8> {
    let offset = |ends: capture_support::Ends, n| (14, ends.put64(n).to_vec());
    let file = NgFile::new(big);
    let ends = file.ends;
    let file = file
        .interface(1, 4, &[(2, b"eth0".to_vec()), (9, vec![9])])
        .block(0x0bad, b"custom")
        .enhanced(0, 1_700_000_000_123_456_789, 60, b"nanos")
        .interface(113, 0, &[])
        .enhanced(1, 5_000_001, 60, b"micros!!")
        .simple(3, b"abc")
        .simple(9, b"defghi")
        .old(1, 6_000_000, 4, b"old")
        .interface(101, 0, &[(9, vec![0x80 | 10]), offset(ends, 100)])
        .enhanced(2, 2048 + 1, 1, b"x")
        .section(!big);
    let other = file.ends;
    file.interface(276, 0, &[(2, b"any\0".to_vec()), (9, vec![3]), offset(other, -2)])
        .enhanced(0, 3_500, 9, b"")
        .enhanced(0, 1_500, 9, b"too early")
        .block(5, &[0; 12])
        .enhanced(0, u64::MAX, 9, b"too late")
        .bytes
}

fn ng_records() -> Vec<Owned> {
    vec![
        record(1_700_000_000_123_456_789, 0, 1, 60, b"nanos"),
        record(5 * SECOND + 1_000, 1, 113, 60, b"micros!!"),
        // Those without a time have that of the packet before; the second is cut to the snap length.
        record(5 * SECOND + 1_000, 0, 1, 3, b"abc"),
        record(5 * SECOND + 1_000, 0, 1, 9, b"defg"),
        record(6 * SECOND, 1, 113, 4, b"old"),
        record(102 * SECOND + SECOND / 1024, 2, 101, 1, b"x"),
        record(SECOND + SECOND / 2, 3, 276, 9, b""),
        record(0, 3, 276, 9, b"too early"),
        record(u64::MAX, 3, 276, 9, b"too late"),
    ]
}

/// Every variant: name, bytes, what is in it.
fn variants() -> Vec<(String, Vec<u8>, Vec<Owned>)> {
    let mut all = Vec::new();
    for big in [false, true] {
        all.push((format!("micros, big {big}"), pcap(big, 0xa1b2_c3d4), pcap_records(1000)));
        all.push((format!("nanos, big {big}"), pcap(big, 0xa1b2_3c4d), pcap_records(1)));
        all.push((format!("modified, big {big}"), pcap(big, 0xa1b2_cd34), pcap_records(1000)));
        all.push((format!("pcapng, big {big}"), ng(big), ng_records()));
    }
    // Before version 2.4 the lengths may be swapped: the second record of each is.
    let old = PcapFile::new(false, 0xa1b2_c3d4, 3, 0, 1).record(0, 0, 8, b"right").bytes;
    let swapped = [&old[..], &[0; 8], &[8, 0, 0, 0, 3, 0, 0, 0], b"xyz"].concat();
    all.push((
        "version 2.3".to_owned(),
        swapped,
        vec![record(0, 0, 1, 8, b"right"), record(0, 0, 1, 8, b"xyz")],
    ));
    all.push(("pcap, empty".to_owned(), PcapFile::new(true, 0xa1b2_3c4d, 4, 0, 1).bytes, Vec::new()));
    all.push(("pcapng, empty".to_owned(), NgFile::new(true).bytes, Vec::new()));
    all
}

#[test]
fn every_variant_is_read() {
    for (name, bytes, expected) in variants() {
        assert_eq!(twin(&bytes), Some((expected.clone(), None)), "the obvious reader, {name}");
        assert_eq!(read_bytes(&bytes), Some((expected, None)), "{name}");
    }
}

#[test]
fn every_variant_is_read_within_compression() {
    for (name, bytes, expected) in variants() {
        let (head, tail) = bytes.split_at(bytes.len() / 2);
        let skippable = [&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
        let packed = [
            ("gzip", Compression::Gzip, gzip(&bytes)),
            ("gzip members", Compression::Gzip, [gzip(head), gzip(b""), gzip(tail)].concat()),
            ("gzip, padded", Compression::Gzip, [gzip(&bytes), vec![0; 700]].concat()),
            ("zstd", Compression::Zstd, zstd(&bytes)),
            ("zstd frames", Compression::Zstd, [zstd(head), skippable.clone(), zstd(tail)].concat()),
            ("zstd, skippable frame first", Compression::Zstd, [skippable, zstd(&bytes)].concat()),
            ("gzip in gzip", Compression::Gzip, gzip(&gzip(&bytes))),
            ("gzip in zstd", Compression::Zstd, zstd(&gzip(&bytes))),
            ("zstd in gzip", Compression::Gzip, gzip(&zstd(&bytes))),
        ];
        for (how, compression, packed) in packed {
            let len = packed.len() as u64;
            let mut reader = CaptureReader::from_reader(std::io::Cursor::new(packed), "memory").unwrap();
            assert_eq!(reader.compression(), compression, "{name}, {how}");
            while reader.next_record().unwrap().is_some() {}
            assert_eq!(reader.bytes_read(), len, "{name}, {how}");
        }
        for packed in [gzip(&bytes), [zstd(head), zstd(tail)].concat(), gzip(&zstd(&bytes))] {
            assert_eq!(read_bytes(&packed), Some((expected.clone(), None)), "{name}");
        }
    }
}

#[test]
fn gzip_headers_with_every_field_are_passed_over() {
    let plain = pcap(false, 0xa1b2_c3d4);
    let packed = gzip(&plain);
    let mut file = vec![0x1f, 0x8b, 8, 2 | 4 | 8 | 16, 0, 0, 0, 0, 0, 3];
    file.extend(b"\x05\0extra");
    file.extend(b"name\0comment\0");
    file.extend(b"hc");
    file.extend(&packed[10..]);
    assert_eq!(read_bytes(&file), Some((pcap_records(1000), None)));
}

#[test]
fn what_a_file_says_of_itself() {
    let bytes = ng(true);
    let mut reader = CaptureReader::from_reader(std::io::Cursor::new(bytes.clone()), "memory").unwrap();
    assert_eq!((reader.format(), reader.compression()), (Format::PcapNg, Compression::None));
    assert_eq!((reader.interfaces().len(), reader.file_len()), (0, None));
    while reader.next_record().unwrap().is_some() {}
    let interface = |link_number, snap_len, name: Option<&str>| Interface {
        link_number,
        snap_len,
        name: name.map(str::to_owned),
    };
    assert_eq!(
        reader.interfaces(),
        [
            interface(1, 4, Some("eth0")),
            interface(113, 0, None),
            interface(101, 0, None),
            interface(276, 0, Some("any"))
        ]
    );
    let notes = reader.notes();
    assert_eq!((notes.clamped_times, notes.without_time), (2, 2));
    assert_eq!((notes.skipped_blocks, notes.sections), (2, 2));

    let reader = CaptureReader::from_reader(std::io::Cursor::new(pcap(true, 0xa1b2_3c4d)), "memory").unwrap();
    assert_eq!(reader.format(), Format::Pcap);
    assert_eq!(reader.interfaces(), [interface(0x3400_0001, 96, None)]);
}

#[test]
fn cut_at_every_byte() {
    for (name, bytes, whole) in variants() {
        for len in 0..bytes.len() {
            let cut = &bytes[..len];
            let expected = twin(cut);
            assert_eq!(read_bytes(cut), expected, "{name}, {len} bytes");
            if let Some((records, damage)) = expected {
                assert!(whole.starts_with(&records));
                assert!(damage.is_none_or(|byte| byte < len as u64));
            }
        }
    }
}

#[test]
fn changed_at_every_byte() {
    for (name, bytes, _) in variants() {
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff, bytes[at] ^ 1, bytes[at].wrapping_add(4)] {
                let mut changed = bytes.clone();
                changed[at] = value;
                assert_eq!(read_bytes(&changed), twin(&changed), "{name}, byte {at} = {value}");
            }
        }
    }
}

/// A stream that ends early, or whose bytes are wrong, still gives what comes before.
#[test]
fn cut_compression_at_every_byte() {
    // Records that don't compress, so that each has its place in the stream.
    let mut noise = 1u32;
    let mut file = PcapFile::new(false, 0xa1b2_3c4d, 4, 0, 1);
    for i in 0..60 {
        let data: Vec<u8> = (0..40)
            .map(|_| {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (noise >> 24) as u8
            })
            .collect();
        file = file.record(i, i, 40, &data);
    }
    let plain = file.bytes;
    let (whole, _) = twin(&plain).unwrap();
    for packed in [gzip(&plain), [gzip(&plain[..1000]), gzip(&plain[1000..])].concat(), zstd(&plain)] {
        let mut most = 0;
        for len in 1..packed.len() {
            let Some((records, damage)) = read_bytes(&packed[..len]) else { continue };
            assert!(whole.starts_with(&records));
            let boundary = 24 + 56 * records.len() as u64;
            // Members of their own may end between two records, and the cut between two members.
            assert_eq!(damage, Some(boundary), "{len} of {} bytes", packed.len());
            most = most.max(records.len());
        }
        assert_eq!(most, 60, "all the data is there before the trailer is");
    }
}

#[test]
fn damaged_compression_gives_what_was_decoded_before() {
    let mut plain = PcapFile::new(false, 0xa1b2_3c4d, 4, 0, 1);
    for i in 0..2000u32 {
        plain = plain.record(i, 0, 4, &i.wrapping_mul(0x9e37_79b9).to_le_bytes());
    }
    let (whole, _) = twin(&plain.bytes).unwrap();
    let good = gzip(&plain.bytes);
    // Wrong checksum: all records, and damage at the end.
    let mut bad = good.clone();
    let at = bad.len() - 6;
    bad[at] ^= 1;
    assert_eq!(read_bytes(&bad), Some((whole.clone(), Some(plain.bytes.len() as u64))));
    // A second member that is none: the same.
    let bad = [&good[..], b"garbage at the end"].concat();
    assert_eq!(read_bytes(&bad), Some((whole.clone(), Some(plain.bytes.len() as u64))));
    // Bad data right behind good, so that one call of the decoder comes upon both. zstd's decoder loses the
    // last 8 KiB.
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(&plain.bytes).unwrap();
    encoder.flush().unwrap();
    let bad = [&encoder.get_ref()[..], &[0xff; 40]].concat();
    assert_eq!(read_bytes(&bad), Some((whole.clone(), Some(plain.bytes.len() as u64))));
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
    encoder.write_all(&plain.bytes).unwrap();
    encoder.flush().unwrap();
    let bad = [&encoder.get_ref()[..], &[0xff; 40]].concat();
    let (records, damage) = read_bytes(&bad).unwrap();
    assert!(whole.starts_with(&records) && damage == Some(24 + 20 * records.len() as u64));
    assert!(records.len() > 2000 - 8192 / 20 - 2, "{} records", records.len());
}

#[test]
fn a_promise_costs_no_memory_and_absurd_lengths_are_damage() {
    for captured in [0x400_0000, 0x400_0001, u32::MAX] {
        let mut file = PcapFile::new(false, 0xa1b2_c3d4, 4, 0, 1).record(1, 1, 1, b"a").bytes;
        file.extend([0; 8]);
        file.extend(captured.to_le_bytes());
        file.extend([0xff; 100]);
        assert_eq!(read_bytes(&file), twin(&file), "{captured}");
        assert_eq!(read_bytes(&file).unwrap().1, Some(41));
    }
    let interface = NgFile::new(false).interface(1, 0, &[]);
    let at = interface.bytes.len() as u64;
    for len in [0x400_0020u32, 0x411_0000, 0xffff_fffc, 13, 8, 0] {
        let mut file = interface.bytes.clone();
        file.extend(6u32.to_le_bytes());
        file.extend(len.to_le_bytes());
        file.extend([0; 200]);
        assert_eq!(read_bytes(&file).unwrap(), (Vec::new(), Some(at)), "{len}");
    }
}

/// A header makes no packet of the year 2055.
#[test]
fn a_capture_behind_another_one_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("capture");
    let magics = [0xa1b2_c3d4, 0xa1b2_3c4d, 0xa1b2_cd34];
    let all = magics.into_iter().flat_map(|magic| [(false, magic), (true, magic)]);
    for ((big, magic), (other, next)) in all.clone().flat_map(|a| all.clone().map(move |b| (a, b))) {
        let first = pcap(big, magic);
        let both = [&first[..], &pcap(other, next)].concat();
        let expected = Some((read_bytes(&first).unwrap().0, Some(first.len() as u64)));
        assert_eq!(read_bytes(&both), expected);
        assert_eq!(twin(&both), expected);
        std::fs::write(&path, &both).unwrap();
        for bytes in [1, 30, 64, 1000] {
            assert_eq!(read_in_parts(&path, 2, bytes), expected, "parts of {bytes}");
        }
    }
}

#[test]
fn the_largest_packet_is_read() {
    let data = vec![7; 0x400_0000];
    let file = PcapFile::new(false, 0xa1b2_3c4d, 4, 0, 1)
        .record(1, 1, u32::MAX, &data)
        .record(2, 2, 3, b"end")
        .bytes;
    let (records, damage) = read_bytes(&file).unwrap();
    assert_eq!((records.len(), damage), (2, None));
    assert!(records[0].data == data && records[1].data == b"end");
    let file =
        NgFile::new(true).interface(1, 0, &[]).enhanced(0, 1, 1, &data).enhanced(0, 1, 1, b"end").bytes;
    let (records, damage) = read_bytes(&file).unwrap();
    assert_eq!((records.len(), damage), (2, None));
    assert!(records[0].data == data && records[1].data == b"end");
}

/// Wherever parts begin, and wherever the file is cut.
#[test]
fn parts_of_any_size_make_the_same_records() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("capture");
    for (name, bytes, expected) in variants() {
        for cut in [bytes.len(), bytes.len() - 1, bytes.len() / 2] {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let Ok(whole) = CaptureReader::open(&path).map(read_all) else { continue };
            assert!(cut < bytes.len() || whole.0 == expected);
            for size in [1, 7, 16, 24, 60, 100, 1000] {
                let read = read_in_parts(&path, 2, size).unwrap();
                assert_eq!(read, whole, "{name}, {cut} bytes, {size} bytes at a time");
            }
        }
    }
}

/// Hands out few bytes at a time, as a pipe may.
struct Trickle(std::io::Cursor<Vec<u8>>, usize);

impl std::io::Read for Trickle {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let n = into.len().min(self.1);
        std::io::Read::read(&mut self.0, &mut into[..n])
    }
}

#[test]
fn pieces_of_any_size_make_the_same_records() {
    for (name, bytes, expected) in variants() {
        for bytes in [bytes.clone(), gzip(&bytes), zstd(&bytes)] {
            for size in [1, 2, 3, 7, 16, 100] {
                let input = Trickle(std::io::Cursor::new(bytes.clone()), size);
                let read = read_all(CaptureReader::from_reader(input, "pipe").unwrap());
                assert_eq!(read, (expected.clone(), None), "{name}, {size} bytes at a time");
            }
        }
    }
}

/// The number behind `"name": ` in a line of JSON.
fn number(line: &str, name: &str) -> usize {
    let from = line.find(&format!("\"{name}\": ")).unwrap() + name.len() + 4;
    let digits: String = line[from..].chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[test]
fn captures_from_everywhere() {
    let Some(traces) = traces() else { return };
    let expected = std::fs::read_to_string(traces.join("expected.jsonl")).unwrap();
    let (mut compared, mut in_parts) = (0, 0);
    for directory in ["multi", "odd", "large"] {
        for entry in std::fs::read_dir(traces.join(directory)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let slow = twin(&unpacked(std::fs::read(&path).unwrap()));
            // Blocks that another thread reads have other bounds.
            let ahead = CaptureReader::open(&path).ok().map(|mut reader| {
                reader.read_ahead();
                read_all(reader)
            });
            let fast = CaptureReader::open(&path).ok().map(read_all);
            assert!(fast == ahead, "{name}: a thread that reads ahead makes a difference");
            assert_eq!(fast.is_some(), slow.is_some(), "{name}");
            let (Some(fast), Some(slow)) = (fast, slow) else { continue };
            for (threads, bytes) in [(1, 1 << 18), (3, 1 << 16), (2, 1000)] {
                let Some(parts) = read_in_parts(&path, threads, bytes) else { break };
                in_parts += 1;
                assert!(
                    parts == fast,
                    "{name}: {threads} threads read something else, in parts of {bytes} bytes"
                );
            }
            assert!(
                fast == slow,
                "{name}: {} and {} records, {:?}, {:?}",
                fast.0.len(),
                slow.0.len(),
                fast.1,
                slow.1
            );
            if let Some(line) = expected.lines().find(|line| line.contains(&format!("\"{name}\""))) {
                assert_eq!(fast.0.len(), number(line, "records"), "{name}");
                compared += 1;
            }
        }
    }
    assert_eq!(compared, expected.lines().count());
    assert!(in_parts > 60, "{in_parts} of the captures are plain files");
}

fn pieces() -> impl Strategy<Value = Vec<(u8, u32, u64, u32, Vec<u8>)>> {
    let data = prop::collection::vec(any::<u8>(), 0..70);
    prop::collection::vec((0..12u8, 0..3u32, any::<u64>(), any::<u32>(), data), 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Blocks in any order, with any options: the obvious reader and the fast one agree, also on a part of
    /// it.
    #[test]
    fn any_pcapng(big: bool, pieces in pieces(), cut in 0..3000usize) {
        let mut file = NgFile::new(big);
        for (kind, id, stamp, n, data) in pieces {
            let stamp = if n % 3 == 0 { stamp } else { stamp >> 24 };
            let ends = file.ends;
            file = match kind {
                0..=3 => file.enhanced(id, stamp, n, &data),
                4 => file.simple(n % 100, &data),
                5 => file.old(id as u16, stamp, n, &data),
                6 | 7 => {
                    let offset = if n % 2 == 0 { 0 } else { stamp as i64 };
                    let options = [(9, vec![stamp as u8]), (14, ends.put64(offset).to_vec()), (2, data)];
                    file.interface(n as u16, n % 64, &options[..n as usize % 4])
                }
                8 => file.interface(n as u16, 0, &[]),
                9 => file.block(n, &data),
                10 => file.section(n % 2 == 0),
                _ => file.interface(n as u16, 0, &[(9, vec![9])]),
            };
        }
        prop_assert_eq!(read_bytes(&file.bytes), twin(&file.bytes));
        let cut = &file.bytes[..cut.min(file.bytes.len())];
        prop_assert_eq!(read_bytes(cut), twin(cut));
    }

    /// Any bytes after any header.
    #[test]
    fn any_bytes(variant in 0..11usize, at in 0..400usize, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let (_, mut file, _) = variants().swap_remove(variant);
        let at = at.min(file.len());
        let until = file.len().min(at + bytes.len());
        file.splice(at..until, bytes);
        prop_assert_eq!(read_bytes(&file), twin(&file));
    }
}
