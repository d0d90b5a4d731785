//! Who has which address on the links of a router: what ARP (RFC 826) and neighbour discovery (RFC 4861 §7) find out,
//! and the packets that wait for it.
//!
//! A neighbour is asked for when a packet first needs it, again every [`Settings::retry`] nanoseconds, and given up after
//! [`TRIES`] questions. What was learned counts for [`Settings::confirm`] nanoseconds; after that the next packet still
//! goes to the known address, but the neighbour is asked whether it is still there. Memory is bounded: in neighbours,
//! in neighbours that are being asked for, and in packets that wait for each.

use std::collections::VecDeque;
use std::net::IpAddr;

use slipstream_wire::WideKey;

use super::interface::Mac;
use crate::frame::Frame;
use crate::functions::table::Table;
use crate::time::Nanos;

/// Questions without an answer after which a neighbour is given up (RFC 4861 §10: MAX_UNICAST_SOLICIT).
pub(super) const TRIES: u8 = 3;
/// Neighbours that can be asked for at one time.
const MAX_UNRESOLVED: usize = 256;
/// How much longer than it counts a neighbour is remembered that nobody needs.
const REMEMBER: u64 = 10;

/// Bounds and times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// Neighbours remembered.
    pub(super) capacity: u32,
    /// Packets that wait for one neighbour.
    pub(super) hold: usize,
    /// How long an answer counts, in ns.
    pub(super) confirm: u64,
    /// Time between two questions, in ns.
    pub(super) retry: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing is known, nobody asks.
    Unknown,
    /// Asked for; packets wait in this queue.
    Asked(u16),
    Known,
    /// Known, and asked whether that still holds.
    Probed,
    /// The settings say it.
    Fixed,
}

#[derive(Clone, Copy, Debug)]
struct Neighbour {
    mac: Mac,
    state: State,
    tries: u8,
    /// A gateway, or one of the settings: not forgotten.
    pinned: bool,
    /// One of the settings: never forgotten.
    permanent: bool,
    /// Which questions belong to the present state.
    serial: u32,
    /// Until when the answer counts.
    until: Nanos,
}

/// What is known of a neighbour.
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
    /// Too many are being asked for.
    Refused,
}

/// What is due for a neighbour.
#[derive(Debug)]
pub(super) enum Due {
    /// To be asked again; where it is known already, at this address.
    Ask(u8, IpAddr, Option<Mac>),
    /// It gives no answer; these packets waited for it.
    Failed(u8, VecDeque<Frame>),
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) learned: u64,
    pub(super) changed: u64,
    pub(super) failed: u64,
    pub(super) full: u64,
}

/// The neighbours of a router on all its links.
#[derive(Debug)]
pub(super) struct Neighbours {
    table: Table<WideKey, Neighbour>,
    settings: Settings,
    queues: Vec<VecDeque<Frame>>,
    free: Vec<u16>,
    /// When to ask again, in the order of time: (when, who, serial).
    asking: VecDeque<(Nanos, u32, u32)>,
    serial: u32,
    held: u64,
    /// Packets whose neighbour became known by a route, with its port and address.
    ready: Vec<(Frame, u8, Mac)>,
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
    pub(super) fn new(settings: Settings, seed: u64) -> Self {
        Self {
            table: Table::new(settings.capacity, seed),
            settings,
            queues: (0..MAX_UNRESOLVED).map(|_| VecDeque::new()).collect(),
            free: (0..MAX_UNRESOLVED as u16).rev().collect(),
            asking: VecDeque::new(),
            serial: 0,
            held: 0,
            ready: Vec::new(),
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

    fn find(&self, port: u8, address: IpAddr) -> Option<u32> {
        let key = key(port, address);
        self.table.find(&key, self.table.hash(&key))
    }

    /// The number of a neighbour, which is added if it is new; none where there is no room.
    #[inline]
    pub(super) fn number(&mut self, port: u8, address: IpAddr, now: Nanos) -> Option<u32> {
        self.find(port, address).or_else(|| self.add(port, address, now))
    }

    fn add(&mut self, port: u8, address: IpAddr, now: Nanos) -> Option<u32> {
        let key = key(port, address);
        let hash = self.table.hash(&key);
        let mut visits = 4;
        while let Some(id) = self.table.next_due(now, &mut visits) {
            self.table.remove(id);
        }
        if self.table.is_full() {
            // Those that are asked for or pinned have no deadline.
            let oldest = self.table.soonest().filter(|id| self.table.deadline(*id) < Nanos::MAX);
            match oldest {
                Some(id) => drop(self.table.remove(id)),
                None => {
                    self.counters.full += 1;
                    return None;
                }
            }
        }
        let new = Neighbour {
            mac: [0; 6],
            state: State::Unknown,
            tries: 0,
            pinned: false,
            permanent: false,
            serial: 0,
            until: Nanos(0),
        };
        self.table.insert(key, hash, new, self.forget_at(now)).ok()
    }

    fn forget_at(&self, now: Nanos) -> Nanos {
        now.after(self.settings.confirm.saturating_mul(REMEMBER))
    }

    /// The port and address of a neighbour.
    pub(super) fn name(&self, id: u32) -> Option<(u8, IpAddr)> {
        self.table.key(id).map(named)
    }

    /// Keeps a neighbour for good, at an address that is known for good where one is given.
    pub(super) fn pin(&mut self, port: u8, address: IpAddr, mac: Option<Mac>, now: Nanos) -> Option<u32> {
        let id = self.number(port, address, now)?;
        self.table.extend(id, Nanos::MAX);
        let neighbour = self.table.get_mut(id)?;
        neighbour.pinned = true;
        if let Some(mac) = mac.filter(|_| !neighbour.permanent) {
            neighbour.mac = mac;
            let before = std::mem::replace(&mut neighbour.state, State::Fixed);
            if let State::Asked(queue) = before {
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

    /// What is known of a neighbour, now that a packet needs it. After [`Known::Asks`] and [`Known::Doubtful`] the
    /// question is to be sent; it is repeated by itself.
    #[inline]
    pub(super) fn ask(&mut self, id: u32, now: Nanos) -> Known {
        let Some(neighbour) = self.table.get(id) else { return Known::Refused };
        match neighbour.state {
            State::Fixed | State::Probed => Known::At(neighbour.mac),
            State::Known if now <= neighbour.until => Known::At(neighbour.mac),
            State::Known => {
                let mac = neighbour.mac;
                self.start(id, State::Probed, now);
                Known::Doubtful(mac)
            }
            State::Asked(_) => Known::Waits,
            State::Unknown => match self.free.pop() {
                Some(queue) => {
                    self.table.extend(id, Nanos::MAX);
                    self.start(id, State::Asked(queue), now);
                    Known::Asks
                }
                None => {
                    self.counters.full += 1;
                    Known::Refused
                }
            },
        }
    }

    /// Where a neighbour is, if nobody needs to be asked for that now.
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

    /// Up to when packets go to a neighbour without a question, if what it said is all that is needed for that.
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
            neighbour.state = state;
            neighbour.tries = 1;
            neighbour.serial = self.serial;
            self.asking.push_back((now.after(self.settings.retry), id, self.serial));
        }
    }

    /// Lets a packet wait for a neighbour; gives a packet that waits no longer, as there are too many: the oldest.
    pub(super) fn wait(&mut self, id: u32, frame: Frame) -> Option<Frame> {
        let Some(State::Asked(queue)) = self.table.get(id).map(|n| n.state) else { return Some(frame) };
        let Some(queue) = self.queues.get_mut(usize::from(queue)) else { return Some(frame) };
        queue.push_back(frame);
        if queue.len() > self.settings.hold {
            return queue.pop_front();
        }
        self.held += 1;
        None
    }

    /// A neighbour says where it is; gives the packets that waited for that. `new` says whether one that nobody asked
    /// for is to be remembered (RFC 826: yes, if what it sent was for us).
    pub(super) fn heard(
        &mut self,
        port: u8,
        address: IpAddr,
        mac: Mac,
        new: bool,
        now: Nanos,
    ) -> Option<VecDeque<Frame>> {
        let id = if new { self.number(port, address, now) } else { self.find(port, address) }?;
        let (until, forget) = (now.after(self.settings.confirm), self.forget_at(now));
        let neighbour = self.table.get_mut(id)?;
        if neighbour.state == State::Fixed {
            return None;
        }
        let before = std::mem::replace(&mut neighbour.state, State::Known);
        match before {
            State::Known | State::Probed => self.counters.changed += u64::from(neighbour.mac != mac),
            _ => self.counters.learned += 1,
        }
        (neighbour.mac, neighbour.until) = (mac, until);
        let pinned = neighbour.pinned;
        if !pinned {
            self.table.set_deadline(id, forget);
        }
        match before {
            State::Asked(queue) => Some(self.release(queue)),
            _ => None,
        }
    }

    fn release(&mut self, queue: u16) -> VecDeque<Frame> {
        self.free.push(queue);
        let frames = self.queues.get_mut(usize::from(queue)).map(std::mem::take).unwrap_or_default();
        self.held -= frames.len() as u64;
        frames
    }

    /// When [`due`](Self::due) has something to say.
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
                self.table.remove(id);
            }
            return Some(Due::Failed(port, frames));
        }
    }

    /// Takes out the packets whose neighbour became known by a route.
    pub(super) fn take_ready(&mut self) -> Vec<(Frame, u8, Mac)> {
        self.held -= self.ready.len() as u64;
        std::mem::take(&mut self.ready)
    }

    /// Takes out all packets that wait.
    pub(super) fn take_all(&mut self) -> Vec<Frame> {
        self.held = 0;
        let ready = std::mem::take(&mut self.ready);
        self.queues.iter_mut().flat_map(std::mem::take).chain(ready.into_iter().map(|r| r.0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::BufId;

    const SETTINGS: Settings = Settings { capacity: 4, hold: 2, confirm: 100, retry: 10 };
    const MAC: Mac = [2, 0, 0, 0, 0, 9];

    fn address(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    fn frame(n: u32) -> Frame {
        Frame::unclassified(Nanos(u64::from(n)), BufId(n), 60)
    }

    #[test]
    fn a_neighbour_is_asked_for_and_answers() {
        let mut all = Neighbours::new(SETTINGS, 1);
        let id = all.number(1, address(5), Nanos(0)).unwrap();
        assert_eq!(all.ask(id, Nanos(0)), Known::Asks);
        assert_eq!(all.ask(id, Nanos(1)), Known::Waits);
        assert_eq!(all.wait(id, frame(1)), None);
        assert_eq!(all.wait(id, frame(2)), None);
        assert_eq!(all.wait(id, frame(3)), Some(frame(1)), "the oldest makes room");
        assert_eq!((all.held(), all.next_deadline()), (2, Nanos(10)));
        assert!(matches!(all.due(Nanos(10)), Some(Due::Ask(1, a, None)) if a == address(5)));
        assert!(all.due(Nanos(10)).is_none());
        assert!(all.heard(0, address(5), MAC, false, Nanos(11)).is_none(), "that is another link");
        let frames = all.heard(1, address(5), MAC, false, Nanos(12)).unwrap();
        assert_eq!(Vec::from(frames), [frame(2), frame(3)]);
        assert_eq!((all.held(), all.ask(id, Nanos(112))), (0, Known::At(MAC)));
        assert_eq!(all.ask(id, Nanos(113)), Known::Doubtful(MAC), "after a while it is asked again");
        assert_eq!(all.ask(id, Nanos(114)), Known::At(MAC), "and used meanwhile");
        assert!(all.heard(1, address(5), MAC, false, Nanos(115)).is_none());
        assert!(all.due(Nanos(10_000)).is_none(), "questions of before don't count");
    }

    #[test]
    fn who_does_not_answer_is_given_up() {
        let mut all = Neighbours::new(SETTINGS, 1);
        let id = all.number(1, address(5), Nanos(0)).unwrap();
        assert_eq!(all.ask(id, Nanos(0)), Known::Asks);
        assert_eq!(all.wait(id, frame(1)), None);
        assert!(matches!(all.due(Nanos(10)), Some(Due::Ask(..))));
        assert!(matches!(all.due(Nanos(20)), Some(Due::Ask(..))));
        let Some(Due::Failed(1, frames)) = all.due(Nanos(30)) else { panic!("not given up") };
        assert_eq!(Vec::from(frames), [frame(1)]);
        assert_eq!((all.len(), all.held(), all.next_deadline()), (0, 0, Nanos::MAX));
    }

    #[test]
    fn memory_is_bounded() {
        let mut all = Neighbours::new(SETTINGS, 1);
        let gateway = all.pin(0, address(1), None, Nanos(0)).unwrap();
        for n in 2..100 {
            assert!(all.heard(0, address(n), MAC, true, Nanos(u64::from(n))).is_none());
            assert!(all.len() <= 4);
        }
        assert_eq!(all.number(0, address(1), Nanos(100)), Some(gateway), "a gateway stays");
        let mut all = Neighbours::new(SETTINGS, 1);
        let ids: Vec<u32> = (0..4).filter_map(|n| all.number(0, address(n), Nanos(0))).collect();
        ids.iter().for_each(|id| assert_eq!(all.ask(*id, Nanos(0)), Known::Asks));
        assert_eq!(all.number(0, address(9), Nanos(1)), None, "those that are asked for stay");
        let mut wide = Neighbours::new(Settings { capacity: 1000, ..SETTINGS }, 1);
        let asked = (0..=MAX_UNRESOLVED).map(|n| {
            let address = IpAddr::from((n as u32).to_be_bytes());
            let id = wide.number(0, address, Nanos(0)).unwrap();
            wide.ask(id, Nanos(0))
        });
        assert_eq!(asked.filter(|k| *k == Known::Refused).count(), 1);
    }

    #[test]
    fn fixed_ones_never_change() {
        let mut all = Neighbours::new(SETTINGS, 1);
        let id = all.pin(0, address(1), Some(MAC), Nanos(0)).unwrap();
        assert!(all.heard(0, address(1), [4; 6], true, Nanos(5)).is_none());
        assert_eq!(all.ask(id, Nanos(1 << 40)), Known::At(MAC));
        all.unpin(Nanos(1 << 40), &[Some(id)]);
        assert_eq!(all.ask(id, Nanos(1 << 40)), Known::Asks);
        assert_eq!(all.wait(id, frame(1)), None);
        assert_eq!(all.pin(0, address(1), Some(MAC), Nanos(1 << 40)), Some(id));
        assert_eq!((all.held(), all.take_ready(), all.held()), (1, vec![(frame(1), 0, MAC)], 0));
        assert!(all.fix(0, address(2), MAC));
        let id = all.pin(0, address(2), Some([4; 6]), Nanos(0)).unwrap();
        all.unpin(Nanos(1 << 40), &[Some(id)]);
        assert_eq!(all.ask(id, Nanos(1 << 40)), Known::At(MAC), "the settings say so");
    }
}
