use super::*;
use crate::time::Nanos;
use proptest::prelude::*;
use std::collections::HashMap;

proptest! {
    /// Against the obvious twin: a map from handle to bytes.
    #[test]
    fn stores_what_a_map_would(ops in proptest::collection::vec((any::<bool>(), 0usize..5000, any::<u8>()), 1..300)) {
        let mut pool = Pool::new();
        let mut twin: HashMap<u32, (Vec<u8>, PacketMeta)> = HashMap::new();
        for (n, (free, len, fill)) in ops.into_iter().enumerate() {
            if free {
                if let Some(&id) = twin.keys().min() {
                    twin.remove(&id);
                    pool.free(BufId(id));
                }
            } else {
                let meta = PacketMeta { original_len: n as u32, interface: u32::from(fill), time: Nanos((n as u64) << 20) };
                let data = vec![fill; len];
                let id = pool.insert(meta, &data);
                prop_assert!(twin.insert(id.0, (data, meta)).is_none(), "a live place was given out again");
            }
            for (&id, (data, meta)) in &twin {
                prop_assert_eq!(pool.data(BufId(id), data.len() as u32), &data[..]);
                prop_assert_eq!(pool.meta(BufId(id)), *meta);
            }
        }
        prop_assert_eq!(pool.live(), twin.len() as u64);
    }
}

proptest! {
    /// A packet with another front, in its old place or a new one.
    #[test]
    fn fronts_are_replaced(len in 0u32..3000, cut in 0u32..3000, front in 0usize..400, keep in any::<bool>()) {
        let mut pool = Pool::new();
        let data: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        let front: Vec<u8> = (0..front).map(|i| (i % 13) as u8).collect();
        let meta = PacketMeta { original_len: len + 7, interface: 3, time: Nanos(5) };
        let other = pool.insert(PacketMeta::default(), &[9; 100]);
        let id = pool.insert(meta, &data);
        if keep {
            pool.retain();
        }
        let (moved, new) = pool.replace_front(id, len, cut, &front);
        let cut = cut.min(len) as usize;
        let mut twin = front.clone();
        twin.extend(&data[cut..]);
        prop_assert_eq!(pool.data(moved, new), &twin[..]);
        prop_assert_eq!(new as usize, twin.len());
        prop_assert_eq!(pool.meta(moved).original_len, len + 7 - cut as u32 + front.len() as u32);
        prop_assert_eq!((pool.meta(moved).interface, pool.meta(moved).time), (3, Nanos(5)));
        prop_assert_eq!(pool.data(other, 100), &[9u8; 100][..]);
        if keep {
            prop_assert_eq!(pool.data(id, len), &data[..], "a preloaded packet changed");
        }
    }
}

#[test]
fn oversize_packets_give_their_memory_back() {
    let mut pool = Pool::new();
    let big = vec![7u8; 3 << 20];
    for _ in 0..20 {
        let id = pool.insert(PacketMeta::default(), &big);
        assert_eq!(pool.data(id, 3 << 20), &big[..]);
        pool.free(id);
    }
    assert_eq!((pool.live(), pool.memory()), (0, 0));
}

#[test]
fn a_slot_is_free_when_its_packet_and_its_payload_are_gone() {
    let mut pool = Pool::new();
    let slice = |pool: &mut Pool| {
        let buf = pool.insert(PacketMeta::default(), &[5; 1514]);
        pool.sliceable(buf, 1514).unwrap().slice(7, 99);
        assert!(pool.is_sliced(buf) && pool.sliceable(buf, 1514).is_none());
        buf
    };
    let told = |pool: &mut Pool| {
        let mut tokens = Vec::new();
        pool.take_dropped(7, |token| tokens.push(token));
        tokens
    };
    // The packet is dropped, then its payload given up.
    let buf = slice(&mut pool);
    pool.free(buf);
    assert_eq!((pool.live(), told(&mut pool), pool.data(buf, 1514)), (1, vec![99], &[5; 1514][..]));
    pool.free_payload(buf);
    assert_eq!((pool.live(), pool.insert(PacketMeta::default(), &[0; 1514])), (0, buf));
    pool.free(buf);
    // The other way round.
    let buf = slice(&mut pool);
    pool.free_payload(buf);
    assert_eq!((pool.live(), pool.take_back(buf), pool.is_sliced(buf)), (1, false, true));
    pool.free(buf);
    assert_eq!((pool.live(), told(&mut pool)), (0, vec![99]));
    // The packet moves, since its headers grow, and its payload stays where it was.
    let buf = slice(&mut pool);
    let (moved, len) = pool.replace_front(buf, 62, 14, &[1; 18]);
    assert!(moved != buf && pool.is_sliced(moved));
    assert_eq!((pool.live(), len, &pool.data(buf, 1514)[62..]), (2, 66, &[5; 1452][..]));
    assert!(pool.take_back(buf) && !pool.take_back(buf) && !pool.is_sliced(buf));
    pool.free_spliced(moved);
    pool.free(buf);
    assert_eq!((pool.live(), told(&mut pool)), (0, Vec::new()));
}

/// A packet is sliced elsewhere if the end of the slot has no room for whose packet it is, or has to stay as
/// it is.
#[test]
fn what_cannot_be_sliced_in_its_place() {
    let mut pool = Pool::new();
    let full = CLASS_UNITS[9] * UNIT - HEADER;
    for (len, fits) in [(full - TAIL, true), (full - TAIL + 1, false), (full, false), (2 << 20, false)] {
        let buf = pool.insert(PacketMeta::default(), &vec![0; len]);
        assert_eq!(pool.sliceable(buf, len as u32).is_some(), fits, "{len} bytes");
    }
    let buf = pool.insert(PacketMeta::default(), &[0; 1514]);
    pool.retain();
    assert!(pool.sliceable(buf, 1514).is_none());
}
