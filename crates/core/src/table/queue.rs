//! Lists through the entries of a table: which of them has been in a list longest.
//!
//! The links stand in the entries' own values, so that a list takes no memory beside the table, and to add,
//! to take out and to ask for the first are a few writes each, however many entries there are.

use super::{Key, NONE, Table};

/// The neighbours of an entry in the list that it is in.
#[derive(Clone, Copy, Debug)]
pub struct Links {
    before: u32,
    behind: u32,
}

impl Default for Links {
    fn default() -> Self {
        Self { before: NONE, behind: NONE }
    }
}

/// A value that can be in one list at a time.
pub trait Linked: Copy {
    /// Its neighbours.
    fn links(&mut self) -> &mut Links;
}

/// A list of entries of one table, in the order in which they were added.
///
/// ```
/// use slipstream_core::table::{Full, Linked, Links, Queue, Table};
/// use slipstream_core::time::Nanos;
///
/// #[derive(Clone, Copy)]
/// struct Connection {
///     links: Links,
/// }
///
/// impl Linked for Connection {
///     fn links(&mut self) -> &mut Links {
///         &mut self.links
///     }
/// }
///
/// let (mut table, mut unanswered) = (Table::<u64, Connection>::new(16, 1), Queue::default());
/// let mut ids = Vec::new();
/// for key in [10, 20, 30] {
///     let new = Connection { links: Links::default() };
///     let id = table.insert(key, table.hash(&key), new, Nanos::MAX)?;
///     unanswered.push(&mut table, id);
///     ids.push(id);
/// }
/// // The first one is answered; the second one has waited longest now.
/// unanswered.take_out(&mut table, ids[0]);
/// assert_eq!((unanswered.first(), unanswered.len()), (Some(ids[1]), 2));
/// # Ok::<(), Full>(())
/// ```
#[derive(Debug)]
pub struct Queue {
    first: u32,
    last: u32,
    len: u32,
}

impl Default for Queue {
    fn default() -> Self {
        Self { first: NONE, last: NONE, len: 0 }
    }
}

impl Queue {
    /// Entries in the list.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Returns true if it has no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The entry that has been in the list longest.
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Adds an entry of `table` that is in no list.
    pub fn push<K: Key, V: Linked>(&mut self, table: &mut Table<K, V>, id: u32) {
        let Some(value) = table.get_mut(id) else { return };
        *value.links() = Links { before: self.last, behind: NONE };
        match table.get_mut(self.last) {
            Some(last) => last.links().behind = id,
            None => self.first = id,
        }
        self.last = id;
        self.len += 1;
    }

    /// Takes out an entry of `table` that is in this list.
    pub fn take_out<K: Key, V: Linked>(&mut self, table: &mut Table<K, V>, id: u32) {
        let Some(value) = table.get_mut(id) else { return };
        let Links { before, behind } = core::mem::take(value.links());
        match table.get_mut(before) {
            Some(value) => value.links().behind = behind,
            None => self.first = behind,
        }
        match table.get_mut(behind) {
            Some(value) => value.links().before = before,
            None => self.last = before,
        }
        self.len = self.len.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::time::Nanos;

    impl Linked for Links {
        fn links(&mut self) -> &mut Links {
            self
        }
    }

    proptest! {
        /// Against two deques: entries go from one to the other, and out.
        #[test]
        fn equals_deques(ops in proptest::collection::vec((0..20_u64, 0..3_usize), 1..200)) {
            let mut table: Table<u64, Links> = Table::new(20, 1);
            let ids: Vec<u32> = (0..20)
                .map(|n| table.insert(n, table.hash(&n), Links::default(), Nanos::MAX).unwrap())
                .collect();
            let mut queues = [Queue::default(), Queue::default()];
            let mut twins = [VecDeque::new(), VecDeque::new()];
            for (n, to) in ops {
                let id = ids[n as usize];
                for (queue, twin) in queues.iter_mut().zip(&mut twins) {
                    if twin.contains(&id) {
                        twin.retain(|other| *other != id);
                        queue.take_out(&mut table, id);
                    }
                }
                if let (Some(queue), Some(twin)) = (queues.get_mut(to), twins.get_mut(to)) {
                    queue.push(&mut table, id);
                    twin.push_back(id);
                }
                for (queue, twin) in queues.iter().zip(&twins) {
                    prop_assert_eq!(queue.first(), twin.front().copied());
                    prop_assert_eq!(queue.len() as usize, twin.len());
                    prop_assert_eq!(queue.is_empty(), twin.is_empty());
                }
            }
        }
    }
}
