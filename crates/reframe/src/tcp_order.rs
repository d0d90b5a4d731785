//! TCP order: the data segments of a train back in the order of their sequence numbers (paper: "Packet Order
//! Matters!", NSDI'22, §5.4).
//!
//! The one named exception from "no packet overtakes an earlier one of its flow", and off unless asked for.

use alloc::vec::Vec;

use slipstream_wire::view::Tcp;

use super::compress::PacketView;

const FIN: u16 = Tcp::<&[u8]>::FIN;
const SYN_RST: u16 = Tcp::<&[u8]>::SYN | Tcp::<&[u8]>::RST;

/// Finds the order of a train in which its data segments (those with payload or FIN) ascend by sequence
/// number, equal numbers as they came. Data segments change places among themselves only; pure
/// acknowledgements stay where they are.
///
/// Returns whether that differs from the order in which the train came. If so, `order` is a permutation: the
/// packet to be sent as the `i`-th is `train[order[i]]`.
///
/// Sequence numbers count from that of the train's first data segment, with differences of less than 2³¹ to
/// either side (RFC 9293 §3.4). A train is left as it is where that says nothing (its numbers span 2³¹ or
/// more), where it holds a SYN or RST, where a segment is a fragment, its headers are cut or its lengths
/// contradict each other, and where it has more than 65,535 packets.
pub fn restore(train: &[PacketView<'_>], order: &mut Vec<u16>) -> bool {
    order.clear();
    let (Ok(count), true) = (u16::try_from(train.len()), train.len() > 1) else { return false };
    let mut first = None;
    let (mut least, mut most, mut last) = (0, 0, 0);
    let mut ascending = true;
    for (packet, i) in train.iter().zip(0..count) {
        let Some(segment) = packet.segment().filter(|s| s.flags() & SYN_RST == 0) else { return false };
        if segment.has_payload() || segment.flags() & FIN != 0 {
            let at = segment.seq().wrapping_sub(*first.get_or_insert(segment.seq())) as i32;
            (least, most) = (at.min(least), at.max(most));
            ascending &= at >= last;
            last = at;
            order.push(i);
        }
    }
    if ascending || i64::from(most) - i64::from(least) >= 1 << 31 {
        return false;
    }
    let first = first.unwrap_or(0);
    let seq = |i: u16| train.get(usize::from(i)).and_then(PacketView::seq).unwrap_or(first);
    order.sort_unstable_by_key(|&i| (seq(i).wrapping_sub(first) as i32, i));
    spread(train, order, count);
    true
}

/// Puts the sorted data segments, which `order` holds, in the places of data segments, and all others in
/// their own.
fn spread(train: &[PacketView<'_>], order: &mut Vec<u16>, count: u16) {
    let is_data = |p: &PacketView<'_>| p.segment().is_some_and(|s| s.has_payload() || s.flags() & FIN != 0);
    let mut unplaced = order.len();
    order.resize(train.len(), 0);
    // From the end, so that a place is written only after what it held has been placed.
    for (packet, place) in train.iter().zip(0..count).rev() {
        let mut from = place;
        if is_data(packet) && unplaced > 0 {
            unplaced -= 1;
            from = order.get(unplaced).copied().unwrap_or(place);
        }
        if let Some(slot) = order.get_mut(usize::from(place)) {
            *slot = from;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::compress::PacketView;
    use super::super::compress::test_packets::{ACK, FIN, Packet, RST, SYN};
    use super::restore;

    fn data(seq: u32) -> Packet {
        Packet { seq, payload: 10, ..Packet::default() }
    }

    fn ack(seq: u32) -> Packet {
        Packet { seq, ..Packet::default() }
    }

    /// The order that `restore` gives a train, if it changes it.
    fn order_of(packets: &[Packet]) -> Option<Vec<u16>> {
        let frames: Vec<_> = packets.iter().map(Packet::frame).collect();
        let views: Vec<_> = packets.iter().zip(&frames).map(|(p, f)| p.view(f)).collect();
        let mut order = Vec::new();
        restore(&views, &mut order).then_some(order)
    }

    #[test]
    fn data_segments_ascend() {
        assert_eq!(order_of(&[data(30), data(10), data(20)]), Some(vec![1, 2, 0]));
    }

    #[test]
    fn a_train_in_order_is_left_alone() {
        assert_eq!(order_of(&[]), None);
        assert_eq!(order_of(&[data(10)]), None);
        assert_eq!(order_of(&[data(10), data(20), data(20), data(30)]), None);
    }

    #[test]
    fn retransmissions_of_equal_number_stay_in_the_order_of_arrival() {
        assert_eq!(order_of(&[data(20), data(10), data(20), data(10)]), Some(vec![1, 3, 0, 2]));
    }

    #[test]
    fn numbers_wrap_around() {
        assert_eq!(order_of(&[data(5), data(u32::MAX - 5), data(15)]), Some(vec![1, 0, 2]));
        assert_eq!(order_of(&[data(u32::MAX - 5), data(5)]), None);
    }

    #[test]
    fn pure_acks_keep_their_places() {
        let train = [data(30), ack(99), data(10), ack(1), data(20)];
        assert_eq!(order_of(&train), Some(vec![2, 1, 4, 3, 0]));
    }

    #[test]
    fn a_fin_without_payload_goes_after_the_data_before_it() {
        let fin = Packet { seq: 30, flags: FIN | ACK, ..Packet::default() };
        assert_eq!(order_of(&[fin, data(10), data(20)]), Some(vec![1, 2, 0]));
    }

    #[test]
    fn a_train_with_a_syn_or_rst_is_left_alone() {
        for flags in [SYN, SYN | ACK, RST, RST | ACK] {
            let odd = Packet { flags, ..Packet::default() };
            assert_eq!(order_of(&[data(20), data(10), odd]), None);
        }
    }

    #[test]
    fn a_train_with_a_cut_header_is_left_alone() {
        let cut = Packet { snap: Some(14 + 20 + 19), ..data(5) };
        assert_eq!(order_of(&[data(20), data(10), cut]), None);
    }

    #[test]
    fn a_train_with_cut_payload_is_sorted_all_the_same() {
        let cut = |seq| Packet { snap: Some(14 + 20 + 20), ..data(seq) };
        assert_eq!(order_of(&[cut(20), cut(10)]), Some(vec![1, 0]));
    }

    #[test]
    fn a_train_with_an_ip_length_that_can_not_be_is_left_alone() {
        let offloaded = Packet { ip_length: Some(0), ..data(5) };
        assert_eq!(order_of(&[data(20), data(10), offloaded]), None);
    }

    #[test]
    fn a_train_with_a_fragment_is_left_alone() {
        let fragment = Packet { fragment: 0x2000, ..data(5) };
        assert_eq!(order_of(&[data(20), data(10), fragment]), None);
    }

    #[test]
    fn numbers_half_the_space_apart_have_no_order() {
        assert_eq!(order_of(&[data(0), data(1 << 31), data(20), data(10)]), None);
        assert_eq!(order_of(&[data(0), data(0x5000_0000), data(0xb000_0000)]), None);
    }

    /// The obvious twin: insert each data segment before the first greater one, then fill the places.
    fn obvious(packets: &[Packet]) -> Vec<u16> {
        let is_data = |p: &Packet| p.payload > 0 || p.flags & FIN != 0;
        let first = packets.iter().find(|p| is_data(p)).map_or(0, |p| p.seq);
        let at = |i: u16| i64::from(packets[usize::from(i)].seq.wrapping_sub(first) as i32);
        let mut sorted: Vec<u16> = Vec::new();
        for i in (0..packets.len() as u16).filter(|&i| is_data(&packets[usize::from(i)])) {
            let place = sorted.iter().position(|&j| at(j) > at(i)).unwrap_or(sorted.len());
            sorted.insert(place, i);
        }
        let mut sorted = sorted.into_iter();
        (0..packets.len() as u16)
            .map(|i| if is_data(&packets[usize::from(i)]) { sorted.next().unwrap() } else { i })
            .collect()
    }

    fn train() -> impl Strategy<Value = Vec<Packet>> {
        let packet = (-1000..1000_i32, 0..4_u8).prop_map(|(seq, what)| Packet {
            seq: seq.wrapping_mul(100_000) as u32,
            payload: if what < 3 { 10 } else { 0 },
            flags: if what == 2 { FIN | ACK } else { ACK },
            ..Packet::default()
        });
        prop::collection::vec(packet, 0..40)
    }

    proptest! {
        #[test]
        fn sorting_is_what_insertion_by_hand_gives(packets in train(), start: u32) {
            let packets: Vec<_> =
                packets.into_iter().map(|p| Packet { seq: p.seq.wrapping_add(start), ..p }).collect();
            let expected = obvious(&packets);
            let identity: Vec<u16> = (0..packets.len() as u16).collect();
            match order_of(&packets) {
                None => prop_assert_eq!(expected, identity),
                Some(order) => {
                    prop_assert_ne!(&order, &identity);
                    prop_assert_eq!(&order, &expected);
                    let mut places = order.clone();
                    places.sort_unstable();
                    prop_assert_eq!(places, identity, "a permutation");
                    let again: Vec<_> = order.iter().map(|&i| packets[usize::from(i)].clone()).collect();
                    prop_assert_eq!(order_of(&again), None, "idempotent");
                }
            }
        }

        #[test]
        fn any_bytes_are_left_alone_or_permuted(
            packets in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..80), 0..60_u16, 0..90_u16), 0..8),
        ) {
            let views: Vec<_> = packets.iter().map(|(data, l3, l4)| PacketView { data, l3: *l3, l4: *l4 }).collect();
            let mut order = Vec::new();
            if restore(&views, &mut order) {
                order.sort_unstable();
                prop_assert_eq!(order, (0..views.len() as u16).collect::<Vec<_>>());
            }
        }
    }
}
