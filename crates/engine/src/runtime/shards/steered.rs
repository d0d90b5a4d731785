//! A source of one shard that keeps what belongs there, and hands the rest to the others.

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use slipstream_core::batch::Arrivals;
use slipstream_core::frame::Frame;
use slipstream_core::interface::Interface;
use slipstream_core::pool::{Pool, Region};
use slipstream_core::source::{LiveSource, Source, SourceError};
use slipstream_core::time::Nanos;

use super::early::{Early, Fragment};
use super::mailbox::{Mailbox, Parcels};
use super::steer::{Led, Steer};

/// A live source whose packets are shared out.
pub(super) struct Steered {
    inner: Box<dyn Source + Send>,
    /// The inner one's own, to sleep on.
    descriptor: Option<OwnedFd>,
    /// Patience of the inner port, as it said behind the last poll.
    patience: Option<u64>,
    more: bool,
    steer: Steer,
    own: usize,
    /// The boxes of all shards, none for this one, and what is on its way there.
    others: Vec<Option<(Arc<Mailbox>, Parcels)>>,
    early: Early,
    /// Fragments that waited and belong here.
    ready: VecDeque<Fragment>,
    waited: u64,
    gave_up: u64,
    sequence: u64,
    handed_over: u64,
    lost: u64,
    closed: bool,
}

impl Steered {
    /// Of shard `own`, which has no box among `boxes`.
    ///
    /// # Errors
    /// There is no other descriptor to be had.
    pub(super) fn new(
        mut inner: Box<dyn Source + Send>,
        steer: Steer,
        own: usize,
        boxes: &[Option<Arc<Mailbox>>],
    ) -> std::io::Result<Self> {
        let others = boxes.iter().map(|to| to.clone().map(|to| (to, Parcels::default()))).collect();
        let live = inner.live();
        let patience = live.as_ref().and_then(|live| live.patience());
        let descriptor = live.and_then(|live| Some(live.descriptor()?.try_clone_to_owned()));
        let descriptor = descriptor.transpose()?;
        let (sequence, handed_over, lost, more, closed) = (0, 0, 0, false, false);
        let (early, ready, waited, gave_up) = (Early::default(), VecDeque::new(), 0, 0);
        Ok(Self {
            inner,
            descriptor,
            patience,
            more,
            steer,
            own,
            others,
            early,
            ready,
            waited,
            gave_up,
            sequence,
            handed_over,
            lost,
            closed,
        })
    }

    /// Keeps the packets from place `from` on that belong here; returns how many these are. Of what is for
    /// all shards each has a copy. Fragments whose datagram is not known yet are taken out, and wait.
    fn share_out(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, from: usize, now: Nanos) -> usize {
        let mut kept = from;
        self.steer.look();
        self.let_go(now);
        for at in from..arrivals.frames.len() {
            let Some(frame) = arrivals.frames.get(at).copied() else { break };
            let data = pool.data(frame.buf, frame.len);
            let for_all = self.steer.for_all(data);
            if for_all {
                for (_, parcels) in self.others.iter_mut().flatten() {
                    parcels.add(frame.arrival, pool.meta(frame.buf), data);
                    self.handed_over += 1;
                }
            }
            let led = if for_all { Led::To(self.own as u32) } else { self.steer.lead(data) };
            let owner = match led {
                Led::To(shard) | Led::First(_, shard) => shard as usize,
                Led::Early(key, otherwise) => {
                    let (arrival, meta, data) = (frame.arrival, pool.meta(frame.buf), self.early.copy(data));
                    let otherwise = otherwise as usize;
                    self.early.hold(Fragment { key, otherwise, arrival, meta, data }, now);
                    self.waited += 1;
                    pool.free(frame.buf);
                    self.let_go(now);
                    continue;
                }
            };
            match self.others.get_mut(owner) {
                Some(Some((_, parcels))) if owner != self.own => {
                    parcels.add(frame.arrival, pool.meta(frame.buf), data);
                    pool.free(frame.buf);
                    self.handed_over += 1;
                }
                _ => {
                    if let Some(place) = arrivals.frames.get_mut(kept) {
                        *place = frame;
                    }
                    kept += 1;
                }
            }
            if let Led::First(key, _) = led {
                while let Some(fragment) = self.early.next_of(&key) {
                    self.give(owner, fragment);
                }
            }
        }
        arrivals.frames.truncate(kept);
        arrivals.first = self.sequence;
        self.sequence += (kept - from) as u64;
        self.send();
        kept - from
    }

    /// Puts what others are to have into their boxes.
    fn send(&mut self) {
        for (mailbox, parcels) in self.others.iter_mut().flatten().filter(|(_, p)| !p.is_empty()) {
            self.lost += mailbox.put(parcels);
        }
    }

    /// Fragments that have waited for long enough, or are too many, go by their addresses.
    fn let_go(&mut self, now: Nanos) {
        while let Some(fragment) = self.early.next_over(now) {
            self.gave_up += 1;
            self.give(fragment.otherwise, fragment);
        }
    }

    /// Gives a fragment that has waited to a shard.
    fn give(&mut self, owner: usize, fragment: Fragment) {
        match self.others.get_mut(owner) {
            Some(Some((_, parcels))) if owner != self.own => {
                parcels.add(fragment.arrival, fragment.meta, &fragment.data);
                self.handed_over += 1;
                self.early.put_back(fragment.data);
            }
            _ => self.ready.push_back(fragment),
        }
    }

    /// Appends up to `max` fragments that have waited and belong here; returns how many.
    fn take_ready(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, max: usize, now: Nanos) -> usize {
        let mut n = 0;
        while n < max
            && let Some(Fragment { meta, data, .. }) = self.ready.pop_front()
        {
            let buf = pool.insert(meta, &data);
            arrivals.frames.push(Frame::unclassified(now, buf, data.len() as u32));
            self.early.put_back(data);
            n += 1;
        }
        arrivals.first = self.sequence;
        self.sequence += n as u64;
        n
    }

    /// Nothing more is led to other shards: whose first fragment did not come by now waits for nothing.
    fn give_all(&mut self) {
        if !self.closed {
            self.let_go(Nanos::MAX);
            self.send();
            self.close();
        }
    }

    fn close(&mut self) {
        if !std::mem::replace(&mut self.closed, true) {
            self.others.iter().flatten().for_each(|(mailbox, _)| mailbox.close());
        }
    }
}

impl Drop for Steered {
    fn drop(&mut self) {
        self.close();
    }
}

impl LiveSource for Steered {
    fn poll(
        &mut self,
        pool: &mut Pool,
        arrivals: &mut Arrivals,
        max: usize,
        now: Nanos,
    ) -> Result<usize, SourceError> {
        if !self.ready.is_empty() {
            self.more = true;
            return Ok(self.take_ready(pool, arrivals, max, now));
        }
        let Some(live) = self.inner.live().filter(|_| !self.closed) else { return Ok(0) };
        let from = arrivals.frames.len();
        let found = live.poll(pool, arrivals, max, now)?;
        let over = found == 0 && live.ended();
        self.more = found > 0 && found >= max.min(live.at_once());
        self.patience = live.patience();
        let kept = self.share_out(pool, arrivals, from, now);
        if over {
            self.give_all();
        }
        // The rest of what belongs here comes with the next poll.
        self.more |= !self.ready.is_empty();
        Ok(kept)
    }

    /// There may be more, however few of them stayed.
    fn at_once(&self) -> usize {
        if self.more { 0 } else { usize::MAX }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }

    fn patience(&self) -> Option<u64> {
        self.patience
    }

    fn ended(&self) -> bool {
        self.closed && self.ready.is_empty()
    }

    fn part(&mut self) -> bool {
        self.give_all();
        !self.ready.is_empty()
    }
}

impl Source for Steered {
    fn fill(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, max: usize) -> Result<usize, SourceError> {
        let from = arrivals.frames.len();
        self.inner.fill(pool, arrivals, max)?;
        let now = arrivals.frames.last().map_or(Nanos(0), |frame| frame.arrival);
        Ok(self.share_out(pool, arrivals, from, now))
    }

    fn interfaces(&self) -> &[Interface] {
        self.inner.interfaces()
    }

    fn clock_backwards(&self) -> u64 {
        self.inner.clock_backwards()
    }

    fn details(&self) -> Option<&dyn Any> {
        self.inner.details()
    }

    fn live(&mut self) -> Option<&mut dyn LiveSource> {
        Some(self)
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.inner.counters(visit);
        visit("to_other_shards", self.handed_over);
        visit("lost_between_shards", self.lost);
        visit("fragments_waited", self.waited);
        visit("fragments_without_first", self.gave_up);
        visit("fragments_waiting", (self.early.len() + self.ready.len()) as u64);
    }

    fn region(&mut self) -> Option<Box<dyn Region>> {
        self.inner.region()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use slipstream_core::pool::PacketMeta;

    use super::super::early::{MOST, PATIENCE};
    use super::super::mailbox::Inbox;
    use super::super::steer::{By, Externals, Hash};
    use super::*;

    /// Frames, a few at each poll.
    #[derive(Default)]
    struct Given {
        frames: VecDeque<Vec<u8>>,
        at_once: usize,
        ends: bool,
    }

    impl Source for Given {
        fn fill(&mut self, _: &mut Pool, _: &mut Arrivals, _: usize) -> Result<usize, SourceError> {
            Ok(0)
        }

        fn interfaces(&self) -> &[Interface] {
            &[]
        }

        fn live(&mut self) -> Option<&mut dyn LiveSource> {
            Some(self)
        }
    }

    impl LiveSource for Given {
        fn poll(
            &mut self,
            pool: &mut Pool,
            arrivals: &mut Arrivals,
            max: usize,
            now: Nanos,
        ) -> Result<usize, SourceError> {
            let some = self.frames.len().min(max).min(self.at_once);
            for frame in self.frames.drain(..some) {
                let meta = PacketMeta { original_len: frame.len() as u32, interface: 0, time: now };
                let buf = pool.insert(meta, &frame);
                arrivals.frames.push(Frame::unclassified(now, buf, frame.len() as u32));
            }
            Ok(some)
        }

        fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn ended(&self) -> bool {
            self.ends && self.frames.is_empty()
        }
    }

    /// A UDP packet over IPv4, or fragment `part` of its datagram, whose bytes end with its number.
    fn packet(flow: u8, id: u16, part: Option<(u16, bool)>, number: u16) -> Vec<u8> {
        let (at, more) = part.unwrap_or_default();
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0, 0, 44]);
        frame.extend(id.to_be_bytes());
        frame.extend((u16::from(more) << 13 | at).to_be_bytes());
        frame.extend([64, 17, 0, 0, 10, 0, 0, flow / 16, 192, 0, 2, 7]);
        let ports = [4000 + u16::from(flow), 53].map(u16::to_be_bytes);
        frame.extend(if at == 0 { *ports.as_flattened().first_chunk().unwrap() } else { [0xee; 4] });
        frame.extend([0; 18]);
        frame.extend(number.to_be_bytes());
        frame
    }

    fn number(frame: &[u8]) -> u16 {
        u16::from_be_bytes(*frame.last_chunk().unwrap())
    }

    /// One shard's source and the boxes of the others.
    struct Bench {
        steered: Steered,
        inboxes: Vec<Option<Inbox>>,
        pool: Pool,
        now: Nanos,
        /// The shard of each packet by its number, and all packets in the order in which each shard saw them.
        seen: BTreeMap<u16, usize>,
        order: Vec<Vec<u16>>,
    }

    impl Bench {
        fn new(shards: usize, own: usize, given: Given) -> Self {
            let boxes: Vec<_> =
                (0..shards).map(|n| (n != own).then(|| Arc::new(Mailbox::new(1).unwrap()))).collect();
            let steer = Steer::new(shards as u32, By::Connection, Hash::Filter, Externals::default());
            let steered = Steered::new(Box::new(given), steer, own, &boxes).unwrap();
            let inboxes = boxes.into_iter().map(|own| own.map(|own| Inbox::new(own, "in"))).collect();
            let (seen, order) = (BTreeMap::new(), vec![Vec::new(); shards]);
            Self { steered, inboxes, pool: Pool::new(), now: Nanos(1 << 40), seen, order }
        }

        /// Polls all of them once; returns how many packets came out.
        fn poll(&mut self, max: usize) -> usize {
            let mut came = 0;
            for shard in 0..self.inboxes.len() {
                let source: &mut dyn LiveSource = match &mut self.inboxes[shard] {
                    Some(inbox) => inbox,
                    None => &mut self.steered,
                };
                let mut arrivals = Arrivals::default();
                let n = source.poll(&mut self.pool, &mut arrivals, max, self.now).unwrap();
                assert_eq!(n, arrivals.frames.len());
                assert!(n <= max);
                for frame in arrivals.frames {
                    let number = number(self.pool.data(frame.buf, frame.len));
                    assert_eq!(self.seen.insert(number, shard), None, "{number} came twice");
                    self.order[shard].push(number);
                    self.pool.free(frame.buf);
                    came += 1;
                }
            }
            self.now = self.now.after(1000);
            came
        }

        fn counter(&self, wanted: &str) -> u64 {
            let mut found = None;
            self.steered.counters(&mut |name, n| {
                if name == wanted {
                    found = Some(n);
                }
            });
            found.unwrap()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }))]

        /// In whatever order the fragments of datagrams come, all of them go where a whole packet of their
        /// flow goes, each once, and none before the first one; packets that are whole keep their order.
        #[test]
        fn fragments_go_with_their_first(
            datagrams in prop::collection::vec((any::<u8>(), 1u16..6), 1..40),
            shuffle in prop::collection::vec(any::<u32>(), 240),
            (shards, own) in (1usize..6, any::<usize>()),
            (at_once, max) in (1usize..30, 1usize..30),
        ) {
            let mut frames = Vec::new();
            let mut firsts = Vec::new();
            for (id, (flow, parts)) in datagrams.iter().enumerate() {
                let from = frames.len();
                firsts.extend((0..*parts).map(|_| from as u16));
                for part in 0..*parts {
                    let fragment = (*parts > 1).then_some((part * 3, part + 1 < *parts));
                    frames.push(packet(*flow, id as u16 + 1, fragment, frames.len() as u16));
                }
            }
            let mut given: Vec<_> = frames.iter().zip(&shuffle).collect();
            given.sort_by_key(|(_, place)| **place);
            let given: VecDeque<_> = given.into_iter().map(|(frame, _)| frame.clone()).collect();
            let came: Vec<u16> = given.iter().map(|frame| number(frame)).collect();
            let mut bench = Bench::new(shards, own % shards, Given { frames: given, at_once, ends: true });
            for _ in 0..2000 {
                bench.poll(max);
                if bench.seen.len() == frames.len() {
                    break;
                }
            }
            prop_assert_eq!(bench.seen.len(), frames.len());
            let mut of_flow = BTreeMap::new();
            for (number, first) in firsts.iter().enumerate() {
                let shard = bench.seen[&(number as u16)];
                prop_assert_eq!(shard, bench.seen[first], "fragment {} of {}", number, first);
                let order = &bench.order[shard];
                let at = |wanted: u16| order.iter().position(|n| *n == wanted).unwrap();
                prop_assert!(at(*first) <= at(number as u16), "fragment {} before {}", number, first);
                let flow = datagrams[usize::from(frames[usize::from(*first)][19]) - 1].0;
                prop_assert_eq!(*of_flow.entry(flow).or_insert(shard), shard, "flow {}", flow);
            }
            let whole = |number: &u16| {
                firsts.iter().filter(|first| **first == firsts[usize::from(*number)]).count() == 1
            };
            for order in &bench.order {
                let places = order.iter().filter(|n| whole(n)).map(|n| came.iter().position(|c| c == n));
                prop_assert!(places.is_sorted());
            }
            prop_assert_eq!((bench.counter("fragments_without_first"), bench.counter("fragments_waiting")), (0, 0));
            prop_assert_eq!(bench.pool.live(), 0);
        }

        /// At the end of a run nothing waits any longer, nothing more is taken in, and all that is there
        /// comes out.
        #[test]
        fn nothing_is_left_when_shards_part(
            (count, later, max) in (1u16..300, 1u16..50, 1usize..300),
            (shards, own) in (2usize..6, any::<usize>()),
        ) {
            let frames = (0..count).map(|n| packet(n as u8, n + 1, Some((9, true)), n)).collect();
            let mut bench = Bench::new(shards, own % shards, Given { frames, at_once: 300, ends: false });
            bench.poll(usize::from(count));
            prop_assert!(bench.seen.len() < usize::from(count), "nothing waits");
            let late = (count..count + later).map(|n| packet(n as u8, 0, None, n));
            bench.steered.inner = Box::new(Given { frames: late.collect(), at_once: 300, ends: false });
            for _ in 0..1000 {
                let mut parting = bench.steered.part();
                bench.poll(max);
                parting |= bench.steered.part();
                parting |= bench.inboxes.iter_mut().flatten().fold(false, |all, inbox| inbox.part() | all);
                if !parting {
                    break;
                }
            }
            prop_assert!(!bench.steered.part());
            prop_assert!(bench.inboxes.iter_mut().flatten().all(|inbox| !inbox.part()));
            prop_assert_eq!(bench.seen.len(), usize::from(count));
            let counted = ["fragments_without_first", "fragments_waiting"].map(|name| bench.counter(name));
            prop_assert_eq!(counted, [count.into(), 0]);
            prop_assert_eq!(bench.pool.live(), 0);
        }

        /// Fragments whose first one never comes wait for a bounded time, in a bounded number, and are all
        /// let go.
        #[test]
        fn fragments_without_a_first_do_not_wait_for_ever(
            count in 1u16..700, shards in 2usize..6, (at_once, max) in (1usize..300, 1usize..300), ends in any::<bool>(),
        ) {
            let frames = (0..count).map(|n| packet(n as u8, n + 1, Some((9, true)), n)).collect();
            let mut bench = Bench::new(shards, 0, Given { frames, at_once, ends });
            for _ in 0..2000 {
                bench.poll(max);
                prop_assert!(bench.steered.early.len() <= MOST);
            }
            let waiting = if ends { 0 } else { usize::from(count).min(MOST) };
            prop_assert_eq!(bench.seen.len() + waiting, usize::from(count));
            prop_assert_eq!(bench.counter("fragments_waiting"), waiting as u64);
            bench.now = bench.now.after(PATIENCE);
            for _ in 0..2000 {
                bench.poll(max);
            }
            prop_assert_eq!(bench.seen.len(), usize::from(count));
            prop_assert_eq!(bench.counter("fragments_without_first"), u64::from(count));
            prop_assert_eq!(bench.pool.live(), 0);
        }
    }
}
