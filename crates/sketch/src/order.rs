//! Sorting of what has a key: the same code for keys of all lengths.
//!
//! A sort is much code, which would be compiled for each length. So what is sorted are numbers: a rank, the
//! first bytes of a key, and the place of what they belong to.

/// Bytes of a key that are compared as a number.
const HEAD: usize = 16;

/// An item's rank and the first bytes of its key.
struct Ranked {
    rank: u64,
    head: u128,
    place: usize,
}

/// The first bytes of a key as a number that is ordered as they are, among keys of one length.
fn head(key: &[u8]) -> u128 {
    if let Some(first) = key.first_chunk::<HEAD>() {
        return u128::from_be_bytes(*first);
    }
    let mut first = [0; HEAD];
    if let Some(bytes) = first.get_mut(..key.len()) {
        bytes.copy_from_slice(key);
    }
    u128::from_be_bytes(first)
}

/// The order of so many items by rank, the greatest first, and key.
fn places<'a>(n: usize, item: &dyn Fn(usize) -> (u64, &'a [u8])) -> Vec<usize> {
    let mut ranked = Vec::with_capacity(n);
    for place in 0..n {
        let (rank, key) = item(place);
        ranked.push(Ranked { rank, head: head(key), place });
    }
    let tail = |place: usize| item(place).1.get(HEAD..);
    let tails = |a: &Ranked, b: &Ranked| tail(a.place).cmp(&tail(b.place));
    ranked.sort_unstable_by(|a, b| b.rank.cmp(&a.rank).then(a.head.cmp(&b.head)).then_with(|| tails(a, b)));
    ranked.into_iter().map(|r| r.place).collect()
}

/// Sorts items by their ranks, the greatest first, and those of one rank by their keys.
pub(crate) fn by_rank<const N: usize, T: Copy>(
    items: &mut Vec<T>,
    rank: fn(&T) -> u64,
    key: fn(&T) -> &[u8; N],
) {
    let item = |place: usize| items.get(place).map_or((0, [].as_slice()), |item| (rank(item), key(item)));
    let places = places(items.len(), &item);
    let mut sorted = Vec::with_capacity(items.len());
    for place in places {
        if let Some(item) = items.get(place) {
            sorted.push(*item);
        }
    }
    *items = sorted;
}

/// Sorts items by their keys.
pub(crate) fn by_key<const N: usize, T: Copy>(items: &mut Vec<T>, key: fn(&T) -> &[u8; N]) {
    by_rank(items, |_| 0, key);
}

/// Sorts keys.
pub(crate) fn keys<const N: usize>(keys: &mut Vec<[u8; N]>) {
    by_key(keys, |key| key);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Few values a byte, so that keys share their first bytes.
    fn check<const N: usize>(seed: u64, n: usize) {
        let mut state = seed;
        let mut next = || crate::hash::split_mix(&mut state);
        let mut items: Vec<([u8; N], u64)> = (0..n)
            .map(|_| (std::array::from_fn(|i| if i + 2 < N { 9 } else { next() as u8 & 0x83 }), next() & 3))
            .collect();
        let (mut sorted, mut sorted_keys) = (items.clone(), items.iter().map(|e| e.0).collect());
        sorted.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        by_rank(&mut items, |e| e.1, |e| &e.0);
        assert_eq!(items, sorted);
        keys::<N>(&mut sorted_keys);
        assert!(sorted_keys.is_sorted() && sorted_keys.len() == n);
        by_key(&mut items, |e| &e.0);
        assert_eq!(items.iter().map(|e| e.0).collect::<Vec<_>>(), sorted_keys);
    }

    proptest! {
        #[test]
        fn order_is_that_of_ranks_and_keys(seed in any::<u64>(), n in 0usize..300) {
            check::<1>(seed, n);
            check::<4>(seed, n);
            check::<16>(seed, n);
            check::<17>(seed, n);
            check::<37>(seed, n);
        }
    }
}
