//! Any packets, written in any format and compression, are read as they were. In pcap, a packet without a
//! byte may be read one nanosecond later, where its record would be taken for none.
#![no_main]

use std::io::Write;
use std::sync::{Arc, Mutex};

use libfuzzer_sys::fuzz_target;
use slipstream::io::capture::{CaptureReader, CaptureWriter, Compression, Format, Interface, WriterOptions};
use slipstream::time::Nanos;

/// Memory that outlives the writer.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("one thread").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A packet: interface, time, original length, data.
type Packet<'a> = (u32, u64, u32, &'a [u8]);

/// Two bytes choose formats and links; then packets: 1 byte of interface, 8 of time, 4 of length, 1 of data
/// length, data.
fn packets(mut bytes: &[u8]) -> Vec<Packet<'_>> {
    let mut packets = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<14>() {
        let [interface, t0, t1, t2, t3, t4, t5, t6, t7, l0, l1, l2, l3, len] = *head;
        let (data, rest) = rest.split_at(usize::from(len).min(rest.len()));
        let time = u64::from_le_bytes([t0, t1, t2, t3, t4, t5, t6, t7]);
        packets.push((u32::from(interface % 3), time, u32::from_le_bytes([l0, l1, l2, l3]), data));
        bytes = rest;
    }
    packets
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&[choice, link], rest)) = bytes.split_first_chunk::<2>() else { return };
    let format = if choice & 1 == 0 { Format::Pcap } else { Format::PcapNg };
    let compression = [Compression::None, Compression::Gzip, Compression::Zstd][usize::from(choice >> 1) % 3];
    let memory = Memory::default();
    let options = WriterOptions { format, compression };
    let mut writer = CaptureWriter::to_writer(memory.clone(), "memory", options).expect("memory");
    for i in 0..3 {
        let link_number = u32::from(link) + if format == Format::PcapNg { i } else { 0 };
        let interface = Interface { link_number, snap_len: 0, name: (i > 0).then(|| format!("if{i}")) };
        writer.add_interface(&interface);
    }
    let mut packets = packets(rest);
    packets.retain(|&(interface, time, len, data)| writer.write(interface, Nanos(time), len, data).is_ok());
    writer.finish().expect("memory");

    let file = memory.0.lock().expect("one thread").clone();
    let mut reader = CaptureReader::from_reader(std::io::Cursor::new(file), "memory").expect("just written");
    for (interface, time, len, data) in packets {
        let record = reader.next_record().expect("memory").expect("as many as were written");
        let interface = if format == Format::PcapNg { interface } else { 0 };
        let may_be_later = format == Format::Pcap && len == 0 && data.is_empty();
        let later = record.time.0.saturating_sub(time);
        assert!(later <= u64::from(may_be_later), "{later} ns later");
        assert_eq!((record.interface, record.time.0, record.original_len), (interface, time + later, len));
        assert_eq!(record.data, data);
    }
    assert!(reader.next_record().expect("memory").is_none() && reader.damage().is_none());
});
