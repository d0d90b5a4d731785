use std::collections::{HashMap, HashSet};
use std::ptr::null_mut;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::*;
use crate::pool::{SHORT, SLAB_BYTES};
use crate::time::Nanos;
use proptest::prelude::*;

const BUFFER: usize = 2048;
/// Offsets in a buffer: of a packet that a port received, and of one that is made here.
const CAME: usize = 256 + LEAD;
const MADE: usize = LEAD;

/// Buffers, as an AF_XDP socket has them.
struct Umem {
    start: NonNull<u8>,
    buffers: usize,
    free: Vec<usize>,
    /// Free buffers that stages are not given.
    kept: usize,
    given_back: usize,
    /// Nobody can adopt it.
    crooked: bool,
    /// It doesn't say how its buffers lie.
    uneven: bool,
}

// SAFETY: the memory is this value's alone.
unsafe impl Send for Umem {}

// SAFETY: it allocates what it says, zeros at first, and keeps it; buffers are on its list, or the pool's, or
// the test's.
unsafe impl Region for Umem {
    fn start(&self) -> NonNull<u8> {
        // SAFETY: within its memory.
        if self.crooked { unsafe { self.start.add(32) } } else { self.start }
    }

    fn size(&self) -> usize {
        self.buffers * BUFFER
    }

    fn buffers(&self) -> Buffers {
        if self.uneven {
            return Buffers { first: 0, stride: 0, len: BUFFER - CAME };
        }
        Buffers { first: 0, stride: BUFFER, len: BUFFER }
    }

    fn take(&mut self, len: usize) -> Option<usize> {
        if len > BUFFER - MADE || self.free.len() <= self.kept {
            return None;
        }
        if self.uneven && len > BUFFER - CAME {
            return None;
        }
        self.free.pop().map(|buffer| buffer * BUFFER + MADE)
    }

    fn give_back(&mut self, packets: &mut dyn Iterator<Item = usize>) {
        for packet in packets {
            assert!(!self.free.contains(&(packet / BUFFER)), "given back twice");
            self.free.push(packet / BUFFER);
            self.given_back += 1;
        }
    }
}

impl Umem {
    fn new(buffers: usize, kept: usize) -> Box<Self> {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // As rings and cards have it: what an allocator gives may be far from where there is room beside it.
        // SAFETY: addresses that are free, since none are named.
        let start = unsafe { mmap_anonymous(null_mut(), buffers * BUFFER, both, MapFlags::PRIVATE) };
        let start = NonNull::new(start.unwrap().cast()).unwrap();
        let free = (0..buffers).collect();
        Box::new(Self { start, buffers, free, kept, given_back: 0, crooked: false, uneven: false })
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, as long as this; nobody uses it any more.
        unsafe { munmap(self.start.as_ptr().cast(), self.buffers * BUFFER) }.unwrap();
    }
}

fn adopt(umem: Box<Umem>) -> Result<Pool, AdoptError> {
    // SAFETY: these tests give the pool only what it returned and they have not freed, with its length or
    // less.
    unsafe { Pool::adopt(umem) }
}

fn adopted(buffers: usize, kept: usize) -> Pool {
    adopted_anyhow(buffers, kept, false)
}

/// As [`adopted`], of buffers that may lie anyhow.
fn adopted_anyhow(buffers: usize, kept: usize, uneven: bool) -> Pool {
    let mut umem = Umem::new(buffers, kept);
    umem.uneven = uneven;
    adopt(umem).unwrap()
}

/// A packet comes into a buffer, as a card would put it there.
fn come(pool: &mut Pool, data: &[u8], meta: PacketMeta) -> Option<(BufId, *const u8)> {
    let receive = |umem: &mut Umem| {
        let offset = umem.free.pop()? * BUFFER + CAME;
        // SAFETY: the buffer was free, and has room.
        let address = unsafe {
            let to = umem.start.as_ptr().add(offset);
            to.copy_from_nonoverlapping(data.as_ptr(), data.len());
            to.cast_const()
        };
        Some((offset, address))
    };
    let (offset, address) = pool.with_region(receive).unwrap()?;
    Some((pool.adopted(offset, data.len() as u32, meta).unwrap(), address))
}

fn free_and_given_back(pool: &mut Pool) -> (usize, usize) {
    pool.with_region(|umem: &mut Umem| (umem.free.len(), umem.given_back)).unwrap()
}

#[test]
fn packets_stay_where_they_came() {
    let mut pool = adopted(8, 0);
    let meta = PacketMeta { original_len: 1000, interface: 2, time: Nanos(77) };
    let (buf, address) = come(&mut pool, &[5; 1000], meta).unwrap();
    assert_eq!(pool.data(buf, 1000).as_ptr(), address);
    assert_eq!((pool.data(buf, 1000), pool.meta(buf), pool.live()), (&[5; 1000][..], meta, 1));
    assert_eq!(pool.offset(buf).and_then(|at| pool.at_offset(at)), Some(buf));
    // A packet that grows within its buffer stays in it; one that doesn't fit goes to another.
    let (same, len) = pool.replace_front(buf, 1000, 14, &[6; 18]);
    assert_eq!((same, len, pool.data(same, 18)), (buf, 1004, &[6; 18][..]));
    let (moved, len) = pool.replace_front(buf, 1004, 0, &[7; 800]);
    assert!(moved != buf && pool.offset(moved).is_some());
    assert_eq!((pool.data(moved, 800), &pool.data(moved, len)[800..818]), (&[7; 800][..], &[6; 18][..]));
    pool.free(moved);
    assert_eq!(free_and_given_back(&mut pool), (8, 2));
    assert_eq!((pool.live(), pool.memory()), (0, 0));
}

/// Buffers go back many at once, not one by one.
#[test]
fn buffers_go_back_together() {
    let mut pool = adopted(1024, 0);
    let bufs: Vec<BufId> =
        (0..600).map(|_| come(&mut pool, &[1; 60], PacketMeta::default()).unwrap().0).collect();
    bufs.into_iter().for_each(|buf| pool.free(buf));
    let waiting = pool.free[usize::from(ADOPTED)].len();
    assert!((1..=WAITING).contains(&waiting), "{waiting}");
    assert_eq!(free_and_given_back(&mut pool), (1024, 600));
}

/// A full region, and one that keeps its last buffers for what comes, fail nobody.
#[test]
fn what_has_no_room_is_stored_beside() {
    let mut pool = adopted(4, 1);
    let data: Vec<Vec<u8>> = (0..40u8).map(|n| vec![n; 1 + 400 * usize::from(n)]).collect();
    for _ in 0..3 {
        let bufs: Vec<_> = data.iter().map(|data| pool.insert(PacketMeta::default(), data)).collect();
        assert_eq!(pool.live(), 40);
        for (buf, data) in bufs.iter().zip(&data) {
            assert_eq!(pool.data(*buf, data.len() as u32), &data[..]);
            assert_eq!(pool.offset(*buf).is_some(), data.len() <= 801);
        }
        // A buffer that was freed is used before memory beside.
        pool.free(bufs[0]);
        let again = pool.insert(PacketMeta::default(), &[1]);
        assert!(pool.offset(again).is_some());
        pool.free(again);
        bufs.into_iter().skip(1).for_each(|buf| pool.free(buf));
    }
    let large = pool.insert(PacketMeta::default(), &vec![3; 9 << 20]);
    assert_eq!((pool.memory(), pool.offset(large)), (3 * SLAB_BYTES as u64, None));
    pool.free(large);
    assert_eq!((pool.live(), pool.memory()), (0, SLAB_BYTES as u64));
    assert_eq!(free_and_given_back(&mut pool).0, 4);
}

#[test]
fn where_packets_may_begin() {
    let mut pool = adopted(4, 0);
    let meta = PacketMeta::default();
    for offset in [0, 8, 15, 17, 64, 256, 4 * BUFFER, 4 * BUFFER + LEAD, usize::MAX - 47] {
        assert_eq!(pool.adopted(offset, 60, meta), None, "at {offset}");
    }
    assert_eq!(pool.adopted(4 * BUFFER - 48, 49, meta), None);
    assert_eq!(pool.live(), 0);
    let last = pool.adopted(4 * BUFFER - 48, 48, meta).unwrap();
    assert_eq!(pool.let_go(last), Some(4 * BUFFER - 48));
    let made = pool.insert(meta, &vec![0; 4000]);
    assert_eq!((pool.let_go(made), pool.live()), (None, 1));
    assert_eq!(Pool::new().adopted(LEAD, 1, meta), None);

    let mut umem = Umem::new(1, 0);
    umem.crooked = true;
    let start = umem.start().as_ptr().addr();
    let refused = adopt(umem).unwrap_err();
    assert_eq!(refused, AdoptError::Misaligned(start));
    assert!(refused.to_string().contains("multiple of 64"), "{refused}");
}

/// Sliced packets, short ones and others, tell their owner when they are dropped; their payloads stay where
/// they came, and their meta data are theirs.
#[test]
fn sliced_packets_are_known() {
    for uneven in [false, true] {
        let mut pool = adopted_anyhow(4, 0, uneven);
        let meta = PacketMeta { original_len: 1514, interface: 3, time: Nanos(99) };
        let (buf, address) = come(&mut pool, &[5; 1514], meta).unwrap();
        assert!(pool.sliceable(buf, 1514).is_none());
        let head = pool.head_and_data(buf, 0).unwrap().0;
        let short = pool.insert_short(head, &[1; SHORT], 7, 1, |front| front[0] = 2);
        let long = pool.insert_sliced(meta, &[3; 1700], 7, 2);
        let beside = pool.insert_sliced(meta, &[4; 3000], 7, 3);
        assert_eq!(pool.data(short, 3), &[2, 1, 1]);
        assert_eq!((pool.data(long, 1700), pool.data(beside, 3000)), (&[3; 1700][..], &[4; 3000][..]));
        assert_eq!((pool.offset(short).is_some(), pool.offset(long).is_some()), (true, true));
        assert_eq!(pool.offset(beside), None);
        assert_eq!(pool.data(buf, 1514).as_ptr(), address);
        for (buf, token) in [(short, 1), (long, 2), (beside, 3)] {
            assert_eq!((pool.sliced_of(buf), pool.meta(buf)), (Some((7, token)), meta), "uneven: {uneven}");
        }
        assert!(pool.let_go(short).is_some());
        [buf, long, beside].into_iter().for_each(|buf| pool.free(buf));
        let mut told = Vec::new();
        pool.take_dropped(7, |token| told.push(token));
        assert_eq!((told, pool.live()), (vec![1, 2, 3], 0));
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Come,
    Insert,
    Free,
    LetGo,
    Front { cut: u32, front: usize },
    Copy,
}

fn step() -> impl Strategy<Value = (Step, usize, usize)> {
    let front = (0u32..60, 0usize..600).prop_map(|(cut, front)| Step::Front { cut, front });
    let step = prop_oneof![
        4 => Just(Step::Come), 2 => Just(Step::Insert), 4 => Just(Step::Free),
        1 => Just(Step::LetGo), 2 => front, 1 => Just(Step::Copy),
    ];
    (step, any::<usize>(), prop_oneof![1usize..1700, 1usize..1700, 1usize..6000])
}

proptest! {
    /// Against the obvious twin, a map from handle to bytes; and at the end the owner has each of its buffers
    /// once.
    #[test]
    fn stores_what_a_map_would(
        buffers in 1usize..40,
        kept in 0usize..4,
        uneven in any::<bool>(),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let mut pool = adopted_anyhow(buffers, kept, uneven);
        let mut twin: HashMap<u32, (Vec<u8>, PacketMeta, Option<*const u8>)> = HashMap::new();
        let mut ids = Vec::new();
        for (n, (step, which, len)) in steps.into_iter().enumerate() {
            let meta = PacketMeta { original_len: len as u32, interface: n as u32, time: Nanos(which as u64) };
            let data: Vec<u8> = (0..len).map(|i| (i * 3 + n) as u8).collect();
            let chosen = (!ids.is_empty()).then(|| which % ids.len());
            let new = match (step, chosen) {
                (Step::Come, _) => {
                    let data = &data[..len.min(BUFFER - CAME)];
                    come(&mut pool, data, meta).map(|(buf, at)| (buf, data.to_vec(), meta, Some(at)))
                }
                (Step::Insert, _) => Some((pool.insert(meta, &data), data, meta, None)),
                (Step::Free, Some(at)) => {
                    let id = ids.swap_remove(at);
                    twin.remove(&id);
                    pool.free(BufId(id));
                    None
                }
                (Step::LetGo, Some(at)) => {
                    if let Some(offset) = pool.let_go(BufId(ids[at])) {
                        twin.remove(&ids.swap_remove(at));
                        // As a driver that has sent it.
                        pool.with_region(|umem: &mut Umem| umem.free.push(offset / BUFFER)).unwrap();
                    }
                    None
                }
                (Step::Front { cut, front }, Some(at)) => {
                    let id = ids.swap_remove(at);
                    let (data, meta, came) = twin.remove(&id).unwrap();
                    let cut = cut.min(data.len() as u32);
                    let mut whole = vec![n as u8; front];
                    let (buf, _) = pool.replace_front(BufId(id), data.len() as u32, cut, &whole);
                    whole.extend_from_slice(&data[cut as usize..]);
                    let original_len = (meta.original_len + front as u32).saturating_sub(cut);
                    Some((buf, whole, PacketMeta { original_len, ..meta }, came.filter(|_| buf.0 == id)))
                }
                (Step::Copy, Some(at)) => {
                    let (data, meta, _) = twin[&ids[at]].clone();
                    Some((pool.copy(BufId(ids[at]), data.len() as u32), data, meta, None))
                }
                (_, None) => None,
            };
            if let Some((buf, data, meta, came)) = new {
                prop_assert!(twin.insert(buf.0, (data, meta, came)).is_none(), "a live place was given out again");
                ids.push(buf.0);
            }
            for (&id, (data, meta, came)) in &twin {
                let found = pool.data(BufId(id), data.len() as u32);
                prop_assert_eq!(found, &data[..]);
                prop_assert_eq!(pool.meta(BufId(id)), *meta);
                prop_assert!(came.is_none_or(|at| at == found.as_ptr()), "it moved");
            }
            prop_assert_eq!(pool.live(), twin.len() as u64);
        }
        ids.into_iter().for_each(|id| pool.free(BufId(id)));
        prop_assert_eq!(pool.live(), 0);
        let umem: Box<dyn Any> = pool.into_region().unwrap();
        let umem = umem.downcast::<Umem>().unwrap();
        prop_assert_eq!(umem.free.len(), buffers);
        prop_assert_eq!(umem.free.iter().collect::<HashSet<_>>().len(), buffers);
    }
}

proptest! {
    /// Against the obvious twin: one by one.
    #[test]
    fn many_at_once_are_as_one_by_one(
        packets in prop::collection::vec((prop_oneof![Just(CAME), Just(MADE), 0..BUFFER], 0..2 * BUFFER as u32), 1..30),
        long in 0usize..4,
    ) {
        let (mut pool, mut twin) = (adopted(packets.len(), 0), adopted(packets.len(), 0));
        let time = Nanos(7_000_000_000);
        let place = |(n, (at, len)): (usize, &(usize, u32))| (n * BUFFER + at, *len);
        let mut ids = Vec::new();
        pool.adopt_all(packets.iter().enumerate().map(place), time, |pool, n, len, id| {
            let (offset, same) = place((n, &packets[n]));
            let meta = PacketMeta { original_len: len, interface: 0, time };
            let other = twin.adopted(offset, len, meta);
            assert_eq!((len, id.is_some()), (same, other.is_some()));
            // Their numbers count from where either region lies.
            if let (Some(id), Some(other)) = (id, other) {
                assert_eq!((pool.offset(id), pool.meta(id)), (Some(offset), meta));
                assert_eq!((twin.offset(other), twin.meta(other)), (Some(offset), meta));
                assert_eq!(pool.class(id.0), twin.class(other.0));
                ids.push((id, other));
            }
        });
        prop_assert_eq!(pool.live(), twin.live());
        // These don't lie in the region.
        for _ in 0..long {
            let bytes = vec![1; 2 * BUFFER];
            ids.push((pool.insert(PacketMeta::default(), &bytes), twin.insert(PacketMeta::default(), &bytes)));
        }
        let mut gone = 0;
        pool.let_all_go(ids.iter().map(|(id, _)| *id), |pool, id, offset| {
            let (this, other) = ids[gone];
            assert_eq!((id, offset), (this, twin.let_go(other)));
            if offset.is_none() {
                pool.free(id);
                twin.free(other);
            }
            gone += 1;
        });
        prop_assert_eq!((gone, pool.live(), twin.live()), (ids.len(), 0, 0));
    }
}

/// One thread receives, another sends; buffers go back whoever frees, and what is made beside them too.
#[test]
fn threads_share_a_region() {
    // SAFETY: as in `adopt`; packets go from thread to thread by a channel.
    let mut pools = unsafe { adopted(300, 100).siblings(2) }.into_iter();
    let (mut from, mut to) = (pools.next().unwrap(), pools.next().unwrap());
    let (send, receive) = std::sync::mpsc::sync_channel::<(BufId, u32, Option<usize>)>(400);
    let receiver = std::thread::spawn(move || {
        let (mut came, mut made) = (0, 0);
        while came < 5000 {
            let data = vec![came as u8; 60 + came % 1000];
            if let Some((buf, address)) = come(&mut from, &data, PacketMeta::default()) {
                send.send((buf, data.len() as u32, Some(address.addr()))).unwrap();
                came += 1;
            }
            if came % 8 == 0 && made < came {
                let data = vec![1; 100 + 2900 * (made % 2)];
                send.send((from.insert(PacketMeta::default(), &data), data.len() as u32, None)).unwrap();
                made = came;
            }
        }
    });
    let mut beside = 0;
    for (buf, len, address) in receive {
        let data = to.data(buf, len);
        assert!(data.iter().all(|byte| *byte == data[0]));
        assert!(address.is_none_or(|address| address == data.as_ptr().addr()), "it moved");
        beside += u64::from(to.offset(buf).is_none());
        to.free(buf);
    }
    receiver.join().unwrap();
    to.settle();
    assert!(beside >= 300, "{beside}");
    assert_eq!((to.live(), to.memory()), (0, SLAB_BYTES as u64));
    let umem: Box<dyn Any> = to.into_region().unwrap();
    assert_eq!(umem.downcast::<Umem>().unwrap().free.len(), 300);
}
