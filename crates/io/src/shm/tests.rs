//! The rings against a queue, two sides against each other, and files that are not what they should be.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use tempfile::TempDir;

use super::layout::{CLOSED, HEADER, Side, file_bytes};
use super::memory::Memory;
use super::parked::DROPS;
use super::ring::{Consumer, Damage, Producer, Record, Refused, room_for};
use super::*;
use slipstream_core::batch::Arrivals;
use slipstream_core::pool::Pool;
use slipstream_core::source::{LiveSource, Source};
use slipstream_core::time::Nanos;

const RING: u64 = 1 << 16;

fn memory() -> (Arc<Memory>, File) {
    let file = tempfile::tempfile().unwrap();
    file.set_len(file_bytes(RING)).unwrap();
    (Arc::new(Memory::map(&file, file_bytes(RING) as usize).unwrap()), file)
}

fn ends(memory: &Arc<Memory>) -> (Producer, Consumer) {
    let place = Side::BOTH[0].ring(RING);
    (Producer::new(Arc::clone(memory), place), Consumer::new(Arc::clone(memory), place))
}

fn packet(number: u64, len: usize) -> (Record, Vec<u8>) {
    let data: Vec<u8> = (0..len).map(|i| (number as usize * 31 + i) as u8).collect();
    let record = Record {
        len: len as u32,
        original_len: len as u32 + 4,
        interface: (number as u32 % 5) | if number % 5 == 3 { DROPS } else { 0 },
        link: 1,
        arrival: number << 20,
        time: !number,
    };
    (record, data)
}

fn take(consumer: &mut Consumer) -> Result<Option<(Record, Vec<u8>)>, Damage> {
    let Some(record) = consumer.next()? else { return Ok(None) };
    let mut data = vec![0; record.len as usize];
    consumer.read(0, &mut data);
    consumer.pass(record.len);
    Ok(Some((record, data)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Against the obvious twin, a queue of one thread that counts bytes as the ring does.
    #[test]
    fn does_what_a_queue_does(steps in proptest::collection::vec((0u8..4, 0usize..9000, 1usize..6), 1..300)) {
        let (memory, _file) = memory();
        let (mut producer, mut consumer) = ends(&memory);
        let (mut twin, mut put, mut taken, mut number) = (VecDeque::new(), 0u64, 0u64, 0);
        let mut published = 0;
        for (step, len, times) in steps {
            for _ in 0..times {
                match step {
                    0 | 1 => {
                        let (record, data) = packet(number, len);
                        let end = RING - put % RING;
                        let room = room_for(len);
                        let takes = if room > end { room + end } else { room };
                        producer.look().unwrap();
                        let result = producer.push(&record, [&data, &[]]);
                        if RING - (put - taken) >= takes {
                            prop_assert_eq!(result, Ok(()));
                            put += takes;
                            twin.push_back((record, data, put));
                            number += 1;
                        } else {
                            prop_assert_eq!(result, Err(Refused::Full));
                        }
                        prop_assert_eq!(producer.free(), RING - (put - taken));
                    }
                    2 => { producer.publish(); published = number; }
                    _ => {
                        let got = take(&mut consumer).unwrap();
                        let seen = twin.front().is_some_and(|(r, ..): &(Record, Vec<u8>, u64)| r.arrival >> 20 < published);
                        let want = if seen { twin.pop_front() } else { None };
                        if let Some((_, _, position)) = &want { taken = *position }
                        prop_assert_eq!(got, want.map(|(r, d, _)| (r, d)));
                        consumer.give_back();
                    }
                }
            }
        }
        producer.publish();
        producer.look().unwrap();
        // A record that tells of dropped packets is none.
        let packets = twin.iter().filter(|(record, ..)| record.interface & DROPS == 0).count();
        prop_assert_eq!(producer.left(), packets as u64);
        while let Some((record, data, _)) = twin.pop_front() {
            prop_assert_eq!(take(&mut consumer).unwrap(), Some((record, data)));
        }
        prop_assert_eq!(take(&mut consumer), Ok(None));
    }

    /// Whatever lies in the ring and its positions: packets or damage, never a packet beyond the ring, and no
    /// end of it.
    #[test]
    fn nothing_in_the_ring_is_believed(bytes in proptest::collection::vec(any::<u8>(), 0..4096), tail in any::<u64>(), near in any::<bool>()) {
        let (memory, file) = memory();
        let (_, mut consumer) = ends(&memory);
        file.write_at(&bytes, HEADER as u64).unwrap();
        let tail = if near { tail % (RING + 128) / 64 * 64 } else { tail };
        memory.word(Side::BOTH[0].ring(RING).tail).unwrap().store(tail, Ordering::Release);
        let mut sum = 0;
        while let Ok(Some(record)) = consumer.next() {
            sum += room_for(record.len as usize);
            prop_assert!(sum <= RING);
            consumer.read(0, &mut vec![0; record.len as usize]);
            consumer.pass(record.len);
        }
    }
}

#[test]
fn packets_that_never_fit_are_told_from_those_that_do_not_now() {
    let (memory, _file) = memory();
    let (mut producer, mut consumer) = ends(&memory);
    let (record, data) = packet(0, RING as usize / 2 - 31);
    assert_eq!(producer.push(&record, [&data, &[]]), Err(Refused::TooLong));
    let (record, data) = packet(0, RING as usize / 2 - 32);
    assert_eq!(producer.push(&record, [&data, &[]]), Ok(()));
    assert_eq!(producer.push(&record, [&data, &[]]), Ok(()));
    assert_eq!(producer.push(&record, [&data, &[]]), Err(Refused::Full));
    assert_eq!(consumer.next(), Ok(None), "not published yet");
    producer.publish();
    assert_eq!(take(&mut consumer), Ok(Some((record, data.clone()))));
    consumer.give_back();
    assert_eq!(producer.push(&record, [&data, &[]]), Err(Refused::Full), "not looked yet");
    producer.look().unwrap();
    assert_eq!(producer.push(&record, [&data, &[]]), Ok(()));
}

#[test]
fn a_consumer_that_takes_what_was_not_there_is_found_out() {
    let (memory, _file) = memory();
    let (mut producer, _) = ends(&memory);
    let head = memory.word(Side::BOTH[0].ring(RING).head).unwrap();
    for wrong in [64, u64::MAX, 1] {
        head.store(wrong, Ordering::Release);
        assert!(producer.look().is_err(), "{wrong}");
    }
    head.store(0, Ordering::Release);
    producer.look().unwrap();
}

#[test]
fn between_two_threads_nothing_is_lost_or_torn() {
    const ALL: u64 = 50_000;
    let (memory, _file) = memory();
    let (mut producer, mut consumer) = ends(&memory);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..ALL {
                let (record, data) = packet(number, (number * 7 % 1600) as usize);
                while producer.push(&record, [&data, &[]]).is_err() {
                    producer.publish();
                    producer.look().unwrap();
                    std::thread::yield_now();
                }
                if number % 13 == 0 {
                    producer.publish();
                }
            }
            producer.publish();
            producer.close();
        });
        let mut number = 0;
        while number < ALL {
            let finished = consumer.finished();
            match take(&mut consumer).unwrap() {
                Some(got) => {
                    assert!(got == packet(number, (number * 7 % 1600) as usize), "packet {number}");
                    number += 1;
                    if number % 17 == 0 {
                        consumer.give_back();
                    }
                }
                None => {
                    assert!(!finished, "{number} packets and no more");
                    consumer.give_back();
                    std::thread::yield_now();
                }
            }
        }
    });
}

fn options(dir: &TempDir) -> Options {
    Options { ring: RING, ..Options::new(dir.path().join("shm")) }
}

fn frame(data: &[u8], time: u64) -> Outgoing<'_> {
    let time = Nanos(time);
    Outgoing {
        data,
        original_len: data.len() as u32,
        interface: 7,
        link: 113,
        arrival: time,
        time,
        sliced: None,
    }
}

fn poll(receiver: &mut Receiver, now: u64) -> Result<Vec<Vec<u8>>, slipstream_core::source::SourceError> {
    let (mut pool, mut arrivals) = (Pool::new(), Arrivals::default());
    receiver.poll(&mut pool, &mut arrivals, 256, Nanos(now))?;
    Ok(arrivals.frames.iter().map(|f| pool.data(f.buf, f.len).to_vec()).collect())
}

#[test]
fn two_sides_send_both_ways_and_end_well() {
    let dir = tempfile::tempdir().unwrap();
    let (mut from_b, mut to_b) = options(&dir).open().unwrap();
    // The second takes the size of the first.
    let (mut from_a, mut to_a) = Options { ring: RING * 4, ..options(&dir) }.open().unwrap();
    assert!(matches!(options(&dir).open(), Err(ShmError::InUse(_))));
    to_b.send(&frame(b"to b", 5));
    assert_eq!(poll(&mut from_a, 0).unwrap(), [b""; 0]);
    to_b.flush();
    to_a.send(&frame(b"to a", 6));
    to_a.flush();
    assert_eq!(poll(&mut from_a, 0).unwrap(), [b"to b"]);
    assert_eq!(poll(&mut from_b, 0).unwrap(), [b"to a"]);
    assert_eq!((from_a.interfaces().len(), from_a.interfaces()[0].link_number), (1, 113));
    assert_eq!((to_b.counts().packets, to_b.counts().bytes, to_b.counts().ring_bytes), (1, 4, 64));
    to_b.look_around();
    assert_eq!(to_b.waiting(), 0);
    to_b.close();
    assert!(poll(&mut from_a, 0).unwrap().is_empty() && from_a.ended());
    drop((from_a, to_a));
    // The other way nobody said that it was over.
    let mut now = 0;
    let error = loop {
        match poll(&mut from_b, now) {
            Ok(packets) => assert!(packets.is_empty()),
            Err(error) => break error,
        }
        now += 1_000_000;
        assert!(now < 1_000_000_000);
    };
    assert!(error.to_string().contains("ended without finishing"), "{error}");
    drop((from_b, to_b));
    assert!(!dir.path().join("shm").exists(), "the last one takes the file away");
}

#[test]
fn a_side_that_only_receives_or_sends_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut sender = options(&dir).open_sender().unwrap();
    for n in 0..10 {
        sender.send(&frame(&[n; 100], n.into()));
    }
    sender.close();
    assert_eq!(sender.waiting(), 10 * 192);
    let (mut receiver, mut back) = options(&dir).open().unwrap();
    assert_eq!(poll(&mut receiver, 0).unwrap().len(), 10);
    assert!(poll(&mut receiver, 0).unwrap().is_empty() && receiver.ended());
    sender.look_around();
    assert_eq!((sender.waiting(), sender.next_look()), (0, None));
    // The other way nobody takes anything, which is no error.
    for _ in 0..RING / 64 + 5 {
        back.send(&frame(b"x", 0));
    }
    assert_eq!(back.counts().abandoned, 5);
    assert_eq!((back.counts().packets, back.counts().never_taken), (RING / 64, RING / 64));
    back.check().unwrap();
}

#[test]
fn a_full_ring_drops_and_counts_or_has_no_room() {
    let dir = tempfile::tempdir().unwrap();
    let (_keep, mut waits) = options(&dir).open().unwrap();
    let (_other, mut drops) = Options { when_full: WhenFull::Drop, ..options(&dir) }.open().unwrap();
    assert_eq!((drops.room(), drops.waiting()), (usize::MAX, 0));
    for _ in 0..RING / 1024 + 3 {
        drops.send(&frame(&[0; 1024 - 32], 0));
    }
    assert_eq!((drops.counts().packets, drops.counts().full, drops.counts().not_sent()), (RING / 1024, 3, 3));
    let mut sent = 0;
    while waits.room() > 0 {
        waits.send(&frame(&[0; 1500], 0));
        sent += 1;
    }
    assert_eq!((waits.counts().packets, waits.counts().full), (sent, 0));
    // Half of so small a ring is kept for one packet that is longer than those so far.
    assert!(sent > 15);
}

#[test]
fn a_side_that_left_is_noticed_and_not_taken_again() {
    let dir = tempfile::tempdir().unwrap();
    let (receiver, mut sender) = options(&dir).open().unwrap();
    let (other, gone) = options(&dir).open().unwrap();
    sender.send(&frame(b"lost", 0));
    sender.flush();
    assert_eq!(sender.waiting(), 64);
    drop((other, gone));
    assert!(matches!(options(&dir).open(), Err(ShmError::Over(_))));
    // Asked at once, then every millisecond.
    sender.look_around();
    std::thread::sleep(std::time::Duration::from_millis(3));
    sender.look_around();
    assert_eq!((sender.waiting(), sender.room()), (0, usize::MAX));
    assert_eq!((sender.counts().packets, sender.counts().never_taken, sender.counts().not_sent()), (1, 1, 1));
    drop(receiver);
}

/// The death of the other side is noticed whatever is done with packets that find the ring full, and where
/// nothing comes back from it also while nothing waits for it.
#[test]
fn a_death_is_noticed_by_who_drops_and_by_who_is_at_rest() {
    let dir = tempfile::tempdir().unwrap();
    for (when_full, packets) in [(WhenFull::Drop, 3), (WhenFull::Drop, 0), (WhenFull::Wait, 0)] {
        let one_way = Options { when_full, ..options(&dir) };
        let mut sender = one_way.open_sender().unwrap().one_way();
        let there = one_way.open_receiver().unwrap();
        (0..packets).for_each(|n| assert!(sender.send(&frame(b"lost", n))));
        sender.flush();
        sender.look_around();
        assert!(!sender.has_failed());
        // One that dies gives its lock back, and says nothing.
        drop(there);
        let file = File::options().write(true).open(dir.path().join("shm")).unwrap();
        file.write_at(&[0; 4], (Side::BOTH[0].ring(RING).head + CLOSED) as u64).unwrap();
        assert!(sender.next_look().is_some(), "{when_full:?}, {packets} packets: nobody looks");
        std::thread::sleep(std::time::Duration::from_millis(3));
        sender.look_around();
        assert_eq!(sender.next_look(), None, "there is nobody to look after");
        assert!(matches!(sender.check(), Err(ShmError::PeerDied(_))));
        assert_eq!((sender.counts().packets, sender.counts().never_taken), (packets, packets));
    }
}

/// Nobody is waited for who wouldn't find the file; who has come stays, whatever becomes of its name.
#[test]
fn a_file_that_loses_its_name_is_noticed_until_somebody_has_come() {
    let dir = tempfile::tempdir().unwrap();
    for replaced in [false, true] {
        let (mut receiver, mut sender) = options(&dir).open().unwrap();
        assert!(sender.send(&frame(b"for whom", 0)));
        let mut now = 0;
        let mut look = |receiver: &mut Receiver, sender: &mut Sender| {
            now += 20_000_000;
            std::thread::sleep(std::time::Duration::from_millis(3));
            sender.look_around();
            poll(receiver, now).and_then(|_| poll(receiver, now + 15_000_000)).map_err(|e| e.to_string())
        };
        assert!(look(&mut receiver, &mut sender).is_ok() && !sender.has_failed());
        std::fs::remove_file(dir.path().join("shm")).unwrap();
        let other = replaced.then(|| options(&dir).open().unwrap());
        let said = look(&mut receiver, &mut sender).unwrap_err();
        assert!(said.contains("removed or replaced") && receiver.ended(), "{said}");
        assert!(matches!(sender.check(), Err(ShmError::Removed(_))));
        assert_eq!(sender.counts().never_taken, 1);
        drop((receiver, sender));
        if let Some((mut here, mut out)) = other {
            let _there = options(&dir).open().unwrap();
            std::fs::remove_file(dir.path().join("shm")).unwrap();
            assert!(look(&mut here, &mut out).is_ok() && !out.has_failed());
        }
    }
}

/// A packet that finds the ring full waits a while. Where the other side may be waiting for this one, too,
/// the first that waits in vain is the last, until something was taken.
#[test]
fn two_full_rings_hold_nobody_up_packet_by_packet() {
    let dir = tempfile::tempdir().unwrap();
    let fill = |sender: &mut Sender| {
        while sender.producer.free() > 0 {
            assert!(sender.send(&frame(&[0; 1024 - 32], 0)));
        }
        sender.flush();
    };
    for both in [false, true] {
        let (_receiver, mut here) = options(&dir).open().unwrap();
        let (mut there, mut back) = options(&dir).open().unwrap();
        fill(&mut here);
        if both {
            fill(&mut back);
        }
        (0..4).for_each(|_| assert!(!here.send(&frame(&[0; 1024 - 32], 0))));
        assert_eq!((here.counts().waits, here.counts().full), (if both { 1 } else { 4 }, 4));
        let (mut pool, mut arrivals) = (Pool::new(), Arrivals::default());
        assert_eq!(there.poll(&mut pool, &mut arrivals, 1, Nanos(0)).unwrap(), 1);
        assert!(here.send(&frame(&[0; 1024 - 32], 0)));
        assert!(!here.send(&frame(&[0; 1024 - 32], 0)));
        assert_eq!(here.counts().waits, if both { 2 } else { 5 });
    }
}

/// Each packet that was handed over is taken by the other side, or counted as not sent once that is gone;
/// what nobody tells of dropped packets is no packet.
#[test]
fn packets_that_nobody_took_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    for (packets, takes) in [(0, 0), (9, 0), (9, 4), (9, 9), (200, 50)] {
        let (_receiver, mut sender) = options(&dir).open().unwrap();
        let (mut other, back) = options(&dir).open().unwrap();
        for n in 0..packets {
            sender.send(&frame(&[0; 1500][..(n * 37 % 1500) as usize], n));
            sender.flush();
        }
        let (mut pool, mut arrivals) = (Pool::new(), Arrivals::default());
        let taken =
            if takes > 0 { other.poll(&mut pool, &mut arrivals, takes, Nanos(0)).unwrap() } else { 0 };
        assert_eq!(taken, takes);
        drop((other, back));
        sender.leave();
        let counts = sender.counts();
        assert_eq!(counts.packets + counts.full + counts.abandoned, packets);
        assert_eq!(counts.not_sent() + taken as u64, packets, "{counts:?}");
        sender.leave();
        assert_eq!(sender.counts(), counts);
    }
}

/// Packets on their way when the other side damages the ring are counted as not sent, those included that it
/// may have taken since it last said so; what it writes over records makes no difference.
#[test]
fn packets_in_a_damaged_ring_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    for (scribbles, dies) in [(false, false), (true, false), (true, true)] {
        let (_receiver, mut sender) = options(&dir).open().unwrap();
        let (mut other, back) = options(&dir).open().unwrap();
        for n in 0..9 {
            sender.send(&frame(&[0; 1500][..n * 150], 0));
        }
        sender.flush();
        let (mut pool, mut arrivals) = (Pool::new(), Arrivals::default());
        assert_eq!(other.poll(&mut pool, &mut arrivals, 4, Nanos(0)).unwrap(), 4);
        let file = File::options().read(true).write(true).open(dir.path().join("shm")).unwrap();
        let ring = Side::BOTH[0].ring(RING);
        if scribbles {
            file.write_at(&vec![0xff; RING as usize], ring.data as u64).unwrap();
        }
        if dies {
            drop((other, back));
        } else {
            // The packets that were taken until now are known.
            sender.look_around();
            file.write_at(&u64::MAX.to_le_bytes(), ring.head as u64).unwrap();
        }
        sender.leave();
        let counts = sender.counts();
        assert_eq!((counts.packets, counts.never_taken, counts.not_sent()), (9, 5, 5), "{scribbles} {dies}");
        sender.leave();
        assert_eq!(sender.counts(), counts);
        assert!(!sender.send(&frame(b"for nobody", 0)));
        assert_eq!(sender.counts().not_sent(), 6);
        assert!(dies || sender.check().unwrap_err().to_string().contains("never put in"));
    }
}

/// Packets before a record that can't be come in the order of time, too, as whoever asked for them relies on.
#[test]
fn times_before_damage_do_not_run_backwards() {
    let dir = tempfile::tempdir().unwrap();
    let (_back, mut sender) = options(&dir).open().unwrap();
    let (mut receiver, _) = options(&dir).open().unwrap();
    for time in [u64::MAX, 5, 7] {
        sender.send(&frame(b"packet", time));
    }
    sender.flush();
    let file = File::options().write(true).open(dir.path().join("shm")).unwrap();
    file.write_at(&RING.to_le_bytes(), Side::BOTH[0].ring(RING).data as u64 + 128).unwrap();
    let (mut pool, mut arrivals) = (Pool::new(), Arrivals::default());
    let error = receiver.poll(&mut pool, &mut arrivals, 256, Nanos(0)).unwrap_err().to_string();
    assert!(error.contains("longer than what was put in"), "{error}");
    let times: Vec<_> = arrivals.frames.iter().map(|frame| frame.arrival.0).collect();
    assert_eq!(times, [u64::MAX; 2]);
}

/// If nobody comes until this side leaves, nothing was sent; if somebody is there, it may yet take what
/// lies in the ring.
#[test]
fn packets_for_nobody_were_not_sent() {
    let dir = tempfile::tempdir().unwrap();
    for comes in [false, true] {
        let mut sender = options(&dir).open_sender().unwrap();
        let there = comes.then(|| options(&dir).open_receiver().unwrap());
        (0..7).for_each(|n| assert!(sender.send(&frame(b"for whom", n))));
        sender.leave();
        assert_eq!((sender.counts().packets, sender.counts().never_taken), (7, if comes { 0 } else { 7 }));
        drop(sender);
        if let Some(mut there) = there {
            assert_eq!(poll(&mut there, 0).unwrap().len(), 7);
        }
    }
}

/// Who comes while the other side is about to leave, having counted what is in the ring as not sent, takes
/// none of it: a session of its own begins when that side is gone.
#[test]
fn nobody_takes_what_was_counted_as_not_sent() {
    let dir = tempfile::tempdir().unwrap();
    let (receiver, mut sender) = options(&dir).open().unwrap();
    (0..7).for_each(|n| assert!(sender.send(&frame(b"for whom", n))));
    sender.leave();
    assert_eq!(sender.counts().never_taken, 7);
    let options = options(&dir);
    let comes = std::thread::spawn(move || options.open().unwrap());
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(!comes.is_finished(), "somebody has come, and may take what was not sent");
    drop((receiver, sender));
    let (mut other, _back) = comes.join().unwrap();
    assert_eq!(poll(&mut other, 0).unwrap().len(), 0);
    assert!(!other.ended());
}

fn with_file(change: impl FnOnce(&mut File)) -> ShmError {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shm");
    let mut file = File::options().create(true).truncate(true).write(true).mode(0o600).open(&path).unwrap();
    file.write_all(&super::layout::header(RING)).unwrap();
    file.set_len(file_bytes(RING)).unwrap();
    change(&mut file);
    let before = std::fs::read(&path).unwrap();
    let error = options(&dir).open().unwrap_err();
    assert_eq!(std::fs::read(&path).unwrap(), before, "a file that is not ours must stay as it is");
    error
}

#[test]
fn files_that_are_something_else_are_left_alone() {
    let at = |file: &mut File, place, bytes: &[u8]| {
        file.seek(SeekFrom::Start(place)).unwrap();
        file.write_all(bytes).unwrap();
    };
    assert!(matches!(with_file(|f| at(f, 0, b"#!/bin/sh")), ShmError::NotOurs(_)));
    assert!(matches!(with_file(|f| f.set_len(10).unwrap()), ShmError::NotOurs(_)));
    assert!(matches!(with_file(|f| at(f, 8, &[9])), ShmError::Version { found: 9, known: 2, .. }));
    assert!(matches!(with_file(|f| at(f, 16, &[1])), ShmError::Damaged { .. }));
    assert!(matches!(with_file(|f| f.set_len(5000).unwrap()), ShmError::Damaged { .. }));
    let error = options(&tempfile::tempdir().unwrap()).path;
    let missing = Options::new(error.join("no/such/directory")).open().unwrap_err();
    assert!(missing.to_string().contains("opening"), "{missing}");
    assert!(matches!(Options::new(PathBuf::from("/dev/null")).open(), Err(ShmError::NotOurs(_))));
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Options { ring: 3 << 16, ..options(&dir) }.open(), Err(ShmError::Size(_))));
    assert!(matches!(Options { ring: 1 << 12, ..options(&dir) }.open(), Err(ShmError::Size(_))));
}

/// A file that others may use is not used, whatever is in it, and stays as it is.
#[test]
fn files_that_others_may_use_are_refused() {
    for mode in [0o666, 0o660, 0o604] {
        let error = with_file(|f| f.set_permissions(PermissionsExt::from_mode(mode)).unwrap());
        assert!(matches!(error, ShmError::NotPrivate { .. }), "{error}");
        assert!(
            error.to_string().contains(&format!("mode {mode:03o}"))
                && error.to_string().contains("remove it")
        );
    }
}

/// Who waits for so long and no longer says that nobody came; who was there in time is waited for without
/// end.
#[test]
fn nobody_is_waited_for_longer_than_was_said() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { wait_ns: Some(1_000_000_000), ..options(&dir) };
    let (mut receiver, _sender) = options.open().unwrap();
    let mut pool = Pool::new();
    let mut look = |receiver: &mut Receiver, now| {
        receiver.poll(&mut pool, &mut Arrivals::default(), 8, Nanos(now)).map_err(|e| e.to_string())
    };
    for now in (0..=1_000_000_000).step_by(20_000_000) {
        assert_eq!(look(&mut receiver, now), Ok(0));
    }
    let error = look(&mut receiver, 1_040_000_000).unwrap_err();
    assert!(error.contains("nobody came") && error.contains("1 s"), "{error}");
    drop((receiver, _sender));
    let (mut receiver, _sender) = options.open().unwrap();
    assert_eq!(look(&mut receiver, 0), Ok(0));
    let _other = Options::new(&options.path).open().unwrap();
    for now in (0..=5_000_000_000u64).step_by(20_000_000) {
        assert_eq!(look(&mut receiver, now), Ok(0));
    }
}

/// A side that hears nothing sleeps for longer and longer, but for less than a hundredth of the silence where
/// that is more than the least; after a packet it begins anew.
#[test]
fn naps_grow_with_the_silence() {
    let dir = tempfile::tempdir().unwrap();
    let (mut receiver, _sender) = options(&dir).open().unwrap();
    let (_receiver, mut sender) = options(&dir).open().unwrap();
    assert_eq!((poll(&mut receiver, 0).unwrap().len(), receiver.patience()), (0, None), "awake at first");
    for now in 0..2000 {
        poll(&mut receiver, now).unwrap();
    }
    let mut longest = 0;
    for now in (10_000..400_000_000).step_by(10_000) {
        poll(&mut receiver, now).unwrap();
        let nap = receiver.patience().unwrap();
        assert!(nap >= longest && nap <= 50_000.max(now / 100), "{nap} after {now}");
        longest = nap;
    }
    assert_eq!(longest, 1_000_000);
    sender.send(&frame(b"here", 7));
    sender.flush();
    assert_eq!(poll(&mut receiver, 400_000_000).unwrap(), [b"here"]);
    poll(&mut receiver, 400_000_001).unwrap();
    assert_eq!(receiver.patience(), None);
}

/// All of the file has its place in memory or on disk, so that no write to it can fail later.
#[test]
fn the_rings_have_their_memory_from_the_beginning() {
    let dir = tempfile::tempdir().unwrap();
    let _port = options(&dir).open().unwrap();
    let about = std::fs::metadata(dir.path().join("shm")).unwrap();
    assert_eq!(about.len(), file_bytes(RING));
    assert!(about.blocks() * 512 >= about.len(), "{} blocks of {} bytes", about.blocks(), about.len());
}

/// A process that ends while it makes the file leaves one that the next takes for an empty one.
#[test]
fn a_file_that_was_not_made_to_its_end_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    for len in [24, HEADER as u64, file_bytes(RING)] {
        let path = dir.path().join("shm");
        let mut file = File::options().create_new(true).write(true).mode(0o600).open(path).unwrap();
        file.write_all(&super::layout::header(0)).unwrap();
        file.set_len(len).unwrap();
        let (mut receiver, _sender) = options(&dir).open().unwrap();
        let (_receiver, mut sender) = options(&dir).open().unwrap();
        sender.send(&frame(b"here", 0));
        sender.flush();
        assert_eq!(poll(&mut receiver, 0).unwrap(), [b"here"]);
    }
}

#[test]
fn an_empty_file_is_made_a_port_and_what_a_session_left_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    File::options().create_new(true).write(true).mode(0o600).open(dir.path().join("shm")).unwrap();
    let place = Side::BOTH[1].ring(RING);
    {
        let (_receiver, mut sender) = options(&dir).open().unwrap();
        sender.send(&frame(b"old", 0));
        sender.close();
        // Another hard link keeps the file when the session takes its name away.
        std::fs::hard_link(dir.path().join("shm"), dir.path().join("kept")).unwrap();
    }
    std::fs::rename(dir.path().join("kept"), dir.path().join("shm")).unwrap();
    let (mut receiver, _sender) = options(&dir).open().unwrap();
    let file = File::open(dir.path().join("shm")).unwrap();
    let mut word = [9; 8];
    file.read_exact_at(&mut word, (place.tail + CLOSED) as u64).unwrap();
    assert_eq!(word, [0; 8]);
    assert!(poll(&mut receiver, 0).unwrap().is_empty() && !receiver.ended());
}
