//! A stream that another thread reads ahead of whoever parses it: copies from the page cache, and the work of
//! decompressors, take place beside the parsing.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use slipstream_core::clock::thread_cpu_ns;

/// Bytes of a block, besides the room at its beginning.
pub(super) const BLOCK: usize = 256 * 1024;
/// Room at the beginning of a block for a record that began in the block before.
pub(super) const ROOM: usize = 64 * 1024;
/// Blocks that are read ahead at most: 2 MiB, so that they are still in a cache when they are parsed.
const WAITING: usize = 8;

/// A block: `bytes[ROOM..end]` were read; with the reason why nothing comes behind them, if that is so.
pub(super) struct Block {
    pub(super) bytes: Vec<u8>,
    pub(super) end: usize,
    pub(super) last: Option<io::Result<()>>,
}

/// The blocks of a stream, in order.
pub(super) struct Ahead {
    blocks: Receiver<Block>,
    /// Takes blocks back, for their memory.
    back: Sender<Vec<u8>>,
    cpu_ns: Arc<AtomicU64>,
}

impl Ahead {
    /// Lets another thread read `source` from now on; gives it back where no thread can be had.
    pub(super) fn start(source: Box<dyn Read + Send>) -> Result<Self, Box<dyn Read + Send>> {
        let (give, blocks) = sync_channel(WAITING);
        let (back, spare) = channel();
        let cpu_ns = Arc::new(AtomicU64::new(0));
        let spent = Arc::clone(&cpu_ns);
        // The source travels by a channel, so that it comes back should the thread not start.
        let (hand, handed) = sync_channel::<Box<dyn Read + Send>>(1);
        let thread = thread::Builder::new().name("read-ahead".into()).spawn(move || {
            if let Ok(source) = handed.recv() {
                read(source, &give, &spare, &spent);
            }
        });
        match thread {
            Ok(_) => match hand.send(source) {
                Ok(()) => Ok(Self { blocks, back, cpu_ns }),
                Err(back) => Err(back.0),
            },
            Err(_) => Err(source),
        }
    }

    /// The next block; None once there are no more.
    pub(super) fn next(&self) -> Option<Block> {
        self.blocks.recv().ok()
    }

    /// Takes a block back.
    pub(super) fn give_back(&self, bytes: Vec<u8>) {
        // The thread has ended, and needs no more memory.
        let _ = self.back.send(bytes);
    }

    /// CPU time that the thread has taken so far, in ns.
    pub(super) fn cpu_ns(&self) -> u64 {
        self.cpu_ns.load(Ordering::Relaxed)
    }
}

/// Reads a stream to its end, or until nobody takes its blocks any more.
fn read(
    mut source: Box<dyn Read + Send>,
    give: &SyncSender<Block>,
    spare: &Receiver<Vec<u8>>,
    spent: &AtomicU64,
) {
    loop {
        let mut bytes = spare.try_recv().unwrap_or_default();
        bytes.resize(ROOM + BLOCK, 0);
        let (mut end, mut last) = (ROOM, None);
        while end < bytes.len() && last.is_none() {
            match source.read(bytes.get_mut(end..).unwrap_or_default()) {
                Ok(0) => last = Some(Ok(())),
                Ok(n) => end += n.min(bytes.len() - end),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => last = Some(Err(error)),
            }
        }
        spent.store(thread_cpu_ns(), Ordering::Relaxed);
        let over = last.is_some();
        if give.send(Block { bytes, end, last }).is_err() || over {
            return;
        }
    }
}
