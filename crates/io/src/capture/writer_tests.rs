//! The tests of the writer: a disk that is full.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use super::writer::Summary;
use super::{CaptureReader, CaptureWriter, Compression, Format, Interface, WriterOptions};
use slipstream_core::time::Nanos;

/// A disk with room for so many bytes.
#[derive(Clone)]
struct Disk(usize, Arc<Mutex<Vec<u8>>>);

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut written = self.1.lock().unwrap();
        let n = bytes.len().min(self.0 - written.len());
        written.extend_from_slice(&bytes[..n]);
        if n > 0 { Ok(n) } else { Err(io::ErrorKind::StorageFull.into()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Packets of several lengths, published now and then, until the disk is full; what reached it, as the
/// writer and as the disk has it.
fn fill(room: usize, options: WriterOptions) -> (Summary, Summary, Vec<u8>) {
    let disk = Disk(room, Arc::default());
    let mut writer = CaptureWriter::to_writer(disk.clone(), "disk", options).unwrap().staying();
    let interface = Interface { link_number: 1, snap_len: 0, name: Some("eth0".into()) };
    writer.add_interface(&interface);
    for n in 0..400_u32 {
        let data: Vec<u8> = (0..n % 61).map(|k| (n.wrapping_mul(2_654_435_761) >> (k % 24)) as u8).collect();
        let published = if n % 50 == 49 { writer.publish() } else { Ok(()) };
        if published.and_then(|()| writer.write(0, Nanos(u64::from(n)), 61, &data)).is_err() {
            break;
        }
    }
    let (reached, (kept, closed)) = (writer.reached(), writer.close());
    assert!(closed.is_err() || kept.packets == 400, "{options:?} {room}");
    assert!(kept.packets >= reached.packets, "{options:?} {room}");
    let written = disk.1.lock().unwrap().clone();
    (reached, kept, written)
}

#[test]
fn what_reached_a_disk_that_is_full_is_known_to_the_packet() {
    for format in [Format::Pcap, Format::PcapNg] {
        let options = WriterOptions { format, compression: Compression::None };
        let whole = fill(1 << 20, options).2;
        let mut ends = Vec::new();
        for room in (0..whole.len()).step_by(97).chain([23, 24, 25]) {
            let (_, kept, written) = fill(room, options);
            let there = &written[..kept.file_bytes as usize];
            assert_eq!(there, &whole[..there.len()], "{options:?} {room}");
            ends.push(kept.packets);
            if kept.packets == 0 {
                continue;
            }
            let mut reader = CaptureReader::from_reader(io::Cursor::new(there.to_vec()), "disk").unwrap();
            let (mut packets, mut bytes) = (0, 0);
            while let Some(record) = reader.next_record().unwrap() {
                (packets, bytes) = (packets + 1, bytes + record.data.len() as u64);
            }
            assert!(reader.damage().is_none(), "{options:?} {room}");
            assert_eq!((packets, bytes), (kept.packets, kept.data_bytes), "{options:?} {room}");
            // The next record had no room.
            assert!(room - there.len() < 61 + 32 + 4, "{options:?} {room} {}", there.len());
        }
        ends.sort_unstable();
        ends.dedup();
        assert!(ends.len() > 100);
    }
}

#[test]
fn of_a_compressed_file_there_is_what_was_published() {
    for compression in [Compression::Gzip, Compression::Zstd] {
        let options = WriterOptions { format: Format::PcapNg, compression };
        let whole = fill(1 << 20, options).2;
        let mut any = 0;
        for room in (0..whole.len()).step_by(211) {
            let (reached, kept, written) = fill(room, options);
            assert_eq!(reached.packets % 50, 49 * u64::from(reached.packets > 0), "{options:?} {room}");
            if kept.packets == 0 {
                continue;
            }
            any += 1;
            let there = written[..kept.file_bytes as usize].to_vec();
            let mut reader = CaptureReader::from_reader(io::Cursor::new(there), "disk").unwrap();
            let mut packets = 0;
            while reader.next_record().unwrap().is_some() {
                packets += 1;
            }
            assert_eq!(packets, kept.packets, "{options:?} {room}");
        }
        assert!(any > 5);
    }
}

/// A packet without a byte may be all that a record of pcap says nothing of: zeros, or as the header of a
/// file. It is read as a packet nonetheless, and so are those behind it.
#[test]
fn empty_packets_of_any_time_are_read_again() {
    let version = |seconds: u32, nanos: u64| u64::from(seconds) * 1_000_000_000 + nanos;
    let magics = [0xa1b2_c3d4_u32, 0xa1b2_3c4d, 0xa1b2_cd34];
    let headers = magics.into_iter().flat_map(|magic| {
        let big = u64::from(u32::from_le_bytes([0, 2, 0, 4]));
        [version(magic, 4 << 16 | 2), version(magic.swap_bytes(), big)]
    });
    let times: Vec<u64> = [0, 0, 1].into_iter().chain(headers).collect();
    for format in [Format::Pcap, Format::PcapNg] {
        let disk = Disk(1 << 20, Arc::default());
        let options = WriterOptions { format, compression: Compression::None };
        let mut writer = CaptureWriter::to_writer(disk.clone(), "disk", options).unwrap();
        writer.add_interface(&Interface { link_number: 1, snap_len: 0, name: None });
        for time in &times {
            writer.write(0, Nanos(*time), 0, &[]).unwrap();
            writer.write(0, Nanos(*time), 60, &[]).unwrap();
            writer.write(0, Nanos(*time), 1, &[0]).unwrap();
        }
        writer.finish().unwrap();
        let written = disk.1.lock().unwrap().clone();
        let mut reader = CaptureReader::from_reader(io::Cursor::new(written), "disk").unwrap();
        for time in &times {
            for (wire, len) in [(0, 0), (60, 0), (1, 1)] {
                let record = reader.next_record().unwrap().unwrap();
                assert_eq!((record.original_len, record.data.len()), (wire, len), "{format:?} {time}");
                let later = u64::from(format == Format::Pcap && wire == 0 && *time != 1);
                assert_eq!(record.time.0, time + later, "{format:?}");
            }
        }
        assert!(reader.next_record().unwrap().is_none() && reader.damage().is_none());
    }
}
