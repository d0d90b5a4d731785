//! Room for new connections: which one is given up for another when the table is full.
//!
//! Connections are of three classes, as Linux has them, each with a list in the order in which connections
//! came into it. A flood of packets that begin connections fills the table with those that nobody answered,
//! or, where the host that is flooded answers, with those that went no further: these make room, the oldest
//! first. A connection of which both ends showed that they are there stays.

use super::super::tcp_state::TcpState;
use super::{Connection, Tracked, is_tcp};
use slipstream_core::table::{Full, Key, Linked, Links, Queue, Table};
use slipstream_core::time::{Nanos, SECOND};
use slipstream_wire::protocol::UDP;

/// Classes of connections by the evidence of their ends, in the order in which connections are displaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Packets went one way only.
    #[default]
    Unanswered,
    /// Packets went both ways, which takes no more than an answer to a forged source.
    Answered,
    /// Linux's ASSURED: TCP after the acknowledgement that ends the handshake, until it is closed; UDP that
    /// goes on two seconds after its first packet and was answered. Never ICMP.
    Assured,
}

impl Class {
    /// All classes.
    pub const ALL: [Self; 3] = [Self::Unanswered, Self::Answered, Self::Assured];

    /// Their names.
    pub const NAMES: [&'static str; 3] =
        [Self::Unanswered.name(), Self::Answered.name(), Self::Assured.name()];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unanswered => "unanswered",
            Self::Answered => "answered",
            Self::Assured => "assured",
        }
    }
}

/// Age of a UDP connection from which on it is assured, in nanoseconds.
const STREAM: u64 = 2 * SECOND;

/// An answer that takes longer than this, in nanoseconds, is not waited for (a SYN is sent again after 1 s
/// and 3 s, RFC 6298).
const PATIENCE: u64 = 3 * SECOND;

/// One in so many entries is kept for connections that wait for their first answer, while there are answered
/// ones to displace: else a flood that is answered at once would displace every connection whose answer takes
/// longer.
const WAITING: u32 = 16;

impl Linked for Connection {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl Connection {
    /// Its class after a packet at `now` that found it in the state `before`.
    #[inline]
    pub(super) fn class_after(&self, packet: &Tracked, before: TcpState, now: Nanos) -> Class {
        if !self.replied {
            return Class::Unanswered;
        }
        if is_tcp(packet) {
            return match (before, self.tcp) {
                (_, TcpState::TimeWait | TcpState::Close) => Class::Answered,
                (TcpState::SynReceived | TcpState::Established, TcpState::Established) => Class::Assured,
                _ => self.class.max(Class::Answered),
            };
        }
        if packet.key.protocol() == UDP && now.0.saturating_sub(self.opened.0) > STREAM {
            return Class::Assured;
        }
        self.class.max(Class::Answered)
    }
}

/// The connections of one IP version.
#[derive(Debug)]
pub(super) struct Connections<K> {
    pub(super) table: Table<K, Connection>,
    /// One a class.
    queues: [Queue; Class::ALL.len()],
    limit: u32,
}

impl<K: Key> Connections<K> {
    pub(super) fn new(limit: u32, seed: u64) -> Self {
        Self { table: Table::new(limit, seed), queues: Default::default(), limit }
    }

    /// Memory that so many connections take, in bytes, piece by piece.
    pub(super) fn memory(limit: u32) -> [u64; 3] {
        Table::<K, Connection>::memory(limit)
    }

    fn queue(&mut self, class: Class) -> (&mut Table<K, Connection>, Option<&mut Queue>) {
        (&mut self.table, self.queues.get_mut(class as usize))
    }

    /// Adds a connection, the youngest of its class.
    pub(super) fn insert(&mut self, key: K, hash: u64, new: Connection, deadline: Nanos) -> Result<(), Full> {
        let id = self.table.insert(key, hash, new, deadline)?;
        if let (table, Some(queue)) = self.queue(new.class) {
            queue.push(table, id);
        }
        Ok(())
    }

    /// Takes a connection out.
    pub(super) fn remove(&mut self, id: u32) {
        let Some(class) = self.table.get(id).map(|c| c.class) else { return };
        if let (table, Some(queue)) = self.queue(class) {
            queue.take_out(table, id);
        }
        self.table.remove(id);
    }

    /// Makes a connection the youngest of another class.
    #[inline(never)]
    pub(super) fn reclass(&mut self, id: u32, to: Class) {
        let Some(from) = self.table.get_mut(id).map(|c| std::mem::replace(&mut c.class, to)) else { return };
        if let (table, Some(queue)) = self.queue(from) {
            queue.take_out(table, id);
        }
        if let (table, Some(queue)) = self.queue(to) {
            queue.push(table, id);
        }
    }

    fn oldest(&self, class: Class) -> Option<(u32, Nanos)> {
        let id = self.queues.get(class as usize)?.first()?;
        Some((id, self.table.get(id)?.opened))
    }

    /// The connection that makes room, and its class. Assured ones only where `early_drop` says so.
    fn victim(&self, now: Nanos, early_drop: bool) -> Option<(u32, Class)> {
        let waiting = self.queues.first().map_or(0, Queue::len);
        let class = match (self.oldest(Class::Unanswered), self.oldest(Class::Answered)) {
            (Some((_, unanswered)), Some((_, answered))) => {
                let patient =
                    waiting <= self.limit / WAITING && now.0.saturating_sub(unanswered.0) < PATIENCE;
                if patient && answered < unanswered { Class::Answered } else { Class::Unanswered }
            }
            (Some(_), None) => Class::Unanswered,
            (None, Some(_)) => Class::Answered,
            (None, None) if early_drop => Class::Assured,
            (None, None) => return None,
        };
        Some((self.oldest(class)?.0, class))
    }

    /// Gives up a connection where the table is full; its class, if there was one to give up.
    pub(super) fn make_room(&mut self, now: Nanos, early_drop: bool) -> Option<Class> {
        if !self.table.is_full() {
            return None;
        }
        let (id, class) = self.victim(now, early_drop)?;
        self.remove(id);
        Some(class)
    }

    /// Takes out connections whose time has passed, after at most `visits` looks; how many.
    pub(super) fn expire(&mut self, now: Nanos, mut visits: u32) -> u64 {
        let mut expired = 0;
        while let Some(id) = self.table.next_due(now, &mut visits) {
            self.remove(id);
            expired += 1;
        }
        expired
    }
}
