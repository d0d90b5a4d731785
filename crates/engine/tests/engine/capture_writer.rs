//! Writing captures: what comes back, what other programs say, and what is left behind when it fails.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::capture_support::{Owned, read_all, read_bytes, traces};
use proptest::prelude::*;
use slipstream::io::capture::{
    CaptureError, CaptureReader, CaptureWriter, Compression, Format, Interface, WriterOptions,
};
use slipstream::time::Nanos;

const FORMATS: [Format; 2] = [Format::Pcap, Format::PcapNg];
const COMPRESSIONS: [Compression; 3] = [Compression::None, Compression::Gzip, Compression::Zstd];

/// Memory that outlives the writer.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Memory {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn interface(link_number: u32, snap_len: u32, name: Option<&str>) -> Interface {
    Interface { link_number, snap_len, name: name.map(str::to_owned) }
}

fn options(format: Format, compression: Compression) -> WriterOptions {
    WriterOptions { format, compression }
}

const PLAIN: WriterOptions = WriterOptions { format: Format::PcapNg, compression: Compression::None };

/// Writes a small capture; the number of its packets.
fn fill(mut writer: CaptureWriter) -> Result<u64, CaptureError> {
    let id = writer.add_interface(&interface(1, 96, Some("eth0")));
    for i in 0..5u32 {
        writer.write(
            id,
            Nanos(1_700_000_000_000_000_000 + u64::from(i)),
            100 + i,
            &[0x11; 60][..50 + i as usize],
        )?;
    }
    Ok(writer.finish()?.packets)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn what_is_written_is_read(
        ng: bool,
        compression in prop::sample::select(COMPRESSIONS.to_vec()),
        links in prop::collection::vec((any::<u16>(), prop::option::of(0u32..16), any::<u32>(), prop::option::of("[a-zé0-9]{0,12}")), 1..4),
        packets in prop::collection::vec(
            (any::<u8>(), any::<u64>(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..100)), 0..60),
    ) {
        let format = FORMATS[usize::from(ng)];
        let memory = Memory::default();
        let mut writer = CaptureWriter::to_writer(memory.clone(), "memory", options(format, compression)).unwrap();
        let (mut described, mut expected) = (Vec::new(), Vec::new());
        let add = |writer: &mut CaptureWriter, described: &mut Vec<Interface>| {
            let (link, fcs, snap_len, name) = &links[if ng { described.len() } else { 0 }];
            let link = u32::from(*link) | fcs.map_or(0, |units| units << 28 | 1 << 26);
            let one = interface(link, *snap_len, name.as_deref());
            assert_eq!(writer.add_interface(&one) as usize, described.len());
            described.push(one);
        };
        add(&mut writer, &mut described);
        for (choice, time, original_len, data) in packets {
            // More interfaces between packets.
            if described.len() < links.len() && choice % 8 == 0 {
                add(&mut writer, &mut described);
            }
            let id = u32::from(choice) % described.len() as u32;
            let time = if ng { time } else { time % (u64::from(u32::MAX) * 1_000_000_000) };
            writer.write(id, Nanos(time), original_len, &data).unwrap();
            let link_number = described[id as usize].link_number;
            expected.push(Owned { time, interface: if ng { id } else { 0 }, link_number, original_len, data });
        }
        let summary = writer.finish().unwrap();
        let bytes = memory.bytes();
        prop_assert_eq!(summary.packets, expected.len() as u64);
        prop_assert_eq!(summary.data_bytes, expected.iter().map(|record| record.data.len() as u64).sum::<u64>());
        prop_assert_eq!(summary.file_bytes, bytes.len() as u64);

        let mut reader = CaptureReader::from_reader(io::Cursor::new(bytes.clone()), "memory").unwrap();
        prop_assert_eq!((reader.format(), reader.compression()), (format, compression));
        while reader.next_record().unwrap().is_some() {}
        if ng {
            prop_assert_eq!(reader.interfaces(), &described[..]);
        }
        prop_assert_eq!(read_bytes(&bytes), Some((expected, None)));
    }
}

#[test]
fn the_extension_chooses() {
    let table = [
        ("a.pcap", Format::Pcap, Compression::None),
        ("dir.pcapng/a.CAP", Format::Pcap, Compression::None),
        ("a.dmp.gz", Format::Pcap, Compression::Gzip),
        ("a.pcapng", Format::PcapNg, Compression::None),
        ("a.ntar.zst", Format::PcapNg, Compression::Zstd),
        ("a.b.PcapNG.GZ", Format::PcapNg, Compression::Gzip),
    ];
    for otherwise in FORMATS {
        for (path, format, compression) in table {
            assert_eq!(
                WriterOptions::for_path(Path::new(path), otherwise),
                options(format, compression),
                "{path}"
            );
        }
        for (path, compression) in [
            ("a", Compression::None),
            ("-", Compression::None),
            ("/dev/null", Compression::None),
            ("a.gz", Compression::Gzip),
        ] {
            assert_eq!(
                WriterOptions::for_path(Path::new(path), otherwise),
                options(otherwise, compression),
                "{path}"
            );
        }
    }
}

#[test]
fn a_pcap_header_keeps_link_field_and_snap_length() {
    for (snap_len, written) in [(96, 96), (0, 262_144)] {
        let memory = Memory::default();
        let mut writer =
            CaptureWriter::to_writer(memory.clone(), "x", options(Format::Pcap, Compression::None)).unwrap();
        writer.add_interface(&interface(0x3400_0001, snap_len, None));
        // Longer than the snap length: as it is.
        writer.write(0, Nanos(1), 60, &[1; 120]).unwrap();
        writer.finish().unwrap();
        let reader = CaptureReader::from_reader(io::Cursor::new(memory.bytes()), "x").unwrap();
        assert_eq!(reader.interfaces(), [interface(0x3400_0001, written, None)]);
        let (records, damage) = read_all(reader);
        assert_eq!((records[0].data.len(), records[0].original_len, damage), (120, 60, None));
        assert_eq!(memory.bytes()[..8], [0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0]);
    }
}

#[test]
fn what_cannot_be_written_is_said() {
    let mut writer =
        CaptureWriter::to_writer(io::sink(), "out.pcap", options(Format::Pcap, Compression::None)).unwrap();
    let error = writer.write(0, Nanos(0), 1, b"x").unwrap_err();
    assert!(
        matches!(error, CaptureError::UnknownInterface { packet: 1, interface: 0, known: 0, .. }),
        "{error}"
    );
    writer.add_interface(&interface(1, 0, None));
    assert_eq!(writer.add_interface(&interface(1, 64, None)), 1);
    assert_eq!(writer.add_interface(&interface(113, 0, None)), 2);
    writer.write(0, Nanos(u64::from(u32::MAX) * 1_000_000_000 + 999_999_999), 1, b"x").unwrap();
    let error = writer.write(1, Nanos((u64::from(u32::MAX) + 1) * 1_000_000_000), 1, b"x").unwrap_err();
    assert!(matches!(error, CaptureError::TimeTooLate { packet: 2, .. }), "{error}");
    assert!(error.to_string().contains("write a .pcapng file"), "{error}");
    let error = writer.write(1, Nanos(0), 1, &vec![0; 0x400_0001]).unwrap_err();
    assert!(matches!(error, CaptureError::PacketTooLong { packet: 2, len: 0x400_0001, .. }), "{error}");
    let words = writer.write(2, Nanos(0), 1, b"x").unwrap_err().to_string();
    assert!(
        words.contains("out.pcap") && words.contains("1 and 113") && words.contains(".pcapng"),
        "{words}"
    );
    writer.write(1, Nanos(0), 1, b"x").unwrap();
    assert_eq!(writer.finish().unwrap().packets, 2);
}

/// An interface that no packet came by says nothing about a pcap file: it has the link number of its packets.
#[test]
fn a_pcap_file_is_of_its_packets() {
    for (first, used) in [(1, 113), (113, 1)] {
        let memory = Memory::default();
        let format = options(Format::Pcap, Compression::None);
        let mut writer = CaptureWriter::to_writer(memory.clone(), "memory", format).unwrap();
        writer.add_interface(&interface(first, 0, None));
        let id = writer.add_interface(&interface(used, 0, None));
        for time in 0..3 {
            writer.write(id, Nanos(time), 40, &[0x45; 40]).unwrap();
        }
        assert!(matches!(writer.write(0, Nanos(4), 1, b"x"), Err(CaptureError::LinkTypesDiffer { .. })));
        writer.finish().unwrap();
        let bytes = memory.bytes();
        assert_eq!(u32::from_le_bytes(bytes[20..24].try_into().unwrap()), used);
    }
    // One without packets is of its first interface.
    let memory = Memory::default();
    let format = options(Format::Pcap, Compression::None);
    let mut writer = CaptureWriter::to_writer(memory.clone(), "memory", format).unwrap();
    writer.add_interface(&interface(113, 0, None));
    writer.add_interface(&interface(1, 0, None));
    writer.publish().unwrap();
    assert!(matches!(writer.write(1, Nanos(4), 1, b"x"), Err(CaptureError::LinkTypesDiffer { .. })));
    writer.finish().unwrap();
    assert_eq!(memory.bytes()[20], 113);
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_file_appears_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.pcapng");
    let mut writer = CaptureWriter::create(&path, PLAIN).unwrap();
    writer.add_interface(&interface(1, 0, None));
    assert!(!path.exists());
    drop(writer);
    assert!(names(directory.path()).is_empty());
    assert_eq!(fill(CaptureWriter::create(&path, PLAIN).unwrap()).unwrap(), 5);
    assert_eq!(names(directory.path()), ["out.pcapng"]);
}

#[test]
fn the_input_may_be_the_output() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("both.pcapng");
    fill(CaptureWriter::create(&path, PLAIN).unwrap()).unwrap();
    let before = read_all(CaptureReader::open(&path).unwrap());
    let mut reader = CaptureReader::open(&path).unwrap();
    let mut writer = CaptureWriter::create(&path, PLAIN).unwrap();
    writer.add_interface(&interface(1, 96, None));
    while let Some(record) = reader.next_record().unwrap() {
        writer.write(0, record.time, record.original_len, record.data).unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(read_all(CaptureReader::open(&path).unwrap()), before);
}

#[cfg(unix)]
#[test]
fn modes_and_links_are_those_of_any_file() {
    use std::os::unix::fs::{MetadataExt, symlink};
    let directory = tempfile::tempdir().unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    let (plain, path) = (directory.path().join("plain"), directory.path().join("out.pcapng"));
    std::fs::write(&plain, "").unwrap();
    fill(CaptureWriter::create(&path, PLAIN).unwrap()).unwrap();
    assert_eq!(mode(&path), mode(&plain));
    // A private file stays private, and a link stays a link.
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let link = directory.path().join("link.pcapng");
    symlink(&path, &link).unwrap();
    let inode = std::fs::metadata(&path).unwrap().ino();
    fill(CaptureWriter::create(&link, PLAIN).unwrap()).unwrap();
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(mode(&path), 0o600);
    assert_ne!(std::fs::metadata(&path).unwrap().ino(), inode);
}

#[test]
fn what_cannot_be_created() {
    let directory = tempfile::tempdir().unwrap();
    let error = CaptureWriter::create(directory.path(), PLAIN).unwrap_err();
    assert!(matches!(error, CaptureError::IsDirectory { .. }), "{error}");
    let path = directory.path().join("missing").join("out.pcap");
    let error = CaptureWriter::create(&path, PLAIN).unwrap_err();
    assert!(matches!(error, CaptureError::NoFolder { .. }), "{error}");
    assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn devices_are_written_directly_and_a_full_disk_is_said() {
    assert_eq!(fill(CaptureWriter::create(Path::new("/dev/null"), PLAIN).unwrap()).unwrap(), 5);
    assert!(!std::fs::metadata("/dev/null").unwrap().is_file());
    for compression in COMPRESSIONS {
        for format in FORMATS {
            let writer = CaptureWriter::create(Path::new("/dev/full"), options(format, compression)).unwrap();
            let error = fill(writer).unwrap_err();
            assert!(matches!(error, CaptureError::Write { .. }));
            let words = error.to_string();
            assert!(words.starts_with("/dev/full: cannot be written: No space left"), "{words}");
            assert!(words.ends_with("free some space or write elsewhere"), "{words}");
        }
    }
}

/// Fails once, then works again: what it got has a hole.
struct Hiccup(bool, Memory);

impl Write for Hiccup {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if std::mem::take(&mut self.0) { Err(io::ErrorKind::StorageFull.into()) } else { self.1.write(bytes) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_file_with_a_hole_is_never_completed() {
    let mut writer = CaptureWriter::to_writer(Hiccup(true, Memory::default()), "out", PLAIN).unwrap();
    writer.add_interface(&interface(1, 0, None));
    let failures = (0..10).filter(|_| writer.write(0, Nanos(0), 1, &[0; 100_000]).is_err()).count();
    assert!(failures > 1);
    assert!(matches!(writer.finish(), Err(CaptureError::Write { .. })));
}

/// Runs a program of Wireshark's; None (and a message) where it is not installed.
fn wireshark(program: &str, arguments: &[&str], file: &Path) -> Option<String> {
    let output = match Command::new(program).args(arguments).arg(file).output() {
        Ok(output) => output,
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "{program}: {error}");
            eprintln!("{program}: {error}; nothing tested");
            return None;
        }
    };
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {words}", file.display());
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn wireshark_reads_what_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let long = vec![3; 300_000];
    for format in FORMATS {
        for compression in COMPRESSIONS {
            for snap_len in [0, 64] {
                let path: PathBuf = directory.path().join("out");
                let mut writer = CaptureWriter::create(&path, options(format, compression)).unwrap();
                writer.add_interface(&interface(1, snap_len, Some("eth0")));
                writer.write(0, Nanos(1_700_000_000_123_456_789), 1500, &[0xab; 61]).unwrap();
                // Longer than the snap length; Wireshark's own limit is 262144.
                writer.write(0, Nanos(4_294_967_295_999_999_999), 200_000, &long[..200_000]).unwrap();
                writer.write(0, Nanos(0), 60, &[]).unwrap();
                writer.finish().unwrap();
                let fields = [
                    "-n",
                    "-T",
                    "fields",
                    "-e",
                    "frame.time_epoch",
                    "-e",
                    "frame.len",
                    "-e",
                    "frame.cap_len",
                    "-r",
                ];
                let Some(lines) = wireshark("tshark", &fields, &path) else { return };
                assert_eq!(
                    lines.lines().collect::<Vec<_>>(),
                    [
                        "1700000000.123456789\t1500\t61",
                        "4294967295.999999999\t200000\t200000",
                        "0.000000000\t60\t0"
                    ],
                    "{format:?}, {compression:?}, snap length {snap_len}"
                );
                let Some(info) = wireshark("capinfos", &["-c", "-M", "-I"], &path) else { return };
                assert!(info.contains("Number of packets:   3"), "{info}");
            }
        }
    }
}

#[test]
fn wireshark_reads_captures_without_packets_and_with_many_interfaces() {
    let directory = tempfile::tempdir().unwrap();
    for format in FORMATS {
        let path = directory.path().join("empty");
        CaptureWriter::create(&path, options(format, Compression::None)).unwrap().finish().unwrap();
        let Some(info) = wireshark("capinfos", &["-c", "-M"], &path) else { return };
        assert!(info.contains("Number of packets:   0"), "{info}");
    }
    let path = directory.path().join("many");
    let mut writer = CaptureWriter::create(&path, PLAIN).unwrap();
    for (i, link) in [1, 101, 113, 276, 0x3400_0001].into_iter().enumerate() {
        let id = writer.add_interface(&interface(link, 100, Some(&format!("if{i}"))));
        writer.write(id, Nanos(i as u64), 40, &[0x45; 40]).unwrap();
    }
    writer.finish().unwrap();
    let fields = ["-n", "-T", "fields", "-e", "frame.interface_name", "-e", "frame.encap_type", "-r"];
    let Some(lines) = wireshark("tshark", &fields, &path) else { return };
    assert_eq!(lines.lines().collect::<Vec<_>>(), ["if0\t1", "if1\t7", "if2\t25", "if3\t210", "if4\t1"]);
}

/// Every capture, read, written as pcapng and read again.
#[test]
fn captures_from_everywhere_survive() {
    let Some(traces) = traces() else { return };
    for entry in std::fs::read_dir(traces.join("odd")).unwrap() {
        let path = entry.unwrap().path();
        let Ok(mut reader) = CaptureReader::open(&path) else { continue };
        let memory = Memory::default();
        let mut writer = CaptureWriter::to_writer(memory.clone(), "memory", PLAIN).unwrap();
        let mut known = 0;
        while let Some(record) = reader.next_record().unwrap() {
            let (id, time, len, data) =
                (record.interface, record.time, record.original_len, record.data.to_vec());
            while known <= id as usize {
                writer.add_interface(&reader.interfaces()[known]);
                known += 1;
            }
            writer.write(id, time, len, &data).unwrap();
        }
        writer.finish().unwrap();
        let (mut expected, _) = read_all(CaptureReader::open(&path).unwrap());
        for record in &mut expected {
            // The length of the frame check sequence is kept, and what is reserved isn't.
            let fcs = if record.link_number & 1 << 26 == 0 { 0 } else { 0xf400_0000 };
            record.link_number &= 0xffff | fcs;
        }
        assert_eq!(read_bytes(&memory.bytes()), Some((expected, None)), "{}", path.display());
    }
}
