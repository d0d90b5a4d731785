//! One trace, analysed by several threads at once, each a section of it from one record to another.
//!
//! The first section begins the trace: an [`Analyzer`] takes it as it would take all of the trace. Of a later
//! one, its thread counts what doesn't depend on the packets before, and keeps what does: the first packet of
//! each flow; the first packets of all, until it no longer matters to a holding window what was held before
//! (see [`stretch`](crate::stretch)); and two bytes a packet and sequence for the batches of flow switches,
//! which begin where those of the section before end. The analyzer takes the sections in their order
//! ([`append`]), and is then as if it had seen every packet.
//!
//! A trace of which a flow fills train after train without a pause can't be analysed like that: it always
//! matters where the first one began. That is noticed early.

mod append;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use slipstream_wire::LinkType;

use crate::analyzer::{Acknowledged, Analyzer};
use crate::config::{Config, ConfigError};
use crate::flows::FlowTable;
use crate::partial::{Partial, Totals};
use crate::stretch::{Note, Recorded};

pub(crate) use append::Numbers;

/// Packets that a section keeps, of 24 bytes each, before it gives up.
const MOST_KEPT: usize = 1 << 18;

/// Later packets of a trace, counted as far as the ones before don't matter.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) totals: Totals,
    /// Time of the first record.
    pub(crate) opening: u64,
    /// The latest time.
    pub(crate) clock: u64,
    pub(crate) table: FlowTable,
    /// By the flow that TCP packets without ports share with fragments: the flow of these packets alone.
    pub(crate) portless: HashMap<u32, u32>,
    /// By flow, its first and its latest TCP packet.
    pub(crate) acknowledged: [Vec<Acknowledged>; 2],
    pub(crate) recorded: Recorded,
}

/// Takes the packets of one section.
#[derive(Debug)]
pub struct SectionAnalyzer<'a> {
    analyzer: Analyzer,
    /// Time of the first record.
    opening: Option<u64>,
    stop: &'a AtomicBool,
}

impl SectionAnalyzer<'_> {
    /// Takes the next packet: see [`Analyzer::packet`].
    #[inline]
    pub fn packet(&mut self, time_ns: u64, link: LinkType, original_len: u32, data: &[u8]) {
        self.opening.get_or_insert(time_ns);
        self.analyzer.packet(time_ns, link, original_len, data);
    }

    /// Returns true if further packets are of no use: this section or another one can't be joined with those
    /// before.
    #[must_use]
    pub fn gives_up(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.analyzer.keeping() > MOST_KEPT
    }
}

/// A section that was read.
enum Made {
    First(Box<Analyzer>),
    Later(Box<Section>),
}

/// The sections read so far, and those of them that are joined.
#[derive(Default)]
struct Joined {
    whole: Option<Box<Analyzer>>,
    waiting: BTreeMap<usize, Made>,
    /// The section that is joined next.
    next: usize,
    /// A thread joins.
    busy: bool,
}

struct Line<E> {
    config: Config,
    sections: usize,
    claimed: AtomicUsize,
    stop: AtomicBool,
    joined: Mutex<Joined>,
    failed: Mutex<Option<E>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Analyses a trace in so many sections, of which [`Config::threads`] threads, the caller's included, read
/// one at a time each. `read` reads the section of a number (from 0) into what it is given, all of it, and
/// returns true; false, or an end where [`SectionAnalyzer::gives_up`], says that the trace must be read in
/// one piece. The result is, bit for bit, that of an [`Analyzer`] that takes all packets in order; None if
/// the trace must be read in one piece.
///
/// ```
/// use slipstream_trace::{Config, ConfigError, analyze_sections};
/// use slipstream_wire::LinkType;
///
/// let times = [[1_000, 2_000], [3_000, 4_000]];
/// let partial = analyze_sections(&Config { threads: 2, ..Config::default() }, 2, |number, section| {
///     for time in times[number] {
///         section.packet(time, LinkType::Ethernet, 60, &[0; 60]);
///     }
///     Ok::<_, ConfigError>(true)
/// })?;
/// assert_eq!(partial.map(|partial| partial.report().records), Some(4));
/// # Ok::<(), ConfigError>(())
/// ```
///
/// # Errors
/// [`ConfigError`]; the first error of `read`.
///
/// # Panics
/// Passes on a panic of `read`.
pub fn analyze_sections<E: From<ConfigError> + Send>(
    config: &Config,
    sections: usize,
    read: impl Fn(usize, &mut SectionAnalyzer<'_>) -> Result<bool, E> + Sync,
) -> Result<Option<Partial>, E> {
    config.validate()?;
    let far = u32::from(Note::FAR);
    if sections == 0 || config.switch_batches.iter().any(|size| *size > far) {
        return Ok(None);
    }
    let line = Line {
        config: Config { threads: 1, ..config.clone() },
        sections,
        claimed: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        joined: Mutex::default(),
        failed: Mutex::new(None),
    };
    thread::scope(|scope| {
        for _ in 1..config.threads.min(sections) {
            // Without the thread its work is done by the others.
            let _ = thread::Builder::new().name("analyze".into()).spawn_scoped(scope, || line.work(&read));
        }
        line.work(&read);
    });
    let Line { joined, failed, .. } = line;
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let joined = joined.into_inner().unwrap_or_else(PoisonError::into_inner);
    let whole = joined.whole.filter(|_| joined.next == sections);
    Ok(whole.map(|analyzer| analyzer.finish()))
}

impl<E: From<ConfigError>> Line<E> {
    /// Reads sections until there are no more.
    fn work(&self, read: &impl Fn(usize, &mut SectionAnalyzer<'_>) -> Result<bool, E>) {
        while !self.stop.load(Ordering::Relaxed) {
            let number = self.claimed.fetch_add(1, Ordering::Relaxed);
            if number >= self.sections {
                break;
            }
            match self.one(number, read) {
                Ok(Some(made)) => self.join(number, made),
                Ok(None) => self.stop(),
                Err(error) => {
                    lock(&self.failed).get_or_insert(error);
                    self.stop();
                }
            }
        }
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn one(
        &self,
        number: usize,
        read: impl Fn(usize, &mut SectionAnalyzer<'_>) -> Result<bool, E>,
    ) -> Result<Option<Made>, E> {
        let config = self.config.clone();
        let analyzer = if number == 0 { Analyzer::new(config) } else { Analyzer::of_section(config) }?;
        let mut section = SectionAnalyzer { analyzer, opening: None, stop: &self.stop };
        if !read(number, &mut section)? || section.gives_up() {
            return Ok(None);
        }
        let SectionAnalyzer { analyzer, opening, .. } = section;
        Ok(Some(if number == 0 {
            Made::First(Box::new(analyzer))
        } else {
            Made::Later(Box::new(analyzer.finish_section(opening.unwrap_or(0))))
        }))
    }

    /// Joins a section, and those that waited for it.
    fn join(&self, number: usize, made: Made) {
        let mut state = lock(&self.joined);
        state.waiting.insert(number, made);
        if state.busy {
            return;
        }
        loop {
            let next = state.next;
            let Some(made) = state.waiting.remove(&next) else { break };
            let whole = state.whole.take();
            state.busy = true;
            drop(state);
            let whole = match (whole, made) {
                (_, Made::First(analyzer)) => Some(analyzer),
                (Some(mut whole), Made::Later(section)) => whole.append(*section).ok().map(|()| whole),
                (None, Made::Later(_)) => None,
            };
            state = lock(&self.joined);
            state.busy = false;
            if whole.is_none() {
                self.stop();
                break;
            }
            state.whole = whole;
            state.next += 1;
        }
    }
}
