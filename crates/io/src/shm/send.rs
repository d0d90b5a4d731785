//! The way out of a side: frames into the ring.

use std::sync::Arc;

use super::error::ShmError;
use super::parked::{DROPS, MARK, Mark, Parked, SLICED};
use super::ring::{Producer, Record, Refused, room_for};
use super::session::{Peer, Session};
use slipstream_core::clock::LiveClock;
use slipstream_core::stop::Stopped;
use slipstream_core::time::Nanos;

/// Longest wait for room for one packet, in ns, where more come than there was said to be room for: where
/// packets come back from the other side, which may be waiting for room, too, and where none do.
const PATIENCE: u64 = 5_000_000;
const PATIENCE_ONE_WAY: u64 = 1_000_000_000;
/// Interval, in ns, of checks of the other side's state while something waits for it.
const ASK: u64 = 1_000_000;
/// As [`ASK`] while nothing waits, where nothing comes back from the other side whose absence would tell.
const ASK_AT_REST: u64 = 10_000_000;
/// Bytes that a packet is taken to have while no longer ones come.
const USUAL: usize = 2048;
/// Bytes of the longest packet that anybody expects: 64 KiB of IP, and what goes with them.
const LONGEST: usize = 65_600;

/// The policy for packets that find the ring full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// No more is taken from the sources that lead here until there is room; nothing is lost.
    #[default]
    Wait,
    /// They are dropped and counted.
    Drop,
}

/// Counters of packets sent and not sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCounts {
    /// Packets put into the ring, those that were never taken out included.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of the ring that they took: headers of records and padding to 64 bytes included.
    pub ring_bytes: u64,
    /// Packets that found the ring full.
    pub full: u64,
    /// Packets longer than half the ring.
    pub too_long: u64,
    /// Packets that nobody would have taken out any more.
    pub abandoned: u64,
    /// Packets that were put into the ring, and that nobody had taken out when the other side was gone, or
    /// as far as is known where it damaged the ring.
    pub never_taken: u64,
    /// Times that a packet had to wait for room.
    pub waits: u64,
    /// Packets that the other side was told were dropped here.
    pub drops_told: u64,
}

impl SendCounts {
    /// Packets that were not sent.
    #[must_use]
    pub fn not_sent(&self) -> u64 {
        self.full + self.too_long + self.abandoned + self.never_taken
    }
}

/// The sending end of a side.
#[derive(Debug)]
pub struct Sender {
    session: Arc<Session>,
    pub(super) producer: Producer,
    when_full: WhenFull,
    counts: SendCounts,
    /// The dropped packets that the other side is to be told of, where it listens.
    parked: Option<Arc<Parked>>,
    /// When to try again to tell it.
    tell: Nanos,
    /// Longest packet so far, in bytes, and whether there was one.
    longest: usize,
    seen: bool,
    /// Nothing comes back from the other side.
    one_way: bool,
    /// Bytes that the other side had taken when a packet waited in vain, and that side may have been waiting
    /// for this one: until it has taken more, no other packet waits.
    standoff: Option<u64>,
    /// When to ask again what became of the other side.
    ask: Nanos,
    /// Nobody takes anything out any more; why, if that is an error.
    gone: bool,
    failed: Option<ShmError>,
}

impl Sender {
    pub(super) fn new(
        session: Arc<Session>,
        producer: Producer,
        when_full: WhenFull,
        parked: Option<Arc<Parked>>,
    ) -> Self {
        let (counts, ask, tell) = (SendCounts::default(), Nanos(0), Nanos(0));
        let (longest, seen, one_way, standoff, gone, failed) = (USUAL, false, false, None, false, None);
        Self {
            session,
            producer,
            when_full,
            counts,
            parked,
            tell,
            longest,
            seen,
            one_way,
            standoff,
            ask,
            gone,
            failed,
        }
    }

    /// Nothing comes back from the other side, so that neither can wait for the other: packets may wait for
    /// longer.
    #[must_use]
    pub(super) fn one_way(self) -> Self {
        Self { one_way: true, ..self }
    }

    /// Puts a frame into the ring, to be seen by the other side at [`Sender::flush`]; says whether it did, or
    /// counted it as not sent.
    pub fn send(&mut self, frame: &Outgoing<'_>) -> bool {
        if self.gone {
            self.counts.abandoned += 1;
            return false;
        }
        // A port that nothing comes back by asks about nothing.
        let mark = frame.sliced.filter(|_| self.parked.is_some()).map(Mark::to_bytes);
        let here = frame.data.len() as u32;
        // A token that stands for no payload makes a packet longer than it was, which only its mark tells.
        let tells_length = frame.sliced.is_none() || mark.is_some();
        let least = if tells_length { 0 } else { here };
        let data = [frame.data, mark.as_ref().map_or(&[][..], |mark| mark)];
        let len = frame.data.len() + data[1].len();
        let record = Record {
            len: len as u32,
            original_len: frame.original_len.max(least),
            interface: frame.interface | if mark.is_some() { SLICED } else { 0 },
            link: frame.link,
            arrival: frame.arrival.0,
            time: frame.time.0,
        };
        let mut result = self.producer.push(&record, data);
        if result == Err(Refused::Full) {
            result = self.push_after_all(&record, data);
        }
        match result {
            Ok(()) => {
                self.counts.packets += 1;
                self.counts.bytes += frame.data.len() as u64;
                self.counts.ring_bytes += room_for(len);
            }
            Err(Refused::TooLong) => self.counts.too_long += 1,
            Err(Refused::Full) if self.gone => self.counts.abandoned += 1,
            Err(Refused::Full) => self.counts.full += 1,
        }
        if result != Err(Refused::TooLong) {
            // Nobody needs room for what is never put in.
            self.longest = self.longest.max(len);
            self.seen = true;
        }
        result.is_ok()
    }

    /// Tells the other side of packets that were dropped, as far as there is room: nobody waits for it.
    fn tell_drops(&mut self) {
        let Self { parked: Some(parked), producer, gone, counts, tell, .. } = self else { return };
        if !parked.any() {
            return;
        }
        parked.tell(|marks| {
            let len = marks.len();
            let record = Record { len: len as u32, interface: DROPS, ..Record::default() };
            let sent = *gone || producer.push(&record, [marks, &[]]).is_ok();
            if sent && !*gone {
                counts.drops_told += (len / MARK) as u64;
                counts.ring_bytes += room_for(len);
            }
            sent
        });
        if parked.any() {
            *tell = LiveClock::get().now().after(ASK);
        }
    }

    /// Publishes the packets sent last: the other side sees them from now on.
    pub fn flush(&mut self) {
        self.tell_drops();
        self.producer.publish();
        if self.ask == Nanos(0) {
            self.ask = LiveClock::get().now();
        }
    }

    /// There seems to be no room: looks whether there is by now, and waits a while where that is the rule.
    fn push_after_all(&mut self, record: &Record, data: [&[u8]; 2]) -> Result<(), Refused> {
        self.producer.publish();
        let clock = LiveClock::get();
        let until = clock.now().after(if self.one_way { PATIENCE_ONE_WAY } else { PATIENCE });
        let mut waited = false;
        loop {
            self.look();
            if self.gone {
                return Err(Refused::Full);
            }
            let result = self.producer.push(record, data);
            if result != Err(Refused::Full) || self.when_full == WhenFull::Drop {
                return result;
            }
            if self.standoff == Some(self.producer.taken()) {
                return result;
            }
            self.counts.waits += u64::from(!waited);
            waited = true;
            let now = clock.now();
            if now >= until || Stopped::check().is_err() {
                // Two sides that each wait with every packet would hardly ever take any.
                let each_waits = self.session.may_be_waited_for();
                self.standoff = each_waits.then_some(self.producer.taken());
                return result;
            }
            self.attend(now);
            std::thread::yield_now();
        }
    }

    /// Nobody takes anything out any more: what lies in the ring is not sent.
    fn give_up(&mut self) {
        // It may have taken something just before it was found gone.
        self.look();
        self.count_left();
    }

    /// Counts what lies in the ring as not sent, once.
    fn count_left(&mut self) {
        if !std::mem::replace(&mut self.gone, true) {
            self.counts.never_taken += self.producer.left().min(self.counts.packets);
        }
    }

    /// Looks what was taken out. Where the other side wrote positions that can't be, nobody knows what it has
    /// taken since the last ones that could, and all of that counts as not sent.
    fn look(&mut self) {
        if let Err(damage) = self.producer.look() {
            self.failed.get_or_insert_with(|| self.session.damaged(damage));
            self.count_left();
        }
    }

    /// Finds out what became of the other side, now and then.
    fn attend(&mut self, now: Nanos) {
        if now < self.ask || self.gone {
            return;
        }
        self.ask = now.after(ASK);
        if self.producer.abandoned() {
            self.give_up();
            return;
        }
        let error = match self.session.peer() {
            Peer::There => None,
            Peer::Awaited => self.session.check_name().err(),
            // It may have said so just before it went.
            Peer::Left if self.producer.abandoned() => None,
            Peer::Left => Some(self.session.peer_died()),
        };
        if let Some(error) = error {
            self.give_up();
            self.failed.get_or_insert(error);
        }
    }

    /// To be called when [`Sender::next_look`] says so, or more often.
    pub fn look_around(&mut self) {
        self.look();
        self.attend(LiveClock::get().now());
        self.tell_drops();
        self.producer.publish();
    }

    /// When to look what became of packets that the other side has not taken yet, or to tell it of dropped
    /// ones. While there are none, the other side is still looked after if nothing comes back from it, and
    /// less often: no receiver would notice that it is gone.
    #[must_use]
    pub fn next_look(&self) -> Option<Nanos> {
        let asks = match (self.gone, self.producer.waiting() > 0) {
            (false, true) => Some(self.ask),
            (false, false) => self.one_way.then(|| self.ask.after(ASK_AT_REST)),
            (true, _) => None,
        };
        let tells = self.parked.as_ref().is_some_and(|parked| parked.any());
        [asks, tells.then_some(self.tell)].into_iter().flatten().min()
    }

    /// Packets of the longest length so far that there is room for, one longer one among them; before the
    /// first one has come, packets of the longest length that there is. As many as one likes where nobody is
    /// waited for.
    pub fn room(&mut self) -> usize {
        if self.gone || self.when_full == WhenFull::Drop {
            return usize::MAX;
        }
        let most = room_for(LONGEST).min(self.producer.most());
        let each = if self.seen { room_for(self.longest) } else { most };
        // Room for one more may be lost at the ring's end.
        let fit =
            |free: u64| (free.saturating_sub(most.saturating_sub(each)) / each).saturating_sub(1) as usize;
        let known = fit(self.producer.free());
        if known >= slipstream_core::batch::BATCH {
            return known;
        }
        self.look();
        // Where nothing lies in it, any packet has room.
        fit(self.producer.free()).max(usize::from(self.producer.waiting() == 0))
    }

    /// Bytes that the other side has yet to take; none where nobody waits for it.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        if self.gone || self.when_full == WhenFull::Drop { 0 } else { self.producer.waiting() }
    }

    /// Says to the other side that nothing more will come.
    pub fn close(&mut self) {
        self.look();
        self.tell_drops();
        self.producer.publish();
        self.producer.close();
    }

    /// This process is about to leave: what lies in the ring is not sent, unless somebody is there to take
    /// it. Nobody comes from now on.
    pub fn leave(&mut self) {
        self.close();
        if self.producer.abandoned() || self.session.shut() != Peer::There {
            self.give_up();
        }
    }

    /// The counters.
    #[must_use]
    pub fn counts(&self) -> SendCounts {
        self.counts
    }

    /// True if the other side ended without finishing, or wrote what can't be; see [`Sender::check`].
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// The error of the port, once.
    ///
    /// # Errors
    /// [`ShmError`] where the other side ended without finishing, or wrote what can't be.
    pub fn check(&mut self) -> Result<(), ShmError> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

/// A frame to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Its bytes.
    pub data: &'a [u8],
    /// Bytes on the wire.
    pub original_len: u32,
    /// The interface that it came from.
    pub interface: u32,
    /// That interface's link type, as in capture files.
    pub link: u32,
    /// When it arrived.
    pub arrival: Nanos,
    /// The time that it was captured at.
    pub time: Nanos,
    /// Of a sliced packet: whose payload waits in this process. The other side says so when it drops the
    /// packet.
    pub sliced: Option<Mark>,
}
