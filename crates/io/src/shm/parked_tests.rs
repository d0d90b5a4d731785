//! Sliced packets across the rings: what is told of them there and back, and messages that can't be.

use proptest::prelude::*;
use tempfile::TempDir;

use super::parked::{DROPS, MARK, MOST, SLICED};
use super::ring::Record;
use super::*;
use slipstream_core::batch::Arrivals;
use slipstream_core::frame::Frame;
use slipstream_core::pool::Pool;
use slipstream_core::source::LiveSource;
use slipstream_core::time::Nanos;

const RING: u64 = 1 << 16;

/// A process's end of the port, with the pool of its pipeline.
struct End {
    receiver: Receiver,
    sender: Sender,
    pool: Pool,
}

impl End {
    fn open(dir: &TempDir) -> Self {
        let (receiver, sender) =
            Options { ring: RING, ..Options::new(dir.path().join("shm")) }.open().unwrap();
        Self { receiver, sender, pool: Pool::new() }
    }

    fn send(&mut self, data: &[u8], sliced: Option<Mark>) {
        let (original_len, interface, link) = (data.len() as u32, 3, 1);
        let (arrival, time) = (Nanos(1), Nanos(1));
        assert!(self.sender.send(&Outgoing { data, original_len, interface, link, arrival, time, sliced }));
        self.sender.flush();
    }

    fn poll(&mut self) -> Vec<Frame> {
        let mut arrivals = Arrivals::default();
        self.receiver.poll(&mut self.pool, &mut arrivals, 256, Nanos(0)).unwrap();
        arrivals.frames
    }

    /// Payloads that its slicers are to give up.
    fn given_up(&mut self) -> Vec<(u32, u64)> {
        let mut all = Vec::new();
        self.pool.take_dropped_of(|_| true, |owner, token| all.push((owner, token)));
        all
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever becomes of packets over there, the slicers here learn of those that were dropped, and of no
    /// others.
    #[test]
    fn exactly_the_dropped_ones_are_told(
        packets in prop::collection::vec((1usize..300, prop::option::of((0u32..4, any::<u64>())), any::<bool>()), 1..150),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (mut near, mut far) = (End::open(&dir), End::open(&dir));
        let (mut told, mut wanted) = (Vec::new(), Vec::new());
        for (len, sliced, dropped) in packets {
            let data: Vec<u8> = (0..len).map(|n| (n * 7) as u8).collect();
            let mark = sliced.map(|(owner, token)| Mark { owner, token });
            near.send(&data, mark);
            let frames = far.poll();
            let frame = frames.first().unwrap();
            prop_assert_eq!(far.pool.data(frame.buf, frame.len), &data[..]);
            prop_assert_eq!(far.pool.is_sliced(frame.buf), mark.is_some());
            if dropped {
                far.pool.free(frame.buf);
                wanted.extend(sliced);
            } else {
                far.pool.free_spliced(frame.buf);
            }
            prop_assert!(far.poll().is_empty());
            far.sender.look_around();
            prop_assert!(far.sender.next_look().is_none_or(|_| far.sender.waiting() > 0));
            near.poll();
            told.extend(near.given_up());
        }
        prop_assert_eq!(&told, &wanted);
        prop_assert_eq!(far.sender.counts().drops_told, wanted.len() as u64);
        prop_assert_eq!((far.pool.live(), far.sender.counts().packets), (0, 0));
    }
}

/// A ring that is full when packets are dropped: they are told of when there is room.
#[test]
fn messages_wait_for_room() {
    let dir = tempfile::tempdir().unwrap();
    let (mut near, mut far) = (End::open(&dir), End::open(&dir));
    while far.sender.room() > 0 {
        far.send(&[0; 900], None);
    }
    while far.sender.counts().full == 0 {
        let whole = Outgoing {
            data: &[0; 30],
            original_len: 30,
            interface: 0,
            link: 1,
            arrival: Nanos(0),
            time: Nanos(0),
            sliced: None,
        };
        far.sender.send(&whole);
    }
    let marks: Vec<_> = (0..200).map(|token| (5, token)).collect();
    for (owner, token) in &marks {
        near.send(b"headers", Some(Mark { owner: *owner, token: *token }));
    }
    for frame in far.poll() {
        far.pool.free(frame.buf);
    }
    far.poll();
    far.sender.look_around();
    assert!(far.sender.next_look().is_some() && far.sender.counts().drops_told == 0);
    while !near.poll().is_empty() {}
    assert_eq!(near.given_up(), []);
    far.sender.look_around();
    assert_eq!(far.sender.counts().drops_told, 200);
    near.poll();
    assert_eq!(near.given_up(), marks);
}

/// A port that nothing comes back by asks about nothing.
#[test]
fn one_way_nothing_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { ring: RING, ..Options::new(dir.path().join("shm")) };
    let mut sender = options.open_sender().unwrap();
    let mut receiver = options.open_receiver().unwrap();
    let sliced = Some(Mark { owner: 0, token: 9 });
    let (arrival, time) = (Nanos(0), Nanos(0));
    let data = b"headers";
    // The second has a token that stands for no payload: nobody there knows of one.
    for original_len in [900, 3] {
        sender.send(&Outgoing { data, original_len, interface: 0, link: 1, arrival, time, sliced });
    }
    sender.flush();
    let (mut pool, mut arrivals) = (Pool::new(), Arrivals::default());
    receiver.poll(&mut pool, &mut arrivals, 256, Nanos(0)).unwrap();
    assert_eq!(arrivals.frames.len(), 2);
    for (frame, original_len) in arrivals.frames.iter().zip([900, data.len() as u32]) {
        assert_eq!((pool.data(frame.buf, frame.len), pool.is_sliced(frame.buf)), (&data[..], false));
        assert_eq!(pool.meta(frame.buf).original_len, original_len);
    }
}

#[test]
fn marks_and_messages_that_can_not_be_are_damage() {
    for (interface, len) in [
        (SLICED, 0),
        (SLICED, MARK - 1),
        (DROPS, 0),
        (DROPS, MARK + 1),
        (DROPS | SLICED, MARK - 1),
        (DROPS, (MOST + 1) * MARK),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (mut near, mut far) = (End::open(&dir), End::open(&dir));
        let record = Record { len: len as u32, interface, ..Record::default() };
        far.sender.producer.push(&record, [&vec![7; len], &[]]).unwrap();
        far.sender.producer.publish();
        let error = near.receiver.poll(&mut near.pool, &mut Arrivals::default(), 256, Nanos(0));
        assert!(error.is_err(), "{interface:x} {len}");
    }
    // One that can be, of owners that nobody knows: it is forgotten some time.
    let dir = tempfile::tempdir().unwrap();
    let (mut near, mut far) = (End::open(&dir), End::open(&dir));
    for _ in 0..3000 {
        let record = Record { len: (MOST * MARK) as u32, interface: DROPS, ..Record::default() };
        far.sender.producer.look().unwrap();
        far.sender.producer.push(&record, [&[7; MOST * MARK], &[]]).unwrap();
        far.sender.producer.publish();
        assert!(near.poll().is_empty());
    }
    assert!(near.given_up().len() < 3000 * MOST / 2);
}
