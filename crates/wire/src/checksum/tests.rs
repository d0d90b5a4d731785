use proptest::array::uniform2;
use proptest::prelude::*;

use super::*;

/// RFC 1071 as written: 16 bits at a time.
fn slow(data: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in data.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| u32::from(low));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

proptest! {
    #[test]
    fn eight_bytes_at_a_time_equal_two(data in proptest::collection::vec(any::<u8>(), 0..2000)) {
        prop_assert_eq!(sum(&data), slow(&data));
    }

    #[test]
    fn carries_propagate(data in proptest::collection::vec(prop_oneof![Just(0xff), Just(0), Just(0xfe)], 0..2000)) {
        prop_assert_eq!(sum(&data), slow(&data));
    }

    #[test]
    fn few_words_have_the_sum_of_their_bytes(words in proptest::collection::vec(
        prop_oneof![any::<[u8; 8]>(), Just([0xff; 8]), Just([0; 8])], 0..10)) {
        prop_assert_eq!(sum_of_words(&words), slow(words.as_flattened()));
    }

    #[test]
    fn sums_combine(a in proptest::collection::vec(any::<[u8; 2]>(), 0..50), b: Vec<u8>) {
        let whole: Vec<u8> = a.iter().flatten().chain(&b).copied().collect();
        prop_assert_eq!(combine(sum(&a.concat()), sum(&b)), sum(&whole));
    }

    #[test]
    fn a_header_is_right_where_its_sum_is(mut header: [u8; 20], carries: bool, right: bool) {
        if carries {
            header.iter_mut().for_each(|b| *b |= 0xf0);
        }
        if right {
            (header[10], header[11]) = (0, 0);
            let sum = checksum(&header).to_be_bytes();
            header[10..12].copy_from_slice(&sum);
        }
        prop_assert_eq!(is_right_ipv4(&header), slow(&header) == 0xffff);
        prop_assert!(!right || is_right_ipv4(&header));
    }

    #[test]
    fn a_change_added_up_is_the_same_change(words in proptest::collection::vec(any::<[u16; 2]>(), 0..9), sum: u16) {
        let delta = words.iter().fold(Delta::new(), |delta, [old, new]| delta.word(*old, *new));
        prop_assert_eq!(delta.folded().apply(sum), delta.apply(sum));
        prop_assert_eq!(delta.folded().apply_udp(sum), delta.apply_udp(sum));
    }

    /// A header with its right checksum: rewriting fields and updating gives what recomputing gives.
    #[test]
    fn incremental_equals_recomputed(
        mut data: [u8; 40], word: u16, double: u32, address: [u8; 16], error in 1_u16..0xffff,
    ) {
        data[0] = 0x45;
        (data[2], data[3]) = (0, 0);
        let before = checksum(&data);
        let old = |range: core::ops::Range<usize>| data[range].to_vec();
        let delta = Delta::new()
            .word(u16::from_be_bytes(old(4..6).try_into().unwrap()), word)
            .double_word(u32::from_be_bytes(old(8..12).try_into().unwrap()), double)
            .bytes16(old(16..32).try_into().unwrap(), address);
        data[4..6].copy_from_slice(&word.to_be_bytes());
        data[8..12].copy_from_slice(&double.to_be_bytes());
        data[16..32].copy_from_slice(&address);
        let after = checksum(&data);
        prop_assert_eq!(delta.apply(before), after);

        let or_ones = |sum| if sum == 0 { 0xffff } else { sum };
        prop_assert_eq!(delta.apply_udp(or_ones(before)), or_ones(after));
        prop_assert_eq!(delta.apply_udp(0), 0);

        // A checksum that was off by `error` still is, and by as much (0 and 0xffff are the same number).
        let wrong = combine(before, error);
        prop_assert_eq!(delta.apply(wrong) % 0xffff, combine(after, error) % 0xffff);
        prop_assert_ne!(delta.apply(wrong) % 0xffff, after % 0xffff);
    }

    /// The same for fields that are one of the two zeros of ones' complement, before and after; what it
    /// covers may become zero, of which a checksum of 0 is the only wrong one.
    #[test]
    fn incremental_equals_recomputed_for_both_zeros(
        words in proptest::collection::vec(
            uniform2(prop_oneof![Just(0_u16), Just(0xffff), Just(1), Just(0xfffe)]), 1..6,
        ),
        rest in prop_oneof![Just(0_u16), Just(0xffff), any::<u16>()],
    ) {
        let covered = |n: usize| {
            let fields = words.iter().flat_map(|pair| pair[n].to_be_bytes());
            fields.chain(rest.to_be_bytes()).collect::<Vec<_>>()
        };
        let (before, after) = (checksum(&covered(0)), checksum(&covered(1)));
        let delta = words.iter().fold(Delta::new(), |delta, [old, new]| delta.word(*old, *new));
        for updated in [delta.apply(before), delta.folded().apply(before)] {
            prop_assert_eq!(updated, if after == 0xffff { 0 } else { after });
        }
        let or_ones = |sum| if sum == 0 { 0xffff } else { sum };
        for updated in [delta.apply_udp(or_ones(before)), delta.folded().apply_udp(or_ones(before))] {
            prop_assert_eq!(updated, or_ones(after));
        }
    }

    #[test]
    fn no_change_changes_nothing(checksum: u16, address: [u8; 16], word: u16, double: u32) {
        prop_assert_eq!(Delta::new().apply(checksum), checksum);
        let same = Delta::new().bytes16(address, address).word(word, word).double_word(double, double);
        prop_assert_eq!(same.apply(checksum) % 0xffff, checksum % 0xffff);
    }

    #[test]
    fn addresses_change_a_sum_by_their_own(a: [u8; 4], b: [u8; 4], c: [u8; 16], rest in 1_u16..) {
        let right = |address: &[u8]| !combine(sum(address), rest);
        let same = |x: u16, y: u16| x % 0xffff == y % 0xffff;
        prop_assert!(same(Delta::new().address(a.into(), b.into()).apply(right(&a)), right(&b)));
        prop_assert!(same(Delta::new().address(a.into(), c.into()).apply(right(&a)), right(&c)));
        prop_assert!(same(Delta::new().address(c.into(), b.into()).apply(right(&c)), right(&b)));
    }
}

/// The example of RFC 1624 §4, where equation 2 goes wrong.
#[test]
fn rfc_1624_example() {
    assert_eq!(Delta::new().word(0x5555, 0x3285).apply(0xdd2f), 0x0000);
}

/// The example of RFC 1071 §3.
#[test]
fn rfc_1071_example() {
    assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    assert_eq!(sum(&[]), 0);
    assert_eq!(sum(&[0xab]), 0xab00);
}
