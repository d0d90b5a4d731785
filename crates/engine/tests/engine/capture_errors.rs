//! Errors for files that are no captures, and for devices that fail.

use std::io;

use crate::capture_support::{NgFile, PcapFile, gzip, zstd};
use slipstream::io::capture::{CaptureError, CaptureReader, Format, MAX_INTERFACE_NAME};

fn error(bytes: &[u8]) -> CaptureError {
    CaptureReader::from_reader(io::Cursor::new(bytes.to_vec()), "in.pcap").unwrap_err()
}

#[test]
fn files_that_cannot_be_opened() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing.pcap");
    let error = CaptureReader::open(&missing).unwrap_err();
    assert!(matches!(error, CaptureError::NotFound { .. }));
    assert_eq!(error.to_string(), format!("{}: no such file", missing.display()));

    let error = CaptureReader::open(directory.path()).unwrap_err();
    assert!(matches!(error, CaptureError::IsDirectory { .. }));

    let below_a_file = directory.path().join("file");
    std::fs::write(&below_a_file, "").unwrap();
    let error = CaptureReader::open(&below_a_file.join("x")).unwrap_err();
    assert!(matches!(error, CaptureError::Open { .. }), "{error}");
    let error = CaptureReader::open(&below_a_file).unwrap_err();
    assert!(matches!(error, CaptureError::Empty { .. }), "{error}");
}

#[cfg(unix)]
#[test]
fn files_that_may_not_be_read() {
    use std::os::unix::fs::PermissionsExt;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::set_permissions(file.path(), PermissionsExt::from_mode(0o000)).unwrap();
    if std::fs::File::open(file.path()).is_ok() {
        eprintln!("this user may read everything; nothing tested");
        return;
    }
    let error = CaptureReader::open(file.path()).unwrap_err();
    assert!(matches!(error, CaptureError::PermissionDenied { .. }), "{error}");
}

/// A small compressed file can describe many interfaces with long names; only the beginnings of these are
/// kept.
#[test]
fn long_names_of_many_interfaces_take_little_memory() {
    let name = vec![b'n'; 60_000];
    let mut file = NgFile::new(false);
    for _ in 0..300 {
        file = file.interface(1, 0, &[(2, name.clone()), (3, name.clone())]);
    }
    let mut reader =
        CaptureReader::from_reader(io::Cursor::new(gzip(&file.enhanced(299, 0, 4, &[0; 4]).bytes)), "in.gz")
            .unwrap();
    assert!(reader.next_record().unwrap().is_some());
    assert_eq!(reader.interfaces().len(), 300);
    let kept: usize = reader.interfaces().iter().filter_map(|i| i.name.as_ref().map(String::capacity)).sum();
    assert!(kept <= 300 * MAX_INTERFACE_NAME, "{kept} bytes of names are kept");
}

#[test]
fn other_formats_are_named() {
    let erf = [&[0; 8][..], &[2, 4, 0, 20, 0, 0, 0, 60], &[0; 4]].concat().repeat(3);
    let tar = [&b"x.pcap"[..], &[0; 251], b"ustar", &[0; 250]].concat();
    let table: &[(&[u8], &str, &str)] = &[
        (b"snoop\0\0\0\0\0\0\x02\0\0\0\x04", "a Solaris snoop capture", "editcap -F pcapng IN OUT"),
        (b"btsnoop\0\0\0\0\x01", "a Bluetooth btsnoop capture", "editcap"),
        (b"GMBU\0\x02", "a Microsoft Network Monitor 2 capture", "editcap"),
        (b"iptrace 2.0xyz", "an AIX iptrace capture", "editcap"),
        (b"+---------+---------------+----------+\n", "a K12 text capture", "editcap"),
        (&erf, "an Endace ERF capture", "editcap"),
        (b"\x7fELF\x02\x01\x01", "an ELF program", "name the capture"),
        (b"#!/bin/sh\necho\n", "a shell script", "name the capture"),
        (b"  <!DOCTYPE HTML><html>", "an HTML page", "name the capture"),
        (b"<?xml version=\"1.0\"?>", "an XML document", "name the capture"),
        (b"{\"a\": 1}", "a JSON document", "name the capture"),
        (b"PK\x03\x04abcdef", "a zip archive", "unpack it first"),
        (b"BZh91AY", "a bzip2 file", "unpack it first"),
        (b"\xfd7zXZ\0\0", "an xz file", "unpack it first"),
        (&tar, "a tar archive", "unpack it first"),
        (b"\x0d\x0a\x0d\x0d\x0d\x0a\x1c\0\0\0", "copied as if it were text", "again"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer", "git lfs pull"),
        (b"0000  45 00 00 28\n", "text", "text2pcap"),
        (&[0; 64], "nothing but zeros", "again"),
        (b"\xde\xad\xbe\xef\x01\x02\x03\x04\x05\x06", "begins de ad be ef 01 02 03 04;", "editcap"),
        (b"\xd4", "begins d4;", "editcap"),
    ];
    for (bytes, name, advice) in table {
        for bytes in [bytes.to_vec(), gzip(bytes), zstd(&gzip(bytes))] {
            let error = error(&bytes);
            assert!(matches!(error, CaptureError::UnknownFormat { .. }), "{error}");
            let words = error.to_string();
            assert!(words.starts_with("in.pcap: not pcap or pcapng: byte 0"), "{words}");
            assert!(words.contains(name) && words.contains(advice), "{words}");
        }
    }
}

#[test]
fn headers_that_end_early() {
    for (bytes, format) in [
        (PcapFile::new(true, 0xa1b2_c3d4, 4, 0, 1).bytes, Format::Pcap),
        (NgFile::new(true).bytes, Format::PcapNg),
    ] {
        for len in 4..bytes.len().min(28) {
            match error(&bytes[..len]) {
                CaptureError::HeaderTruncated { format: named, found, .. } => {
                    assert_eq!((named, found), (format, len))
                }
                other => panic!("{other}"),
            }
        }
    }
    let packed = gzip(&PcapFile::new(true, 0xa1b2_c3d4, 4, 0, 1).record(1, 1, 1, b"x").bytes);
    let words = error(&packed[..20]).to_string();
    assert!(words.contains("the gzip stream ends early"), "{words}");
    assert!(matches!(error(&packed[..9]), CaptureError::BadCompression { .. }));
    let mut long = NgFile::new(true).bytes;
    long[7] = 60;
    let error = error(&long);
    assert!(matches!(&error, CaptureError::BadHeader { byte: 0, .. }), "{error}");
}

/// Of a pipe `zstd --long=31` writes a window that is longer than anybody should be made to keep.
#[test]
fn a_zstd_window_that_is_too_long_is_no_damage() {
    let capture = PcapFile::new(true, 0xa1b2_c3d4, 4, 0, 1).record(1, 1, 1, b"x").bytes;
    // RFC 8878: magic, descriptor without any of the optional fields, window of 2^(10 + exponent) bytes, then
    // the last block, of raw bytes.
    let frame = |exponent: u8, content: &[u8]| {
        let head = [0x28, 0xb5, 0x2f, 0xfd, 0, exponent << 3];
        let block = ((content.len() as u32) << 3 | 1).to_le_bytes();
        [&head[..], &block[..3], content].concat()
    };
    let read = |bytes: Vec<u8>| CaptureReader::from_reader(std::io::Cursor::new(bytes), "in.zst");
    let mut reader = read(frame(17, &capture)).unwrap();
    assert!(reader.next_record().unwrap().is_some());
    for exponent in [18, 21] {
        let words =
            "the zstd stream takes more than 128 MiB of memory; unpack it first, with `zstd -d --long=31`";
        let error = read(frame(exponent, &capture)).unwrap_err().to_string();
        assert_eq!(error, format!("in.zst: cannot be unpacked: {words}"));
        let mut reader = read([frame(17, &capture), frame(exponent, b"more")].concat()).unwrap();
        assert!(reader.next_record().unwrap().is_some());
        assert!(reader.next_record().unwrap().is_none());
        assert_eq!(reader.damage().unwrap().what, words);
    }
}

#[test]
fn versions_that_are_not_read() {
    let mut pcap = PcapFile::new(false, 0xa1b2_3c4d, 4, 0, 1).bytes;
    pcap[4] = 3;
    let mut ng = NgFile::new(true).bytes;
    ng[13] = 2;
    for (bytes, version) in [(pcap, "pcap version 3.4"), (ng, "pcapng version 2.0")] {
        let error = error(&bytes);
        assert!(matches!(error, CaptureError::UnsupportedVersion { .. }));
        assert!(error.to_string().contains(version), "{error}");
    }
}

#[test]
fn empty_within_compression_and_endless_compression() {
    assert!(matches!(error(b""), CaptureError::Empty { .. }));
    assert!(matches!(error(&gzip(b"")), CaptureError::Empty { .. }));
    let mut bytes = PcapFile::new(false, 0xa1b2_3c4d, 4, 0, 1).bytes;
    for _ in 0..4 {
        bytes = gzip(&bytes);
    }
    assert!(CaptureReader::from_reader(io::Cursor::new(bytes.clone()), "in").is_ok());
    assert!(matches!(error(&gzip(&bytes)), CaptureError::TooManyLayers { layers: 4, .. }));
}

/// Gives some bytes, then fails.
struct Broken(io::Cursor<Vec<u8>>);

impl io::Read for Broken {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.0.read(into)? {
            0 => Err(io::Error::new(io::ErrorKind::ConnectionReset, "the cable is out")),
            n => Ok(n),
        }
    }
}

#[test]
fn a_device_that_fails_is_an_error_and_not_damage() {
    let file = PcapFile::new(false, 0xa1b2_3c4d, 4, 0, 1).record(1, 1, 1, b"x").bytes;
    let ng = NgFile::new(false).interface(1, 0, &[]).enhanced(0, 1, 1, b"x").bytes;
    // A second member's beginning, so that the decompressor, too, wants more.
    let packed = [gzip(&file), vec![0x1f, 0x8b]].concat();
    let frames = [zstd(&file), vec![0x28, 0xb5]].concat();
    let all = [file, ng, packed, frames];
    for (bytes, ahead) in all.into_iter().flat_map(|bytes| [(bytes.clone(), false), (bytes, true)]) {
        let len = bytes.len() as u64;
        let mut reader = CaptureReader::from_reader(Broken(io::Cursor::new(bytes)), "socket").unwrap();
        if ahead {
            reader.read_ahead();
        }
        assert!(reader.next_record().unwrap().is_some());
        let error = reader.next_record().unwrap_err();
        assert_eq!(error.to_string(), format!("socket: reading failed after byte {len}: the cable is out"));
        assert!(matches!(error, CaptureError::Read { byte, .. } if byte == len));
        assert!(reader.next_record().unwrap().is_none() && reader.damage().is_none());
    }
    let error = CaptureReader::from_reader(Broken(io::Cursor::new(Vec::new())), "socket").unwrap_err();
    assert!(matches!(error, CaptureError::Read { byte: 0, .. }));
}
