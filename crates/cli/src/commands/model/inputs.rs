//! From the command line to the inputs of the model.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use slipstream::io::capture::CaptureReader;
use slipstream_model::{
    Fit, Interarrival, Line, Parameters, Pmf, PollLog, ServiceTimes, Start, Strategy, Variation, fit,
    variation,
};
use slipstream_report::time;
use tracing::warn;

use crate::cli::model::{Arrivals, FitKind, Process, Server, ServiceKind, StartKind};
use crate::ui::unreadable;
use crate::units::Nanoseconds;

/// The most interarrival times that are read.
const MAX_TIMES: usize = 1 << 26;
/// Default time of an empty poll, ns.
const EMPTY_POLL_NS: f64 = 100.0;

pub(super) fn start(kind: StartKind) -> Start {
    match kind {
        StartKind::Renewal => Start::Renewal,
        StartKind::Equilibrium => Start::Equilibrium,
        StartKind::Exact => Start::Exact,
    }
}

pub(super) fn strategy(kind: FitKind) -> Strategy {
    match kind {
        FitKind::Global => Strategy::Global,
        FitKind::PerRate => Strategy::PerRate,
        FitKind::Piecewise => Strategy::Piecewise,
    }
}

/// The distribution of interarrival times with a mean in slots. An empirical one has its own mean unless one
/// is given.
pub(super) fn interarrival(args: &Arrivals, slot_ns: f64, mean: Option<f64>) -> anyhow::Result<Interarrival> {
    if args.cv.is_some() && args.interarrival != Process::Negbin {
        bail!("--cv is for --interarrival negbin; the variation of the others follows from their mean");
    }
    if args.interarrivals.is_some() && args.interarrival != Process::Empirical {
        bail!("--interarrivals needs --interarrival empirical");
    }
    if args.interarrival == Process::Empirical {
        let path =
            args.interarrivals.as_deref().context("--interarrival empirical needs --interarrivals FILE")?;
        let observed = observed(path, slot_ns)?;
        return Ok(mean.map_or(Ok(observed.clone()), |mean| observed.with_mean(mean))?);
    }
    let mean = mean.context("how often do packets come? give --mean SLOTS or --rate RATE")?;
    Ok(match args.interarrival {
        Process::Deterministic => Interarrival::deterministic(mean),
        Process::Poisson => Interarrival::poisson(mean),
        Process::Geometric => Interarrival::geometric(mean),
        _ => Interarrival::negative_binomial(mean, args.cv.context("--interarrival negbin needs --cv")?),
    }?)
}

/// Times between packets from a capture, or from text with one in ns a line.
fn observed(path: &Path, slot_ns: f64) -> anyhow::Result<Interarrival> {
    let name = path.display().to_string();
    let bytes = read(path)?;
    let times = match CaptureReader::from_reader(io::Cursor::new(bytes.clone()), &name) {
        Ok(mut reader) => between_packets(&mut reader).with_context(|| name.clone())?,
        Err(_) => numbers(&name, &bytes)?,
    };
    if times.is_empty() {
        bail!("{name}: has no time between two packets");
    }
    let slots = times.iter().map(|ns| ns / slot_ns);
    Interarrival::empirical(Pmf::from_samples(&name, slots)?).with_context(|| name)
}

fn between_packets(reader: &mut CaptureReader) -> anyhow::Result<Vec<f64>> {
    let (mut times, mut last) = (Vec::new(), None);
    while let Some(record) = reader.next_record()? {
        // A packet whose time ran backwards came with the one before, as everywhere: else the time that was
        // run back would count twice.
        let now = last.map_or(record.time, |last| record.time.max(last));
        if let Some(last) = last.replace(now) {
            times.push(now.since(last) as f64);
        }
        if times.len() > MAX_TIMES {
            bail!("more than {MAX_TIMES} packets; a part of them says as much");
        }
    }
    Ok(times)
}

fn numbers(name: &str, bytes: &[u8]) -> anyhow::Result<Vec<f64>> {
    let text = std::str::from_utf8(bytes).map_err(|_| anyhow!("{name}: neither a capture nor text"))?;
    let lines = text.lines().enumerate().map(|(i, l)| (i + 1, l.trim()));
    let lines = lines.filter(|(_, l)| !l.is_empty() && !l.starts_with('#'));
    let number = |(line, text): (usize, &str)| match text.parse::<f64>() {
        Ok(ns) if ns.is_finite() && ns >= 0.0 => Ok(ns),
        _ => Err(anyhow!("{name}: line {line}: {text:?} is not a time between packets, in ns")),
    };
    lines.map(number).collect()
}

/// All of a file of bounded size.
fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = 1u64 << 32;
    let got = if path.as_os_str() == "-" {
        io::stdin().lock().take(limit).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes))
    };
    if got.map_err(|error| unreadable(path, error))? as u64 == limit {
        bail!("{}: too large to be read at once", path.display());
    }
    Ok(bytes)
}

/// Reads a poll log.
pub(super) fn poll_log(path: &Path, clock: Option<f64>) -> anyhow::Result<PollLog> {
    if let Some(mhz) = clock.filter(|c| !(c.is_finite() && *c > 0.0)) {
        bail!("--clock {mhz}: a clock ticks at more than 0 MHz");
    }
    let name = path.display().to_string();
    if path.is_dir() {
        bail!("{name}: this is a folder; name a poll log");
    }
    let from: Box<dyn BufRead> = if path.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(File::open(path).map_err(|error| unreadable(path, error))?))
    };
    Ok(PollLog::read(&name, from, clock)?)
}

/// The line through the service times of a poll log; says so where no line can be right.
pub(super) fn line(path: &Path, log: &PollLog) -> anyhow::Result<Fit> {
    let found = fit(log).with_context(|| path.display().to_string())?;
    let Line { service_base_ns, service_per_packet_ns, r_squared, .. } = found.global;
    if service_base_ns < 0.0 || service_per_packet_ns < 0.0 {
        warn!(
            "{}: no line fits these polls: a batch would take {service_base_ns:.0} ns, and each packet \
             {service_per_packet_ns:.0} ns (R² {r_squared:.2}); something else may have interrupted some of them",
            path.display()
        );
    }
    Ok(found)
}

/// Service times and their variation, from a poll log.
pub(super) fn measured(
    log: &PollLog,
    fit: &Fit,
    (kind, service): (FitKind, ServiceKind),
    rate: Option<&str>,
    empty_poll: Option<Nanoseconds>,
) -> anyhow::Result<(ServiceTimes, Variation)> {
    let times = fit.service_times(strategy(kind), rate, empty_poll.map(|n| n.0))?;
    Ok((times, if service == ServiceKind::Empirical { variation(log) } else { plain(service) }))
}

fn plain(kind: ServiceKind) -> Variation {
    if kind == ServiceKind::Deterministic { Variation::Deterministic } else { Variation::Poisson }
}

/// The inputs of a model.
pub(super) fn parameters(
    server: &Server,
    (queue, batch): (usize, usize),
    interarrival: Interarrival,
) -> anyhow::Result<Parameters> {
    let (service, variation) = match &server.log {
        Some(path) => {
            let log = poll_log(path, server.reading.clock)?;
            let rates = log.rates();
            let rate = match rates.as_slice() {
                [one] => Some(*one),
                _ if server.reading.fit == FitKind::PerRate => {
                    bail!("{}: it has several loads; --fit per-rate needs a log of one", path.display())
                }
                _ => None,
            };
            measured(
                &log,
                &line(path, &log)?,
                (server.reading.fit, server.reading.service),
                rate,
                server.reading.empty_poll,
            )?
        }
        None if server.reading.service == ServiceKind::Empirical => {
            bail!("--service empirical needs a poll log (--log)")
        }
        None if server.reading.fit != FitKind::default() || server.reading.clock.is_some() => {
            bail!("--fit and --clock say how a poll log is read; name one (--log), or leave them out")
        }
        None => {
            let [base, each] =
                [server.service_base, server.service_per_packet].map(|t| t.map_or(0.0, |t| t.0));
            let empty = server.reading.empty_poll.map_or(EMPTY_POLL_NS, |t| t.0);
            (ServiceTimes::linear(base, each, empty)?, plain(server.reading.service))
        }
    };
    let (slot_ns, start) = (server.reading.slot.0, start(server.reading.start));
    warn_of_coarse(slot_ns, service.mean_ns(1));
    Ok(Parameters { queue, batch, slot_ns, interarrival, service, variation, start })
}

/// Tells where a slot is so long that times, which are whole numbers of slots, say little.
pub(crate) fn warn_of_coarse(slot_ns: f64, one_packet_ns: f64) {
    if slot_ns > one_packet_ns {
        warn!(
            "--slot {}: a batch of one packet takes {}, and all times are whole numbers of slots: what follows \
             is no more than rough; take a shorter slot",
            time(Some(slot_ns)),
            time(Some(one_packet_ns)),
        );
    }
}

/// The mean interarrival time in slots, for a rate.
pub(super) fn mean_slots(rate_pps: f64, slot_ns: f64) -> anyhow::Result<f64> {
    if slot_ns <= 0.0 {
        bail!("--slot 0: a slot must last");
    }
    Ok(1e9 / rate_pps / slot_ns)
}
