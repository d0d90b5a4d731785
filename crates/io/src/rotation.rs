//! Captures that are cut into files by size and time, of which the latest may be kept only.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::capture::{CaptureError, CaptureWriter, Format, WriterOptions};
use slipstream_core::interface::Interface;
use slipstream_core::time::Nanos;

/// Digits of the number of a file at most, for it to be taken for one: a date has more.
const MOST_DIGITS: usize = 7;

/// When a capture goes on in another file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a file at most, before compression, unless its headers and its first packet have more.
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
    /// The number of the file that is being written, or of the next one.
    number: u64,
    /// Earlier files are not replaced.
    goes_on: bool,
    /// Time of the first packet of the file that is being written.
    began: Option<Nanos>,
    /// It has no room for the description of an interface that came since.
    full: bool,
    interfaces: Vec<Interface>,
    /// The files before, the oldest first.
    complete: VecDeque<PathBuf>,
}

impl Rotation {
    fn new(path: &Path, options: WriterOptions, limits: Limits, goes_on: bool) -> Self {
        let (path, interfaces, complete) = (path.to_owned(), Vec::new(), VecDeque::new());
        Self { path, options, limits, number: 1, goes_on, began: None, full: false, interfaces, complete }
    }

    /// Of files with names like `path`, and the first of them. Those of an earlier run are replaced, one by
    /// one.
    ///
    /// # Errors
    /// [`CaptureError`]: it can't be made.
    pub fn begin(
        path: &Path,
        options: WriterOptions,
        limits: Limits,
    ) -> Result<(Self, CaptureWriter), CaptureError> {
        let mut this = Self::new(path, options, limits, false);
        let writer = this.open(false)?;
        Ok((this, writer))
    }

    /// As [`begin`](Self::begin), behind the files that are there: all of them stay, as far as so many are
    /// kept.
    ///
    /// # Errors
    /// [`CaptureError`]: it can't be made, or what is there can't be listed.
    pub fn go_on(
        path: &Path,
        options: WriterOptions,
        limits: Limits,
    ) -> Result<(Self, CaptureWriter), CaptureError> {
        let mut this = Self::new(path, options, limits, true);
        let mut there = this.files().map_err(|error| CaptureError::create(&this.path, error))?;
        there.sort_unstable();
        this.number = there.last().map_or(1, |(number, _)| number + 1);
        this.complete.extend(there.into_iter().filter(|(_, path)| path.is_file()).map(|(_, path)| path));
        let writer = this.open(true)?;
        Ok((this, writer))
    }

    /// Returns true if a capture of files with names like `path` may write one that is named `name`.
    #[must_use]
    pub fn may_write(path: &Path, name: &OsStr) -> bool {
        let options = WriterOptions::for_path(path, Format::PcapNg);
        Self::new(path, options, Limits::default(), false).number_of(name).is_some()
    }

    /// The files that have such a name, each with its number.
    fn files(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut all = Vec::new();
        for entry in std::fs::read_dir(folder.unwrap_or(Path::new(".")))? {
            let name = entry?.file_name();
            if let Some(number) = self.number_of(&name) {
                all.push((number, self.path.with_file_name(&name)));
            }
        }
        Ok(all)
    }

    /// The number of a file with this name, if it may be one of these.
    fn number_of(&self, name: &OsStr) -> Option<u64> {
        let (before, behind) = self.around_number();
        let digits = name.as_bytes().strip_prefix(before.as_bytes())?.strip_suffix(behind.as_bytes())?;
        let number = str::from_utf8(digits).ok()?.parse().ok()?;
        (digits.len() <= MOST_DIGITS && self.name(number).file_name() == Some(name)).then_some(number)
    }

    /// A file of this number.
    fn name(&self, number: u64) -> PathBuf {
        let (mut name, behind) = self.around_number();
        name.push(format!("{number:05}"));
        name.push(behind);
        self.path.with_file_name(name)
    }

    /// The parts of a file's name before and behind its number.
    fn around_number(&self) -> (OsString, &OsStr) {
        let whole = self.path.file_name().unwrap_or_default().as_bytes();
        // All extensions stay behind: `.pcapng.gz`. A dot at the begin is that of a hidden file.
        let dot = whole.iter().skip(1).position(|&byte| byte == b'.').map(|at| at + 1);
        let (stem, rest) = whole.split_at_checked(dot.unwrap_or(whole.len())).unwrap_or((whole, &[]));
        let mut before = OsStr::from_bytes(stem).to_os_string();
        before.push("-");
        (before, OsStr::from_bytes(rest))
    }

    /// An interface, which every file is to have.
    pub(crate) fn interface(&mut self, interface: &Interface) {
        self.interfaces.push(interface.clone());
    }

    /// Returns true if the file has room for the description of another interface, with which it is of this
    /// size. Where it has none, the next packet begins another file.
    pub(crate) fn has_room(&mut self, size: u64) -> bool {
        self.full |= self.began.is_some() && self.limits.size.is_some_and(|most| size > most);
        !self.full
    }

    /// Returns true if a packet of this time, with which the file is of this size, begins another one.
    #[inline]
    pub(crate) fn is_full(&self, time: Nanos, size: u64) -> bool {
        let Some(began) = self.began else { return false };
        self.full
            || self.limits.size.is_some_and(|most| size > most)
            || self.limits.time.is_some_and(|most| time.since(began) >= most)
    }

    /// A packet is written.
    #[inline]
    pub(crate) fn packet(&mut self, time: Nanos) {
        self.began.get_or_insert(time);
    }

    /// Opens the next file; what is written to it is to stay or not.
    pub(crate) fn open(&mut self, stays: bool) -> Result<CaptureWriter, CaptureError> {
        // A number of more digits than are taken for one is not seen among the files that are there.
        while self.goes_on && self.name(self.number).symlink_metadata().is_ok() {
            self.number += 1;
        }
        let mut writer = CaptureWriter::create(&self.name(self.number), self.options)?.with_longer_packets();
        for interface in &self.interfaces {
            writer.add_interface(interface);
        }
        Ok(if stays { writer.staying() } else { writer })
    }

    /// The file that was being written is closed, and there, or it could not be written.
    pub(crate) fn closed(&mut self, there: bool) {
        let path = self.name(self.number);
        (self.began, self.full) = (None, false);
        if there {
            self.complete.push_back(path);
            self.number += 1;
        } else if self.goes_on {
            // It may have had its name before a packet came. No other file has it.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Returns true if there are files beside the one that is being written.
    pub(crate) fn has_others(&self) -> bool {
        !self.complete.is_empty()
    }

    /// Deletes as many of the oldest files as must go, where so many are being written.
    pub(crate) fn delete_oldest(&mut self, written: usize) {
        let Some(keep) = self.limits.keep else { return };
        while self.complete.len() + written > keep {
            let Some(oldest) = self.complete.pop_front() else { break };
            // Somebody else may have taken it away.
            let _ = std::fs::remove_file(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{CaptureReader, Compression};
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

    fn options(file: &str) -> WriterOptions {
        WriterOptions::for_path(Path::new(file), Format::PcapNg)
    }

    fn describe(sink: &mut CaptureSink) {
        sink.interface(&Interface { link_number: 1, snap_len: 0, name: None }).unwrap();
    }

    fn packet(sink: &mut CaptureSink, second: u64) -> Result<(), CaptureError> {
        let time = Nanos(second * 1_000_000_000);
        sink.packet(time, PacketMeta { original_len: 68, interface: 0, time }, &[second as u8; 68])
    }

    fn write(folder: &Path, file: &str, limits: Limits, packets: u64) -> CaptureSink {
        let (rotation, writer) = Rotation::begin(&folder.join(file), options(file), limits).unwrap();
        let mut sink = CaptureSink::new(writer, Stamp::Release).rotating(rotation);
        describe(&mut sink);
        (0..packets).for_each(|n| packet(&mut sink, n).unwrap());
        sink
    }

    /// As in a live run, with four packets a file.
    fn live(folder: &Path, file: &str, keep: Option<usize>) -> CaptureSink {
        let limits = Limits { size: Some(400), keep, ..Limits::default() };
        let (rotation, writer) = Rotation::go_on(&folder.join(file), options(file), limits).unwrap();
        let mut sink = CaptureSink::new(writer, Stamp::Release).rotating(rotation).staying();
        describe(&mut sink);
        sink
    }

    #[test]
    fn files_are_cut_by_size_and_time_and_none_is_missing_a_packet() {
        for (limits, each) in [
            (Limits { size: Some(1080), ..Limits::default() }, 10),
            (Limits { time: Some(4_000_000_000), ..Limits::default() }, 4),
            (Limits { size: Some(1080), time: Some(3_000_000_000), ..Limits::default() }, 3),
            // A packet that is too large for any file has one for itself.
            (Limits { size: Some(10), ..Limits::default() }, 1),
        ] {
            let folder = tempfile::tempdir().unwrap();
            write(folder.path(), "a.b.pcapng.gz", limits, 25).finish().unwrap();
            let files = names(folder.path());
            assert_eq!(files[0], "a-00001.b.pcapng.gz");
            let all: Vec<Vec<u64>> = files.iter().map(|f| times(&folder.path().join(f))).collect();
            assert!(all.iter().rev().skip(1).all(|f| f.len() == each), "{limits:?} {all:?}");
            assert_eq!(all.concat(), (0..25).map(|n| n * 1_000_000_000).collect::<Vec<_>>());
        }
    }

    /// With the first packet of the next file, and the interface described before it, each file would have
    /// been larger than the limit; and none is.
    #[test]
    fn files_are_as_large_as_the_limit_allows() {
        let named = Interface { link_number: 1, snap_len: 0, name: Some("an interface".into()) };
        let is_described = |n: u64| n % 7 == 3 && n < 40;
        let len = |n: u64| n * 37 % 90;
        let limits = (1000..1100).step_by(4).chain([10]);
        for (file, limit) in limits.flat_map(|limit| [("a.pcap", limit), ("a.pcapng", limit)]) {
            let folder = tempfile::tempdir().unwrap();
            let mut sink = write(folder.path(), file, Limits { size: Some(limit), ..Limits::default() }, 0);
            for n in 0..100 {
                if is_described(n) {
                    sink.interface(&named).unwrap();
                }
                let (len, time) = (len(n), Nanos(n));
                let meta = PacketMeta { original_len: 90, interface: (n % 40) as u32 / 7, time };
                sink.packet(time, meta, &[0; 90][..len as usize]).unwrap();
                if n == 50 {
                    sink.publish().unwrap();
                }
            }
            sink.finish().unwrap();
            let files = names(folder.path()).into_iter().map(|name| folder.path().join(name));
            let files: Vec<_> = files.map(|path| (path.metadata().unwrap().len(), times(&path))).collect();
            let all = files.iter().flat_map(|(_, packets)| packets.clone());
            assert!(all.eq(0..100), "{file} {limit}");
            assert!(files.iter().all(|(size, packets)| *size <= limit || packets.len() == 1), "{files:?}");
            for ((size, _), (_, next)) in files.iter().zip(&files[1..]) {
                let (len, described) = (len(next[0]), u64::from(is_described(next[0])));
                let more =
                    if file == "a.pcap" { 16 + len } else { 32 + len.next_multiple_of(4) + 52 * described };
                assert!(size + more > limit, "{file} {limit}: {files:?}");
            }
        }
    }

    /// Files of an earlier run stay also where their numbers have become longer than those that are known by
    /// their digits.
    #[test]
    fn numbers_of_many_digits_replace_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let before = ["a-10000000.pcapng", "a-10000001.pcapng", "a-9999999.pcapng"];
        before.iter().for_each(|name| std::fs::write(folder.path().join(name), name).unwrap());
        let mut sink = live(folder.path(), "a.pcapng", None);
        (0..6).for_each(|n| packet(&mut sink, n).unwrap());
        sink.finish().unwrap();
        let after = names(folder.path());
        assert_eq!(
            after[..4],
            ["a-10000000", "a-10000001", "a-10000002", "a-10000003"].map(|n| format!("{n}.pcapng"))
        );
        for name in before {
            assert_eq!(std::fs::read_to_string(folder.path().join(name)).unwrap(), name);
        }
    }

    #[test]
    fn names_that_may_be_written_are_those_that_are() {
        let folder = tempfile::tempdir().unwrap();
        let limits = Limits { size: Some(500), ..Limits::default() };
        for file in ["a.b.pcapng.gz", "x", ".x", "day-00001.pcap", "7.7.pcap"] {
            write(folder.path(), file, limits, 12).finish().unwrap();
            let there = names(folder.path());
            assert!(
                there.iter().all(|name| Rotation::may_write(Path::new(file), OsStr::new(name))),
                "{there:?}"
            );
            there.iter().for_each(|name| std::fs::remove_file(folder.path().join(name)).unwrap());
        }
        for (name, may) in [
            ("a-00001.pcap", true),
            ("a-123456.pcap", true),
            ("a.pcap", false),
            ("a-1.pcap", false),
            ("a-000001.pcap", false),
            ("a-00001.pcapng", false),
            ("b-00001.pcap", false),
            ("a-00001-00001.pcap", false),
        ] {
            assert_eq!(Rotation::may_write(Path::new("there/a.pcap"), OsStr::new(name)), may, "{name}");
        }
    }

    #[test]
    fn the_latest_files_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let limits = Limits { size: Some(580), keep: Some(2), ..Limits::default() };
        write(folder.path(), "x", limits, 23).finish().unwrap();
        assert_eq!(names(folder.path()), ["x-00004", "x-00005"]);
    }

    /// Whatever bytes it is of: that of the second one is no UTF-8.
    #[test]
    fn a_name_keeps_its_bytes_and_its_extensions() {
        for (file, want) in [
            ("é.pcap".as_bytes(), "é-00001.pcap".as_bytes()),
            (b"\xe9t\xe9.pcap.gz", b"\xe9t\xe9-00001.pcap.gz"),
            (b".hidden", b".hidden-00001"),
            (b".hidden.pcap", b".hidden-00001.pcap"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(OsStr::from_bytes(file));
            let options = WriterOptions::for_path(&path, Format::Pcap);
            let rotation = Rotation::new(&path, options, Limits::default(), true);
            assert_eq!(rotation.name(1), folder.path().join(OsStr::from_bytes(want)));
            std::fs::write(rotation.name(17), "").unwrap();
            assert_eq!(rotation.files().unwrap(), [(17, rotation.name(17))]);
        }
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
            sink.finish().unwrap();
            assert_eq!((times(&path).len(), names(folder.path()).len()), (8, 1), "{file}");
        }
    }

    #[test]
    fn a_live_capture_goes_on_behind_the_files_that_are_there() {
        let folder = tempfile::tempdir().unwrap();
        // Other captures, and what only looks like a file of this one.
        let others = ["b-00009.pcap", "a-00012.pcapng", "a-7.pcap", "a-000014.pcap", "a-x0015.pcap"];
        others.iter().for_each(|name| std::fs::write(folder.path().join(name), name).unwrap());
        let ours = || {
            let all = names(folder.path()).into_iter();
            all.filter(|name| !others.contains(&name.as_str())).collect::<Vec<_>>()
        };
        let run = |packets: u64, keep| {
            let mut sink = live(folder.path(), "a.pcap", keep);
            (0..packets).for_each(|n| packet(&mut sink, n).unwrap());
            sink.finish().unwrap();
        };
        run(8, None);
        assert_eq!(ours(), ["a-00001.pcap", "a-00002.pcap"]);
        let first = std::fs::read(folder.path().join("a-00001.pcap")).unwrap();
        run(3, None);
        assert_eq!(ours(), ["a-00001.pcap", "a-00002.pcap", "a-00003.pcap"]);
        assert_eq!(std::fs::read(folder.path().join("a-00001.pcap")).unwrap(), first);
        // A run without packets replaces none that has some.
        run(0, Some(2));
        assert_eq!(ours(), ["a-00001.pcap", "a-00002.pcap", "a-00003.pcap"]);
        run(5, Some(3));
        assert_eq!(ours(), ["a-00003.pcap", "a-00004.pcap", "a-00005.pcap"]);
        assert_eq!(times(&folder.path().join("a-00005.pcap")).len(), 1);
        assert_eq!(names(folder.path()).len(), 3 + others.len());
    }

    #[test]
    fn files_of_a_live_capture_are_deleted_when_later_ones_have_packets() {
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..3 {
            let mut sink = live(folder.path(), "a.pcap", Some(2));
            packet(&mut sink, 1).unwrap();
            sink.publish().unwrap();
            // Whatever ends the program now.
            drop(sink);
        }
        assert_eq!(names(folder.path()), ["a-00002.pcap", "a-00003.pcap"]);
    }

    #[test]
    fn a_file_that_can_not_be_begun_costs_no_earlier_one() {
        let above = tempfile::tempdir().unwrap();
        let [folder, away] = ["here", "away"].map(|name| above.path().join(name));
        std::fs::create_dir(&folder).unwrap();
        let mut sink = live(&folder, "a.pcap", Some(4));
        (0..8).for_each(|n| packet(&mut sink, n).unwrap());
        sink.publish().unwrap();
        std::fs::rename(&folder, &away).unwrap();
        assert!(packet(&mut sink, 8).unwrap_err().may_pass());
        for n in 9..30 {
            packet(&mut sink, n).unwrap();
            assert!(sink.begin_again().is_err());
        }
        assert_eq!((sink.written().0, sink.lost()), (8, 22));
        assert_eq!(names(&away), ["a-00001.pcap", "a-00002.pcap"]);
        std::fs::rename(&away, &folder).unwrap();
        sink.begin_again().unwrap();
        (30..36).for_each(|n| packet(&mut sink, n).unwrap());
        sink.finish().unwrap();
        assert_eq!(names(&folder), [1, 2, 3, 4].map(|n| format!("a-0000{n}.pcap")));
        let seconds = |n| times(&folder.join(format!("a-0000{n}.pcap"))).len();
        assert_eq!([1, 2, 3, 4].map(seconds), [4, 4, 4, 2]);
        assert_eq!((sink.written().0, sink.lost()), (14, 22));
    }

    #[test]
    fn a_replay_that_can_not_go_on_keeps_what_is_complete() {
        let above = tempfile::tempdir().unwrap();
        let [folder, away] = ["here", "away"].map(|name| above.path().join(name));
        std::fs::create_dir(&folder).unwrap();
        let limits = Limits { size: Some(400), keep: Some(3), ..Limits::default() };
        let mut sink = write(&folder, "a.pcap", limits, 8);
        std::fs::rename(&folder, &away).unwrap();
        let failed = (8..20).map(|n| packet(&mut sink, n)).filter(Result::is_err).count();
        assert_eq!((failed, sink.written().0, sink.lost()), (1, 4, 16));
        assert_eq!(names(&away), ["a-00001.pcap"]);
    }
}
