//! Packets that found no room in an interface's queues, which only the interface itself counts.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{Read, Seek};

/// The number of the column of packets that were dropped on their way out by an interface, behind its name.
const DROPPED: usize = 11;

/// Counts them, from when it was made on.
#[derive(Debug)]
pub(super) struct Lost {
    /// The interfaces of the network namespace that the port was opened in, with their counters; none where
    /// that can't be read.
    table: Option<File>,
    text: RefCell<Vec<u8>>,
    before: u64,
    last: Cell<u64>,
}

impl Lost {
    /// Of the interface that has this name now.
    pub(super) fn of(name: &str) -> Self {
        let table = File::open("/proc/thread-self/net/dev").ok();
        let mut lost = Self { table, text: RefCell::default(), before: 0, last: Cell::new(0) };
        lost.before = lost.read(name).unwrap_or_default();
        lost
    }

    /// The packets so far; `name` is the interface's now. Of one that is gone it is what was counted last.
    pub(super) fn count(&self, name: Option<&str>) -> u64 {
        if let Some(all) = name.and_then(|name| self.read(name)) {
            self.last.set(all.saturating_sub(self.before));
        }
        self.last.get()
    }

    fn read(&self, name: &str) -> Option<u64> {
        let mut table = self.table.as_ref()?;
        let mut text = self.text.borrow_mut();
        text.clear();
        table.rewind().ok()?;
        table.read_to_end(&mut text).ok()?;
        dropped(&String::from_utf8_lossy(&text), name)
    }
}

/// The packets that an interface has dropped on their way out.
fn dropped(table: &str, name: &str) -> Option<u64> {
    let mut lines = table.lines().filter_map(|line| line.split_once(':'));
    let (_, counters) = lines.find(|(interface, _)| interface.trim_start() == name)?;
    counters.split_ascii_whitespace().nth(DROPPED)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_is_read() {
        let table = "Inter-|   Receive                    |  Transmit\n \
                     face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo\n    \
                     lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
                     tap10:21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36\n  \
                     tap1:       0 0 0 0 0 0 0 0 0 0 0 7 0 0 0 0\n";
        let read = |name| dropped(table, name);
        assert_eq!([read("lo"), read("tap10"), read("tap1")], [Some(12), Some(32), Some(7)]);
        assert_eq!([read("tap"), read("face |bytes"), read("")], [None; 3]);
    }

    #[test]
    fn an_interface_that_is_gone_has_lost_what_it_had() {
        let lost = Lost::of("lo");
        assert!(lost.read("lo").is_some() && lost.read("no-such-if0").is_none());
        lost.last.set(5);
        assert_eq!((lost.count(None), lost.count(Some("no-such-if0"))), (5, 5));
    }
}
