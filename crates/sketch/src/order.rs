//! Sorting of what has a key: the same code for keys of all lengths.
//!
//! A sort is much code, which would be compiled for each length. So what is sorted are numbers, of a rank and
//! the first bytes of a key, each with the place of what it belongs to.

/// Bytes of a key that a number holds; half as many behind a rank.
const HEAD: usize = 16;

/// An item's number, and its place.
struct Numbered {
    number: u128,
    place: usize,
}

/// The first bytes of a key as a number that is ordered as they are, among keys of one length.
#[inline]
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

/// The order of so many items by their numbers and by the bytes of their keys that these don't hold.
fn places<'a>(n: usize, item: &dyn Fn(usize) -> (u128, &'a [u8])) -> Vec<usize> {
    let mut items = Vec::with_capacity(n);
    for place in 0..n {
        items.push(Numbered { number: item(place).0, place });
    }
    let tails = |a: &Numbered, b: &Numbered| item(a.place).1.cmp(item(b.place).1);
    items.sort_unstable_by(|a, b| a.number.cmp(&b.number).then_with(|| tails(a, b)));
    items.into_iter().map(|item| item.place).collect()
}

/// Puts items in the order of their numbers and the bytes that go with them.
fn sort<T: Copy>(items: &mut Vec<T>, item: &dyn Fn(&T) -> (u128, &[u8])) {
    let places = places(items.len(), &|place| items.get(place).map_or((0, &[]), item));
    let mut sorted = Vec::with_capacity(items.len());
    for place in places {
        if let Some(item) = items.get(place) {
            sorted.push(*item);
        }
    }
    *items = sorted;
}

/// Sorts items by their ranks, the greatest first, and those of one rank by their keys.
pub(crate) fn by_rank<const N: usize, T: Copy>(
    items: &mut Vec<T>,
    rank: fn(&T) -> u64,
    key: fn(&T) -> &[u8; N],
) {
    sort(items, &|item| {
        let key = key(item);
        let number = u128::from(!rank(item)) << 64 | head(key) >> 64;
        (number, key.get(HEAD / 2..).unwrap_or_default())
    });
}

/// Sorts items by their keys.
pub(crate) fn by_key<const N: usize, T: Copy>(items: &mut Vec<T>, key: fn(&T) -> &[u8; N]) {
    sort(items, &|item| (head(key(item)), key(item).get(HEAD..).unwrap_or_default()));
}

/// Sorts keys.
pub(crate) fn keys<const N: usize>(keys: &mut Vec<[u8; N]>) {
    if N > HEAD {
        return by_key(keys, |key| key);
    }
    let mut numbers = Vec::with_capacity(keys.len());
    for key in keys.iter() {
        numbers.push(head(key));
    }
    numbers.sort_unstable();
    for (key, number) in keys.iter_mut().zip(numbers) {
        if let Some(first) = number.to_be_bytes().first_chunk() {
            *key = *first;
        }
    }
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
            check::<9>(seed, n);
            check::<16>(seed, n);
            check::<17>(seed, n);
            check::<37>(seed, n);
        }
    }
}
