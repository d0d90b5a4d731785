//! Flow statistics in a pipeline, exported by IPFIX (RFC 7011) over UDP, to a file, or not at all.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use slipstream_wire::FlowKey;

use crate::answer::ip_length;
use crate::datagrams::Datagrams;
use crate::flow_stats::{ACTIVE, FLOWS, Flow, FlowRecord, FlowStats, FlowStatsConfig, IDLE, Observed};
use crate::ipfix::{Exporter, IpfixConfig};
use crate::{DECIDE, FunctionContext, NetworkFunction, stage_of};
use slipstream_core::flow_context::{FlowUse, Trains};
use slipstream_core::frame::Frame;
use slipstream_core::new_file::{NewFile, Output, advice_on_write};
use slipstream_core::packet::{any_key_of, fast_key_of};
use slipstream_core::reads::Reads;
use slipstream_core::registry::{BuildError, Group, Made, PortType, Ports, Site, StageType};
use slipstream_core::registry::{Meets, Need, Partner, Properties, need};
use slipstream_core::settings::{Kind, Setting, Settings};
use slipstream_core::stage::{Context, Observe, StageError, Verdict};
use slipstream_core::time::Nanos;

/// The stage type.
pub const FLOW_STATS: StageType = StageType {
    name: "flow_stats",
    group: Group::Function,
    summary: "Counts packets, bytes and TCP flags of every flow, and exports them by IPFIX",
    example: "in -> flow_stats(export=\"udp:192.0.2.9:4739\") -> out",
    inputs: Ports::These(&[PortType { name: "in", help: "packets", unconnected: None }]),
    outputs: Ports::These(&[PortType { name: "out", help: "the same packets", unconnected: None }]),
    settings: &[
        Setting {
            name: "export",
            kind: Kind::Text("none, udp:HOST:PORT, or a file (of IPFIX messages back to back, RFC 5655)"),
            default: Some("none"),
            required: false,
            help: "Where records go",
        },
        FLOWS,
        IDLE,
        ACTIVE,
        Setting {
            name: "domain",
            kind: Kind::Count(0, u32::MAX as u64),
            default: Some("0"),
            required: false,
            help: "Observation domain id",
        },
        DECIDE,
    ],
    properties: Properties {
        writes: Some("export"),
        partners: &[Partner { of: &["domain"], need: Need::IsNot("export", "none") }],
        without_meeting: Some("with export=udp:ADDRESS:PORT each shard exports its own flows"),
        ..Properties::new(meets)
    },
    build,
};

/// A flow's packets are counted in one place. A file is one sequence of messages; by UDP each core is an
/// exporter with a session of its own (RFC 7011 §10.3).
fn meets(settings: &Settings) -> Meets {
    let export = settings.text("export");
    if export == "none" || export.starts_with("udp:") { Meets::Flow } else { Meets::Everything }
}

fn build(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let config = FlowStatsConfig::from_settings(settings, site.seed);
    need("flows", FlowStats::memory(config.flows))?;
    let target = target(settings.text("export"), site)?;
    let ipfix = IpfixConfig {
        domain: settings.number("domain") as u32,
        template_interval: match target {
            Target::File { .. } => None,
            _ => IpfixConfig::default().template_interval,
        },
        ..IpfixConfig::default()
    };
    let mut stage = FlowStatsStage::new(&config, &ipfix, target);
    stage.by_clock = site.live;
    Ok(Made::Stage(stage_of(stage, settings)))
}

fn target(text: &str, site: &Site<'_>) -> Result<Target, BuildError> {
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
        let datagrams = Datagrams::to(to.as_slice()).and_then(Datagrams::without_waiting);
        return Ok(Target::Udp(datagrams.map_err(wrong)?));
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

    fn flush(&mut self) -> Result<(), StageError> {
        let Self::File { out, path, failed } = self else { return Ok(()) };
        if let Some(error) = failed {
            return Err(not_written(path, error));
        }
        let Some(Out::Whole(out)) = out else { return Ok(()) };
        out.flush().map_err(|error| not_written(path, &error))
    }

    fn finish(&mut self) -> Result<(), StageError> {
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
    StageError(format!("{}: cannot be written: {error}{}", path.display(), advice_on_write(error)))
}

/// Records on their way out.
#[derive(Debug)]
struct Export {
    exporter: Exporter,
    target: Target,
    records: u64,
    /// Messages that could not be sent.
    lost: u64,
    /// The reason why the last message is not in the file.
    trouble: Option<String>,
}

impl Export {
    fn record(&mut self, record: &FlowRecord, now: Nanos) {
        self.records += 1;
        if matches!(self.target, Target::None) {
            return;
        }
        let Self { exporter, target, .. } = self;
        let messages = exporter.counters().messages;
        let result = exporter.push(record, now, &mut |message| target.write(message));
        if exporter.counters().messages != messages {
            self.written(result);
        }
    }

    fn flush(&mut self, now: Nanos) {
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
    /// which are lost: an error may be about the one before.
    fn written(&mut self, result: io::Result<()>) {
        let Target::File { out, path, .. } = &self.target else { return };
        match result {
            Err(error) => {
                self.lost += 1;
                self.trouble = Some(not_written(path, &error).0);
            }
            // What waits in a buffer is not written yet.
            Ok(()) if matches!(out, Some(Out::Whole(_))) => {}
            Ok(()) => self.trouble = None,
        }
    }
}

/// Flow statistics as a network function.
#[derive(Debug)]
pub struct FlowStatsStage {
    flows: FlowStats,
    /// The flow that packets were counted of last that was not known.
    asked: Flow,
    export: Export,
    next: Nanos,
    /// Time is the clock's: flows whose time has passed are handed out in slices.
    by_clock: bool,
    counted: u64,
    unclassified: u64,
    /// Times that flows whose time had passed were looked for.
    turns: u64,
}

/// Interval, in ns, of the search for expired flows while no packet comes.
const TURN: u64 = 1_000_000_000;
/// Flows of a slice of that search, where time is the clock's, and the time from one to the next, in ns: many
/// flows that end at one time hold no packet up.
const SLICE: u32 = 64;
const NEXT_SLICE: u64 = 100_000;

impl FlowStatsStage {
    /// Counts flows, and hands their records to `target`.
    #[must_use]
    pub fn new(config: &FlowStatsConfig, ipfix: &IpfixConfig, target: Target) -> Self {
        Self {
            flows: FlowStats::new(config),
            asked: Flow::default(),
            export: Export { exporter: Exporter::new(ipfix), target, records: 0, lost: 0, trouble: None },
            next: Nanos::MAX,
            by_clock: false,
            counted: 0,
            unclassified: 0,
            turns: 0,
        }
    }
}

/// The result of reading a packet ahead.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    /// True if there is a flow.
    is_flow: bool,
    /// The flow has the number that its context says, unless it ended.
    by_context: bool,
    flow: Flow,
}

/// Whose packets there are to count.
#[derive(Clone, Copy, Debug)]
pub enum Counted {
    /// A flow's that is known, with this number.
    Known(u32),
    /// The one's that was asked for last: it is not known, or no longer.
    Anew,
    /// No flow's.
    Nobody,
}

impl FlowStatsStage {
    #[inline(never)]
    fn look_at_any(&self, cx: &Context<'_>, first: &Frame, found: &mut Found) {
        let key = any_key_of(cx, first);
        (found.is_flow, found.by_context) = (key.is_some(), false);
        if let Some(key) = key {
            self.flows.prefetch_index(&key, &mut found.flow);
        }
    }

    /// Decides about a flow that is not the one that it was taken for, or whose time has passed.
    #[inline(never)]
    fn look_again(&mut self, fx: &mut FunctionContext<'_, '_>, ahead: &Found) -> Counted {
        self.asked = ahead.flow;
        self.flows.seek(&mut self.asked, !ahead.by_context);
        if let Some(id) = self.flows.known(&self.asked, fx.cx.now) {
            fx.cx.pool.keep_flow_words([id + 1]);
            return Counted::Known(id);
        }
        Counted::Anew
    }

    #[inline(never)]
    fn count_anew(&mut self, fx: &mut FunctionContext<'_, '_>, seen: &Observed) {
        let Self { flows, export, .. } = self;
        let id = flows.count_anew(&self.asked, seen, &mut |record| export.record(record, seen.first));
        if let Some(id) = id {
            fx.cx.pool.keep_flow_words([id + 1]);
        }
    }
}

impl NetworkFunction for FlowStatsStage {
    type Decision = Counted;
    type Lookahead = Found;

    fn reads(&self) -> Reads {
        Reads::KEY
    }

    #[inline]
    fn sharing(&self, cx: &Context<'_>, first: &Frame, others: &[Frame]) -> usize {
        Reads::KEY.agreeing(cx.pool, first, others)
    }

    /// Of a flow it keeps the number of its entry, plus one.
    fn flow_use(&self) -> FlowUse {
        FlowUse { words: 1, alone: false, trains: Trains::Pass }
    }

    /// A record ends where its flow was silent or has lasted too long.
    #[inline]
    fn holds_until(&self, counted: &Counted, now: Nanos) -> Nanos {
        match *counted {
            Counted::Known(id) => self.flows.holds_until(Some(id), now),
            Counted::Anew => self.flows.holds_until(None, now),
            Counted::Nobody => Nanos::MAX,
        }
    }

    #[inline(always)]
    fn look_ahead(&mut self, cx: &Context<'_>, first: &Frame, found: &mut Found) {
        if let Some((key, [number])) = cx.pool.keyed_flow_words()
            && number > 0
        {
            (found.is_flow, found.by_context) = (true, true);
            return self.flows.prefetch_known(key, number - 1, &mut found.flow);
        }
        // Most keys are short: such a one is written where it belongs, without the room that a long one would
        // take.
        match fast_key_of(cx, first) {
            Some(key) => {
                (found.is_flow, found.by_context) = (true, false);
                self.flows.prefetch_index(&FlowKey::Narrow(key), &mut found.flow);
            }
            None => self.look_at_any(cx, first, found),
        }
    }

    #[inline(always)]
    fn prefetch(&mut self, _: &Context<'_>, found: &mut [Found]) {
        let sought = found.iter_mut().filter(|found| !found.by_context);
        sought.for_each(|found| self.flows.prefetch_record(&mut found.flow));
    }

    #[inline(always)]
    fn decide(&mut self, fx: &mut FunctionContext<'_, '_>, _: &Frame, ahead: &Found) -> Counted {
        if !ahead.is_flow {
            return Counted::Nobody;
        }
        match self.flows.known(&ahead.flow, fx.cx.now) {
            Some(id) => {
                if !ahead.by_context {
                    fx.cx.pool.keep_flow_words([id + 1]);
                }
                Counted::Known(id)
            }
            None => self.look_again(fx, ahead),
        }
    }

    #[inline(always)]
    fn apply(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        counted: &Counted,
        frames: &mut [Frame],
        _: &mut [Verdict],
    ) {
        let now = fx.cx.now;
        if matches!(counted, Counted::Nobody) {
            self.unclassified += frames.len() as u64;
            return;
        }
        let (Some(first), Some(last)) = (frames.first(), frames.last()) else { return };
        let mut seen = Observed {
            packets: frames.len() as u64,
            bytes: 0,
            tcp_flags: 0,
            tos: first.info.tos(),
            first: now,
            last: now.max(last.arrival),
        };
        for frame in &*frames {
            seen.bytes += u64::from(ip_length(fx.cx, frame));
            seen.tcp_flags |= frame.info.tcp_flags();
        }
        match *counted {
            Counted::Known(id) => self.flows.count_known(id, &seen),
            // A copy goes by reference, so that what most packets count stays in registers.
            _ => self.count_anew(fx, &Observed { ..seen }),
        }
        if self.next == Nanos::MAX {
            self.next = now.after(TURN);
        }
        self.counted += seen.packets;
    }

    fn next_deadline(&self) -> Nanos {
        self.next
    }

    fn catches_up(&self) -> bool {
        !self.by_clock
    }

    fn on_deadline(&mut self, fx: &mut FunctionContext<'_, '_>) {
        let now = fx.cx.now;
        let visits = if self.by_clock { SLICE } else { u32::MAX };
        let Self { flows, export, .. } = self;
        if flows.expire(now, visits, &mut |record| export.record(record, now)) {
            self.next = now.after(NEXT_SLICE);
            return;
        }
        self.turns += 1;
        export.flush(now);
        // A capture may be silent for years: nothing is looked for before there can be something.
        self.next = self.flows.next_end().map_or(Nanos::MAX, |end| end.max(now.after(TURN)));
    }

    fn flush(&mut self, now: Nanos) -> Result<(), StageError> {
        let Self { flows, export, .. } = self;
        if self.by_clock {
            // Those that no slice has come to yet.
            flows.expire(now, u32::MAX, &mut |record| export.record(record, now));
        }
        flows.drain(&mut |record| export.record(record, now));
        export.flush(now);
        export.target.flush()
    }

    fn finish(&mut self, now: Nanos) -> Result<(), StageError> {
        self.flush(now)?;
        self.export.target.finish()
    }
}

impl Observe for FlowStatsStage {
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("packets_counted", self.counted);
        visit("flows", u64::from(self.flows.flows()));
        visit("records", self.export.records);
        visit("not_ip", self.unclassified);
        visit("expiry_turns", self.turns);
        visit("long_probes", self.flows.long_probes());
        let c = self.export.exporter.counters();
        visit("messages", c.messages);
        visit("messages_lost", self.export.lost);
    }

    fn trouble(&self) -> Option<String> {
        self.export.trouble.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use slipstream_core::pool::Pool;
    use slipstream_core::time::Nanos;

    use super::*;
    use crate::flow_stats::EndReason;

    fn export(to: &UdpSocket) -> Export {
        let datagrams = Datagrams::to(to.local_addr().unwrap()).unwrap().without_waiting().unwrap();
        let exporter = Exporter::new(&IpfixConfig::default());
        Export { exporter, target: Target::Udp(datagrams), records: 0, lost: 0, trouble: None }
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
        let mut export = Export { exporter, target, records: 0, lost: 0, trouble: None };
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

    /// Live, a call hands out a part of the flows whose time has passed, and the next one goes on soon; in a
    /// replay one hands out all.
    #[test]
    fn live_many_flows_end_in_slices() {
        for (by_clock, want) in [(false, vec![200]), (true, vec![64, 128, 192, 200])] {
            let config = FlowStatsConfig { flows: 1000, idle: TURN, active: TURN, seed: 1 };
            let mut stage = FlowStatsStage::new(&config, &IpfixConfig::default(), Target::None);
            stage.by_clock = by_clock;
            for port in 0..200 {
                let key = record(port).key;
                let seen = Observed { packets: 1, ..Observed::default() };
                stage.flows.count(&key, stage.flows.hash(&key), &seen, &mut |_| panic!("a flow ends"));
            }
            let (mut pool, mut records, mut times) = (Pool::new(), Vec::new(), Vec::new());
            stage.next = Nanos(2 * TURN);
            while stage.next < Nanos::MAX {
                let now = stage.next;
                let mut cx = Context { now, pool: &mut pool, input: 0, links: &[] };
                stage.on_deadline(&mut FunctionContext { cx: &mut cx, made: &mut Vec::new() });
                records.push(stage.export.records);
                times.push(now.0 - 2 * TURN);
            }
            assert_eq!(records, want);
            assert!(times.into_iter().eq((0..want.len() as u64).map(|n| n * NEXT_SLICE)));
            assert_eq!((stage.flows.flows(), stage.turns, stage.catches_up()), (0, 1, !by_clock));
        }
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
}
