//! The middlebox of the experiments (Fig. 5 of the paper) and the client around it (Fig. 6), in one thread:
//! packets fall due, are sliced and handed to another process, come back, are spliced, and the time since
//! they fell due is written down.
//!
//! The other process is this program, `slipstream run -i shm:… -o shm:…` with the function. Both threads are
//! awake all the time.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, anyhow, bail, ensure};
use serde_json::Value;
use slipstream::batch::Arrivals;
use slipstream::clock::{self, LiveClock};
use slipstream::io::shm::{Options, Outgoing, Receiver, Sender};
use slipstream::pool::Pool;
use slipstream::runtime::LiveSource;
use slipstream::slice::{
    Amount, PayloadTable, SliceConfig, Sliced, Slicer, Spliced, Splicer, Storage, TokenKey,
};
use slipstream::time::Nanos;
use slipstream_stats::Histogram;
use slipstream_wire::checksum::{fill_ip, fill_transport};
use slipstream_wire::{LinkType, classify, protocol};

/// Bytes of a frame's check sequence, which sizes on the wire count and memory doesn't hold.
pub(super) const FRAME_CHECK: u32 = 4;
/// Flows of the traffic.
const FLOWS: usize = 1024;
/// Entries of the payload table, and packets that may be on their way: no payload goes without an entry.
const ENTRIES: u32 = 1024;
const ON_THE_WAY: usize = 512;
/// Least packets of a window, and the time in which they fall due, in ns.
const WINDOW_PACKETS: u64 = 32;
const WINDOW: f64 = 1e6;
/// A window whose mean latency is so many times the least of its run was disturbed: one of the two threads
/// had no core.
const DISTURBED: f64 = 2.0;
/// Time without a packet coming back after which an experiment fails, in ns.
const SILENCE: u64 = 5_000_000_000;

/// The part of a packet that crosses the boundary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Transfer {
    /// Whole packets cross.
    Whole,
    /// Headers cross, and so much of the payload is parked.
    Sliced(Amount),
}

impl Transfer {
    pub(super) const FULL: Self = Self::Sliced(Amount::Share(1.0));

    pub(super) fn name(self) -> String {
        match self {
            Self::Whole => "whole".to_owned(),
            Self::Sliced(Amount::Share(1.0)) => "sliced".to_owned(),
            Self::Sliced(Amount::Share(share)) => format!("{:.0} % sliced", share * 100.0),
            Self::Sliced(Amount::Bytes(bytes)) => format!("{bytes} B sliced"),
        }
    }
}

/// One experiment.
#[derive(Clone, Debug)]
pub(super) struct Load<'a> {
    /// The function in the other process: a graph from `in` to `out`.
    pub(super) graph: &'a str,
    /// Size of frames on the wire, in bytes.
    pub(super) size: u32,
    pub(super) transfer: Transfer,
    /// Packets a second.
    pub(super) rate: f64,
    /// Packets that count; a tenth as many come before them and don't.
    pub(super) packets: u64,
}

/// The measurements of an experiment.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// Time from a packet's due time until it is whole again.
    pub(super) latency: Latency,
    /// Bytes of frames to the other process, a packet.
    pub(super) bytes_out: f64,
    /// The same back.
    pub(super) bytes_back: f64,
    /// Bytes of the ring, headers and padding included, both ways.
    pub(super) ring_bytes: f64,
    /// Time that the function itself took in the other process, in ns a packet.
    pub(super) function_ns: f64,
    /// Windows of a millisecond, and those in which another program took a core.
    pub(super) windows: u64,
    pub(super) disturbed: u64,
}

/// The latency of packets that fell due one after the other within a millisecond, in ns: of each figure the
/// least of all such windows. Where other programs want the cores too, both threads run at the same time only
/// now and then; these are the windows in which they did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Latency {
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) mean: f64,
}

impl Latency {
    const NONE: Self = Self { p50: f64::INFINITY, p90: f64::INFINITY, mean: f64::INFINITY };

    /// The lesser of each figure.
    pub(super) fn least(self, other: Self) -> Self {
        let (p50, p90) = (self.p50.min(other.p50), self.p90.min(other.p90));
        Self { p50, p90, mean: self.mean.min(other.mean) }
    }

    fn of(window: &Histogram) -> Self {
        let or_none = |v: Option<f64>| v.unwrap_or(f64::INFINITY);
        let at = |q| or_none(window.quantile(q));
        Self { p50: at(0.5), p90: at(0.9), mean: or_none(window.mean()) }
    }
}

/// Frames of a size, TCP with ACK set, each of another flow.
pub(super) fn frames(size: u32) -> anyhow::Result<Vec<Vec<u8>>> {
    let len = (size - FRAME_CHECK) as usize;
    let mut all = Vec::with_capacity(FLOWS);
    for flow in 0..FLOWS as u32 {
        let [.., a, b] = flow.to_be_bytes();
        let [long, short] = (len as u16 - 14).to_be_bytes();
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        frame.extend([0x45, 0, long, short, a, b, 0x40, 0, 64, protocol::TCP, 0, 0]);
        frame.extend([10, 0, a, b, 198, 18, b, a]);
        // Ports, sequence and acknowledgement, 20 bytes of header, ACK, window.
        frame.extend([0x80 | a, b, 1, 187, 0, 0, a, b, 0, 0, b, a, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
        frame.extend((frame.len()..len).map(|n| (n as u8) ^ b));
        let headers =
            classify(LinkType::Ethernet, &frame).map_err(|e| anyhow!("a frame that was made: {e:?}"))?;
        fill_ip(&mut frame, &headers);
        fill_transport(&mut frame, &headers);
        all.push(frame);
    }
    Ok(all)
}

/// The slicing of the middlebox.
pub(super) fn config(amount: Amount) -> SliceConfig {
    SliceConfig {
        entries: ENTRIES,
        storage: Storage::Copied { entry_bytes: 1536 },
        key: TokenKey::from_seed(1),
        amount,
        ..SliceConfig::default()
    }
}

/// The functions' process.
struct Functions(Option<Child>);

impl Functions {
    fn start(program: &Path, there: &str, graph: &str) -> anyhow::Result<Self> {
        let port = format!("shm:{there}");
        let child = Command::new(program)
            .args(["run", "-i", &port, "-o", &port, "--busy-poll", "--format", "json", "-e", graph])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("the process with the functions can't be started")?;
        Ok(Self(Some(child)))
    }

    /// Its report, once it has ended by itself.
    fn end(mut self) -> anyhow::Result<Value> {
        let child = self.0.take().context("it was waited for before")?;
        let out = child.wait_with_output()?;
        ensure!(out.status.success(), "the functions: {}", String::from_utf8_lossy(&out.stderr).trim());
        Ok(serde_json::from_slice(&out.stdout)?)
    }
}

impl Drop for Functions {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // An experiment that failed leaves nothing behind.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The middlebox's side of the boundary.
struct Middlebox {
    sender: Sender,
    receiver: Receiver,
    /// Slicer, splicer and the payload table between them; none where whole packets cross.
    slicing: Option<(Slicer, Splicer, PayloadTable)>,
    buffer: Vec<u8>,
    pool: Pool,
    arrivals: Arrivals,
    came_back: u64,
    bytes_back: u64,
}

impl Middlebox {
    fn new(there: &str, transfer: Transfer) -> anyhow::Result<Self> {
        let (receiver, sender) = Options::new(there).open()?;
        let slicing = match transfer {
            Transfer::Whole => None,
            Transfer::Sliced(amount) => {
                let config = config(amount);
                Some((Slicer::new(&config)?, Splicer::new(&config)?, PayloadTable::new(&config, 0)?))
            }
        };
        Ok(Self {
            sender,
            receiver,
            slicing,
            buffer: vec![0; 2048],
            pool: Pool::new(),
            arrivals: Arrivals::default(),
            came_back: 0,
            bytes_back: 0,
        })
    }

    /// Sends a packet that falls due.
    fn send(&mut self, frame: &[u8], due: Nanos) {
        let Some(place) = self.buffer.get_mut(..frame.len()) else { return };
        place.copy_from_slice(frame);
        let mut len = frame.len();
        if let Some((slicer, _, table)) = &mut self.slicing
            && let Sliced::Sliced { len: shorter, .. } =
                slicer.slice(table, LinkType::Ethernet, &mut self.buffer, len, due)
        {
            len = shorter;
        }
        self.sender.send(&Outgoing {
            data: self.buffer.get(..len).unwrap_or_default(),
            original_len: len as u32,
            interface: 0,
            link: 1,
            arrival: due,
            time: due,
            sliced: None,
        });
    }

    /// Takes what has come back; `each` is told the length of every packet.
    fn receive(&mut self, now: Nanos, mut each: impl FnMut(usize)) -> anyhow::Result<()> {
        self.receiver.poll(&mut self.pool, &mut self.arrivals, 256, now)?;
        for frame in self.arrivals.frames.drain(..) {
            let data = self.pool.data(frame.buf, frame.len);
            if let Some(place) = self.buffer.get_mut(..data.len()) {
                place.copy_from_slice(data);
            }
            let mut len = data.len();
            self.bytes_back += len as u64;
            self.came_back += 1;
            self.pool.free(frame.buf);
            if let Some((_, splicer, table)) = &mut self.slicing {
                match splicer.splice(table, LinkType::Ethernet, &mut self.buffer, len, now) {
                    Ok(Spliced::Whole { len: whole }) => len = whole,
                    Ok(_) => {}
                    Err(refusal) => bail!("a packet came back that has no payload: {refusal:?}"),
                }
            }
            each(len);
        }
        self.arrivals.clear();
        Ok(())
    }
}

/// Runs one experiment.
pub(super) fn run(program: &Path, load: &Load<'_>) -> anyhow::Result<Outcome> {
    let directory = tempfile::Builder::new().prefix("slipstream").tempdir_in(memory())?;
    let path = directory.path().join("rings");
    let there = path.to_str().context("the directory for temporary files has no name in UTF-8")?;
    let frames = frames(load.size)?;
    let mut middlebox = Middlebox::new(there, load.transfer)?;
    let functions = Functions::start(program, there, load.graph)?;
    let (latency, means) = drive(&mut middlebox, &frames, load)?;
    middlebox.sender.close();
    let (sent, came_back) = (middlebox.sender.counts(), middlebox.came_back);
    let bytes_back = middlebox.bytes_back;
    while !middlebox.receiver.ended() {
        middlebox.receive(LiveClock::get().now(), |_| {})?;
    }
    let report = functions.end()?;
    ensure!(
        sent.packets == came_back && sent.not_sent() == 0,
        "{} packets went and {came_back} came back, {} found no room",
        sent.packets,
        sent.not_sent()
    );
    let a_packet = |n: u64| n as f64 / sent.packets.max(1) as f64;
    Ok(Outcome {
        latency,
        bytes_out: a_packet(sent.bytes),
        bytes_back: a_packet(bytes_back),
        ring_bytes: 2.0 * a_packet(sent.ring_bytes),
        function_ns: busy(&report) / sent.packets.max(1) as f64,
        windows: means.len() as u64,
        disturbed: disturbed(&means, latency.mean),
    })
}

/// The number of windows in which another program took a core: those whose packets took much longer than the
/// least, and those whose packets came back later than a window after they fell due. These waited behind
/// packets of a window before, in which there was no core.
fn disturbed(means: &[f64], least: f64) -> u64 {
    means.iter().filter(|mean| **mean > least * DISTURBED || **mean > WINDOW).count() as u64
}

/// A directory whose files are kept in memory, if the system has one; else the one for temporary files.
fn memory() -> PathBuf {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() }
}

/// Time that all stages but ports took, in ns.
fn busy(report: &Value) -> f64 {
    let stages = report.get("stages").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let of = |s: &Value| match s.get("type").and_then(Value::as_str) {
        Some("shm") => 0.0,
        _ => s.get("busy_ns").and_then(Value::as_f64).unwrap_or(0.0),
    };
    stages.iter().map(of).sum()
}

/// Sends packets as they fall due, takes those that come back, until all have. Returns the least latency, and
/// the mean of each window.
fn drive(
    middlebox: &mut Middlebox,
    frames: &[Vec<u8>],
    load: &Load<'_>,
) -> anyhow::Result<(Latency, Vec<f64>)> {
    let clock = LiveClock::get();
    let gap = 1e9 / load.rate;
    let warm_up = load.packets / 10;
    let all = warm_up + load.packets;
    let whole = (load.size - FRAME_CHECK) as usize;
    let window = ((load.rate * WINDOW / 1e9) as u64).max(WINDOW_PACKETS);
    let (mut latency, mut means) = (Latency::NONE, Vec::new());
    let (mut histogram, mut out) = (Histogram::new(), VecDeque::new());
    // The first packet tells that the other process is there.
    middlebox.send(frames.first().context("no frame was made")?, clock.now());
    middlebox.sender.flush();
    wait(middlebox, &clock)?;
    let start = clock.now();
    let (mut sent, mut back, mut last) = (0u64, 0u64, start);
    while back < all {
        let now = clock.now();
        let mut room = middlebox.sender.room().min(ON_THE_WAY - out.len());
        while sent < all && room > 0 {
            let due = start.after((sent as f64 * gap) as u64);
            if due > now {
                break;
            }
            let number = sent as usize % frames.len();
            middlebox.send(frames.get(number).map_or(&[][..], Vec::as_slice), due);
            out.push_back(due);
            sent += 1;
            room -= 1;
        }
        middlebox.sender.flush();
        let mut short = 0;
        let mut lengths = Vec::new();
        middlebox.receive(now, |len| lengths.push(len))?;
        let now = clock.now();
        for len in lengths {
            let due = out.pop_front().context("more packets came back than went")?;
            back += 1;
            last = now;
            short += u64::from(len != whole);
            if back > warm_up {
                histogram.record(now.since(due));
            }
            if histogram.count() == window {
                let of_window = Latency::of(&histogram);
                means.push(of_window.mean);
                latency = latency.least(of_window);
                histogram = Histogram::new();
            }
        }
        ensure!(short == 0, "{short} packets came back shorter than they were");
        ensure!(now.since(last) < SILENCE, "nothing came back for {SILENCE} ns");
    }
    ensure!(latency.mean.is_finite(), "{} packets are too few for {} a second", load.packets, load.rate);
    Ok((latency, means))
}

/// Waits for the first packet to come back.
fn wait(middlebox: &mut Middlebox, clock: &LiveClock) -> anyhow::Result<()> {
    let start = clock.now();
    while middlebox.came_back == 0 {
        let now = clock.now();
        middlebox.receive(now, |_| {})?;
        ensure!(now.since(start) < SILENCE, "the process with the functions doesn't answer");
        std::thread::yield_now();
    }
    Ok(())
}

/// CPU time of one thread that slices, puts into a ring, takes out, and splices, in ns a packet: the boundary
/// by itself.
pub(super) fn crossing(size: u32, transfer: Transfer, packets: u64) -> anyhow::Result<f64> {
    let directory = tempfile::Builder::new().prefix("slipstream").tempdir_in(memory())?;
    let path = directory.path().join("rings");
    let there = path.to_str().context("the directory for temporary files has no name in UTF-8")?;
    let mut near = Middlebox::new(there, transfer)?;
    let (mut receiver, mut sender) = Options::new(there).open()?;
    let frames = frames(size)?;
    let (mut pool, mut arrivals) = (Pool::new(), Arrivals::default());
    let mut best = f64::INFINITY;
    for turn in 0..packets / 1024 {
        let start = clock::thread_cpu_ns();
        for batch in 0..1024 / 32 {
            for n in 0..32 {
                let number = (turn as usize * 1024 + batch * 32 + n) % frames.len();
                near.send(frames.get(number).map_or(&[][..], Vec::as_slice), Nanos(turn));
            }
            near.sender.flush();
            receiver.poll(&mut pool, &mut arrivals, 256, Nanos(turn))?;
            for frame in arrivals.frames.drain(..) {
                let data = pool.data(frame.buf, frame.len);
                sender.send(&Outgoing {
                    data,
                    original_len: frame.len,
                    interface: 0,
                    link: 1,
                    arrival: Nanos(turn),
                    time: Nanos(turn),
                    sliced: None,
                });
                pool.free(frame.buf);
            }
            arrivals.clear();
            sender.flush();
            near.receive(Nanos(turn), |_| {})?;
        }
        best = best.min((clock::thread_cpu_ns() - start) as f64 / 1024.0);
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets that all wait as long behind a backlog are as far from quiet as those of one slow window.
    #[test]
    fn a_backlog_is_no_quiet_machine() {
        assert_eq!(disturbed(&[2000.0, 2100.0, 9000.0], 2000.0), 1);
        assert_eq!(disturbed(&[119_000_000.0, 120_000_000.0, 121_000_000.0], 119_000_000.0), 3);
    }
}
