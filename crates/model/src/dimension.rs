//! Sizing: which machine meets a target, how much load it bears, and many models at once.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::arrivals::Interarrival;
use crate::error::{Error, not_negative, positive};
use crate::model::{Model, Parameters, Solution};

/// The target that a configuration must meet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// Largest share of packets lost.
    pub p_loss: f64,
    /// Longest sojourn of 99 of 100 packets, ns; none where it doesn't matter.
    pub p99_sojourn_ns: Option<f64>,
}

impl Target {
    /// The largest share that may be lost: of any load a core with a queue serves something.
    const MOST: f64 = 0.999_999;

    /// True if a solution meets the target.
    #[must_use]
    pub fn is_met(&self, s: &Solution) -> bool {
        s.p_loss <= self.p_loss && self.p99_sojourn_ns.is_none_or(|most| s.sojourn.quantile_ns(0.99) <= most)
    }

    fn check(&self) -> Result<(), Error> {
        not_negative("the loss allowed", self.p_loss)?;
        if self.p_loss > Self::MOST {
            let what = "the loss allowed";
            return Err(Error::OutOfRange { what, value: self.p_loss, low: 0.0, high: Self::MOST });
        }
        self.p99_sojourn_ns.map_or(Ok(0.0), |ns| positive("the sojourn allowed, in ns,", ns)).map(drop)
    }
}

/// The configurations to choose from.
#[derive(Clone, Debug, PartialEq)]
pub struct Choices {
    /// Cores, each with its own queue and an even share of the packets (RSS), up to this many.
    pub cores: u32,
    /// Queue capacities L, packets.
    pub queues: Vec<usize>,
    /// Largest batches β, packets.
    pub batches: Vec<usize>,
}

/// A configuration and what it does to one core's packets.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Cores.
    pub cores: u32,
    /// Queue capacity L of each, packets.
    pub queue: usize,
    /// Largest batch β, packets.
    pub batch: usize,
    /// It meets the target.
    pub met: bool,
    /// The prediction for each core.
    pub solution: Solution,
}

/// The answer to a sizing question.
#[derive(Clone, Debug, PartialEq)]
pub struct Dimension {
    /// The choice: fewest cores, then the shortest queue, then the smallest batch that meet the target.
    pub best: Candidate,
    /// All that were considered, in order of cores, queue and batch: for one core fewer than `best` has, and
    /// for as many.
    pub considered: Vec<Candidate>,
    /// The most packets a second that one core of `best` bears within the target.
    pub max_core_pps: f64,
}

/// Solves models on several threads; results are in the order of the questions.
#[must_use]
pub fn solve_all(questions: &[Parameters], threads: usize) -> Vec<Result<Solution, Error>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(questions.len()));
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(question) = questions.get(i) else { return };
            let answer = Model::new(question.clone()).and_then(|m| m.solve());
            done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((i, answer));
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.clamp(1, questions.len().max(1)) {
            scope.spawn(work);
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|d| d.0);
    done.into_iter().map(|d| d.1).collect()
}

/// Finds the smallest machine that meets a target. Packets come every `mean` slots on all cores together;
/// `core` is any core, whose mean, queue and batch are replaced by those of each choice. Where packets would
/// come faster than its process can in these slots, a core doesn't meet the target.
///
/// # Errors
/// [`Error::Unreachable`] where nothing among the choices meets the target; those of solving, and of the
/// process of arrivals where it can't be that of any number of cores.
pub fn dimension(
    core: &Parameters,
    mean: f64,
    choices: &Choices,
    target: Target,
    threads: usize,
) -> Result<Dimension, Error> {
    target.check()?;
    positive("the number of cores", f64::from(choices.cores))?;
    positive("the mean time between packets, in slots,", mean)?;
    let mut pairs: Vec<(usize, usize)> = choices
        .queues
        .iter()
        .flat_map(|queue| choices.batches.iter().map(move |batch| (*queue, *batch)))
        .filter(|(queue, batch)| batch <= queue)
        .collect();
    pairs.sort_unstable();
    pairs.dedup();
    if pairs.is_empty() {
        return Err(Error::Unreachable("no batch fits into a queue among those to choose from".to_owned()));
    }
    let of = |cores: u32| candidates(core, mean, cores, &pairs, target, threads);
    // A process that can't be as fast as that can be slower.
    let tried = |cores: u32| if may_come(core, mean, cores) { of(cores) } else { Ok(Vec::new()) };
    // On more cores than these, packets are too rare to be computed.
    let most = choices.cores.min((Interarrival::MAX_MEAN / mean) as u32).max(1);
    let largest = pairs.iter().map(|(_, batch)| *batch).max().unwrap_or(0);
    let (at_low, at_high) = if rises(core, largest) {
        halve(most, of, tried, target)?
    } else {
        one_by_one(fewest(core, mean, largest, target), most, of, tried, target)?
    };
    let met = at_high.iter().find(|c| c.met).cloned();
    let best = met.ok_or_else(|| Error::Unreachable("none of the configurations does".to_owned()))?;
    let max_core_pps = max_rate(core, mean * f64::from(best.cores), &best, target)?;
    Ok(Dimension { best, considered: [at_low, at_high].concat(), max_core_pps })
}

/// True if no batch takes less time than a smaller one, or than a poll that finds nothing. Then a core with
/// fewer packets does no worse. Else it may: packets that are too few for the next poll to find one wait for
/// the longer poll.
fn rises(core: &Parameters, largest: usize) -> bool {
    (0..=largest).map(|size| core.service.mean_ns(size)).is_sorted()
}

/// Cores below which the packets that must not be lost are more than can be served, whatever the batches are.
fn fewest(core: &Parameters, mean: f64, largest: usize, target: Target) -> u32 {
    let most_pps = (1..=largest).map(|size| size as f64 / core.service.mean_ns(size)).fold(0.0, f64::max);
    let least = (1.0 - target.p_loss) / (mean * core.slot_ns * most_pps);
    // Rounding must not leave out a number of cores.
    (least * (1.0 - 1e-6)).ceil().max(1.0) as u32
}

/// The candidates of the fewest cores of 1 to `most` that do, where more never do worse; before them those of
/// one core fewer.
fn halve(
    most: u32,
    of: impl Fn(u32) -> Result<Vec<Candidate>, Error>,
    tried: impl Fn(u32) -> Result<Vec<Candidate>, Error>,
    target: Target,
) -> Result<(Vec<Candidate>, Vec<Candidate>), Error> {
    let (mut low, mut high) = (0, most);
    let (mut at_low, mut at_high) = (Vec::new(), of(high)?);
    if !at_high.iter().any(|c| c.met) {
        return Err(Error::Unreachable(unreachable(&at_high, target)));
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let here = tried(middle)?;
        if here.iter().any(|c| c.met) {
            (high, at_high) = (middle, here);
        } else {
            (low, at_low) = (middle, here);
        }
    }
    Ok((at_low, at_high))
}

/// The same where more cores may do worse: one number of them after the other.
fn one_by_one(
    fewest: u32,
    most: u32,
    of: impl Fn(u32) -> Result<Vec<Candidate>, Error>,
    tried: impl Fn(u32) -> Result<Vec<Candidate>, Error>,
    target: Target,
) -> Result<(Vec<Candidate>, Vec<Candidate>), Error> {
    let first = fewest.min(most);
    let mut before = if first > 1 { tried(first - 1)? } else { Vec::new() };
    for cores in first..=most {
        let here = if cores == most { of(cores)? } else { tried(cores)? };
        if here.iter().any(|c| c.met) {
            return Ok((before, here));
        }
        before = here;
    }
    let text = unreachable(&before, target);
    Err(Error::Unreachable(if most > 1 { text + "; nor do fewer cores meet it" } else { text }))
}

/// True if packets that come every `mean` slots can come to so many cores.
fn may_come(core: &Parameters, mean: f64, cores: u32) -> bool {
    core.interarrival.with_mean(mean * f64::from(cores)).is_ok()
}

/// One core of several: every so many-th packet, as RSS deals them out.
fn share(core: &Parameters, mean: f64, queue: usize, batch: usize) -> Result<Parameters, Error> {
    Ok(Parameters { queue, batch, interarrival: core.interarrival.with_mean(mean)?, ..core.clone() })
}

fn candidates(
    core: &Parameters,
    mean: f64,
    cores: u32,
    pairs: &[(usize, usize)],
    target: Target,
    threads: usize,
) -> Result<Vec<Candidate>, Error> {
    let mean = mean * f64::from(cores);
    let questions = pairs
        .iter()
        .map(|(queue, batch)| share(core, mean, *queue, *batch))
        .collect::<Result<Vec<_>, _>>()?;
    let answers = solve_all(&questions, threads);
    let candidate = |((queue, batch), answer): (&(usize, usize), Result<Solution, Error>)| {
        let solution = answer?;
        Ok(Candidate { cores, queue: *queue, batch: *batch, met: target.is_met(&solution), solution })
    };
    pairs.iter().zip(answers).map(candidate).collect()
}

fn unreachable(at_most: &[Candidate], target: Target) -> String {
    let least =
        |f: &dyn Fn(&Solution) -> f64| at_most.iter().map(|c| f(&c.solution)).fold(f64::INFINITY, f64::min);
    let cores = at_most.first().map_or(0, |c| c.cores);
    let loss = |p: f64| if p == 0.0 { "0".to_owned() } else { format!("{p:.2e}") };
    let mut text = format!(
        "with {cores} {} the least loss is {}, and {} is allowed",
        if cores == 1 { "core" } else { "cores" },
        loss(least(&|s| s.p_loss)),
        loss(target.p_loss)
    );
    if let Some(most) = target.p99_sojourn_ns {
        let shortest = least(&|s| s.sojourn.quantile_ns(0.99));
        text += &format!("; the shortest sojourn of 99 % is {shortest:.0} ns, and {most:.0} ns is allowed");
    }
    text
}

/// The most packets a second that a core bears, to a thousandth.
fn max_rate(core: &Parameters, mean: f64, best: &Candidate, target: Target) -> Result<f64, Error> {
    let met = |mean: f64| -> Result<bool, Error> {
        if !may_come(core, mean, 1) {
            return Ok(false);
        }
        let s = Model::new(share(core, mean, best.queue, best.batch)?)?.solve()?;
        Ok(target.is_met(&s))
    };
    // A mean interarrival time that is known to do, and a shorter one that doesn't.
    let mut long = mean;
    let mut short = long / 1.5;
    while met(short)? {
        long = short;
        short /= 1.5;
    }
    while long / short > 1.001 {
        let middle = (long * short).sqrt();
        if met(middle)? { long = middle } else { short = middle }
    }
    Ok(1e9 / (long * core.slot_ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ServiceTimes, Start, Variation};

    /// Of geometric interarrival times in slots of so many ns.
    fn sized(pps: f64, slot_ns: f64, p_loss: f64) -> Result<Dimension, Error> {
        let core = Parameters {
            queue: 1,
            batch: 1,
            slot_ns,
            interarrival: Interarrival::geometric(100.0)?,
            service: ServiceTimes::linear(600.0, 77.0, 100.0)?,
            variation: Variation::Poisson,
            start: Start::Equilibrium,
        };
        let choices = Choices { cores: 64, queues: vec![256], batches: vec![32] };
        dimension(&core, 1e9 / pps / slot_ns, &choices, Target { p_loss, p99_sojourn_ns: None }, 2)
    }

    /// All packets together are more than one in a slot, those of a core are not.
    #[test]
    fn slots_may_be_too_long_for_all_packets_together() {
        let [long, short] = [10.0, 2.0].map(|slot_ns| sized(200e6, slot_ns, 1e-5).unwrap());
        assert_eq!((long.best.cores, short.best.cores), (20, 20));
        assert!((long.max_core_pps / short.max_core_pps - 1.0).abs() < 0.01);
        let too_long = sized(200e6, 1000.0, 1e-5).unwrap_err().to_string();
        assert!(too_long.contains("0.32") && too_long.contains("in slots"), "{too_long}");
    }

    #[test]
    fn a_loss_of_nothing_is_told_as_nothing() {
        let target = Target { p_loss: 0.0, p99_sojourn_ns: Some(1.0) };
        let solved = sized(1e6, 10.0, 1e-5).unwrap().best;
        let solution = Solution { p_loss: 0.0, ..solved.solution.clone() };
        let text = unreachable(&[Candidate { solution, ..solved }], target);
        assert!(text.contains("least loss is 0, and 0 is allowed"), "{text}");
    }

    /// A poll of nothing that takes longer than a full batch: cores with few packets have them wait for it,
    /// so that three do what two and sixty-four don't. Each number of cores by itself says the same.
    #[test]
    fn more_cores_may_do_worse() {
        let core = Parameters {
            queue: 1,
            batch: 1,
            slot_ns: 10.0,
            interarrival: Interarrival::geometric(100.0).unwrap(),
            service: ServiceTimes::linear(600.0, 77.0, 10_000.0).unwrap(),
            variation: Variation::Poisson,
            start: Start::Equilibrium,
        };
        let (mean, target) = (1e9 / 30e6 / 10.0, Target { p_loss: 1e-5, p99_sojourn_ns: Some(9000.0) });
        let of = |cores, target| {
            dimension(&core, mean, &Choices { cores, queues: vec![512], batches: vec![64] }, target, 2)
        };
        for cores in [3, 4, 64] {
            let found = of(cores, target).unwrap();
            assert_eq!(found.best.cores, 3, "of up to {cores}");
            assert_eq!(
                found.considered.iter().map(|c| (c.cores, c.met)).collect::<Vec<_>>(),
                [(2, false), (3, true)]
            );
        }
        let alone = |cores| {
            let p = share(&core, mean * f64::from(cores), 512, 64).unwrap();
            target.is_met(&Model::new(p).unwrap().solve().unwrap())
        };
        assert_eq!(
            [1, 2, 3, 4, 12, 64].map(|cores| cores > 1 && alone(cores)),
            [false, false, true, true, false, false]
        );
        let never = of(5, Target { p99_sojourn_ns: Some(1.0), ..target }).unwrap_err().to_string();
        assert!(never.contains("with 5 cores") && never.contains("nor do fewer"), "{never}");
    }

    #[test]
    fn packets_may_be_too_rare_for_all_cores() {
        assert_eq!(sized(100.0, 10.0, 1e-5).unwrap().best.cores, 1);
    }

    #[test]
    fn a_search_for_the_highest_rate_ends() {
        assert!(sized(20e6, 10.0, 0.9).unwrap().max_core_pps > 20e6);
        for all in [1.0, 1.5, f64::NAN] {
            assert!(sized(20e6, 10.0, all).is_err());
        }
    }
}
