//! Captures that are cut into files by size and time, of which the latest may be kept only.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use crate::capture::{CaptureError, CaptureWriter, WriterOptions};
use slipstream_core::interface::Interface;
use slipstream_core::time::Nanos;

/// Bytes of a record beside those of its packet, in pcapng.
const RECORD: u64 = 32;

/// When a capture goes on in another file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a file at most, before compression, unless its first packet alone has more.
    pub size: Option<u64>,
    /// Time from its first packet to its last, in ns, at most.
    pub time: Option<u64>,
    /// Files that are kept; older ones are deleted.
    pub keep: Option<usize>,
}

impl Limits {
    /// Returns true if there is ever a second file.
    #[must_use]
    pub fn any(&self) -> bool {
        self.size.is_some() || self.time.is_some()
    }
}

/// The files of a capture: `day.pcapng` becomes `day-00001.pcapng`, `day-00002.pcapng`, …
#[derive(Debug)]
pub struct Rotation {
    path: PathBuf,
    options: WriterOptions,
    limits: Limits,
    number: u64,
    /// Time of the first packet of the file that is being written.
    began: Option<Nanos>,
    bytes: u64,
    interfaces: Vec<Interface>,
    complete: VecDeque<PathBuf>,
}

impl Rotation {
    /// Of files with names like `path`, and the first of them.
    ///
    /// # Errors
    /// [`CaptureError`]: it can't be made.
    pub fn begin(
        path: &Path,
        options: WriterOptions,
        limits: Limits,
    ) -> Result<(Self, CaptureWriter), CaptureError> {
        let (path, interfaces, complete) = (path.to_owned(), Vec::new(), VecDeque::new());
        let this = Self { path, options, limits, number: 1, began: None, bytes: 0, interfaces, complete };
        let writer = CaptureWriter::create(&this.name(), options)?;
        Ok((this, writer))
    }

    /// The name of the file that is being written.
    fn name(&self) -> PathBuf {
        let whole = self.path.file_name().unwrap_or_default().to_string_lossy();
        // All extensions stay behind: `.pcapng.gz`.
        let (stem, rest) = match whole.get(1..).and_then(|tail| tail.find('.')) {
            Some(at) => whole.split_at(at + 1),
            None => (&*whole, ""),
        };
        self.path.with_file_name(format!("{stem}-{:05}{rest}", self.number))
    }

    /// An interface, which every file is to have.
    pub(crate) fn interface(&mut self, interface: &Interface) {
        self.interfaces.push(interface.clone());
    }

    /// Returns true if a packet of this time and length begins another file.
    #[inline]
    pub(crate) fn is_full(&self, time: Nanos, len: usize) -> bool {
        let Some(began) = self.began else { return false };
        let too_large = |size| self.bytes + len as u64 + RECORD > size;
        self.limits.size.is_some_and(too_large)
            || self.limits.time.is_some_and(|most| time.since(began) >= most)
    }

    /// A packet was written.
    #[inline]
    pub(crate) fn written(&mut self, time: Nanos, len: usize) {
        self.began.get_or_insert(time);
        self.bytes += len as u64 + RECORD;
    }

    /// Finishes a file and begins the next one.
    pub(crate) fn turn(&mut self, writer: &mut CaptureWriter) -> Result<(), CaptureError> {
        let complete = self.name();
        self.number += 1;
        let mut next = CaptureWriter::create(&self.name(), self.options)?;
        for interface in &self.interfaces {
            next.add_interface(interface)?;
        }
        std::mem::replace(writer, next).finish()?;
        (self.began, self.bytes) = (None, 0);
        self.complete.push_back(complete);
        if let Some(keep) = self.limits.keep {
            // The file that is being written is one of those.
            while self.complete.len() >= keep {
                let Some(oldest) = self.complete.pop_front() else { break };
                // Somebody else may have taken it away.
                let _ = std::fs::remove_file(oldest);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{CaptureReader, Compression, Format};
    use crate::sink::{CaptureSink, Sink, Stamp};
    use slipstream_core::pool::PacketMeta;

    fn names(folder: &Path) -> Vec<String> {
        let mut all: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|f| f.unwrap().file_name().into_string().unwrap())
            .collect();
        all.sort();
        all
    }

    fn times(path: &Path) -> Vec<u64> {
        let mut reader = CaptureReader::open(path).unwrap();
        let mut all = Vec::new();
        while let Some(packet) = reader.next_record().unwrap() {
            all.push(packet.time.0);
        }
        all
    }

    fn write(folder: &Path, file: &str, limits: Limits, packets: u64) -> CaptureSink {
        let options = WriterOptions::for_path(Path::new(file), Format::PcapNg);
        let (rotation, writer) = Rotation::begin(&folder.join(file), options, limits).unwrap();
        let mut sink = CaptureSink::new(writer, Stamp::Release).rotating(rotation);
        sink.interface(&Interface { link_number: 1, snap_len: 0, name: None }).unwrap();
        for n in 0..packets {
            let time = Nanos(n * 1_000_000_000);
            let meta = PacketMeta { original_len: 68, interface: 0, time };
            sink.packet(time, meta, &[n as u8; 68]).unwrap();
        }
        sink
    }

    #[test]
    fn files_are_cut_by_size_and_time_and_none_is_missing_a_packet() {
        for (limits, each) in [
            (Limits { size: Some(1000), ..Limits::default() }, 10),
            (Limits { time: Some(4_000_000_000), ..Limits::default() }, 4),
            (Limits { size: Some(1000), time: Some(3_000_000_000), ..Limits::default() }, 3),
            // A packet that is too large for any file has one for itself.
            (Limits { size: Some(10), ..Limits::default() }, 1),
        ] {
            let folder = tempfile::tempdir().unwrap();
            write(folder.path(), "a.b.pcapng.gz", limits, 25).into_writer().finish().unwrap();
            let files = names(folder.path());
            assert_eq!(files[0], "a-00001.b.pcapng.gz");
            let all: Vec<Vec<u64>> = files.iter().map(|f| times(&folder.path().join(f))).collect();
            assert!(all.iter().rev().skip(1).all(|f| f.len() == each), "{limits:?} {all:?}");
            assert_eq!(all.concat(), (0..25).map(|n| n * 1_000_000_000).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_latest_files_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let limits = Limits { size: Some(500), keep: Some(2), ..Limits::default() };
        write(folder.path(), "x", limits, 23).into_writer().finish().unwrap();
        assert_eq!(names(folder.path()), ["x-00004", "x-00005"]);
    }

    #[test]
    fn what_was_published_can_be_read_though_nobody_finishes_it() {
        for file in ["a.pcapng", "a.pcap", "a.pcap.gz", "a.pcapng.zst"] {
            let folder = tempfile::tempdir().unwrap();
            let mut sink = write(folder.path(), file, Limits::default(), 7);
            assert_eq!(names(folder.path()).len(), 0);
            sink.publish().unwrap();
            let path = folder.path().join(&names(folder.path())[0]);
            if WriterOptions::for_path(Path::new(file), Format::PcapNg).compression == Compression::None {
                assert_eq!(times(&path).len(), 7, "{file}");
            }
            sink.packet(Nanos(9), PacketMeta { original_len: 1, interface: 0, time: Nanos(9) }, &[1])
                .unwrap();
            sink.into_writer().finish().unwrap();
            assert_eq!((times(&path).len(), names(folder.path()).len()), (8, 1), "{file}");
        }
    }
}
