//! Looks on while a pipeline runs live, and logs what an operator wants to know: links that go down and come
//! up, files that can't be written, the first packet that is dropped for a reason and then the rates, and
//! packets that leave much later than they should.
//!
//! A thread of its own asks the data path once a second for a report, as a metrics server does; in between
//! nothing is done for it. What is logged follows from two reports in a row ([`Watch::compare`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use slipstream::io::link::{LinkState, Links, addresses_of, name_of, number_of};
use slipstream::pipeline::{Plan, PlannedStage, Receives, Role};
use slipstream::runtime::{Monitor, RunReport, StageReport};
use slipstream_report::time;
use slipstream_stats::Histogram;
use tracing::{error, info, warn};

use crate::counters::is_loss;
use crate::live::packets_in;
use crate::log::LIVE;

/// Time between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// Looks after which rates and delays are told again.
const PERIOD: u32 = 10;
/// Longest wait for the data path.
const PATIENCE: Duration = Duration::from_millis(500);
/// Looks that the data path may leave unanswered before that is told.
const SILENT: u32 = 5;
/// Fewer packets than these within a period say little about their 99th percentile.
const FEW: u64 = 100;

/// Something to tell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Notice {
    /// The first packets that were dropped at a place for a reason, which somebody has asked for or not.
    FirstDrop { place: String, reason: String, asked_for: bool, packets: u64 },
    /// A place can't write what it is to write.
    Trouble { place: String, reason: String },
    /// It can again.
    TroubleOver { place: String },
    /// A router's file of routes has changed, and can't be used.
    Refused { place: String, reason: String },
    /// It was read anew, and its routes count.
    Reread { place: String },
    /// Another station has spoken for an address of a router, in so many messages since this was last told.
    Conflict { place: String, messages: u64 },
    /// Packets that were dropped since this was last told.
    Dropping { place: String, reason: String, asked_for: bool, packets: u64, per_second: f64 },
    /// Packets left later than they were due by more than anybody holds them: their 99th percentile, in ns.
    Late { p99_ns: u64, hold_ns: u64 },
    /// They don't any more.
    OnTime { p99_ns: u64 },
}

impl Notice {
    fn tell(&self) {
        match self {
            Self::FirstDrop { place, reason, asked_for: false, packets } => {
                warn!(target: LIVE, stage = place, reason, packets, "first drop for this reason");
            }
            Self::FirstDrop { place, reason, asked_for: true, packets } => {
                info!(target: LIVE, stage = place, reason, packets, "first drop for this reason");
            }
            Self::Trouble { place, reason } => error!(target: LIVE, stage = place, reason, "can't write"),
            Self::TroubleOver { place } => info!(target: LIVE, stage = place, "writes again"),
            Self::Refused { place, reason } => {
                warn!(target: LIVE, stage = place, reason, "routes refused; those before go on");
            }
            Self::Reread { place } => info!(target: LIVE, stage = place, "routes read anew"),
            Self::Conflict { place, messages } => {
                let what = "another station says that it has an address of the router";
                warn!(target: LIVE, stage = place, messages, "{what}");
            }
            Self::Dropping { place, reason, asked_for, packets, per_second } => {
                let rate = format!("{per_second:.1}");
                if *asked_for {
                    info!(target: LIVE, stage = place, reason, packets, per_second = rate, "dropping");
                } else {
                    warn!(target: LIVE, stage = place, reason, packets, per_second = rate, "dropping");
                }
            }
            Self::Late { p99_ns, hold_ns } => {
                let (p99, hold) = (time(Some(*p99_ns as f64)), time(Some(*hold_ns as f64)));
                warn!(target: LIVE, p99, hold, "packets leave later than due by more than the longest hold");
            }
            Self::OnTime { p99_ns } => {
                let p99 = time(Some(*p99_ns as f64));
                info!(target: LIVE, p99, "packets leave on time again");
            }
        }
    }
}

/// The figures by which two reports are compared.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// The longest time for which a stage may hold a packet, in ns; none where no stage does.
    hold_ns: Option<u64>,
    /// Packets lost, by place and reason: as last seen, and as last told.
    lost: BTreeMap<(String, String), (u64, u64)>,
    /// Places that could not write when last seen.
    troubled: BTreeSet<String>,
    /// By router, how often its routes were refused and how often they were read anew, when last seen.
    routes: BTreeMap<String, (u64, u64)>,
    /// By router, the messages of others that spoke for its addresses, when last told.
    conflicts: BTreeMap<String, u64>,
    looks: u32,
    /// The delay of packets beyond what was due, when the period began.
    excess: Vec<(i64, u64)>,
    late: bool,
}

impl Watch {
    /// Returns what has happened since the last look that somebody should know.
    pub(crate) fn compare(&mut self, report: &RunReport) -> Vec<Notice> {
        let mut notices = Vec::new();
        self.looks += 1;
        let over = self.looks.is_multiple_of(PERIOD);
        for stage in &report.stages {
            let place = stage.name.clone();
            match &stage.trouble {
                Some(why) if self.troubled.insert(place.clone()) => {
                    notices.push(Notice::Trouble { place, reason: why.clone() });
                }
                None if self.troubled.remove(&place) => notices.push(Notice::TroubleOver { place }),
                _ => {}
            }
            notices.extend(self.routes(stage));
            notices.extend(self.conflicts(stage, over));
        }
        for ((place, reason), now, asked_for) in drops(report) {
            let (seen, told) = self.lost.entry((place.clone(), reason.clone())).or_default();
            if *seen == 0 && now > 0 {
                *told = now;
                notices.push(Notice::FirstDrop { place, reason, asked_for, packets: now });
            } else if over && now > *told {
                let packets = now - std::mem::replace(told, now);
                let per_second = packets as f64 / (f64::from(PERIOD) * EVERY.as_secs_f64());
                notices.push(Notice::Dropping { place, reason, asked_for, packets, per_second });
            }
            *seen = now;
        }
        if over {
            notices.extend(self.lateness(report));
        }
        notices
    }

    /// Looks whether a router has read its file of routes anew, or could not.
    fn routes(&mut self, stage: &StageReport) -> Option<Notice> {
        let now = (stage.counter("route_reload_errors")?, stage.counter("route_reloads")?);
        let before = std::mem::replace(self.routes.entry(stage.name.clone()).or_default(), now);
        let place = stage.name.clone();
        let error = stage.report.as_ref().and_then(|report| report.get("routes_error")?.as_str());
        match error {
            Some(why) => (now.0 > before.0).then(|| Notice::Refused { place, reason: why.to_owned() }),
            None => (now.1 > before.1).then_some(Notice::Reread { place }),
        }
    }

    /// Looks whether others have spoken for addresses of a router: told at once the first time, and then
    /// where a period is over.
    fn conflicts(&mut self, stage: &StageReport, over: bool) -> Option<Notice> {
        let now = stage.counter("address_conflicts")?;
        let told = self.conflicts.entry(stage.name.clone()).or_default();
        (now > *told && (over || *told == 0)).then(|| Notice::Conflict {
            place: stage.name.clone(),
            messages: now - std::mem::replace(told, now),
        })
    }

    /// Compares the delay of the packets of this period with the longest hold.
    fn lateness(&mut self, report: &RunReport) -> Option<Notice> {
        let now = buckets(report.stages.iter().filter_map(|s| s.excess.as_ref()));
        let (count, p99_ns) = p99_between(&self.excess, &now);
        self.excess = now;
        let hold_ns = self.hold_ns?;
        let (p99_ns, late) = (p99_ns?, p99_ns? > hold_ns);
        if count < FEW {
            return None;
        }
        let was = std::mem::replace(&mut self.late, late);
        match (late, was) {
            (true, _) => Some(Notice::Late { p99_ns, hold_ns }),
            (false, true) => Some(Notice::OnTime { p99_ns }),
            (false, false) => None,
        }
    }
}

/// Logs what is counted so far: of the run, of each source, of each stage. What is zero is left out.
fn tell_statistics(report: &RunReport) {
    let seconds = format!("{:.3}", report.elapsed_ns as f64 / 1e9);
    let (packets, inside) = (packets_in(report), report.live);
    let dropped: u64 = report.stages.iter().map(|s| s.drops.total()).sum();
    info!(target: LIVE, packets, dropped, inside, seconds, "statistics");
    for source in &report.sources {
        let (name, packets, counters) =
            (&source.name, source.packets, pairs(source.counters.iter().copied()));
        info!(target: LIVE, source = name, packets, counters, "statistics");
    }
    for stage in &report.stages {
        let (name, packets, left, held) =
            (&stage.name, stage.tally.packets, stage.tally.packets_out, stage.held);
        let drops = pairs(stage.drops.iter().map(|(why, n)| (why.name(), n)));
        let counters = pairs(stage.counters.iter().copied());
        info!(target: LIVE, stage = name, packets, left, held, drops, counters, "statistics");
    }
}

/// Those of some counts that are not zero, as words.
fn pairs<'a>(counts: impl Iterator<Item = (&'a str, u64)>) -> String {
    let all: Vec<String> = counts.filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name}={n}")).collect();
    all.join(" ")
}

/// Packets that were dropped so far, by place and reason; true of a reason that somebody has asked for.
fn drops(report: &RunReport) -> Vec<((String, String), u64, bool)> {
    let mut all = Vec::new();
    for stage in &report.stages {
        let drops = stage.drops.iter();
        let place = |why: &str| (stage.name.clone(), why.to_owned());
        all.extend(drops.map(|(why, n)| (place(why.name()), n, why.is_asked_for())));
    }
    for source in &report.sources {
        let lost = source.counters.iter().filter(|(name, _)| is_loss(name));
        all.extend(lost.map(|(why, n)| ((source.name.clone(), (*why).to_owned()), *n, false)));
    }
    all
}

/// Upper ends and counts of the buckets of several histograms together, in order.
fn buckets<'a>(histograms: impl Iterator<Item = &'a Histogram>) -> Vec<(i64, u64)> {
    let mut all = BTreeMap::<i64, u64>::new();
    for bucket in histograms.flat_map(Histogram::buckets) {
        *all.entry(bucket.to).or_default() += bucket.count;
    }
    all.into_iter().collect()
}

/// The number of values that were added between two states of a histogram, and their 99th percentile.
fn p99_between(before: &[(i64, u64)], now: &[(i64, u64)]) -> (u64, Option<u64>) {
    let old: BTreeMap<i64, u64> = before.iter().copied().collect();
    let new = |(to, n): &(i64, u64)| (*to, n.saturating_sub(old.get(to).copied().unwrap_or(0)));
    let added: Vec<(i64, u64)> = now.iter().map(new).collect();
    let count: u64 = added.iter().map(|(_, n)| n).sum();
    let mut above = count / 100;
    for (to, n) in added.iter().rev() {
        if *n > above {
            return (count, Some(to.unsigned_abs()));
        }
        above -= n;
    }
    (count, None)
}

/// The interfaces of a pipeline and their states.
struct Interfaces {
    links: Option<Links>,
    all: Vec<Interface>,
}

/// The longest packets that a router sends to a link.
struct Longest {
    router: String,
    mtu: u32,
    /// The MTU of the link that was told to be too small, if one was.
    told: Option<u32>,
}

/// A change of what a link takes.
#[derive(Debug, PartialEq, Eq)]
enum Fit {
    /// Packets of the router may be too long for it.
    TooSmall,
    /// They no longer are.
    Enough,
}

impl Longest {
    /// Compares the MTU of the link with that of the router; what changed is to be told.
    fn compare(&mut self, mtu: u32) -> Option<Fit> {
        let small = (mtu < self.mtu).then_some(mtu);
        let before = std::mem::replace(&mut self.told, small);
        match (before, small) {
            (before, Some(_)) if before != small => Some(Fit::TooSmall),
            (Some(_), None) => Some(Fit::Enough),
            _ => None,
        }
    }
}

/// The interface of a stage.
struct Interface {
    port: String,
    /// Its name when it was last seen, and its number, which stays.
    name: String,
    number: Option<u32>,
    /// The state in which it was last seen.
    before: Option<LinkState>,
    /// The packets that a router sends there.
    longest: Option<Longest>,
    /// The system's own network stack gets the packets, too, where it has addresses there.
    gets_copies: bool,
    /// The addresses of the system that were last seen there.
    addresses: Vec<IpAddr>,
}

impl Interfaces {
    fn of(plan: &Plan) -> Self {
        let longest = plan.longest_packets();
        let forwards = plan.stages.iter().any(|s| s.kind.properties.faces_a_link && s.role != Role::Source);
        let gets_copies = |s: &PlannedStage| {
            forwards && s.kind.properties.receives == Some(Receives::Copies) && s.role != Role::Sink
        };
        let named = plan.stages.iter().filter(|s| s.kind.live()).filter_map(|s| {
            let interface = s.settings.text("interface");
            (!interface.is_empty()).then(|| Interface {
                port: s.name.clone(),
                name: interface.to_owned(),
                number: number_of(interface),
                before: None,
                gets_copies: gets_copies(s),
                addresses: Vec::new(),
                longest: longest.iter().find(|l| l.port == s.name).map(|l| Longest {
                    router: l.router.clone(),
                    mtu: l.mtu,
                    told: None,
                }),
            })
        });
        Self { links: Links::new().ok(), all: named.collect() }
    }

    fn look(&mut self) {
        let Some(links) = &self.links else { return };
        for Interface { port, name: interface, number, before, longest, .. } in &mut self.all {
            let name = number.and_then(name_of);
            // One that was not there yet is known by its name.
            let now = match (&name, *number) {
                (None, Some(_)) => LinkState::Gone,
                _ => links.state(name.as_deref().unwrap_or(interface)),
            };
            if let Some(name) = name.filter(|name| name != interface) {
                info!(target: LIVE, port, interface, name, "link renamed");
                *interface = name;
            }
            if let Some(longest) = longest
                && let Some(mtu) = links.mtu(interface)
            {
                let (fit, router, router_mtu) = (longest.compare(mtu), &longest.router, longest.mtu);
                match fit {
                    Some(Fit::TooSmall) => warn!(
                        target: LIVE, port, interface, mtu, router, router_mtu,
                        "the router may send packets that are too long for the link: they are lost, and their senders not told; \
                         give its interface `mtu {mtu}`"
                    ),
                    Some(Fit::Enough) => {
                        info!(target: LIVE, port, interface, mtu, router, "link takes all packets")
                    }
                    None => {}
                }
            }
            let was = before.replace(now);
            if was == Some(now) || was.is_none() && now == LinkState::Up {
                continue;
            }
            let state = now.name();
            if now == LinkState::Up {
                info!(target: LIVE, port, interface, state, "link");
            } else {
                warn!(target: LIVE, port, interface, state, "link");
            }
        }
    }
}

impl Interfaces {
    /// Warns of interfaces that packets are forwarded from and the system has got addresses on: its own
    /// network stack gets the same packets, and does with them what it likes.
    fn look_for_addresses(&mut self) {
        for Interface { port, name: interface, addresses, .. } in
            self.all.iter_mut().filter(|i| i.gets_copies)
        {
            let now = addresses_of(interface);
            let is_new = now.iter().any(|address| !addresses.contains(address));
            *addresses = now;
            if !is_new {
                continue;
            }
            let addresses = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            warn!(
                target: LIVE, port, interface, addresses,
                "the system has addresses on the interface: its own network stack gets every packet, too, and may answer, \
                 forward or reset what passes here; `ip addr flush dev {interface}` takes them away"
            );
        }
    }
}

/// The thread that looks on; it ends when this goes.
pub(crate) struct Watcher {
    over: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Looks on at the run of this plan, which this monitor watches; `hold` gives the longest time for which
    /// a stage may hold a packet, which may change. What is counted so far is told once `asked` is set.
    /// `each` is called once a second on the thread that looks on, with the report of the data path if it has
    /// answered.
    pub(crate) fn start(
        monitor: Monitor,
        plan: &Plan,
        hold: impl Fn() -> Option<u64> + Send + 'static,
        asked: Arc<AtomicBool>,
        mut each: impl FnMut(Option<&RunReport>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        let (mut watch, mut interfaces) = (Watch::default(), Interfaces::of(plan));
        interfaces.look_for_addresses();
        let ends = Arc::clone(&over);
        let look = move || {
            let (mut silent, mut looks) = (0, 0u32);
            interfaces.look();
            while !wait(&ends) {
                interfaces.look();
                looks = looks.wrapping_add(1);
                if looks.is_multiple_of(PERIOD) {
                    interfaces.look_for_addresses();
                }
                let report = monitor.ask_anew(PATIENCE);
                let fresh = report.is_some();
                if let Some(report) = &report {
                    watch.hold_ns = hold();
                    watch.compare(report).iter().for_each(Notice::tell);
                    if asked.swap(false, Ordering::Relaxed) {
                        tell_statistics(report);
                    }
                }
                silent = if fresh { 0 } else { silent + 1 };
                if silent == SILENT {
                    warn!(target: LIVE, seconds = SILENT, "the data path has not answered");
                }
                each(report.as_deref());
            }
        };
        let thread = thread::Builder::new().name("watch".into()).spawn(look)?;
        Ok(Self { over, thread: Some(thread) })
    }
}

/// Waits until the next look; true if there is to be none.
fn wait((over, bell): &(Mutex<bool>, Condvar)) -> bool {
    let over = over.lock().unwrap_or_else(PoisonError::into_inner);
    *bell.wait_timeout_while(over, EVERY, |over| !*over).unwrap_or_else(PoisonError::into_inner).0
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let (over, bell) = &*self.over;
        *over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        bell.notify_all();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::LOST;
    use slipstream::runtime::{SourceReport, Tally};
    use slipstream::stage::{DropReason, Drops};

    fn report(denied: u64, excess: Histogram) -> RunReport {
        let mut drops = Drops::default();
        drops.add(DropReason::Denied, denied);
        let stage = StageReport {
            name: "fw".into(),
            kind: "firewall",
            tally: Tally::default(),
            counters: Vec::new(),
            drops,
            held: 0,
            trouble: None,
            report: None,
            reframe: None,
            excess: Some(excess),
            transit: None,
        };
        RunReport {
            sources: Vec::new(),
            stages: vec![stage],
            shards: Vec::new(),
            elapsed_ns: 0,
            cpu_ns: 0,
            live: 0,
            service_time: None,
            poll_log: None,
            contexts: None,
            interrupted: false,
        }
    }

    #[test]
    fn what_a_source_loses_is_told_and_on_the_board() {
        let board = include_str!("../../../contrib/grafana/slipstream.json");
        let (_, panel) = board.split_once("slipstream_source_count_total{").unwrap();
        let names: Vec<_> =
            panel.split_once("name=~\\\"").unwrap().1.split_once('\\').unwrap().0.split('|').collect();
        assert_eq!(names, LOST);
        for name in LOST {
            let source = |lost| SourceReport {
                name: "lan".into(),
                kind: "af_packet",
                packets: 100,
                clock_backwards: 0,
                counters: vec![("bytes", 6000), (name, lost)],
            };
            let with = |lost| RunReport { sources: vec![source(lost)], ..report(0, Histogram::new()) };
            let mut watch = Watch::default();
            assert_eq!(watch.compare(&with(0)), []);
            let (place, reason) = ("lan".to_owned(), name.to_owned());
            let first = Notice::FirstDrop { place, reason, asked_for: false, packets: 3 };
            assert_eq!(watch.compare(&with(3)), [first]);
        }
    }

    #[test]
    fn drops_that_a_rule_asks_for_are_no_losses() {
        let with = |reason, packets| {
            let mut report = report(0, Histogram::new());
            report.stages[0].drops.add(reason, packets);
            report
        };
        for (reason, asked) in [
            (DropReason::Denied, true),
            (DropReason::Discarded, true),
            (DropReason::NotSent, false),
            (DropReason::TableFull, false),
        ] {
            let mut watch = Watch::default();
            let told =
                (0..10).flat_map(|second| watch.compare(&with(reason, second * 5))).collect::<Vec<_>>();
            let is_so = |notice: &Notice| match notice {
                Notice::FirstDrop { asked_for, .. } | Notice::Dropping { asked_for, .. } => {
                    *asked_for == asked
                }
                _ => false,
            };
            assert!(told.len() == 2 && told.iter().all(is_so), "{reason:?}: {told:?}");
        }
    }

    #[test]
    fn the_first_drop_is_told_at_once_and_rates_every_ten_seconds() {
        let mut watch = Watch::default();
        let mut told = Vec::new();
        for second in 0..30u64 {
            // From the fifth second on a hundred packets a second, until the 15th.
            let denied = second.saturating_sub(4).min(10) * 100;
            told.push(watch.compare(&report(denied, Histogram::new())));
        }
        let all: Vec<_> = told.iter().enumerate().filter(|(_, n)| !n.is_empty()).map(|(i, _)| i).collect();
        assert_eq!(all, [5, 9, 19], "{told:?}");
        let first = |n: &Vec<Notice>| matches!(n.as_slice(), [Notice::FirstDrop { packets: 100, .. }]);
        assert!(told.get(5).is_some_and(first), "{told:?}");
        let rest: u64 = told
            .iter()
            .flatten()
            .map(|n| if let Notice::Dropping { packets, .. } = n { *packets } else { 0 })
            .sum();
        assert_eq!(rest, 900, "every packet is told of once");
    }

    #[test]
    fn what_can_not_be_written_is_told_once_with_its_cause() {
        let mut watch = Watch::default();
        let mut look = |trouble: Option<&str>| {
            let mut report = report(0, Histogram::new());
            report.stages[0].trouble = trouble.map(str::to_owned);
            watch.compare(&report)
        };
        let place = || "fw".to_owned();
        assert_eq!(look(None), []);
        assert_eq!(look(Some("full")), [Notice::Trouble { place: place(), reason: "full".into() }]);
        assert_eq!(look(Some("full")), []);
        assert_eq!(look(None), [Notice::TroubleOver { place: place() }]);
        assert_eq!(look(None), []);
    }

    #[test]
    fn another_station_with_an_address_of_the_router_is_told_at_once_and_every_ten_seconds() {
        let mut watch = Watch::default();
        let mut look = |conflicts: u64| {
            let mut report = report(0, Histogram::new());
            report.stages[0].counters = vec![("address_conflicts", conflicts)];
            watch.compare(&report)
        };
        let told = |messages| vec![Notice::Conflict { place: "fw".into(), messages }];
        assert_eq!(look(0), []);
        assert_eq!(look(2), told(2));
        for conflicts in 3..10 {
            assert_eq!(look(conflicts), []);
        }
        assert_eq!(look(10), told(8), "the tenth look");
        for _ in 0..PERIOD {
            assert_eq!(look(10), []);
        }
    }

    #[test]
    fn routes_that_a_router_refuses_are_told_with_the_reason() {
        let mut watch = Watch::default();
        let mut look = |refused: u64, taken: u64, why: Option<&str>| {
            let mut report = report(0, Histogram::new());
            report.stages[0].counters = vec![("route_reloads", taken), ("route_reload_errors", refused)];
            report.stages[0].report = why.map(|why| serde_json::json!({ "routes_error": why }));
            watch.compare(&report)
        };
        let refused = |reason: &str| vec![Notice::Refused { place: "fw".into(), reason: reason.into() }];
        assert_eq!(look(0, 0, None), []);
        assert_eq!(look(1, 0, Some("line 1: no gateway")), refused("line 1: no gateway"));
        assert_eq!(look(1, 0, Some("line 1: no gateway")), []);
        assert_eq!(
            look(2, 0, Some("line 1: no gateway")),
            refused("line 1: no gateway"),
            "it was saved again"
        );
        assert_eq!(look(2, 1, None), [Notice::Reread { place: "fw".into() }]);
        assert_eq!(look(2, 1, None), []);
    }

    #[test]
    fn late_packets_are_those_of_the_period_alone() {
        let mut watch = Watch { hold_ns: Some(64_000), ..Watch::default() };
        let mut excess = Histogram::new();
        let mut told = Vec::new();
        for second in 0..40u64 {
            // The second ten seconds are slow.
            let ns = if (10..20).contains(&second) { 1_000_000 } else { 10_000 };
            excess.record_n(ns, 1000);
            told.extend(watch.compare(&report(0, excess.clone())).into_iter().map(|n| (second, n)));
        }
        assert!(
            matches!(told.as_slice(), [(19, Notice::Late { hold_ns: 64_000, p99_ns }), (29, Notice::OnTime { .. })] if *p99_ns > 900_000),
            "{told:?}"
        );
    }

    #[test]
    fn a_link_that_takes_less_than_its_router_sends_is_told_once() {
        let mut longest = Longest { router: "r".into(), mtu: 1500, told: None };
        let fits = [1500, 1400, 1400, 1300, 9000, 1500].map(|mtu| longest.compare(mtu));
        let small = || Some(Fit::TooSmall);
        assert_eq!(fits, [None, small(), None, small(), Some(Fit::Enough), None]);
    }

    #[test]
    fn a_percentile_is_that_of_what_was_added() {
        let (before, now) = ([(10, 100), (1000, 50)], [(10, 199), (1000, 51)]);
        assert_eq!(p99_between(&before, &now), (100, Some(10)));
        assert_eq!(p99_between(&[], &now), (250, Some(1000)));
        assert_eq!(p99_between(&now, &now), (0, None));
    }
}
