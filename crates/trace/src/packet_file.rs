//! The packets of traces as a Parquet file: one row a packet, for DuckDB, Polars, pandas, Spark and the like.
//!
//! Columns that every packet has: `file` (name of the trace), `number` (place of the packet in the trace,
//! from 1, as Wireshark counts), `time_ns` (in ns since 1970), `length` and `captured` (bytes on the wire,
//! and in the file). Null where a packet has no flow, because it isn't IP, for example: `flow` (number of its
//! flow within the trace, from 0; a [`FlowFile`](crate::FlowFile) has the same), `vlans` (ids, outermost
//! first, joined by dots; empty for none), `ip_version`, `src`, `dst`, `protocol`, `src_port`, `dst_port` (0
//! for fragments and protocols without ports), `fragment`; and `tcp_flags`, null also where no TCP flags were
//! captured.
//!
//! Written column by column without Arrow, in row groups of 65,536 rows: memory doesn't grow with the
//! packets.

use std::collections::HashMap;
use std::io::Write;

use ::parquet::data_type::{BoolType, ByteArray, ByteArrayType, Int32Type, Int64Type};
use ::parquet::file::writer::SerializedFileWriter;
use slipstream_wire::{Encapsulation, Flags, FlowKey, LinkType, classify_with};

use crate::parquet::{FlowFileError, column, dotted, optional_column, signed, writer};

const SCHEMA: &str = "message packets {
    required binary file (STRING);
    required int64 number;
    required int64 time_ns;
    required int32 length (INTEGER(32, false));
    required int32 captured (INTEGER(32, false));
    optional int64 flow;
    optional binary vlans (STRING);
    optional int32 ip_version (INTEGER(8, false));
    optional binary src (STRING);
    optional binary dst (STRING);
    optional int32 protocol (INTEGER(8, false));
    optional int32 src_port (INTEGER(16, false));
    optional int32 dst_port (INTEGER(16, false));
    optional boolean fragment;
    optional int32 tcp_flags (INTEGER(8, false));
}";

/// A packet of a trace.
#[derive(Clone, Copy, Debug)]
pub struct PacketRow<'a> {
    /// Its place in the trace, from 1.
    pub number: u64,
    /// Arrival in nanoseconds since 1970.
    pub time_ns: u64,
    /// The kind of header that it begins with.
    pub link: LinkType,
    /// Its length on the wire, in bytes.
    pub original_len: u32,
    /// The captured bytes.
    pub data: &'a [u8],
    /// The number of its flow ([`Details::packet`](crate::Details::packet)).
    pub flow: Option<u32>,
}

/// A Parquet file of packets in the making; without [`PacketFile::finish`] it is not a valid file.
#[derive(Debug)]
pub struct PacketFile<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    encapsulation: Encapsulation,
    file: ByteArray,
    rows: Columns,
    /// Rows of a row group.
    group: usize,
}

impl<W: Write + Send> PacketFile<W> {
    /// Begins a file on `out`; `encapsulation` says which IP header of a tunnel counts.
    ///
    /// # Errors
    /// [`FlowFileError`] where `out` can't be written to.
    pub fn new(out: W, encapsulation: Encapsulation) -> Result<Self, FlowFileError> {
        let (writer, file, rows) = (writer(out, SCHEMA)?, ByteArray::from(""), Columns::default());
        Ok(Self { writer, encapsulation, file, rows, group: 1 << 16 })
    }

    /// The packets that follow are of this trace.
    pub fn begin(&mut self, file: &str) {
        self.file = ByteArray::from(file);
        // Flows of another trace have other numbers.
        self.rows.text.clear();
    }

    /// Adds a packet.
    ///
    /// # Errors
    /// [`FlowFileError`] where the output can't be written to.
    pub fn packet(&mut self, packet: &PacketRow<'_>) -> Result<(), FlowFileError> {
        self.rows.push(&self.file, self.encapsulation, packet);
        if self.rows.number.len() >= self.group {
            self.write_group()?;
        }
        Ok(())
    }

    /// Ends the file, and gives back what it was written to.
    ///
    /// # Errors
    /// [`FlowFileError`] where the output can't be written to.
    pub fn finish(mut self) -> Result<W, FlowFileError> {
        if !self.rows.number.is_empty() {
            self.write_group()?;
        }
        Ok(self.writer.into_inner()?)
    }

    fn write_group(&mut self) -> Result<(), FlowFileError> {
        let rows = std::mem::take(&mut self.rows);
        let mut group = self.writer.next_row_group()?;
        column::<ByteArrayType, W>(&mut group, &rows.file)?;
        column::<Int64Type, W>(&mut group, &rows.number)?;
        column::<Int64Type, W>(&mut group, &rows.time_ns)?;
        column::<Int32Type, W>(&mut group, &rows.length)?;
        column::<Int32Type, W>(&mut group, &rows.captured)?;
        optional_column::<Int64Type, W>(&mut group, &rows.flow)?;
        optional_column::<ByteArrayType, W>(&mut group, &rows.vlans)?;
        optional_column::<Int32Type, W>(&mut group, &rows.ip_version)?;
        optional_column::<ByteArrayType, W>(&mut group, &rows.src)?;
        optional_column::<ByteArrayType, W>(&mut group, &rows.dst)?;
        optional_column::<Int32Type, W>(&mut group, &rows.protocol)?;
        optional_column::<Int32Type, W>(&mut group, &rows.src_port)?;
        optional_column::<Int32Type, W>(&mut group, &rows.dst_port)?;
        optional_column::<BoolType, W>(&mut group, &rows.fragment)?;
        optional_column::<Int32Type, W>(&mut group, &rows.tcp_flags)?;
        group.close()?;
        Ok(())
    }
}

/// Text of a flow's key, made once a row group.
#[derive(Clone, Debug)]
struct Text {
    vlans: ByteArray,
    src: ByteArray,
    dst: ByteArray,
}

impl Text {
    fn of(key: &FlowKey) -> Self {
        let text = |t: String| ByteArray::from(t.into_bytes());
        Self {
            vlans: text(dotted(key.vlans())),
            src: text(key.src().to_string()),
            dst: text(key.dst().to_string()),
        }
    }
}

/// The rows of a group, by column.
#[derive(Debug, Default)]
struct Columns {
    file: Vec<ByteArray>,
    number: Vec<i64>,
    time_ns: Vec<i64>,
    length: Vec<i32>,
    captured: Vec<i32>,
    flow: Vec<Option<i64>>,
    vlans: Vec<Option<ByteArray>>,
    ip_version: Vec<Option<i32>>,
    src: Vec<Option<ByteArray>>,
    dst: Vec<Option<ByteArray>>,
    protocol: Vec<Option<i32>>,
    src_port: Vec<Option<i32>>,
    dst_port: Vec<Option<i32>>,
    fragment: Vec<Option<bool>>,
    tcp_flags: Vec<Option<i32>>,
    text: HashMap<u32, Text>,
}

impl Columns {
    fn push(&mut self, file: &ByteArray, encapsulation: Encapsulation, packet: &PacketRow<'_>) {
        let headers = classify_with(packet.link, packet.data, encapsulation).ok();
        self.file.push(file.clone());
        self.number.push(signed(packet.number));
        self.time_ns.push(signed(packet.time_ns));
        // Parquet keeps unsigned numbers in the same 32 bits.
        self.length.push(packet.original_len.cast_signed());
        self.captured.push(u32::try_from(packet.data.len()).unwrap_or(u32::MAX).cast_signed());
        self.flow.push(packet.flow.map(i64::from));
        let text = headers.map(|h| match packet.flow {
            Some(flow) => self.text.entry(flow).or_insert_with(|| Text::of(&h.key)).clone(),
            None => Text::of(&h.key),
        });
        let (vlans, src, dst) =
            text.map_or((None, None, None), |t| (Some(t.vlans), Some(t.src), Some(t.dst)));
        self.vlans.push(vlans);
        self.src.push(src);
        self.dst.push(dst);
        let key = headers.map(|h| h.key);
        self.ip_version.push(key.map(|k| if k.is_ipv6() { 6 } else { 4 }));
        self.protocol.push(key.map(|k| k.protocol().into()));
        self.src_port.push(key.map(|k| k.src_port().into()));
        self.dst_port.push(key.map(|k| k.dst_port().into()));
        self.fragment.push(headers.map(|h| h.flags.has(Flags::FRAGMENT)));
        self.tcp_flags.push(headers.filter(|h| h.flags.has(Flags::TCP)).map(|h| h.tcp_flags.into()));
    }
}

#[cfg(test)]
mod tests {
    use ::parquet::file::reader::{FileReader, SerializedFileReader};
    use ::parquet::record::RowAccessor;

    use super::*;
    use crate::{DetailConfig, Details};

    const TCP: [u8; 40] = [
        0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 4, 210, 1, 187, 0, 0, 0, 1, 0, 0,
        0, 1, 0x50, 0x12, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn a_row_says_what_the_packet_is() {
        let mut details = Details::new(DetailConfig::default());
        let mut file = PacketFile::new(Vec::new(), Encapsulation::Outer).unwrap();
        file.group = 2;
        file.begin("a.pcap");
        let mut fragment = TCP;
        fragment[6] = 0x20;
        let packets: [&[u8]; 4] = [&TCP, &[0x15; 20], &fragment, &TCP];
        for (n, data) in packets.into_iter().enumerate() {
            let time_ns = 1_000_000_007 + n as u64;
            let flow = details.packet(time_ns, LinkType::RawIp, 1500, data);
            let number = n as u64 + 1;
            let row = PacketRow { number, time_ns, link: LinkType::RawIp, original_len: 1500, data, flow };
            file.packet(&row).unwrap();
        }
        let bytes = bytes::Bytes::from(file.finish().unwrap());
        let reader = SerializedFileReader::new(bytes).unwrap();
        assert_eq!(reader.num_row_groups(), 2);
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        let first = &rows[0];
        assert_eq!(first.get_string(0).unwrap(), "a.pcap");
        assert_eq!((first.get_long(1).unwrap(), first.get_long(2).unwrap()), (1, 1_000_000_007));
        assert_eq!((first.get_uint(3).unwrap(), first.get_uint(4).unwrap()), (1500, 40));
        assert_eq!((first.get_long(5).unwrap(), first.get_ubyte(7).unwrap()), (0, 4));
        assert_eq!(
            (first.get_string(8).unwrap().as_str(), first.get_string(9).unwrap().as_str()),
            ("10.0.0.1", "10.0.0.2")
        );
        let ports =
            (first.get_ubyte(10).unwrap(), first.get_ushort(11).unwrap(), first.get_ushort(12).unwrap());
        assert_eq!(ports, (6, 1234, 443));
        assert_eq!((first.get_bool(13).unwrap(), first.get_ubyte(14).unwrap()), (false, 0x12));
        assert!(rows[1].get_long(5).is_err(), "what is no IP packet has no flow");
        let fragment =
            (rows[2].get_long(5).unwrap(), rows[2].get_bool(13).unwrap(), rows[2].get_ushort(11).unwrap());
        assert_eq!(fragment, (1, true, 0));
        assert!(rows[2].get_ubyte(14).is_err(), "a fragment has no TCP flags");
        assert_eq!((rows[3].get_long(1).unwrap(), rows[3].get_long(5).unwrap()), (4, 0));
    }
}
