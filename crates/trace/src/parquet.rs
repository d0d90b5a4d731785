//! The flows of traces as a Parquet file: one row a directional flow, for DuckDB, pandas, Spark and the like.
//!
//! Columns: `file` (name of the trace), `vlans` (ids, outermost first, joined by dots; empty for none),
//! `ip_version` (4 or 6), `src` and `dst` (addresses as text), `protocol` (IP protocol number), `src_port`
//! and `dst_port` (0 for fragments and protocols without ports), `packets`, `tcp_packets` (those that count
//! as TCP: not fragments), `flow` (its number within the trace, from 0); then, of flows from [`Details`],
//! null for others: `bytes` (on the wire), `first_ns` and `last_ns` (times of the earliest and the latest
//! packet in ns since 1970), `tcp_flags` (all that its packets had, or-ed). Rows are in the order of the
//! traces, within a trace in order of first appearance.
//!
//! Written column by column without Arrow, in row groups of 65,536 rows, so that memory doesn't grow with the
//! flows.

use std::io::Write;
use std::sync::Arc;

use ::parquet::basic::Compression;
use ::parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use ::parquet::schema::parser::parse_message_type;
use slipstream_wire::{FlowKey, Vlans};
use thiserror::Error;

use crate::details::{Details, FlowDetail};
use crate::partial::{FlowPackets, Partial};

const SCHEMA: &str = "message flows {
    required binary file (STRING);
    required binary vlans (STRING);
    required int32 ip_version (INTEGER(8, false));
    required binary src (STRING);
    required binary dst (STRING);
    required int32 protocol (INTEGER(8, false));
    required int32 src_port (INTEGER(16, false));
    required int32 dst_port (INTEGER(16, false));
    required int64 packets;
    required int64 tcp_packets;
    required int64 flow;
    optional int64 bytes;
    optional int64 first_ns;
    optional int64 last_ns;
    optional int32 tcp_flags (INTEGER(8, false));
}";

/// The reason why a Parquet file could not be written.
#[derive(Debug, Error)]
#[error("Parquet can't be written: {said}")]
pub struct FlowFileError {
    /// The message of the library in which it failed.
    said: String,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl From<ParquetError> for FlowFileError {
    fn from(error: ParquetError) -> Self {
        let source = match error {
            ParquetError::External(cause) => cause,
            other => other.into(),
        };
        Self { said: source.to_string(), source }
    }
}

/// A Parquet file of flows in the making; without [`FlowFile::finish`] it is not a valid file.
///
/// ```
/// use slipstream_trace::{Analyzer, Config, FlowFile};
///
/// let partial = Analyzer::new(Config::default())?.finish();
/// let mut flows = FlowFile::new(Vec::new())?;
/// flows.trace("empty.pcap", &partial)?;
/// assert_eq!(&flows.finish()?[..4], b"PAR1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FlowFile<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    rows: Columns,
    /// Rows of a row group.
    group: usize,
}

impl<W: Write + Send> FlowFile<W> {
    /// Begins a file on `out`.
    ///
    /// # Errors
    /// [`FlowFileError`] where `out` can't be written to.
    pub fn new(out: W) -> Result<Self, FlowFileError> {
        Ok(Self { writer: writer(out, SCHEMA)?, rows: Columns::default(), group: 1 << 16 })
    }

    /// Adds all flows of a trace; `file` is its name.
    ///
    /// # Errors
    /// [`FlowFileError`] where the output can't be written to.
    pub fn trace(&mut self, file: &str, partial: &Partial) -> Result<(), FlowFileError> {
        let file = ByteArray::from(file);
        for (number, (key, packets)) in partial.flows_in_order().enumerate() {
            self.row(&file, number, &key, packets, None)?;
        }
        Ok(())
    }

    /// Adds all flows of a trace, with bytes, times and TCP flags; `file` is its name.
    ///
    /// # Errors
    /// [`FlowFileError`] where the output can't be written to.
    pub fn details(&mut self, file: &str, details: &Details) -> Result<(), FlowFileError> {
        let file = ByteArray::from(file);
        for (number, (key, flow)) in details.flows_in_order().enumerate() {
            let packets = FlowPackets { ip: flow.packets, tcp: flow.tcp_packets };
            self.row(&file, number, &key, packets, Some(&flow))?;
        }
        Ok(())
    }

    fn row(
        &mut self,
        file: &ByteArray,
        number: usize,
        key: &FlowKey,
        packets: FlowPackets,
        detail: Option<&FlowDetail>,
    ) -> Result<(), FlowFileError> {
        self.rows.push(file, number, key, packets, detail);
        if self.rows.packets.len() >= self.group {
            self.write_group()?;
        }
        Ok(())
    }

    /// Ends the file, and gives back what it was written to.
    ///
    /// # Errors
    /// [`FlowFileError`] where the output can't be written to.
    pub fn finish(mut self) -> Result<W, FlowFileError> {
        if !self.rows.packets.is_empty() {
            self.write_group()?;
        }
        Ok(self.writer.into_inner()?)
    }

    fn write_group(&mut self) -> Result<(), FlowFileError> {
        let rows = &self.rows;
        let mut group = self.writer.next_row_group()?;
        column::<ByteArrayType, W>(&mut group, &rows.file)?;
        column::<ByteArrayType, W>(&mut group, &rows.vlans)?;
        column::<Int32Type, W>(&mut group, &rows.ip_version)?;
        column::<ByteArrayType, W>(&mut group, &rows.src)?;
        column::<ByteArrayType, W>(&mut group, &rows.dst)?;
        column::<Int32Type, W>(&mut group, &rows.protocol)?;
        column::<Int32Type, W>(&mut group, &rows.src_port)?;
        column::<Int32Type, W>(&mut group, &rows.dst_port)?;
        column::<Int64Type, W>(&mut group, &rows.packets)?;
        column::<Int64Type, W>(&mut group, &rows.tcp_packets)?;
        column::<Int64Type, W>(&mut group, &rows.flow)?;
        optional_column::<Int64Type, W>(&mut group, &rows.bytes)?;
        optional_column::<Int64Type, W>(&mut group, &rows.first_ns)?;
        optional_column::<Int64Type, W>(&mut group, &rows.last_ns)?;
        optional_column::<Int32Type, W>(&mut group, &rows.tcp_flags)?;
        group.close()?;
        self.rows.clear();
        Ok(())
    }
}

/// Begins a file of this schema.
pub(crate) fn writer<W: Write + Send>(out: W, schema: &str) -> Result<SerializedFileWriter<W>, ParquetError> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by(concat!("slipstream ", env!("CARGO_PKG_VERSION")).to_owned())
        .build();
    SerializedFileWriter::new(out, Arc::new(parse_message_type(schema)?), Arc::new(properties))
}

/// Writes the next column of a row group.
pub(crate) fn column<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
) -> Result<(), ParquetError> {
    write_column::<T, W>(group, values, None)
}

/// Writes the next column of a row group, in which values may be missing.
pub(crate) fn optional_column<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[Option<T::T>],
) -> Result<(), ParquetError> {
    let present: Vec<T::T> = values.iter().flatten().cloned().collect();
    let levels: Vec<i16> = values.iter().map(|v| i16::from(v.is_some())).collect();
    write_column::<T, W>(group, &present, Some(&levels))
}

fn write_column<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let Some(mut column) = group.next_column()? else {
        return Err(ParquetError::General("more columns than the schema has".to_owned()));
    };
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}

/// The rows of a group, by column.
#[derive(Debug, Default)]
struct Columns {
    file: Vec<ByteArray>,
    vlans: Vec<ByteArray>,
    ip_version: Vec<i32>,
    src: Vec<ByteArray>,
    dst: Vec<ByteArray>,
    protocol: Vec<i32>,
    src_port: Vec<i32>,
    dst_port: Vec<i32>,
    packets: Vec<i64>,
    tcp_packets: Vec<i64>,
    flow: Vec<i64>,
    bytes: Vec<Option<i64>>,
    first_ns: Vec<Option<i64>>,
    last_ns: Vec<Option<i64>>,
    tcp_flags: Vec<Option<i32>>,
}

impl Columns {
    fn push(
        &mut self,
        file: &ByteArray,
        number: usize,
        key: &FlowKey,
        packets: FlowPackets,
        detail: Option<&FlowDetail>,
    ) {
        let text = |t: String| ByteArray::from(t.into_bytes());
        self.file.push(file.clone());
        self.vlans.push(text(dotted(key.vlans())));
        self.ip_version.push(if key.is_ipv6() { 6 } else { 4 });
        self.src.push(text(key.src().to_string()));
        self.dst.push(text(key.dst().to_string()));
        self.protocol.push(key.protocol().into());
        self.src_port.push(key.src_port().into());
        self.dst_port.push(key.dst_port().into());
        self.packets.push(signed(packets.ip));
        self.tcp_packets.push(signed(packets.tcp));
        self.flow.push(signed(number as u64));
        self.bytes.push(detail.map(|d| signed(d.bytes)));
        self.first_ns.push(detail.map(|d| signed(d.first_ns)));
        self.last_ns.push(detail.map(|d| signed(d.last_ns)));
        self.tcp_flags.push(detail.map(|d| d.tcp_flags.into()));
    }

    fn clear(&mut self) {
        let Self { file, vlans, src, dst, .. } = self;
        [file, vlans, src, dst].into_iter().for_each(Vec::clear);
        let Self { ip_version, protocol, src_port, dst_port, .. } = self;
        [ip_version, protocol, src_port, dst_port].into_iter().for_each(Vec::clear);
        let Self { packets, tcp_packets, flow, .. } = self;
        [packets, tcp_packets, flow].into_iter().for_each(Vec::clear);
        let Self { bytes, first_ns, last_ns, .. } = self;
        [bytes, first_ns, last_ns].into_iter().for_each(Vec::clear);
        self.tcp_flags.clear();
    }
}

pub(crate) fn dotted(vlans: Vlans) -> String {
    vlans.map(|id| id.to_string()).collect::<Vec<_>>().join(".")
}

pub(crate) fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::{IpAddr, Ipv6Addr};

    use ::parquet::file::reader::{FileReader, SerializedFileReader};
    use ::parquet::record::RowAccessor;
    use slipstream_wire::LinkType;

    use super::*;
    use crate::{Analyzer, Config};

    /// An Ethernet frame with VLAN tags and the first bytes of UDP or TCP.
    fn frame(vlans: &[u16], src: IpAddr, protocol: u8, port: u16) -> Vec<u8> {
        let mut f = vec![2; 12];
        for id in vlans {
            f.extend([0x81, 0]);
            f.extend(id.to_be_bytes());
        }
        match src {
            IpAddr::V4(src) => {
                f.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0]);
                f.extend(src.octets());
                f.extend([10, 9, 9, 9]);
            }
            IpAddr::V6(src) => {
                f.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, protocol, 64]);
                f.extend(src.octets());
                f.extend(Ipv6Addr::LOCALHOST.octets());
            }
        }
        f.extend(port.to_be_bytes());
        f.extend([0, 53, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
        f
    }

    fn partial(flows: u32) -> Partial {
        let mut analyzer = Analyzer::new(Config::default()).unwrap();
        for i in 0..flows {
            let protocol = if i % 3 == 0 { 17 } else { 6 };
            let v4 = IpAddr::from((0x0a00_0000 + i).to_be_bytes());
            let (vlans, src): (&[u16], IpAddr) = match i % 4 {
                0 => (&[], v4),
                1 => (&[7], v4),
                2 => (&[7, 100], v4),
                _ => (&[], Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(i)).into()),
            };
            for _ in 0..=i % 2 {
                analyzer.packet(u64::from(i), LinkType::Ethernet, 80, &frame(vlans, src, protocol, 1000));
            }
        }
        analyzer.finish()
    }

    type Line = (String, String, u8, String, String, u8, u16, u16, i64, i64);

    fn read_back(file: Vec<u8>) -> (Vec<Line>, usize) {
        let reader = SerializedFileReader::new(bytes::Bytes::from(file)).unwrap();
        let rows = reader.get_row_iter(None).unwrap().map(|row| {
            let row = row.unwrap();
            let text = |i| row.get_string(i).unwrap().clone();
            let (v, protocol) = (row.get_ubyte(2).unwrap(), row.get_ubyte(5).unwrap());
            let (sp, dp) = (row.get_ushort(6).unwrap(), row.get_ushort(7).unwrap());
            let (packets, tcp) = (row.get_long(8).unwrap(), row.get_long(9).unwrap());
            (text(0), text(1), v, text(3), text(4), protocol, sp, dp, packets, tcp)
        });
        (rows.collect(), reader.num_row_groups())
    }

    #[test]
    fn rows_are_the_flows_of_every_trace_in_order() {
        let (a, b) = (partial(40), partial(7));
        let mut file = FlowFile::new(Vec::new()).unwrap();
        file.trace("a", &a).unwrap();
        file.trace("b", &b).unwrap();
        let (rows, groups) = read_back(file.finish().unwrap());
        assert_eq!((rows.len(), groups), (47, 1));
        let want = |name: &str, key: FlowKey, packets: FlowPackets| -> Line {
            let vlans: Vec<String> = key.vlans().map(|v| v.to_string()).collect();
            let version = if key.src().is_ipv4() { 4 } else { 6 };
            let (src, dst) = (key.src().to_string(), key.dst().to_string());
            let (ip, tcp) = (packets.ip as i64, packets.tcp as i64);
            (
                name.into(),
                vlans.join("."),
                version,
                src,
                dst,
                key.protocol(),
                key.src_port(),
                key.dst_port(),
                ip,
                tcp,
            )
        };
        let a_rows = a.flows_in_order().map(|(k, p)| want("a", k, p));
        let all: Vec<Line> = a_rows.chain(b.flows_in_order().map(|(k, p)| want("b", k, p))).collect();
        assert_eq!(rows, all);
        // The third flow, by hand.
        let third = ("a", "7.100", 4, "10.0.0.2", "10.9.9.9", 6, 1000, 53, 1, 1);
        let (f, v, version, s, d, p, sp, dp, n, tcp) = rows[2].clone();
        assert_eq!((&*f, &*v, version, &*s, &*d, p, sp, dp, n, tcp), third);
    }

    #[test]
    fn sums_are_those_of_the_report_and_groups_stay_small() {
        let partial = partial(1000);
        let report = partial.report();
        let mut file = FlowFile::new(Vec::new()).unwrap();
        file.group = 300;
        file.trace("t", &partial).unwrap();
        let (rows, groups) = read_back(file.finish().unwrap());
        assert_eq!(groups, 4);
        assert_eq!(rows.len() as u64, report.ip.flows);
        assert_eq!(rows.iter().map(|r| r.8 as u64).sum::<u64>(), report.ip.packets);
        assert_eq!(rows.iter().map(|r| r.9 as u64).sum::<u64>(), report.tcp.packets);
        assert_eq!(rows.iter().filter(|r| r.9 > 0).count() as u64, report.tcp.flows);
        assert_eq!(rows.iter().collect::<HashSet<_>>().len(), rows.len());
    }

    #[test]
    fn no_flows_make_a_valid_file() {
        let mut file = FlowFile::new(Vec::new()).unwrap();
        file.trace("empty", &partial(0)).unwrap();
        assert_eq!(read_back(file.finish().unwrap()), (Vec::new(), 0));
    }

    #[test]
    fn a_full_disk_is_an_error() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::Error::other("no space left"))
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let result = FlowFile::new(Full).and_then(|mut file| {
            file.trace("t", &partial(10))?;
            file.finish().map(drop)
        });
        assert!(result.unwrap_err().to_string().contains("no space left"));
    }
}
