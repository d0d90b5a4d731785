use std::collections::HashMap;

use proptest::prelude::*;
use slipstream_wire::LinkType;

use super::*;
use crate::batch::Train;
use crate::frame::Info;
use crate::pool::{PacketMeta, Pool};
use crate::time::Nanos;

/// A packet of flow `n`: IPv4, or every third of them IPv6.
fn packet(n: u16) -> Vec<u8> {
    let [a, b] = n.to_be_bytes();
    if n.is_multiple_of(3) {
        let mut bytes = vec![0x60, 0, 0, 0, 0, 8, 17, 64];
        bytes.extend([[0x20; 15].as_slice(), &[a], &[0x30; 15], &[b], &[0, 1, 0, 2, 0, 8, 0, 0]].concat());
        bytes
    } else {
        vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, a, b, 10, 0, 0, 2, 4, 210, 0, 53, 0, 8, 0, 0]
    }
}

fn batch(pool: &mut Pool, flows: &[Option<u16>]) -> Batch {
    let mut batch = Batch::new();
    for (start, n) in (0u32..).zip(flows) {
        let bytes = n.map_or(vec![1, 2, 3], packet);
        let buf = pool.insert(PacketMeta::default(), &bytes);
        let mut frame = Frame::unclassified(Nanos(1), buf, bytes.len() as u32);
        if let Ok(headers) = slipstream_wire::classify(LinkType::RawIp, &bytes) {
            frame.info = Info::new(&headers);
        }
        batch.frames.push(frame);
        let train =
            Train { flow: 77, start, len: 1, release: Nanos(1), order: 0, sequence: 0, continues: false };
        batch.trains.push(train);
    }
    batch
}

#[test]
fn places_lie_within_lines() {
    let mut layout = Layout::default();
    let places: Vec<_> = [3, 3, 1, 3, 16, 2, 0, 17].into_iter().map(|n| layout.place(n)).collect();
    let offsets: Vec<_> = places.iter().map(|place| place.offset()).collect();
    // Five words of the first line are taken; the fourth still fits there, the sixth behind it no more.
    assert_eq!(offsets, [20, 32, 44, 48, 64, 128, 64, 64]);
    assert_eq!((places[6], places[7]), (Place::NONE, Place::NONE));
    assert_eq!((layout.bytes(), layout.memory(1 << 20)), (192, (192 << 20) + (8 << 21)));
}

proptest! {
    /// Against a map: what is kept of a flow is what is read of it later, or nothing once it made room; and
    /// no two flows of a batch, or of batches within it, have one context. Numbers that trains come with,
    /// right ones, such as two flows share, and none, change nothing.
    #[test]
    fn contexts_belong_to_their_flows(
        limit in 1u32..40,
        batches in prop::collection::vec(
            (prop::collection::vec(prop::option::weighted(0.95, 0u16..60), 1..80), any::<bool>()), 1..12),
        numbering in prop::sample::select(&[0u32, 7, 40, 80][..]),
    ) {
        let mut layout = Layout::default();
        let (first, second) = (layout.place(3), layout.place(12));
        let mut flows = FlowContexts::new(&layout, limit, 5).with_numbers([1, numbering]);
        let mut plain = FlowContexts::new(&layout, limit, 5);
        let mut twin: HashMap<u16, u32> = HashMap::new();
        let mut pool = Pool::new();
        let mut value = 0;
        let mut outer: Option<(Vec<Option<u16>>, Vec<u32>)> = None;
        for (numbers, nested) in batches {
            let mut batch = batch(&mut pool, &numbers);
            let cx = Context { now: Nanos(1), pool: &mut pool, input: 0, links: &[LinkType::RawIp] };
            plain.look_up(&cx, &mut batch, 0);
            let plain_ids: Vec<u32> = batch.trains.iter().map(|train| train.flow).collect();
            for (train, n) in batch.trains.iter_mut().zip(&numbers) {
                let number = |n: u16| if n % 5 == 4 { Frame::NO_FLOW } else { u32::from(n) % numbering.max(1) };
                train.flow = n.map_or(3, number);
            }
            flows.look_up(&cx, &mut batch, 1);
            let ids: Vec<u32> = batch.trains.iter().map(|train| train.flow).collect();
            prop_assert_eq!(&ids, &plain_ids);
            // The trains that are under way, those of the batch around this one too, have their own contexts.
            let around = outer.iter().flat_map(|(numbers, ids)| numbers.iter().zip(ids));
            let mut owner: HashMap<u32, u16> = HashMap::new();
            for (n, id) in around.chain(numbers.iter().zip(&ids)) {
                match n {
                    Some(n) if *id != Frame::NO_FLOW => prop_assert_eq!(*owner.entry(*id).or_insert(*n), *n),
                    Some(_) => {}
                    None => prop_assert_eq!(*id, Frame::NO_FLOW),
                }
            }
            for (n, id) in numbers.iter().zip(&ids) {
                flows.meet(*id);
                flows.turn_to(first);
                let Some(n) = n else {
                    prop_assert_eq!(flows.read::<3>(), None);
                    continue;
                };
                if *id == Frame::NO_FLOW {
                    prop_assert_eq!(flows.read::<3>(), None);
                    flows.write([9, 9, 9]);
                    continue;
                }
                let [a, b, c] = flows.read::<3>().unwrap();
                flows.turn_to(second);
                let [d, .., e] = flows.read::<12>().unwrap();
                prop_assert!([b, c, d, e] == [a; 4]);
                prop_assert!(a == 0 || twin.get(n) == Some(&a), "another flow's words");
                let key = flows.key();
                prop_assert_eq!(key.is_none(), n.is_multiple_of(3));
                value += 1;
                twin.insert(*n, value);
                flows.write([value; 12]);
                flows.turn_to(first);
                flows.write([value; 3]);
                prop_assert_eq!(flows.turn_to(Place::NONE), first);
                prop_assert_eq!(flows.read::<1>(), None);
            }
            batch.frames.iter().for_each(|frame| pool.free(frame.buf));
            if nested && outer.is_none() {
                outer = Some((numbers, ids));
            } else {
                for flows in [&mut flows, &mut plain] {
                    flows.leave();
                    if outer.is_some() {
                        flows.leave();
                    }
                }
                outer = None;
            }
            prop_assert!(flows.flows() <= limit);
        }
        let counts = flows.counts();
        prop_assert_eq!(counts.begun - counts.evicted, u64::from(flows.flows()));
        prop_assert_eq!(ContextCounts { by_number: 0, ..counts }, plain.counts());
    }
}

#[test]
fn many_flows_go_round_in_few_contexts() {
    let mut flows = FlowContexts::new(&Layout::default(), 16, 1);
    let mut pool = Pool::new();
    for start in 0..100u16 {
        let numbers: Vec<_> = (start..start + 8).map(|n| Some(n * 3 + 1)).collect();
        let mut batch = batch(&mut pool, &numbers);
        let cx = Context { now: Nanos(1), pool: &mut pool, input: 0, links: &[LinkType::RawIp] };
        flows.look_up(&cx, &mut batch, 0);
        flows.leave();
        batch.frames.iter().for_each(|frame| pool.free(frame.buf));
    }
    let counts = flows.counts();
    assert_eq!((counts.lookups, counts.begun, counts.evicted, counts.without), (800, 107, 91, 1));
}

#[test]
fn a_number_that_means_another_flow_costs_a_search() {
    let mut flows = FlowContexts::new(&Layout::default(), 16, 1).with_numbers([8]);
    let mut pool = Pool::new();
    let mut look_up = |n: u16, number: u32| {
        let mut batch = batch(&mut pool, &[Some(n)]);
        batch.trains[0].flow = number;
        let cx = Context { now: Nanos(1), pool: &mut pool, input: 0, links: &[LinkType::RawIp] };
        flows.look_up(&cx, &mut batch, 0);
        flows.leave();
        batch.frames.iter().for_each(|frame| pool.free(frame.buf));
        (batch.trains[0].flow, flows.counts().by_number)
    };
    // A short key and a long one; then the number goes to the other flow.
    assert_eq!(
        [look_up(1, 5), look_up(1, 5), look_up(3, 6), look_up(3, 6)],
        [(0, 0), (0, 1), (1, 1), (1, 2)]
    );
    assert_eq!(
        [look_up(3, 5), look_up(3, 5), look_up(1, 5), look_up(1, 8)],
        [(1, 2), (1, 3), (0, 3), (0, 3)]
    );
}

#[test]
fn unclassified_packets_have_no_context() {
    let mut pool = Pool::new();
    let mut batch = batch(&mut pool, &[None, Some(1)]);
    let mut flows = FlowContexts::new(&Layout::default(), 16, 1);
    let cx = Context { now: Nanos(1), pool: &mut pool, input: 0, links: &[LinkType::RawIp] };
    flows.look_up(&cx, &mut batch, 0);
    assert_eq!([batch.trains[0].flow, batch.trains[1].flow], [Frame::NO_FLOW, 0]);
}
