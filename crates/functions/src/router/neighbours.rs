//! Who has which address on the links of a router: what ARP (RFC 826) and neighbour discovery (RFC 4861 §7)
//! find out, and the packets that wait for it.
//!
//! A neighbour is asked for when a packet first needs it, again every [`Settings::retry`] nanoseconds, and
//! given up after [`TRIES`] questions. Its answer counts for [`Settings::confirm`] nanoseconds; after that
//! the next packet still goes to the known address, but the neighbour is asked whether it is still there. So
//! it is from the beginning where an address is learned of a message that answers nothing: such a message
//! shows that the neighbour reaches the router, not that the router reaches it (RFC 4861 §7.2.3, §7.2.5).
//!
//! Memory is bounded, and somebody who sends packets to addresses that nobody has can't use up what
//! neighbours in use need (RFC 6583): neighbours that are known and those that are asked for have places of
//! their own. An open question takes none of the former; of the latter each link has [`OPEN`], and the oldest
//! question makes room for a new one. Questions about unknown addresses are limited in rate, link by link;
//! those about known ones are not. A neighbour that was confirmed of late is forgotten for no other, and one
//! that merely asked the router something only for its like.

use std::collections::VecDeque;
use std::net::IpAddr;

use slipstream_wire::WideKey;

use super::interface::Mac;
use super::open::{Link, OPEN};
use slipstream_core::frame::Frame;
use slipstream_core::table::Table;
use slipstream_core::time::Nanos;

/// Questions without an answer after which a neighbour is given up (RFC 4861 §10: MAX_UNICAST_SOLICIT).
pub(super) const TRIES: u8 = 3;
/// Factor of the confirmation time after which an unused neighbour is forgotten.
const REMEMBER: u64 = 10;

/// Bounds and times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// Known neighbours remembered.
    pub(super) capacity: u32,
    /// Links.
    pub(super) links: u32,
    /// Unknown neighbours asked for a second, on each link.
    pub(super) rate: u64,
    /// Packets that wait for one neighbour.
    pub(super) hold: usize,
    /// Validity of an answer, in ns.
    pub(super) confirm: u64,
    /// Time between two questions, in ns.
    pub(super) retry: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing is known, nobody asks.
    Unknown,
    /// Asked for; packets wait in this queue.
    Asked(u32),
    Known,
    /// Known, and asked whether that still holds.
    Probed,
    /// The settings say it.
    Fixed,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Neighbour {
    mac: Mac,
    pub(super) state: State,
    tries: u8,
    /// Asked for and never known: it has one of the places for open questions on its link.
    pub(super) open: bool,
    /// A gateway, or one of the settings: not forgotten.
    pinned: bool,
    /// One of the settings: never forgotten.
    permanent: bool,
    /// Packets went to it, or a route names it: it did more than ask for the router.
    needed: bool,
    /// The questions that belong to the present state.
    pub(super) serial: u32,
    /// Until when the answer counts.
    until: Nanos,
}

/// The state of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// Its address.
    At(Mac),
    /// Its address, and it should be asked whether that still holds.
    Doubtful(Mac),
    /// It is being asked for.
    Waits,
    /// It should be asked for: the first packet waits.
    Asks,
    /// It was forgotten in the meantime.
    Forgotten,
}

/// The weight of what a neighbour says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// It is remembered, though nobody asked for it (RFC 826: if what it sent was for us).
    New,
    /// It counts for one that is known or asked for.
    Known,
    /// It counts for one that is known at the same address: without an option that tells it (RFC 4861
    /// §7.2.5).
    Same,
    /// It counts for one that is asked for. Where another address is known that one stays (RFC 4861 §7.2.5:
    /// an advertisement without the Override flag).
    Weak,
}

/// The action that is due for a neighbour.
#[derive(Debug)]
pub(super) enum Due {
    /// To be asked again; where it is known already, at this address.
    Ask(u8, IpAddr, Option<Mac>),
    /// It gives no answer; these packets waited for it.
    Failed(u8, VecDeque<Frame>),
}

/// Counters of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) learned: u64,
    pub(super) changed: u64,
    pub(super) failed: u64,
    /// Known or learned neighbours that found no room.
    pub(super) full: u64,
    /// Open questions given up for newer ones.
    pub(super) displaced: u64,
    /// Packets whose question was one too many in this time.
    pub(super) limited: u64,
}

/// The neighbours of a router on all its links.
#[derive(Debug)]
pub(super) struct Neighbours {
    pub(super) table: Table<WideKey, Neighbour>,
    settings: Settings,
    /// Known neighbours, and others that have no place of an open question.
    pub(super) kept: u32,
    pub(super) links: Vec<Link>,
    queues: Vec<VecDeque<Frame>>,
    free: Vec<u32>,
    /// When to ask again, in the order of time: (when, who, serial).
    asking: VecDeque<(Nanos, u32, u32)>,
    pub(super) serial: u32,
    held: u64,
    /// Packets whose neighbour became known by a route, with its port and address.
    ready: Vec<(Frame, u8, Mac)>,
    /// Packets that waited for a neighbour whose question was displaced.
    pub(super) displaced: Vec<Frame>,
    pub(super) counters: Counters,
}

fn key(port: u8, address: IpAddr) -> WideKey {
    let (bits, version) = match address {
        IpAddr::V4(a) => (u128::from(a.to_bits()), 4),
        IpAddr::V6(a) => (a.to_bits(), 6),
    };
    WideKey([(bits >> 64) as u64, bits as u64, u64::from(port), version, 0, 0, 0])
}

fn named(key: &WideKey) -> (u8, IpAddr) {
    let WideKey([high, low, port, version, ..]) = *key;
    let bits = u128::from(high) << 64 | u128::from(low);
    let address = if version == 4 { IpAddr::V4((bits as u32).into()) } else { IpAddr::V6(bits.into()) };
    (port as u8, address)
}

impl Neighbours {
    /// Those that are known, and those that are asked for.
    fn places(settings: &Settings) -> u32 {
        settings.capacity + settings.links * OPEN
    }

    /// Memory that the table takes when it is made, in bytes, piece by piece.
    pub(super) fn memory(settings: &Settings) -> [u64; 3] {
        Table::<WideKey, Neighbour>::memory(Self::places(settings))
    }

    pub(super) fn new(settings: Settings, seed: u64) -> Self {
        Self {
            table: Table::new(Self::places(&settings), seed),
            kept: 0,
            links: (0..settings.links).map(|_| Link::new(settings.rate)).collect(),
            settings,
            queues: Vec::new(),
            free: Vec::new(),
            asking: VecDeque::new(),
            serial: 0,
            held: 0,
            ready: Vec::new(),
            displaced: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Packets that wait.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Neighbours in the table.
    pub(super) fn len(&self) -> u32 {
        self.table.len()
    }

    /// Neighbours that have none of the places for open questions.
    #[cfg(test)]
    pub(super) fn known(&self) -> u32 {
        self.kept
    }

    fn find(&self, port: u8, address: IpAddr) -> Option<u32> {
        let key = key(port, address);
        self.table.find(&key, self.table.hash(&key))
    }

    /// The number of a neighbour. One that is unknown gets a place for an open question; none where too many
    /// have been asked for of late.
    #[inline]
    pub(super) fn number(&mut self, port: u8, address: IpAddr, now: Nanos) -> Option<u32> {
        self.find(port, address).or_else(|| self.open(port, address, now))
    }

    /// A neighbour of which nothing is known, with or without a place for an open question.
    pub(super) fn insert(&mut self, port: u8, address: IpAddr, open: bool, deadline: Nanos) -> Option<u32> {
        let key = key(port, address);
        let new = Neighbour {
            mac: [0; 6],
            state: State::Unknown,
            tries: 0,
            open,
            pinned: false,
            permanent: false,
            needed: false,
            serial: 0,
            until: Nanos(0),
        };
        let id = self.table.insert(key, self.table.hash(&key), new, deadline).ok()?;
        self.kept += u32::from(!open);
        Some(id)
    }

    /// Takes a neighbour out of the table; nothing may wait for it any more.
    pub(super) fn remove(&mut self, id: u32) {
        self.close(id);
        if let Some(neighbour) = self.table.get_mut(id) {
            // Questions that are under way are not repeated.
            neighbour.state = State::Unknown;
        }
        if self.table.remove(id).is_some() {
            self.kept -= 1;
        }
    }

    /// Sees to it that there is a place for one more that is kept, by forgetting one whose time is up by
    /// `limit`; false where there is none.
    fn make_room(&mut self, now: Nanos, limit: Nanos) -> bool {
        let mut visits = 4;
        while let Some(id) = self.table.next_due(now, &mut visits) {
            self.remove(id);
        }
        if self.kept < self.settings.capacity {
            return true;
        }
        // Those that are pinned or asked for have no deadline.
        let limit = limit.min(Nanos(u64::MAX - 1));
        let spare = self.table.soonest().filter(|id| self.table.deadline(*id) <= limit);
        match spare {
            Some(id) => self.remove(id),
            None => self.counters.full += 1,
        }
        spare.is_some()
    }

    fn forget_at(&self, now: Nanos) -> Nanos {
        now.after(self.settings.confirm.saturating_mul(REMEMBER))
    }

    /// Neighbours that it has room for.
    pub(super) fn capacity(&self) -> u32 {
        self.settings.capacity
    }

    /// The port and address of a neighbour.
    pub(super) fn name(&self, id: u32) -> Option<(u8, IpAddr)> {
        self.table.key(id).map(named)
    }

    /// Keeps a neighbour for good, at an address that is known for good where one is given.
    pub(super) fn pin(&mut self, port: u8, address: IpAddr, mac: Option<Mac>, now: Nanos) -> Option<u32> {
        let id = match self.find(port, address) {
            Some(id) if !self.table.get(id)?.open => id,
            Some(id) if self.make_room(now, Nanos::MAX) => {
                self.close(id);
                id
            }
            None if self.make_room(now, Nanos::MAX) => self.insert(port, address, false, Nanos::MAX)?,
            _ => return None,
        };
        self.table.extend(id, Nanos::MAX);
        let neighbour = self.table.get_mut(id)?;
        (neighbour.pinned, neighbour.needed) = (true, true);
        if let Some(mac) = mac.filter(|_| !neighbour.permanent) {
            neighbour.mac = mac;
            let before = std::mem::replace(&mut neighbour.state, State::Fixed);
            if let State::Asked(queue) = before {
                // A question that nobody waits for any longer: there is something to do at once.
                self.asking.push_front((now, id, neighbour.serial));
                let frames = self.release(queue);
                self.held += frames.len() as u64;
                self.ready.extend(frames.into_iter().map(|frame| (frame, port, mac)));
            }
        }
        Some(id)
    }

    /// Takes a neighbour as known for good, whatever routes say.
    pub(super) fn fix(&mut self, port: u8, address: IpAddr, mac: Mac) -> bool {
        let id = self.pin(port, address, Some(mac), Nanos(0));
        if let Some(neighbour) = id.and_then(|id| self.table.get_mut(id)) {
            neighbour.permanent = true;
        }
        id.is_some()
    }

    /// Lets go of gateways, but for those of the settings.
    pub(super) fn unpin(&mut self, now: Nanos, gateways: &[Option<u32>]) {
        let forget = self.forget_at(now);
        for id in gateways.iter().flatten().copied() {
            let Some(neighbour) = self.table.get_mut(id).filter(|n| n.pinned && !n.permanent) else {
                continue;
            };
            neighbour.pinned = false;
            if neighbour.state == State::Fixed {
                neighbour.state = State::Unknown;
            }
            if !matches!(neighbour.state, State::Asked(_)) {
                self.table.set_deadline(id, forget);
            }
        }
    }

    /// Finds the state of a neighbour that a packet needs now. After [`Known::Asks`] and [`Known::Doubtful`]
    /// the question is to be sent; it is repeated by itself.
    #[inline]
    pub(super) fn ask(&mut self, id: u32, now: Nanos) -> Known {
        let Some(&Neighbour { mac, state, until, needed, .. }) = self.table.get(id) else {
            return Known::Forgotten;
        };
        match state {
            State::Fixed | State::Probed => Known::At(mac),
            State::Known if now <= until => {
                // It only asked something so far: now that it is needed it is remembered like others.
                if !needed {
                    self.table.extend(id, self.forget_at(now));
                    self.table.get_mut(id).into_iter().for_each(|neighbour| neighbour.needed = true);
                }
                Known::At(mac)
            }
            State::Known => {
                self.table.extend(id, self.forget_at(now));
                self.start(id, State::Probed, now);
                Known::Doubtful(mac)
            }
            State::Asked(_) => Known::Waits,
            State::Unknown => {
                let queue = self.free.pop().unwrap_or_else(|| {
                    self.queues.push(VecDeque::new());
                    self.queues.len() as u32 - 1
                });
                self.table.extend(id, Nanos::MAX);
                self.start(id, State::Asked(queue), now);
                self.note_open(id);
                Known::Asks
            }
        }
    }

    /// The Ethernet address of a neighbour, if no question about it is due now.
    #[inline(always)]
    pub(super) fn settled(&self, id: u32, now: Nanos) -> Option<Mac> {
        let neighbour = self.table.get(id)?;
        let settled = match neighbour.state {
            State::Fixed | State::Probed => true,
            State::Known => now <= neighbour.until,
            State::Unknown | State::Asked(_) => false,
        };
        settled.then_some(neighbour.mac)
    }

    /// Up to when packets go to a neighbour without a question, if what it said is all that is needed for
    /// that.
    pub(super) fn confirmed_until(&self, id: u32) -> Nanos {
        match self.table.get(id) {
            Some(neighbour) if neighbour.state == State::Known => neighbour.until.after(1),
            Some(_) => Nanos::MAX,
            None => Nanos(0),
        }
    }

    /// When a question that is asked at `now` is repeated.
    pub(super) fn asked_again(&self, now: Nanos) -> Nanos {
        now.after(self.settings.retry)
    }

    fn start(&mut self, id: u32, state: State, now: Nanos) {
        self.serial = self.serial.wrapping_add(1);
        if let Some(neighbour) = self.table.get_mut(id) {
            (neighbour.state, neighbour.needed) = (state, true);
            neighbour.tries = 1;
            neighbour.serial = self.serial;
            self.asking.push_back((now.after(self.settings.retry), id, self.serial));
        }
    }

    /// Lets a packet wait for a neighbour; gives a packet that waits no longer, as there are too many: the
    /// oldest.
    pub(super) fn wait(&mut self, id: u32, frame: Frame) -> Option<Frame> {
        let Some(State::Asked(queue)) = self.table.get(id).map(|n| n.state) else { return Some(frame) };
        let Some(queue) = self.queues.get_mut(queue as usize) else { return Some(frame) };
        queue.push_back(frame);
        if queue.len() > self.settings.hold {
            return queue.pop_front();
        }
        self.held += 1;
        None
    }

    /// A neighbour says where it is; gives the packets that waited for that. If it `answers` a question, that
    /// counts for [`Settings::confirm`]. If not, an address that is news counts up to the next packet, which
    /// has it asked for, and one that is known counts as before.
    pub(super) fn heard(
        &mut self,
        port: u8,
        address: IpAddr,
        mac: Mac,
        (claim, answers): (Claim, bool),
        now: Nanos,
    ) -> Option<VecDeque<Frame>> {
        // One that did nothing but ask is remembered as long as an answer would count.
        let remembered = now.after(self.settings.confirm);
        let until = if answers { remembered } else { now };
        let id = match self.find(port, address) {
            Some(id) => id,
            // It may take the place of one that did nothing but ask either.
            None if claim == Claim::New && self.make_room(now, remembered) => {
                self.insert(port, address, false, remembered)?
            }
            None => return None,
        };
        let &Neighbour { state: before, open, needed, mac: at, .. } = self.table.get(id)?;
        let known = matches!(before, State::Known | State::Probed);
        if claim == Claim::Same && !(known && at == mac) {
            return None;
        }
        match before {
            State::Fixed => return None,
            // A gateway that was never needed, or gave no answer: nobody asked.
            State::Unknown if claim != Claim::New => return None,
            _ => {}
        }
        let forget = if needed { self.forget_at(now) } else { remembered };
        if open {
            let State::Asked(queue) = before else { return None };
            let frames = self.release(queue);
            // Nobody who was confirmed within the time for which an answer counts makes room.
            if self.make_room(now, now.after(self.settings.confirm.saturating_mul(REMEMBER - 1))) {
                self.close(id);
                let neighbour = self.table.get_mut(id)?;
                (neighbour.state, neighbour.mac, neighbour.until) = (State::Known, mac, until);
                self.table.set_deadline(id, forget);
                self.counters.learned += 1;
            } else {
                self.remove(id);
            }
            return Some(frames);
        }
        let neighbour = self.table.get_mut(id)?;
        if claim == Claim::Weak && known && neighbour.mac != mac {
            // If it was confirmed, the next packet has it asked again.
            if needed {
                neighbour.until = neighbour.until.min(now);
            }
            return None;
        }
        let same = known && neighbour.mac == mac;
        match before {
            State::Known | State::Probed => self.counters.changed += u64::from(!same),
            _ => self.counters.learned += 1,
        }
        // An address that is known already is confirmed by an answer only.
        if !same || answers {
            (neighbour.state, neighbour.mac, neighbour.until) = (State::Known, mac, until);
        } else if needed {
            return None;
        }
        let pinned = neighbour.pinned;
        if !pinned {
            self.table.set_deadline(id, forget);
        }
        match before {
            State::Asked(queue) => Some(self.release(queue)),
            _ => None,
        }
    }

    pub(super) fn release(&mut self, queue: u32) -> VecDeque<Frame> {
        self.free.push(queue);
        let frames = self.queues.get_mut(queue as usize).map(std::mem::take).unwrap_or_default();
        self.held -= frames.len() as u64;
        frames
    }

    /// When [`due`](Self::due) has something to say, or [`take_ready`](Self::take_ready).
    #[inline]
    pub(super) fn next_deadline(&self) -> Nanos {
        self.asking.front().map_or(Nanos::MAX, |(when, ..)| *when)
    }

    /// The next thing that is due.
    pub(super) fn due(&mut self, now: Nanos) -> Option<Due> {
        loop {
            let (_, id, serial) = *self.asking.front().filter(|(when, ..)| *when <= now)?;
            self.asking.pop_front();
            let Some((port, address)) = self.table.key(id).map(named) else { continue };
            let asks =
                |n: &&mut Neighbour| n.serial == serial && matches!(n.state, State::Asked(_) | State::Probed);
            let Some(neighbour) = self.table.get_mut(id).filter(asks) else { continue };
            if neighbour.tries < TRIES {
                neighbour.tries += 1;
                let known = (neighbour.state == State::Probed).then_some(neighbour.mac);
                self.asking.push_back((now.after(self.settings.retry), id, serial));
                return Some(Due::Ask(port, address, known));
            }
            self.counters.failed += 1;
            let before = std::mem::replace(&mut neighbour.state, State::Unknown);
            let pinned = neighbour.pinned;
            let frames = if let State::Asked(queue) = before { self.release(queue) } else { VecDeque::new() };
            if !pinned {
                self.remove(id);
            }
            return Some(Due::Failed(port, frames));
        }
    }

    /// Takes out the packets whose neighbour became known by a route.
    pub(super) fn take_ready(&mut self) -> Vec<(Frame, u8, Mac)> {
        self.held -= self.ready.len() as u64;
        std::mem::take(&mut self.ready)
    }

    /// Takes out the packets that waited for neighbours whose questions were displaced.
    #[inline]
    pub(super) fn take_displaced(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.displaced)
    }

    /// Takes out all packets that wait.
    pub(super) fn take_all(&mut self) -> Vec<Frame> {
        self.held = 0;
        let ready = std::mem::take(&mut self.ready);
        self.queues.iter_mut().flat_map(std::mem::take).chain(ready.into_iter().map(|r| r.0)).collect()
    }
}
