use std::collections::HashMap;
use std::sync::mpsc::{channel, sync_channel};
use std::thread;

use super::*;
use crate::pool::{BufId, PacketMeta, SLAB_BYTES};
use crate::time::Nanos;
use proptest::prelude::*;

/// Packets that go round among threads, and threads.
const ROUNDS: u32 = if cfg!(miri) { 40 } else { 4_000 };
const THREADS: usize = 3;
/// The size of the largest class.
const LARGE: usize = 1 << 20;

fn siblings(n: usize) -> Vec<Pool> {
    // SAFETY: the tests of this file give a pool what one of its siblings returned and none has freed, with
    // its length or less, and hand packets from thread to thread by channels, each to one.
    unsafe { Pool::new().siblings(n) }
}

fn bytes(seed: u32, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed as usize + i * 7) as u8).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Insert {
        len: usize,
    },
    Free {
        which: usize,
    },
    /// Several leave together.
    FreeAll {
        most: usize,
    },
    Front {
        which: usize,
        cut: u32,
        front: usize,
    },
    Copy {
        which: usize,
    },
    /// A pool goes, and another comes.
    Replace {
        pool: usize,
    },
}

fn step() -> impl Strategy<Value = (usize, Step)> {
    let len = prop_oneof![12 => 0usize..200, 8 => 0usize..5000, (if cfg!(miri) { 0 } else { 1 }) => LARGE - 40..LARGE + 40];
    let step = prop_oneof![
        6 => len.prop_map(|len| Step::Insert { len }),
        4 => any::<usize>().prop_map(|which| Step::Free { which }),
        1 => (0..700usize).prop_map(|most| Step::FreeAll { most }),
        1 => (any::<usize>(), 0u32..100, 0usize..300)
            .prop_map(|(which, cut, front)| Step::Front { which, cut, front }),
        1 => any::<usize>().prop_map(|which| Step::Copy { which }),
        1 => (0..3usize).prop_map(|pool| Step::Replace { pool }),
    ];
    (0..3usize, step)
}

const CASES: u32 = if cfg!(miri) { 2 } else { 24 };

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    /// Against the obvious twin, a map from handle to bytes: any pool does with a packet what its own would
    /// have done.
    #[test]
    fn store_what_a_map_would(before in 0usize..20, elsewhere in 0usize..3, steps in prop::collection::vec(step(), 1..if cfg!(miri) { 20 } else { 250 })) {
        let mut twin: HashMap<u32, (Vec<u8>, u32)> = HashMap::new();
        let mut alone = Pool::new();
        for n in 0..before {
            let data = bytes(n as u32, 100 * n);
            let id = alone.insert(PacketMeta { original_len: 7, ..PacketMeta::default() }, &data);
            if n % 3 == 0 { alone.free(id) } else { twin.insert(id.0, (data, 7)); }
        }
        // SAFETY: as in `siblings`.
        let mut pools = unsafe { alone.siblings(3) };
        pools.iter_mut().take(elsewhere).for_each(Pool::free_elsewhere);
        let mut ids: Vec<u32> = twin.keys().copied().collect();
        ids.sort_unstable();
        for (n, (pool, step)) in steps.into_iter().enumerate() {
            let pool = &mut pools[pool];
            let at = |which: usize, ids: &[u32]| (!ids.is_empty()).then(|| which % ids.len());
            let new = match step {
                Step::Insert { len } => {
                    let data = bytes(n as u32, len);
                    let meta = PacketMeta { original_len: n as u32, interface: 1, time: Nanos(3) };
                    Some((pool.insert(meta, &data), data, n as u32))
                }
                Step::Free { which } => {
                    if let Some(at) = at(which, &ids) {
                        let id = ids.swap_remove(at);
                        twin.remove(&id);
                        pool.free(BufId(id));
                    }
                    None
                }
                Step::FreeAll { most } => {
                    let gone = ids.split_off(ids.len().saturating_sub(most));
                    gone.iter().for_each(|id| drop(twin.remove(id)));
                    let frame = |id: &u32| Frame::unclassified(Nanos(0), BufId(*id), 0);
                    pool.free_all(&gone.iter().map(frame).collect::<Vec<_>>());
                    None
                }
                Step::Front { which, cut, front } => at(which, &ids).map(|at| {
                    let id = ids.swap_remove(at);
                    let (data, original) = twin.remove(&id).unwrap();
                    let cut = cut.min(data.len() as u32);
                    let mut whole = bytes(1, front);
                    let (id, len) = pool.replace_front(BufId(id), data.len() as u32, cut, &whole);
                    whole.extend_from_slice(&data[cut as usize..]);
                    assert_eq!(len as usize, whole.len());
                    (id, whole, (original + front as u32).saturating_sub(cut))
                }),
                Step::Copy { which } => at(which, &ids).map(|at| {
                    let (data, original) = &twin[&ids[at]];
                    (pool.copy(BufId(ids[at]), data.len() as u32), data.clone(), *original)
                }),
                Step::Replace { pool } => {
                    let other = pools.remove(pool);
                    // SAFETY: as in `siblings`.
                    pools.extend(unsafe { other.siblings(1) });
                    None
                }
            };
            if let Some((id, data, original)) = new {
                prop_assert!(twin.insert(id.0, (data, original)).is_none(), "a live place was given out again");
                ids.push(id.0);
            }
            let all = if n % 16 == 0 { ids.len() } else { 3 };
            for id in ids.iter().rev().take(all) {
                let (data, original) = &twin[id];
                let pool = &pools[*id as usize % 3];
                prop_assert_eq!(pool.data(BufId(*id), data.len() as u32), &data[..]);
                prop_assert_eq!(pool.meta(BufId(*id)).original_len, *original);
            }
        }
        pools.iter_mut().for_each(Pool::settle);
        for pool in &pools {
            prop_assert_eq!(pool.live(), twin.len() as u64);
        }
    }
}

/// Packets go round among threads, each of which reads what the one before wrote, writes, and hands on or
/// frees.
#[test]
fn threads_hand_packets_to_each_other() {
    let (ends, heads): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel::<(BufId, u32, u32)>()).unzip();
    let workers: Vec<_> = siblings(THREADS)
        .into_iter()
        .zip(heads)
        .enumerate()
        .map(|(me, (mut pool, head))| {
            let next = ends[(me + 1) % THREADS].clone();
            if me % 2 == 1 {
                pool.free_elsewhere();
            }
            thread::spawn(move || {
                let mut seed = me as u32;
                for round in 0..ROUNDS {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    // Now and then one with slabs of its own.
                    let large = !cfg!(miri) && round % 1024 == 1;
                    let len = if large { 3 << 20 } else { seed >> if cfg!(miri) { 24 } else { 21 } };
                    let mut data = bytes(seed, len as usize);
                    data.insert(0, 2 * THREADS as u8);
                    let meta = PacketMeta { original_len: seed, ..PacketMeta::default() };
                    next.send((pool.insert(meta, &data), len + 1, seed)).unwrap();
                    let (buf, len, seed) = head.recv().unwrap();
                    assert_eq!(pool.meta(buf).original_len, seed);
                    let data = pool.data_mut(buf, len);
                    assert!(data[1..] == bytes(seed, len as usize - 1), "bytes of another packet");
                    data[0] -= 1;
                    match data[0] {
                        0 => pool.free(buf),
                        _ => next.send((buf, len, seed)).unwrap(),
                    }
                }
                drop(next);
                (pool, head)
            })
        })
        .collect();
    drop(ends);
    let mut done: Vec<_> = workers.into_iter().map(|w| w.join().unwrap()).collect();
    let (mut pools, heads): (Vec<_>, Vec<_>) = done.drain(..).unzip();
    for head in heads {
        for (n, (buf, ..)) in head.iter().enumerate() {
            pools[n % THREADS].free(buf);
        }
    }
    pools.iter_mut().for_each(Pool::settle);
    assert_eq!(pools[0].live(), 0);
}

/// One thread only stores, the other only frees: memory is what is between them, not what ever was.
#[test]
fn free_slots_come_back() {
    slots_come_back(false);
    slots_come_back(true);
}

fn slots_come_back(elsewhere: bool) {
    let mut pools = siblings(2).into_iter();
    let (mut from, mut to) = (pools.next().unwrap(), pools.next().unwrap());
    if elsewhere {
        to.free_elsewhere();
    }
    let (send, receive) = sync_channel::<Vec<BufId>>(4);
    let batches = if cfg!(miri) { 4 } else { 3000 };
    let store = thread::spawn(move || {
        for _ in 0..batches {
            let batch = (0..100).map(|n| from.insert(PacketMeta::default(), &[n; 100])).collect();
            send.send(batch).unwrap();
        }
        from
    });
    for batch in receive {
        to.free_all(
            &batch.into_iter().map(|buf| Frame::unclassified(Nanos(0), buf, 100)).collect::<Vec<_>>(),
        );
    }
    let from = store.join().unwrap();
    drop(from);
    to.settle();
    assert_eq!(to.live(), 0);
    // 300,000 packets of 128 bytes would take five slabs.
    assert_eq!(to.memory(), SLAB_BYTES as u64);
}

/// As many large slots as two pools can hold of a class are few.
#[test]
fn lists_are_short_where_slots_are_large() {
    for (class, units) in CLASS_UNITS.iter().enumerate() {
        let (n, bytes) = (kept(class), kept(class) * units * UNIT);
        assert!((2..=KEPT).contains(&n) && (bytes <= KEPT_BYTES || n == 2), "class {class}: {n}");
    }
}

/// Packets larger than a class go back to the system, whoever frees them.
#[test]
fn large_packets_give_their_memory_back() {
    let mut pools = siblings(2);
    let large = vec![7u8; 3 << 20];
    for n in 0..if cfg!(miri) { 2 } else { 20 } {
        let buf = pools[n % 2].insert(PacketMeta::default(), &large);
        assert!(pools[1].data(buf, 3 << 20) == large);
        pools[(n + 1) % 2].free(buf);
    }
    assert_eq!(pools[0].memory(), 0);
}

/// A sliced packet that another thread drops is known to its owner; and none is sliced where another thread
/// may free it.
#[test]
fn dropped_payloads_are_known_to_their_owner() {
    let mut pools = siblings(2);
    let buf = pools[0].insert(PacketMeta::default(), &[5; 1514]);
    assert!(pools[0].sliceable(buf, 1514).is_none());
    let sliced: Vec<_> =
        (0..100).map(|n| pools[0].insert_sliced(PacketMeta::default(), &[n; 62], 9, u64::from(n))).collect();
    for buf in sliced {
        pools[1].free(buf);
    }
    let mut told = Vec::new();
    pools[0].take_dropped(9, |token| told.push(token));
    // Others are told now and then.
    assert!(told.len() >= MAIL && told.len() < 100 + MAIL && told.iter().copied().eq(0..told.len() as u64));
    pools[1].settle();
    pools[0].take_dropped(8, |_| panic!("another's"));
    pools[0].take_dropped(9, |token| told.push(token));
    assert_eq!(told, (0..100).collect::<Vec<_>>());
    assert!(!pools[0].has_dropped());
}

/// A preloaded trace stays where it is, whoever frees its packets.
#[test]
fn retained_packets_stay() {
    let mut alone = Pool::new();
    let buf = alone.insert(PacketMeta::default(), &[3; 100]);
    alone.retain();
    // SAFETY: as in `siblings`.
    let mut pools = unsafe { alone.siblings(2) };
    pools.iter_mut().for_each(|pool| pool.free(buf));
    let other = pools[1].insert(PacketMeta::default(), &[4; 100]);
    assert_eq!((pools[0].data(buf, 100), pools[0].data(other, 100)), (&[3; 100][..], &[4; 100][..]));
}
