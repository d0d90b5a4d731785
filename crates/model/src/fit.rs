//! Service times from measurements (§V-A of the paper): means by batch size, and lines through them: one for
//! all loads, one a load, or two with a knee between.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::error::Error;
use crate::polls::{PollLog, Run};
use crate::service::{Piece, ServiceTimes, Variation};

/// A least-squares line through service times by batch size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Services that it was fitted to.
    pub services: u64,
    /// Smallest and largest batch among them, packets.
    pub batch_min: u32,
    /// Largest batch among them, packets.
    pub batch_max: u32,
    /// Time of a batch, ns.
    pub service_base_ns: f64,
    /// Time that each packet adds, ns.
    pub service_per_packet_ns: f64,
    /// The share of the variance that the line explains, 0 to 1.
    pub r_squared: f64,
    /// Standard deviation of service times around the line, ns.
    pub sd_ns: f64,
}

/// Services of one batch size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct BySize {
    /// Packets in the batch.
    pub batch: u32,
    /// Services.
    pub services: u64,
    /// Their mean time, ns.
    pub mean_ns: f64,
    /// Its standard deviation, ns; 0 for a single one.
    pub sd_ns: f64,
}

/// Service times by a log of polls.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// Over all loads.
    pub global: Line,
    /// By load; the reason where there can be no line.
    pub per_rate: Vec<(String, Result<Line, Error>)>,
    /// Two lines that explain more than one does, if there are: below a size, and from it on.
    pub piecewise: Option<(Line, Line)>,
    /// Means by batch size, over all loads.
    pub by_size: Vec<BySize>,
    /// Mean time of an empty poll, ns, where there was one.
    pub empty_poll_ns: Option<f64>,
}

/// The lines to take for batch sizes that were not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// One line through all loads: what the paper finds best.
    #[default]
    Global,
    /// A line through the services of one load.
    PerRate,
    /// Two lines with a knee between.
    Piecewise,
}

/// Sums of a sample, from which a line follows.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    n: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
    yy: f64,
}

impl Sums {
    /// Of batch sizes less `origin`, and times less `level`, so that nothing cancels.
    fn add(&mut self, x: f64, y: f64) {
        self.n += 1.0;
        self.x += x;
        self.y += y;
        self.xx += x * x;
        self.xy += x * y;
        self.yy += y * y;
    }

    fn minus(&self, o: &Self) -> Self {
        Self {
            n: self.n - o.n,
            x: self.x - o.x,
            y: self.y - o.y,
            xx: self.xx - o.xx,
            xy: self.xy - o.xy,
            yy: self.yy - o.yy,
        }
    }

    /// Slope, sum of squares around the mean, and sum of squares that the line leaves.
    fn line(&self) -> (f64, f64, f64) {
        let sxx = self.xx - self.x * self.x / self.n;
        let sxy = self.xy - self.x * self.y / self.n;
        let syy = (self.yy - self.y * self.y / self.n).max(0.0);
        let slope = sxy / sxx;
        (slope, syy, (syy - slope * sxy).max(0.0))
    }
}

/// Services of batches with packets, in order of size.
struct Sample {
    services: Vec<(u32, f64)>,
    origin: f64,
    level: f64,
}

impl Sample {
    fn new(services: impl Iterator<Item = (u32, f64)>) -> Result<Self, Error> {
        let mut services: Vec<(u32, f64)> = services.filter(|s| s.0 > 0).collect();
        services.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let n = services.len().max(1) as f64;
        let origin = services.iter().map(|s| f64::from(s.0)).sum::<f64>() / n;
        let level = services.iter().map(|s| s.1).sum::<f64>() / n;
        match (services.first(), services.last()) {
            (Some(a), Some(b)) if a.0 < b.0 => Ok(Self { services, origin, level }),
            (Some(a), _) => Err(Error::Measurement(format!(
                "a line needs batches of at least two sizes, and all {} are of {} packets",
                services.len(),
                a.0
            ))),
            _ => Err(Error::Measurement(
                "no service can be told: two consecutive polls are needed, the first with packets".to_owned(),
            )),
        }
    }

    fn sums(&self, part: &[(u32, f64)]) -> Sums {
        let mut sums = Sums::default();
        part.iter().for_each(|(v, t)| sums.add(f64::from(*v) - self.origin, t - self.level));
        sums
    }

    fn line(&self, part: &[(u32, f64)]) -> Line {
        let sums = self.sums(part);
        let (slope, all, left) = sums.line();
        let at_origin = self.level + (sums.y - slope * sums.x) / sums.n;
        Line {
            services: part.len() as u64,
            batch_min: part.first().map_or(0, |s| s.0),
            batch_max: part.last().map_or(0, |s| s.0),
            service_base_ns: at_origin - slope * self.origin,
            service_per_packet_ns: slope,
            r_squared: if all > 0.0 { 1.0 - left / all } else { 1.0 },
            sd_ns: (left / (sums.n - 2.0).max(1.0)).sqrt(),
        }
    }

    /// Two lines, if they leave less than [`KNEE`] of what one line does. Each has at least three sizes.
    fn piecewise(&self) -> Option<(Line, Line)> {
        let total = self.sums(&self.services);
        let (_, _, one) = total.line();
        let starts: Vec<usize> = std::iter::once(0)
            .chain(
                self.services
                    .windows(2)
                    .enumerate()
                    .filter(|(_, w)| w.first().map(|a| a.0) != w.last().map(|b| b.0))
                    .map(|(i, _)| i + 1),
            )
            .collect();
        let (mut below, mut done) = (Sums::default(), 0);
        let mut best: Option<(f64, usize)> = None;
        for at in starts.iter().skip(3).take(starts.len().saturating_sub(5)).copied() {
            for (v, t) in self.services.get(done..at).unwrap_or_default() {
                below.add(f64::from(*v) - self.origin, t - self.level);
            }
            done = at;
            let left = below.line().2 + total.minus(&below).line().2;
            if best.is_none_or(|(least, _)| left < least) {
                best = Some((left, at));
            }
        }
        let (left, at) = best?;
        let (low, high) = self.services.split_at_checked(at)?;
        (left < KNEE * one && one > 0.0).then(|| (self.line(low), self.line(high)))
    }
}

/// Two lines replace one if their residual sum of squares is at most this share of its.
const KNEE: f64 = 0.8;

/// Fits lines to a log.
///
/// # Errors
/// [`Error::Measurement`] where there is no line through all of it.
pub fn fit(log: &PollLog) -> Result<Fit, Error> {
    let all = || log.runs.iter().flat_map(Run::services);
    let sample = Sample::new(all())?;
    let mut sizes: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    all().for_each(|(v, t)| sizes.entry(v).or_default().push(t));
    let per_rate = log.rates().into_iter().map(|rate| {
        let runs = log.runs.iter().filter(|r| r.rate == rate);
        let line = Sample::new(runs.flat_map(Run::services)).map(|s| s.line(&s.services));
        (rate.to_owned(), line)
    });
    let by_size: Vec<BySize> = sizes.iter().map(|(v, times)| size(*v, times)).collect();
    let global = sample.line(&sample.services);
    let logged = by_size.first().filter(|s| s.batch == 0).map(|s| s.mean_ns);
    Ok(Fit {
        global,
        per_rate: per_rate.collect(),
        piecewise: sample.piecewise(),
        empty_poll_ns: logged.or_else(|| between(log, &by_size, &global)),
        by_size,
    })
}

/// The mean time of the empty polls that a log only counts: what lies between two polls beside the service of
/// the first.
fn between(log: &PollLog, by_size: &[BySize], line: &Line) -> Option<f64> {
    let service = |batch: u32| match by_size.binary_search_by_key(&batch, |s| s.batch) {
        Ok(at) => by_size.get(at).map_or(0.0, |s| s.mean_ns),
        Err(_) => line.service_base_ns + line.service_per_packet_ns * f64::from(batch),
    };
    let gaps = log.runs.iter().flat_map(Run::gaps).filter(|g| g.2 > 0);
    let (ns, polls) =
        gaps.fold((0.0, 0.0), |(ns, n), (v, gap, empty)| (ns + gap - service(v), n + f64::from(empty)));
    (polls > 0.0 && ns > 0.0).then(|| ns / polls)
}

fn size(batch: u32, times: &[f64]) -> BySize {
    let n = times.len() as f64;
    let mean_ns = times.iter().sum::<f64>() / n;
    let squares: f64 = times.iter().map(|t| (t - mean_ns).powi(2)).sum();
    BySize { batch, services: times.len() as u64, mean_ns, sd_ns: (squares / (n - 1.0).max(1.0)).sqrt() }
}

impl Fit {
    /// Service times for the model: measured means where there are any, else the lines of a strategy. `rate`
    /// says which load, for [`Strategy::PerRate`]. An empty poll takes `empty_poll_ns`, else what was
    /// measured, else what a batch costs.
    ///
    /// # Errors
    /// [`Error::Measurement`] where there is no such line.
    pub fn service_times(
        &self,
        strategy: Strategy,
        rate: Option<&str>,
        empty_poll_ns: Option<f64>,
    ) -> Result<ServiceTimes, Error> {
        let piece = |from: usize, line: &Line| Piece {
            from,
            base_ns: line.service_base_ns,
            per_packet_ns: line.service_per_packet_ns,
        };
        let pieces = match (strategy, &self.piecewise) {
            (Strategy::Global, _) => vec![piece(1, &self.global)],
            (Strategy::Piecewise, Some((low, high))) => {
                vec![piece(1, low), piece(high.batch_min as usize, high)]
            }
            (Strategy::Piecewise, None) => {
                let why = "there is no knee: two lines explain no more than one; take the global fit";
                return Err(Error::Measurement(why.to_owned()));
            }
            (Strategy::PerRate, _) => {
                let found = self.per_rate.iter().find(|(name, _)| Some(name.as_str()) == rate);
                let Some((_, line)) = found else {
                    return Err(Error::Measurement(format!(
                        "there is no load {:?} in the log",
                        rate.unwrap_or_default()
                    )));
                };
                vec![piece(1, line.as_ref().map_err(Clone::clone)?)]
            }
        };
        let base = pieces.first().map_or(0.0, |p| p.base_ns);
        let line_of_one = pieces.first().map_or(0.0, |p| p.base_ns + p.per_packet_ns);
        let empty =
            empty_poll_ns.or(self.empty_poll_ns).unwrap_or(if base > 0.0 { base } else { line_of_one });
        ServiceTimes::piecewise(pieces, empty)?
            .with_measured(self.by_size.iter().filter(|s| s.batch > 0).map(|s| (s.batch as usize, s.mean_ns)))
    }
}

/// The variation of a log's services around the mean of their batch size, as factors of that mean.
#[must_use]
pub fn variation(log: &PollLog) -> Variation {
    let mut sizes: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for (v, t) in log.runs.iter().flat_map(Run::services) {
        sizes.entry(v as usize).or_default().push(t);
    }
    for times in sizes.values_mut() {
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        times.iter_mut().for_each(|t| *t /= mean);
    }
    Variation::Empirical(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::polls::Poll;

    fn log(services: &[(u32, f64)]) -> PollLog {
        let mut time_ns = 0.0;
        let mut polls = Vec::new();
        for (batch, time) in services {
            polls.push(Poll { time_ns, batch: *batch, empty_before: 0 });
            time_ns += time;
        }
        polls.push(Poll { time_ns, batch: 1, empty_before: 0 });
        PollLog { runs: vec![Run { rate: String::new(), polls }] }
    }

    #[test]
    fn a_line_is_found_again() {
        let services: Vec<_> = (0..200u32).map(|i| (i % 40, 500.0 + 30.0 * f64::from(i % 40))).collect();
        let fit = fit(&log(&services)).unwrap();
        assert!((fit.global.service_base_ns - 500.0).abs() < 1e-6);
        assert!((fit.global.service_per_packet_ns - 30.0).abs() < 1e-8);
        assert!(fit.global.r_squared > 1.0 - 1e-12 && fit.piecewise.is_none());
        assert_eq!(fit.empty_poll_ns, Some(500.0));
        let times = fit.service_times(Strategy::Global, None, None).unwrap();
        assert!((times.mean_ns(100) - 3500.0).abs() < 1e-6);
        assert!(fit.service_times(Strategy::Piecewise, None, None).is_err());
        assert!(fit.service_times(Strategy::PerRate, Some("x"), None).is_err());
    }

    /// A log that counts empty polls tells as much as one that lists them.
    #[test]
    fn empty_polls_that_are_only_counted_are_found_again() {
        let (mut listed, mut counted) = (Vec::new(), Vec::new());
        let (mut time_ns, mut empty_before) = (0.0, 0);
        for i in 0..400u32 {
            let batch = if i % 5 < 2 { 0 } else { 1 + i % 7 };
            listed.push(Poll { time_ns, batch, empty_before: 0 });
            if batch > 0 {
                counted.push(Poll { time_ns, batch, empty_before: std::mem::take(&mut empty_before) });
            } else {
                empty_before += 1;
            }
            time_ns += if batch == 0 { 70.0 } else { 500.0 + 30.0 * f64::from(batch) };
        }
        let log = |polls| PollLog { runs: vec![Run { rate: String::new(), polls }] };
        let (listed, counted) = (log(listed), log(counted));
        let (a, b) = (fit(&listed).unwrap(), fit(&counted).unwrap());
        assert!((b.empty_poll_ns.unwrap() - 70.0).abs() < 1e-6);
        assert!((a.global.service_per_packet_ns - b.global.service_per_packet_ns).abs() < 1e-6);
        // The first two polls are empty ones before anything that the short log has.
        let (p, q) = (listed.batch_pmf(), counted.batch_pmf());
        assert!((p[0] * 400.0 - 2.0 - q[0] * 398.0).abs() < 1e-9, "{p:?} {q:?}");
        assert!((listed.rate_pps().unwrap() / counted.rate_pps().unwrap() - 1.0).abs() < 2e-3);
    }

    #[test]
    fn a_knee_is_found_where_it_is() {
        let time = |v: u32| if v < 32 { 100.0 + 100.0 * f64::from(v) } else { 500.0 + 40.0 * f64::from(v) };
        let services: Vec<_> =
            (0..600u32).map(|i| 1 + i * 7 % 90).map(|v| (v, time(v) + f64::from(v % 3))).collect();
        let fit = fit(&log(&services)).unwrap();
        let (low, high) = fit.piecewise.unwrap();
        assert_eq!((low.batch_max, high.batch_min), (31, 32));
        assert!((high.service_per_packet_ns - 40.0).abs() < 0.5);
        let times = fit.service_times(Strategy::Piecewise, None, Some(7.0)).unwrap();
        assert!((times.mean_ns(200) - 8500.0).abs() < 60.0);
        assert_eq!(times.mean_ns(0), 7.0);
    }

    #[test]
    fn too_little_is_refused() {
        for services in [vec![], vec![(3, 5.0)], vec![(3, 5.0), (3, 6.0)], vec![(0, 5.0), (0, 5.0)]] {
            assert!(matches!(fit(&log(&services)), Err(Error::Measurement(_))), "{services:?}");
        }
    }
}
