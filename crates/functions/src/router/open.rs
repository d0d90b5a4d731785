//! Open questions about neighbours that were never known: how many there may be, and which of them makes
//! room.

use std::collections::VecDeque;
use std::net::IpAddr;

use super::neighbours::{Neighbour, Neighbours, State};
use crate::RateLimiter;
use slipstream_core::time::Nanos;

/// Unknown neighbours that are asked for on a link at one time.
pub(super) const OPEN: u32 = 256;

/// The open questions of a link.
#[derive(Debug)]
pub(super) struct Link {
    /// In the order in which they were asked first, with their serials: some are closed already.
    pub(super) order: VecDeque<(u32, u32)>,
    open: u32,
    limiter: RateLimiter,
}

impl Link {
    /// A link with no open questions, for this many a second.
    pub(super) fn new(rate: u64) -> Self {
        Self { order: VecDeque::new(), open: 0, limiter: RateLimiter::new(rate, OPEN.into()) }
    }
}

impl Neighbours {
    /// A place for the question about a neighbour; none where too many have been asked for of late.
    #[inline(never)]
    pub(super) fn open(&mut self, port: u8, address: IpAddr, now: Nanos) -> Option<u32> {
        let link = self.links.get_mut(usize::from(port))?;
        if !link.limiter.allow(1, now) {
            self.counters.limited += 1;
            return None;
        }
        if link.open >= OPEN {
            self.displace(port);
        }
        let id = self.insert(port, address, true, Nanos::MAX)?;
        self.serial = self.serial.wrapping_add(1);
        if let Some(neighbour) = self.table.get_mut(id) {
            neighbour.serial = self.serial;
        }
        let link = self.links.get_mut(usize::from(port))?;
        link.open += 1;
        link.order.push_back((id, self.serial));
        Some(id)
    }

    /// Gives up the oldest open question of a link.
    fn displace(&mut self, port: u8) {
        while let Some((id, serial)) = self.links.get_mut(usize::from(port)).and_then(|l| l.order.pop_front())
        {
            let oldest = |n: &&Neighbour| n.open && n.serial == serial;
            let Some(state) = self.table.get(id).filter(oldest).map(|n| n.state) else { continue };
            if let State::Asked(queue) = state {
                let frames = self.release(queue);
                self.displaced.extend(frames);
            }
            self.remove(id);
            self.counters.displaced += 1;
            return;
        }
    }

    /// A neighbour gives back its place for an open question, if it has one, and takes one of the others.
    pub(super) fn close(&mut self, id: u32) {
        let Some(neighbour) = self.table.get_mut(id).filter(|n| n.open) else { return };
        neighbour.open = false;
        self.kept += 1;
        let port = self.name(id).map_or(0, |(port, _)| port);
        if let Some(link) = self.links.get_mut(usize::from(port)) {
            link.open -= 1;
        }
    }

    /// Notes the place of an open question in the order of those of its link.
    pub(super) fn note_open(&mut self, id: u32) {
        let Some((port, _)) = self.name(id) else { return };
        let Self { table, links, .. } = self;
        let Some(link) = links.get_mut(usize::from(port)) else { return };
        let is_open =
            |(id, serial): &(u32, u32)| table.get(*id).is_some_and(|n| n.open && n.serial == *serial);
        // Answers come in any order: what is closed is taken out now and then.
        if link.order.len() >= 4 * OPEN as usize {
            link.order.retain(is_open);
        }
        if let Some(neighbour) = table.get(id).filter(|n| n.open) {
            link.order.push_back((id, neighbour.serial));
        }
    }
}
