//! The threads that run the analyses: the caller's alone, or further ones too.
//!
//! An analysis reads every block, in order, and nothing else; so it makes no difference to the results which
//! thread runs it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use crate::block::Block;
use crate::config::Config;
use crate::distances::Distances;
use crate::trains::Trains;

/// Rows a block: few enough for the first-level cache when analyses run one after the other; enough to make
/// the hand-over to other threads cheap.
const ROWS_ALONE: usize = 512;
const ROWS_SHARED: usize = 4096;
/// Blocks that may wait for a thread before the caller waits for it.
const BACKLOG: usize = 16;

#[derive(Debug)]
pub(crate) enum Analysis {
    Distances(Box<Distances>),
    Trains(Box<Trains>),
}

impl Analysis {
    fn block(&mut self, block: &Block) {
        match self {
            Self::Distances(analysis) => analysis.block(block),
            Self::Trains(analysis) => analysis.block(block),
        }
    }
}

/// Analyses with their place in the results.
type Analyses = Vec<(usize, Analysis)>;

#[derive(Debug)]
struct Worker {
    blocks: SyncSender<Arc<Block>>,
    thread: JoinHandle<Analyses>,
}

#[derive(Debug)]
pub(crate) struct Workers {
    alone: Analyses,
    workers: Vec<Worker>,
    /// Blocks that threads may still be reading, the oldest first.
    lent: std::collections::VecDeque<Arc<Block>>,
    rows: usize,
}

impl Workers {
    /// Starts the threads that the configuration asks for; analyses whose thread can't be started stay with
    /// the caller.
    pub(crate) fn new(config: &Config, burst: u16) -> Self {
        let mut groups: Vec<Analyses> = Vec::new();
        let threads = (config.threads - 1).min(1 + config.windows_ns.len());
        groups.resize_with(threads.max(1), Vec::new);
        // The distances cost as much as the windows together, so they get a thread of their own where there
        // is one.
        let windows = config.windows_ns.iter().map(|w| Analysis::Trains(Box::new(Trains::new(*w, burst))));
        let distances = Analysis::Distances(Box::new(Distances::new(&config.switch_batches)));
        let shared_from = usize::from(threads > 1);
        for (place, analysis) in std::iter::once(distances).chain(windows).enumerate() {
            let group = match place {
                0 => 0,
                place => shared_from + (place - 1) % (groups.len() - shared_from),
            };
            if let Some(group) = groups.get_mut(group) {
                group.push((place, analysis));
            }
        }
        let mut all =
            Self { alone: Vec::new(), workers: Vec::new(), lent: Default::default(), rows: ROWS_ALONE };
        for analyses in groups {
            if threads == 0 {
                all.alone.extend(analyses);
            } else {
                all.start(analyses);
            }
        }
        if !all.workers.is_empty() {
            all.rows = ROWS_SHARED;
        }
        all
    }

    fn start(&mut self, analyses: Analyses) {
        let (blocks, incoming) = sync_channel::<Arc<Block>>(BACKLOG);
        // The analyses travel by channel, so that they come back should the thread not start.
        let (hand, handed) = sync_channel::<Analyses>(1);
        let thread = Builder::new().name("analyze".into()).spawn(move || work(&handed, &incoming));
        match thread {
            Ok(thread) => {
                if let Err(back) = hand.send(analyses) {
                    self.alone.extend(back.0);
                }
                self.workers.push(Worker { blocks, thread });
            }
            Err(_) => self.alone.extend(analyses),
        }
    }

    /// An empty block, to be filled up to [`Workers::rows`] rows, one more at most.
    pub(crate) fn empty_block(&self) -> Block {
        Block { rows: Vec::with_capacity(self.rows + 1), flows: 0 }
    }

    /// The analyses, in the order of the configuration; None if other threads have them.
    pub(crate) fn here(&mut self) -> Option<impl Iterator<Item = &mut Analysis>> {
        self.workers.is_empty().then(|| self.alone.iter_mut().map(|(_, analysis)| analysis))
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Runs all analyses over the block, which is empty afterwards.
    pub(crate) fn run(&mut self, block: &mut Block) {
        for (_, analysis) in &mut self.alone {
            analysis.block(block);
        }
        if !self.workers.is_empty() {
            let replacement = self.recycled();
            let full = Arc::new(std::mem::replace(block, replacement));
            for worker in &self.workers {
                // Fails only when the thread has panicked, which `finish` passes on.
                let _ = worker.blocks.send(Arc::clone(&full));
            }
            self.lent.push_back(full);
        }
        block.rows.clear();
    }

    /// The oldest block that was lent, if no thread reads it any more, or a new one.
    fn recycled(&mut self) -> Block {
        if let Some(oldest) = self.lent.pop_front() {
            match Arc::try_unwrap(oldest) {
                Ok(block) => return block,
                Err(busy) => self.lent.push_front(busy),
            }
        }
        self.empty_block()
    }

    /// Waits for the threads; gives the analyses back: the distances, and the windows in the order of the
    /// configuration.
    ///
    /// # Panics
    /// Passes on a panic of a thread.
    pub(crate) fn finish(self) -> (Option<Distances>, Vec<Trains>) {
        let mut analyses = self.alone;
        for Worker { blocks, thread } in self.workers {
            drop(blocks);
            match thread.join() {
                Ok(back) => analyses.extend(back),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        analyses.sort_by_key(|(place, _)| *place);
        let (mut distances, mut trains) = (None, Vec::new());
        for (_, analysis) in analyses {
            match analysis {
                Analysis::Distances(analysis) => distances = Some(*analysis),
                Analysis::Trains(analysis) => trains.push(*analysis),
            }
        }
        (distances, trains)
    }
}

fn work(handed: &Receiver<Analyses>, incoming: &Receiver<Arc<Block>>) -> Analyses {
    let mut analyses = handed.recv().unwrap_or_default();
    for block in incoming {
        for (_, analysis) in &mut analyses {
            analysis.block(&block);
        }
    }
    analyses
}
