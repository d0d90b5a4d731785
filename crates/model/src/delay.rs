//! Waiting times and sojourns of packets, which are beyond the paper.
//!
//! A packet that comes while a batch is served waits for the rest of that service, then for `c` services of
//! full batches, `c` being how often β packets fit before it in the queue, then it is served with its own
//! batch. The rest of the service and the packet's place are taken jointly from the arrival process; so is
//! the size of its own batch, which the packets decide that come after it and find a place. Two things are
//! left out. How many packets come during the full batches before a packet's own is taken to be independent
//! of how long exactly these take. And behind more than one full batch and [`NEAR`] packets its own is taken
//! to be full. Against the simulation, of queues of one batch to many, neither shows in a quantile by more
//! than a bin.
//!
//! Times are counted in bins of an odd number of slots, some 256 for the longest service, so that quantiles
//! are exact to about a thousandth of it; where services are short, a bin is a slot and nothing is rounded.
//! Waits of very many services have longer bins (`behind`).
//! Means don't come from the bins: they follow from the flow of packets exactly (`residual`).

use std::ops::Range;

use crate::arrivals::Start;
use crate::behind::{self, Cells};
use crate::counts::Counts;
use crate::model::{Flow, Model};
use crate::pmf::Pmf;
use crate::residual;

/// Bins for the longest service, about.
const BINS: usize = 256;
/// Probabilities below this don't show in a delay.
const SMALL: f64 = 1e-12;
/// A packet's own batch counts as full where it is smaller more seldom than this.
const SELDOM: f64 = 1e-9;
/// So does that of a packet behind more than these and one full batch.
const NEAR: usize = 1024;

/// The distribution of a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Delay {
    mean_ns: f64,
    slot_ns: f64,
    /// The places of the bins.
    cells: Cells,
    /// Probabilities of the bins.
    pmf: Vec<f64>,
}

impl Delay {
    fn new(slot_ns: f64, cells: Cells, mean: f64, mut pmf: Vec<f64>) -> Self {
        let sum: f64 = pmf.iter().sum();
        pmf.iter_mut().for_each(|p| *p /= sum);
        pmf.truncate(pmf.iter().rposition(|p| *p > 0.0).map_or(0, |i| i + 1));
        Self { mean_ns: mean * slot_ns, slot_ns, cells, pmf }
    }

    /// The mean, ns.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        self.mean_ns
    }

    /// The time that a share `q` of packets doesn't exceed, ns.
    #[must_use]
    pub fn quantile_ns(&self, q: f64) -> f64 {
        let mut sum = 0.0;
        for (k, p) in self.pmf.iter().enumerate() {
            if sum + p >= q && *p > 0.0 {
                return self.place(k, (q - sum).max(0.0) / p);
            }
            sum += p;
        }
        self.place(self.pmf.len().saturating_sub(1), 1.0)
    }

    /// The share of packets that stay at most so long: (ns, share) at the end of every bin, rising.
    pub fn cdf(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let mut sum = 0.0;
        self.pmf.iter().enumerate().map(move |(k, p)| {
            sum += p;
            (self.place(k, 1.0), sum)
        })
    }

    /// The time at a share of the way through a bin.
    fn place(&self, k: usize, share: f64) -> f64 {
        let (start, slots) = self.cells.cell(k);
        let inside = if slots == 1.0 { 0.0 } else { share * slots - 0.5 };
        (start + inside).max(0.0) * self.slot_ns
    }
}

/// Mean waits of the packets of one poll, in bins of the time that is left of the service in which they come.
struct Tables<'a> {
    model: &'a Model,
    bin: usize,
    bins: usize,
    /// By bin of time: the number of packets that come in a time of that length after a packet.
    after: Vec<Counts>,
    /// By bin of time since the poll, from above its lower end to its upper one: the j-th packet comes in it,
    /// by j.
    landing: Vec<Counts>,
    /// The j-th packet comes in the slot of the poll itself, too late for it, by j: with the renewal start
    /// alone.
    at_poll: Counts,
}

/// The wait of the packets that a poll takes in, and their sojourn. `left` is what is left of the service for
/// all packets of a poll together when they come, in slots, where that doesn't follow from the start.
pub(crate) fn delays(
    model: &Model,
    start: Start,
    rows: &[Counts],
    queue_pmf: &[f64],
    flow: &Flow,
    left: Option<f64>,
) -> (Delay, Delay) {
    let tables = Tables::new(model, start, flow);
    let p = &model.parameters;
    let during = during_full(rows, p.batch, p.queue.div_ceil(p.batch));
    let places = Places::new(&tables, start, rows, queue_pmf, during.len(), flow, left);
    let full = model.services.last().map(|b| tables.binned(&[(1.0, b)])).unwrap_or_default();
    let (blocks, bins) = (places.counts.len(), tables.bins);
    let cells = Cells::new(tables.bin, bins);
    let sum =
        |mass: &mut dyn FnMut(usize) -> Vec<f64>| behind::sum(cells, blocks, &full, behind::fine(bins), mass);
    let wait = sum(&mut |c| places.block(c));
    let mut own = own_batch(&tables, &places, &during);
    let mut sojourn = sum(&mut |c| match own.get_mut(c) {
        Some(own) => std::mem::take(own),
        None => convolve(&places.block(c), &full),
    });
    if sojourn.iter().sum::<f64>() < SMALL {
        // Packets are so rare that what they meet doesn't show: each waits for the poll, and is served.
        let service = tables.own_service(flow);
        sojourn = sum(&mut |c| convolve(&places.block(c), &service));
    }
    let mean = |v: usize| model.services.get(v).map_or(0.0, Pmf::mean);
    let own: f64 = flow.batch_pmf.iter().enumerate().map(|(v, q)| v as f64 * q * mean(v)).sum();
    let waited = places.mean_wait(mean(p.batch)) / flow.served;
    (
        Delay::new(p.slot_ns, cells, waited, wait),
        Delay::new(p.slot_ns, cells, waited + own / flow.served, sojourn),
    )
}

impl<'a> Tables<'a> {
    fn new(model: &'a Model, start: Start, flow: &Flow) -> Self {
        let used = model.services.iter().zip(&flow.batch_pmf).filter(|(_, q)| **q > 1e-12);
        let longest = used.map(|(b, _)| b.last()).max().unwrap_or(1).max(1);
        let bin = longest.div_ceil(BINS) | 1;
        let bins = longest.div_ceil(bin) + 1;
        let middle = |g: usize| g * bin + bin / 2;
        let end = |g: usize| (g + 1) * bin;
        let (arrivals, queue) = (&model.parameters.interarrival, model.parameters.queue);
        let mut tables = Self {
            model,
            bin,
            bins,
            after: vec![Counts::default(); bins],
            landing: vec![Counts::default(); bins],
            at_poll: Counts::default(),
        };
        let mut sums = arrivals.sums(end(bins));
        let (mut p, mut cdf, mut last) = (Vec::new(), Vec::new(), vec![1.0; bins]);
        let mut last_within = vec![bin as f64; bins];
        // The sum of no interarrival times is 0.
        sums.next(end(bins), &mut p);
        // Packets beyond a full queue are lost.
        for n in 1..=queue {
            let least = sums.next(end(bins), &mut p);
            cdf.clear();
            let mut sum = 0.0;
            cdf.extend(p.iter().map(|p| {
                sum += p;
                sum
            }));
            let at = |u: usize| match u.checked_sub(least) {
                None => 0.0,
                Some(i) => cdf.get(i).copied().unwrap_or(sum),
            };
            // Of `at`, over the slots of a bin.
            let within = |g: usize| {
                let [from, to] = [g * bin, end(g)].map(|u| u.saturating_sub(least));
                let inside = cdf.get(from.min(cdf.len())..to.min(cdf.len())).unwrap_or_default();
                inside.iter().sum::<f64>() + (to - from - inside.len()) as f64 * sum
            };
            for (g, (before, before_within)) in last.iter_mut().zip(&mut last_within).enumerate() {
                let now = at(middle(g));
                push(tables.after.get_mut(g), n - 1, *before - now);
                *before = now;
                let landed = if start == Start::Renewal {
                    at(end(g)) - at(g * bin)
                } else {
                    let now = within(g);
                    (std::mem::replace(before_within, now) - now) / arrivals.mean()
                };
                push(tables.landing.get_mut(g), n, landed);
            }
            if start == Start::Renewal {
                push(Some(&mut tables.at_poll), n, at(0));
            }
            if at(end(bins)) < SMALL {
                break;
            }
        }
        for (after, more) in tables.after.iter_mut().zip(last) {
            push(Some(after), queue, more);
        }
        tables
    }

    /// A mixture of service times by bin; one between two bins counts for both, so that means stay.
    fn binned(&self, mixture: &[(f64, &Pmf)]) -> Vec<f64> {
        let mut out = vec![0.0; self.bins + 2];
        for (weight, pmf) in mixture.iter().filter(|m| m.0 > 0.0) {
            for (t, p) in pmf.iter() {
                let (h, share) = (t / self.bin, (t % self.bin) as f64 / self.bin as f64);
                for (place, s) in out.iter_mut().skip(h).zip([1.0 - share, share]) {
                    *place += weight * p * s;
                }
            }
        }
        out.truncate(out.iter().rposition(|p| *p > 0.0).map_or(0, |i| i + 1));
        out
    }

    /// The service of a packet's own batch by bin, over all packets that are served.
    fn own_service(&self, flow: &Flow) -> Vec<f64> {
        let mut out = Vec::new();
        for ((v, q), service) in flow.batch_pmf.iter().enumerate().zip(&self.model.services).skip(1) {
            for (t, p) in service.iter() {
                let bin = t / self.bin;
                out.resize(out.len().max(bin + 1), 0.0);
                if let Some(place) = out.get_mut(bin) {
                    *place += v as f64 * q * p / flow.served;
                }
            }
        }
        out
    }

    /// By j, then by bin of what is left of a service: the j-th packet comes then.
    fn left(&self, service: &[f64]) -> Vec<Vec<f64>> {
        let most = self.landing.iter().chain([&self.at_poll]).map(Counts::last).max().unwrap_or(0);
        let mut left = vec![vec![0.0; self.bins]; most + 1];
        let first = service.iter().position(|p| *p > SMALL).unwrap_or(service.len());
        for (a, landing) in self.landing.iter().enumerate() {
            let from = first.saturating_sub(a + 1);
            let rest = service.get(a + 1 + from..).unwrap_or_default();
            for (row, mass) in left.iter_mut().skip(landing.start).zip(&landing.p) {
                add_scaled(row, from, *mass, rest);
            }
        }
        // A packet that comes with the poll has the whole service before it, which ends where one bin meets
        // the next: it counts for both, so that its mean stays.
        let before = (self.bin / 2) as f64 / self.bin as f64;
        let (shortest, rest) = service.split_first().map_or((0.0, service), |(s, rest)| (*s, rest));
        for (row, mass) in left.iter_mut().skip(self.at_poll.start).zip(&self.at_poll.p) {
            add_scaled(row, 0, mass * (1.0 - before), service);
            add_scaled(row, 0, mass * before, &[shortest]);
            add_scaled(row, 0, mass * before, rest);
        }
        left
    }
}

fn push(to: Option<&mut Counts>, n: usize, p: f64) {
    let Some(to) = to else { return };
    if p <= SMALL {
        return;
    }
    if to.p.is_empty() {
        to.start = n;
    }
    to.p.resize(n - to.start, 0.0);
    to.p.push(p);
}

/// Positions in the queue of the packets of a poll.
struct Places {
    /// Of those that come when the poll has left nothing: by number of full batches before it, as far as
    /// there are any, then by bin of what is left of the service.
    after_empty: Vec<Vec<f64>>,
    /// Those that come when it has left packets.
    after_backlog: Option<Backlog>,
    /// Largest batch β and capacity L.
    batch: usize,
    queue: usize,
    /// By bin, then by place from 1 on, as far as a packet's own batch may not be full.
    near: Vec<Vec<f64>>,
    /// Packets by number of full batches before them, exactly.
    counts: Vec<f64>,
    /// Residual service summed over accepted packets, in slots.
    left: f64,
}

/// Packets that come when a poll has left others behind.
struct Backlog {
    /// By j, then by bin of what is left of the service: the j-th packet comes then.
    left: Vec<Vec<f64>>,
    /// Probabilities that a poll leaves at least one packet and fewer than so many.
    fewer: Vec<f64>,
}

impl Backlog {
    /// The probability that a poll leaves so many that the j-th packet has `c` full batches before it.
    fn weight(&self, places: &Places, c: usize, j: usize) -> f64 {
        let (batch, most) = (places.batch, places.queue.saturating_sub(j));
        let from = (c * batch + 1).saturating_sub(j).max(1);
        let to = ((c + 1) * batch).saturating_sub(j).min(most);
        let at = |y: usize| self.fewer.get(y.min(self.fewer.len() - 1)).copied().unwrap_or(0.0);
        if to >= from { (at(to + 1) - at(from)).max(0.0) } else { 0.0 }
    }

    /// The numbers of packets of which the last may have so many full batches before it.
    fn packets(places: &Places, c: usize, most: usize) -> Range<usize> {
        // Behind a queue that is full but for a batch, the first one; behind a single packet, the last.
        let least = (c * places.batch + 1 + places.batch).saturating_sub(places.queue).max(1);
        least..most.min((c + 1) * places.batch)
    }
}

impl Places {
    fn new(
        t: &Tables<'_>,
        start: Start,
        rows: &[Counts],
        queue_pmf: &[f64],
        near: usize,
        flow: &Flow,
        left: Option<f64>,
    ) -> Self {
        let (batch, queue) = (t.model.parameters.batch, t.model.parameters.queue);
        let blocks = queue.div_ceil(batch);
        let mut places = Self {
            after_empty: Vec::new(),
            after_backlog: None,
            batch,
            queue,
            near: vec![vec![0.0; (near * batch).min(queue) + 1]; t.bins],
            counts: vec![0.0; blocks],
            left: 0.0,
        };
        places.add_after_empty(t, rows, queue_pmf);
        places.add_after_backlog(t, rows, queue_pmf);
        places.left = if start == Start::Renewal {
            residual::renewal(t.model, queue_pmf)
        } else {
            let (all, lost) = residual::equilibrium(t.model, queue_pmf, flow);
            // Accepted packets are taken to have the same share of all residuals whatever the start.
            left.unwrap_or(all) * (1.0 - lost / all).max(0.0)
        };
        places
    }

    /// Packets that come when the poll has left nothing in the queue: the j-th of them has place j.
    fn add_after_empty(&mut self, t: &Tables<'_>, rows: &[Counts], queue_pmf: &[f64]) {
        let (batch, queue) = (t.model.parameters.batch, t.model.parameters.queue);
        for (q, row) in queue_pmf.iter().zip(rows) {
            for (j, more) in row.tail().iter().enumerate().take(queue + 1).skip(1) {
                if let Some(place) = self.counts.get_mut((j - 1) / batch) {
                    *place += q * more;
                }
            }
        }
        let mixture: Vec<(f64, &Pmf)> = queue_pmf.iter().copied().zip(&t.model.services).collect();
        let left = t.left(&t.binned(&mixture));
        for (j, row) in left.iter().enumerate().skip(1) {
            let block = (j - 1) / batch;
            if block < self.counts.len() {
                self.after_empty.resize(self.after_empty.len().max(block + 1), vec![0.0; t.bins]);
                self.after_empty.get_mut(block).into_iter().for_each(|to| add_scaled(to, 0, 1.0, row));
            }
            for (near, p) in self.near.iter_mut().zip(row) {
                if let Some(place) = near.get_mut(j) {
                    *place += p;
                }
            }
        }
    }

    /// Packets that come when the poll has left packets in the queue.
    fn add_after_backlog(&mut self, t: &Tables<'_>, rows: &[Counts], queue_pmf: &[f64]) {
        let batch = self.batch;
        let behind: &[f64] = queue_pmf.get(batch..).unwrap_or_default();
        if behind.iter().skip(1).sum::<f64>() < SMALL {
            return;
        }
        let Some((service, row)) = t.model.services.last().zip(rows.last()) else { return };
        let sum = behind.iter().skip(1).scan(0.0, |sum, q| {
            *sum += q;
            Some(*sum)
        });
        let fewer: Vec<f64> = [0.0, 0.0].into_iter().chain(sum).collect();
        let backlog = Backlog { left: t.left(&t.binned(&[(1.0, service)])), fewer };
        let tail = row.tail();
        let mut counts = std::mem::take(&mut self.counts);
        for (c, count) in counts.iter_mut().enumerate() {
            let packets = Backlog::packets(self, c, tail.len());
            let more = packets.map(|j| backlog.weight(self, c, j) * tail.get(j).copied().unwrap_or(0.0));
            *count += more.sum::<f64>();
        }
        self.counts = counts;
        let left = &backlog.left;
        for (g, near) in self.near.iter_mut().enumerate() {
            let column: Vec<f64> =
                left.iter().skip(1).map(|row| row.get(g).copied().unwrap_or(0.0)).collect();
            let Some(first) = column.iter().position(|p| *p > SMALL) else { continue };
            let last = column.iter().rposition(|p| *p > SMALL).unwrap_or(first);
            let column = column.get(first..=last).unwrap_or_default();
            for (y, q) in behind.iter().enumerate().take(near.len()).skip(1) {
                add_scaled(near, y + 1 + first, *q, column);
            }
        }
        self.after_backlog = Some(backlog);
    }

    /// By bin of what is left of the service: the packets with so many full batches before them, nothing if
    /// they are too few to show.
    fn block(&self, c: usize) -> Vec<f64> {
        let mut block = self.after_empty.get(c).cloned().unwrap_or_default();
        if let Some(backlog) = &self.after_backlog {
            for j in Backlog::packets(self, c, backlog.left.len()) {
                let weight = backlog.weight(self, c, j);
                if let Some(left) = backlog.left.get(j).filter(|_| weight > 0.0) {
                    block.resize(block.len().max(left.len()), 0.0);
                    add_scaled(&mut block, 0, weight, left);
                }
            }
        }
        if block.iter().sum::<f64>() < SMALL { Vec::new() } else { block }
    }

    /// Slots that all packets accepted in a poll wait together.
    fn mean_wait(&self, full: f64) -> f64 {
        let behind: f64 = self.counts.iter().enumerate().map(|(c, n)| c as f64 * n).sum();
        self.left + behind * full
    }
}

/// By number of full batches, from none on, the packets that come while these are served, up to a batch: as
/// long as that many may leave a packet's own batch smaller than full.
fn during_full(rows: &[Counts], batch: usize, blocks: usize) -> Vec<Counts> {
    let mut during = vec![Counts { start: 0, p: vec![1.0], beyond: 0.0 }];
    let Some(full) = rows.last().map(After::new) else { return during };
    while during.len() < blocks.min((NEAR / batch).max(2)) {
        let Some(before) = during.last() else { break };
        let p = full.join(&before.p, batch);
        if p.iter().take(batch).sum::<f64>() < SELDOM {
            break;
        }
        during.push(Counts { start: 0, p, beyond: 0.0 });
    }
    during
}

/// The sojourn, without the full batches before them, of packets whose own batch may not be full: by number
/// of full batches, which are fewer than `during` has entries.
fn own_batch(t: &Tables<'_>, places: &Places, during: &[Counts]) -> Vec<Vec<f64>> {
    let (batch, queue) = (t.model.parameters.batch, t.model.parameters.queue);
    // By size of the own batch, then by bin of what is left of the service.
    let mut sizes = vec![vec![vec![0.0; t.bins]; batch + 1]; during.len()];
    let during: Vec<After<'_>> = during.iter().map(After::new).collect();
    for (g, (near, after)) in places.near.iter().zip(&t.after).enumerate() {
        let after = After::new(after);
        for (c, (by_size, more)) in sizes.iter_mut().zip(&during).enumerate() {
            let here = near.iter().skip(c * batch + 1).take(batch).copied();
            let at: Vec<f64> = std::iter::once(0.0).chain(here).collect();
            if at.iter().sum::<f64>() < SMALL {
                continue;
            }
            // Those that come later find no more room than the queue has behind the full batches. Once one of
            // these has left, there is room for a batch.
            let mut own = after.join(&at, batch.min(queue.saturating_sub(c * batch)));
            if c > 0 {
                own = more.join(&own, batch);
            }
            for (row, p) in by_size.iter_mut().zip(&own) {
                if let Some(place) = row.get_mut(g) {
                    *place += p;
                }
            }
        }
    }
    let sojourn = |by_size: &Vec<Vec<f64>>| {
        let mut sojourn = Vec::new();
        for (mass, service) in by_size.iter().zip(&t.model.services) {
            if mass.iter().sum::<f64>() > SMALL {
                add(&mut sojourn, &convolve(mass, &t.binned(&[(1.0, service)])));
            }
        }
        sojourn
    };
    sizes.iter().map(sojourn).collect()
}

/// Packets that come after others, and the probabilities of at least so many, which is what makes a batch
/// full.
struct After<'a> {
    counts: &'a Counts,
    tail: Vec<f64>,
}

impl<'a> After<'a> {
    fn new(counts: &'a Counts) -> Self {
        Self { counts, tail: counts.tail() }
    }

    /// Places plus these packets, at most so many.
    fn join(&self, at: &[f64], most: usize) -> Vec<f64> {
        let mut out = vec![0.0; most + 1];
        for (k, p) in at.iter().enumerate().filter(|(_, p)| **p > SMALL) {
            if let Some((full, less)) = out.split_last_mut() {
                add_scaled(less, k + self.counts.start, *p, &self.counts.p);
                *full += p * self.tail.get(most.saturating_sub(k)).copied().unwrap_or(0.0);
            }
        }
        out
    }
}

/// Adds `by` times `what` to the places from `from` on, as far as there are any.
fn add_scaled(to: &mut [f64], from: usize, by: f64, what: &[f64]) {
    let to = to.get_mut(from..).unwrap_or_default();
    to.iter_mut().zip(what).for_each(|(place, p)| *place += by * p);
}

fn add(to: &mut Vec<f64>, what: &[f64]) {
    if to.len() < what.len() {
        to.resize(what.len(), 0.0);
    }
    to.iter_mut().zip(what).for_each(|(a, b)| *a += b);
}

/// The distribution of a sum; ends below [`SMALL`] squared are left out.
fn convolve(a: &[f64], b: &[f64]) -> Vec<f64> {
    let mut out = vec![0.0; (a.len() + b.len()).saturating_sub(1)];
    let first = b.iter().position(|p| *p > 0.0).unwrap_or(b.len());
    let b = b.get(first..).unwrap_or_default();
    for (i, x) in a.iter().enumerate().filter(|(_, x)| **x > SMALL * SMALL) {
        add_scaled(&mut out, i + first, *x, b);
    }
    out
}
