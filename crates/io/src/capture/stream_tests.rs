//! Captures that come by a pipe, piece by piece, and what is around them in a file.

use std::fs::OpenOptions;
use std::io::Write;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;

/// A capture of so many packets, and how many of them begin with each of its bytes are complete.
fn capture(format: Format, packets: u8) -> (Vec<u8>, Vec<usize>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let mut lens = Vec::new();
    let mut bytes = Vec::new();
    for n in 0..=packets {
        let mut writer = CaptureWriter::create(&path, WriterOptions::for_path(&path, format)).unwrap();
        for interface in 0..2 {
            let name = Some(format!("eth{interface}"));
            if format == Format::PcapNg || interface == 0 {
                writer.add_interface(&Interface { link_number: 1, snap_len: 0, name });
            }
        }
        (0..n).for_each(|n| writer.write(0, Nanos(n.into()), 60, &[n; 60]).unwrap());
        writer.finish().unwrap();
        bytes = std::fs::read(&path).unwrap();
        lens.push(bytes.len());
    }
    (bytes, lens)
}

/// Whoever asks before waits for nothing: records are told to be there once they are, and not before.
#[test]
fn records_come_as_they_are_written() {
    for format in [Format::Pcap, Format::PcapNg] {
        let (bytes, lens) = capture(format, 3);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let mut to = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let (head, rest) = bytes.split_at(lens[0]);
        to.write_all(head).unwrap();
        let mut reader = CaptureReader::open(&path).unwrap();
        assert!(reader.stream().is_some());
        let (mut got, mut at) = (Vec::new(), lens[0]);
        for byte in rest {
            assert!(reader.waits().unwrap(), "{format:?}: at byte {at}");
            to.write_all(&[*byte]).unwrap();
            at += 1;
            if lens[got.len() + 1] == at {
                assert!(!reader.waits().unwrap(), "{format:?}: at byte {at}");
                got.push(reader.next_record().unwrap().unwrap().data.to_vec());
            }
        }
        assert_eq!(got, [[0; 60], [1; 60], [2; 60]]);
        // The end is one, in the middle of a record, too.
        to.write_all(&bytes[lens[1]..lens[1] + 20]).unwrap();
        assert!(reader.waits().unwrap());
        drop(to);
        assert!(!reader.waits().unwrap());
        assert!(reader.next_record().unwrap().is_none());
        assert!(reader.damage().is_some());
        assert!(!reader.waits().unwrap());
    }
}

/// Of a file, of memory and of what is compressed nobody waits to be told.
#[test]
fn files_are_read_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    std::fs::write(&path, capture(Format::Pcap, 1).0).unwrap();
    let mut reader = CaptureReader::open(&path).unwrap();
    assert!(!reader.waits().unwrap() && reader.stream().is_none());
    assert!(reader.next_record().unwrap().is_some());
}

/// Bytes behind a whole stream are told as such, however few they are; a member or a frame of which the file
/// has only the begin ends early.
#[test]
fn bytes_behind_a_compressed_stream_are_named() {
    let plain = capture(Format::Pcap, 3).0;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&plain).unwrap();
    let gzip = gzip.finish().unwrap();
    let zstd = zstd::encode_all(&plain[..], 3).unwrap();
    let damage = |stream: &[u8], behind: &[u8]| {
        let bytes = [stream, behind].concat();
        let mut reader = CaptureReader::from_reader(std::io::Cursor::new(bytes), "a").unwrap();
        let mut packets = 0;
        while reader.next_record().unwrap().is_some() {
            packets += 1;
        }
        assert_eq!(packets, 3);
        reader.damage().map(|damage| (damage.byte, damage.what.clone()))
    };
    let at = plain.len() as u64;
    for (name, stream, again) in [("gzip", &gzip, &gzip[..9]), ("zstd", &zstd, &zstd[..5])] {
        assert_eq!(damage(stream, &[]), None);
        let whole = format!("the {name} stream is whole up to here, and what follows is not {name}");
        for behind in
            [&b"garbage"[..], b"X\n", b"\x1f\x8c", b"a long text that no member and no frame begins with"]
        {
            assert_eq!(damage(stream, behind), Some((at, whole.clone())), "{name}, {behind:?}");
        }
        for len in 1..=again.len() {
            let early = format!("the {name} stream ends early");
            assert_eq!(damage(stream, &again[..len]), Some((at, early)), "{name}, {len} bytes");
        }
    }
    // Zeros are padding behind gzip, but nothing else may come behind them.
    assert_eq!(damage(&gzip, &[0; 512]), None);
    let (_, what) = damage(&gzip, b"\0\0garbage").unwrap();
    assert_eq!(what, "the gzip stream is whole up to here, and what follows is not gzip");
}

/// The check sequence's length counts bits; 2 and 4, as some writers have it, are bytes.
#[test]
fn lengths_of_check_sequences_in_bytes_are_known() {
    let interface = |len: u8| {
        let section = [0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28];
        let interface = [1, 32, 1, 0, 1 << 16 | 13, u32::from(len), 0, 32];
        let bytes: Vec<u8> = section.into_iter().chain(interface).flat_map(u32::to_le_bytes).collect();
        let mut reader = CaptureReader::from_reader(std::io::Cursor::new(bytes), "a").unwrap();
        assert!(reader.next_record().unwrap().is_none() && reader.damage().is_none());
        reader.interfaces()[0].link_number
    };
    for (len, units) in [(0, 0), (2, 1), (4, 2), (16, 1), (32, 2), (240, 15)] {
        assert_eq!(interface(len), 1 | 1 << 26 | units << 28, "{len}");
    }
    for len in [1, 3, 8, 24, 33] {
        assert_eq!(interface(len), 1, "{len}");
    }
}

/// A file that was made longer and not written has zeros at its end, which are no packets.
#[test]
fn zeros_behind_the_last_record_are_no_packets() {
    for format in [Format::Pcap, Format::PcapNg] {
        for packets in [0, 3] {
            let whole = capture(format, packets).0;
            for zeros in [16, 17, 512, 1 << 20] {
                let bytes = [&whole[..], &vec![0; zeros]].concat();
                let mut reader = CaptureReader::from_reader(std::io::Cursor::new(bytes), "a").unwrap();
                let mut read = 0;
                while reader.next_record().unwrap().is_some() {
                    read += 1;
                }
                assert_eq!(read, packets, "{format:?}, {zeros} zeros");
                let damage = reader.damage().unwrap();
                assert_eq!(damage.byte, whole.len() as u64, "{format:?}, {zeros} zeros");
                assert!(format == Format::PcapNg || damage.what.starts_with("zeros"), "{}", damage.what);
            }
        }
    }
}
