//! Records of flows on their way out: by UDP to a collector, or to a file.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use crate::datagrams::Datagrams;
use crate::flow_stats::FlowRecord;
use crate::ipfix::Exporter;
use slipstream_core::clock::{LiveClock, RealTime};
use slipstream_core::new_file::{NewFile, Output, advice_on_write};
use slipstream_core::registry::{BuildError, Site};
use slipstream_core::stage::StageError;
use slipstream_core::time::Nanos;

/// The destination that the setting `export` names.
pub(super) fn target(text: &str, site: &Site<'_>) -> Result<Target, BuildError> {
    let wrong = |e: io::Error| BuildError::setting("export", format!("{text}: {e}"));
    if text == "none" {
        return Ok(Target::None);
    }
    if let Some(address) = text.strip_prefix("udp:") {
        let to: Vec<SocketAddr> = address.to_socket_addrs().map_err(wrong)?.collect();
        if to.iter().any(|to| to.port() == 0) {
            return Err(BuildError::setting("export", format!("{address}: nobody listens at port 0")));
        }
        // A full socket buffer must not stop packets: the message is lost, and counted.
        let datagrams = Datagrams::to(to.as_slice()).and_then(Datagrams::without_waiting).map_err(wrong)?;
        // A live run begins before there is a way; a replay would be over by then.
        return match datagrams.without_way() {
            Some(error) if !site.live => Err(wrong(error)),
            _ => Ok(Target::Udp(datagrams)),
        };
    }
    let path = if text == "-" { text.into() } else { site.base.join(text) };
    if path.is_dir() {
        return Err(BuildError::setting("export", format!("{} is a directory", path.display())));
    }
    if site.dry {
        return Ok(Target::None);
    }
    if let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty() && !p.exists()) {
        let message = format!("{}: there is no folder {}; make it first", path.display(), folder.display());
        return Err(BuildError::setting("export", message));
    }
    let out = match Output::create(&path).map_err(wrong)? {
        Output::New(new) if site.live => Out::Grows(Growing::new(new)),
        other => Out::Whole(BufWriter::new(other)),
    };
    Ok(Target::File { out: Some(out), path, failed: None })
}

/// Destination of messages.
pub enum Target {
    /// Nowhere.
    None,
    /// To a collector.
    Udp(Datagrams),
    /// To a file.
    File {
        /// The file that is being written.
        out: Option<Out>,
        /// Its name.
        path: PathBuf,
        /// The first error.
        failed: Option<io::Error>,
    },
}

/// A file of messages that is being written.
#[derive(Debug)]
pub enum Out {
    /// It takes its name at the end; a device or a pipe has it already.
    Whole(BufWriter<Output>),
    /// It can be read all the time, however the run ends.
    Grows(Growing),
}

/// A file that has its name from the first message on and consists of whole messages.
#[derive(Debug)]
pub struct Growing {
    /// The file before its first message.
    new: Option<NewFile>,
    file: Option<File>,
    /// Bytes of the messages in it.
    len: u64,
}

impl Growing {
    fn new(new: NewFile) -> Self {
        Self { new: Some(new), file: None, len: 0 }
    }

    /// Gives the file its name, if it has none yet.
    fn named(&mut self) -> io::Result<&mut File> {
        let named = self.new.take().map(NewFile::publish).transpose()?;
        self.file = self.file.take().or(named);
        self.file.as_mut().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the file has no name"))
    }

    fn write(&mut self, message: &[u8]) -> io::Result<()> {
        let end = self.len;
        let file = self.named()?;
        let written = file.write_all(message);
        if written.is_ok() {
            self.len = end + message.len() as u64;
        } else {
            // A part of a message would keep readers from those behind it.
            let _ = file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end)));
        }
        written
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Udp(_) => "Udp",
            Self::File { .. } => "File",
        })
    }
}

impl Target {
    fn write(&mut self, message: &[u8]) -> io::Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Udp(datagrams) => datagrams.send(message, 1),
            Self::File { out, failed, .. } => {
                let result = match out {
                    Some(Out::Whole(out)) => out.write_all(message),
                    Some(Out::Grows(file)) => file.write(message),
                    None => Ok(()),
                };
                result.inspect_err(|e| {
                    failed.get_or_insert_with(|| io::Error::new(e.kind(), e.to_string()));
                })
            }
        }
    }

    pub(super) fn flush(&mut self) -> Result<(), StageError> {
        let Self::File { out, path, failed } = self else { return Ok(()) };
        if let Some(error) = failed {
            return Err(not_written(path, error));
        }
        let Some(Out::Whole(out)) = out else { return Ok(()) };
        out.flush().map_err(|error| not_written(path, &error))
    }

    pub(super) fn finish(&mut self) -> Result<(), StageError> {
        self.flush()?;
        let Self::File { out, path, .. } = self else { return Ok(()) };
        let wrong = |error: io::Error| not_written(path, &error);
        match out.take() {
            Some(Out::Whole(out)) => {
                let file = out.into_inner().map_err(|error| wrong(error.into_error()))?;
                file.persist().map_err(wrong)
            }
            Some(Out::Grows(mut file)) => file.named().map(drop).map_err(wrong),
            None => Ok(()),
        }
    }
}

fn not_written(path: &Path, error: &io::Error) -> StageError {
    StageError::new(format!("{}: cannot be written: {error}{}", path.display(), advice_on_write(error)))
}

/// Records on their way out.
#[derive(Debug)]
pub(super) struct Export {
    pub(super) exporter: Exporter,
    pub(super) target: Target,
    pub(super) records: u64,
    /// Messages that could not be sent.
    pub(super) lost: u64,
    /// The reason why the last message is not in the file, or had no way to the collector.
    pub(super) trouble: Option<String>,
    /// Live, times are told in real time; a replay has those of its packets.
    real_time: Option<RealTime>,
}

impl Export {
    pub(super) fn new(exporter: Exporter, target: Target) -> Self {
        Self { exporter, target, records: 0, lost: 0, trouble: None, real_time: None }
    }

    /// Times are of this clock, and are told in real time.
    pub(super) fn by_clock(&mut self, clock: LiveClock) {
        self.real_time = Some(RealTime::of(clock));
    }

    /// A time as collectors are told it.
    fn told(&self, time: Nanos) -> Nanos {
        self.real_time.map_or(time, |real_time| real_time.at(time))
    }

    pub(super) fn record(&mut self, record: &FlowRecord, now: Nanos) {
        self.records += 1;
        if matches!(self.target, Target::None) {
            return;
        }
        let record = FlowRecord { first: self.told(record.first), last: self.told(record.last), ..*record };
        let now = self.told(now);
        let Self { exporter, target, .. } = self;
        let messages = exporter.counters().messages;
        let result = exporter.push(&record, now, &mut |message| target.write(message));
        if exporter.counters().messages != messages {
            self.written(result);
        }
    }

    pub(super) fn flush(&mut self, now: Nanos) {
        if self.real_time.as_mut().is_some_and(RealTime::look) {
            self.exporter.clock_was_set_back();
        }
        let now = self.told(now);
        let Self { exporter, target, .. } = self;
        let messages = exporter.counters().messages;
        let result = exporter.flush(now, &mut |message| target.write(message));
        if exporter.counters().messages != messages {
            self.written(result);
        }
        if let Target::Udp(datagrams) = &mut self.target {
            let (lost, late) = datagrams.take_lost();
            self.lost += lost;
            if late.is_some() {
                self.exporter.send_templates_again();
            }
        }
    }

    /// Counts a message that could not be written, and keeps why. Of those that are sent, [`Datagrams`] count
    /// which are lost: an error may be about the one before. Only that there is no way is kept of them: one
    /// that nobody takes, or that finds no room, says nothing of the next one.
    fn written(&mut self, result: io::Result<()>) {
        let (out, path) = match &self.target {
            Target::None => return,
            Target::Udp(datagrams) => {
                let way = if result.is_ok() { None } else { datagrams.without_way() };
                self.trouble = way.map(|error| format!("nothing can be sent to the collector: {error}"));
                return;
            }
            Target::File { out, path, .. } => (out, path),
        };
        match result {
            Err(error) => {
                self.lost += 1;
                self.trouble = Some(not_written(path, &error).to_string());
            }
            // Records that wait in a buffer are not written yet.
            Ok(()) if matches!(out, Some(Out::Whole(_))) => {}
            Ok(()) => self.trouble = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use slipstream_core::time::Nanos;
    use slipstream_wire::FlowKey;

    use super::*;
    use crate::flow_stats::EndReason;
    use crate::ipfix::IpfixConfig;

    fn export(to: &UdpSocket) -> Export {
        let datagrams = Datagrams::to(to.local_addr().unwrap()).unwrap().without_waiting().unwrap();
        let exporter = Exporter::new(&IpfixConfig::default());
        Export::new(exporter, Target::Udp(datagrams))
    }

    /// Live, what is in a file can be read at any time: it has a name from the first message on, and no part
    /// of a message that found no room. A file that can't be written stands in for a disk that is full.
    #[test]
    fn a_file_that_grows_has_whole_messages_and_says_when_it_can_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flows.ipfix");
        std::fs::write(&path, "of an earlier run").unwrap();
        let new = NewFile::create(&path).unwrap();
        let target =
            Target::File { out: Some(Out::Grows(Growing::new(new))), path: path.clone(), failed: None };
        let exporter = Exporter::new(&IpfixConfig { template_interval: None, ..IpfixConfig::default() });
        let mut export = Export::new(exporter, target);
        let there = || std::fs::read(&path).unwrap();
        assert_eq!(there(), b"of an earlier run");
        send(&mut export, 1);
        let first = there();
        assert_eq!(first.len() as u64, export.exporter.counters().bytes);
        assert_eq!((first[..2].to_vec(), &export.trouble), (vec![0, 10], &None));
        let full = |export: &mut Export, other: File| {
            let Target::File { out: Some(Out::Grows(growing)), .. } = &mut export.target else { panic!() };
            growing.file.replace(other).unwrap()
        };
        let writable = full(&mut export, File::open(&path).unwrap());
        send(&mut export, 2);
        assert_eq!((there(), export.lost), (first.clone(), 1));
        assert!(export.trouble.as_ref().is_some_and(|why| why.contains("flows.ipfix: cannot be written")));
        // A look at a time without records changes nothing.
        export.flush(Nanos(5));
        assert!(export.trouble.is_some());
        full(&mut export, writable);
        send(&mut export, 3);
        assert_eq!((there().len(), export.lost, &export.trouble), (2 * first.len(), 1, &None));
        // That something is missing is said at the end, and what is there stays.
        assert!(export.target.finish().is_err());
        drop(export);
        assert_eq!(there().len(), 2 * first.len());
    }

    fn record(port: u16) -> FlowRecord {
        let (src, dst) = ([10, 0, 0, 1].into(), [192, 0, 2, 7].into());
        FlowRecord {
            key: FlowKey::new(&[], src, dst, 6, port, 443).unwrap(),
            packets: 1,
            bytes: 40,
            first: Nanos(1),
            last: Nanos(2),
            tcp_flags: 2,
            tos: 0,
            reason: EndReason::Idle,
        }
    }

    fn send(export: &mut Export, port: u16) {
        export.record(&record(port), Nanos(5));
        export.flush(Nanos(5));
        std::thread::sleep(Duration::from_millis(20));
    }

    /// Messages that nobody takes are lost, each of them and no other; the first one that somebody takes
    /// comes, with the templates that it takes to read it.
    #[test]
    fn messages_that_are_refused_are_counted_each() {
        let nobody = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (to, mut export) = (nobody.local_addr().unwrap(), export(&nobody));
        drop(nobody);
        (0..5).for_each(|port| send(&mut export, port));
        export.flush(Nanos(5));
        assert_eq!((export.exporter.counters().messages, export.lost), (5, 5));
        let somebody = UdpSocket::bind(to).unwrap();
        somebody.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let (mut message, mut sizes) = ([0; 2000], Vec::new());
        for port in 5..7 {
            send(&mut export, port);
            sizes.push(somebody.recv(&mut message).unwrap());
        }
        assert!(sizes[0] > sizes[1], "templates come first: {sizes:?}");
        assert_eq!((export.exporter.counters().messages, export.lost), (7, 5));
    }

    /// Of full messages that go out one after the other, without a look in between, each is counted, too.
    #[test]
    fn full_messages_that_are_refused_are_counted_each() {
        let nobody = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut export = export(&nobody);
        drop(nobody);
        (0..500).for_each(|port| export.record(&record(port), Nanos(5)));
        export.flush(Nanos(5));
        std::thread::sleep(Duration::from_millis(20));
        export.flush(Nanos(5));
        let messages = export.exporter.counters().messages;
        assert!(messages > 10);
        assert_eq!(export.lost, messages);
    }

    /// The clock of a live run goes on from the time that the machine had in the beginning: one without a
    /// battery begins in 1970, and has its time set while the pipeline runs.
    #[test]
    fn times_are_told_in_real_time() {
        const BEHIND: u64 = 1_000_000_000_000;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flows.ipfix");
        let clock = LiveClock::get().behind(BEHIND);
        let begun = slipstream_core::clock::real_time();
        let mut export = Export::new(
            Exporter::new(&IpfixConfig { template_interval: None, ..IpfixConfig::default() }),
            Target::File {
                out: Some(Out::Whole(BufWriter::new(Output::create(&path).unwrap()))),
                path: path.clone(),
                failed: None,
            },
        );
        export.by_clock(clock);
        let now = clock.now();
        let record = FlowRecord { first: Nanos(now.0 - 5_000_000_000), last: now, ..record(1) };
        export.record(&record, now);
        export.flush(clock.now());
        export.target.finish().unwrap();
        let message = std::fs::read(&path).unwrap();
        let exported = u64::from(u32::from_be_bytes(message[4..8].try_into().unwrap()));
        let seconds = begun.0 / 1_000_000_000;
        assert!((seconds..seconds + 60).contains(&exported), "{exported}, {seconds}");
        // Two times in milliseconds stand before the reason of the flow's end, the last byte.
        let time = |from_end: usize| {
            let at = message.len() - from_end;
            u64::from_be_bytes(message[at..at + 8].try_into().unwrap())
        };
        let (first, last) = (time(17), time(9));
        assert!((exported * 1000).abs_diff(last) < 60_000 && last - first == 5000, "{first}, {last}");
    }
}
