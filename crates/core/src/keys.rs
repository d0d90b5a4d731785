//! Flow keys of packets that came together: 16 bytes a packet, and the long keys of those that have one
//! beside them.

use alloc::vec::Vec;

use slipstream_wire::{FlowKey, NarrowKey};

/// Marks the place of a long key, whose number is in the first word then: a short one has zeros in bits 13 to
/// 23 of its second word.
const LONG: u64 = 1 << 13;

/// Returns true if a key as it is kept is a short one, and doesn't stand for a long one.
#[inline(always)]
#[must_use]
pub const fn is_short(NarrowKey([_, kind]): NarrowKey) -> bool {
    kind & LONG == 0
}

/// Flow keys, one a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    keys: Vec<NarrowKey>,
    long: Vec<FlowKey>,
}

/// Some of the [`Keys`] of packets that came together.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeySlice<'a> {
    keys: &'a [NarrowKey],
    long: &'a [FlowKey],
}

impl Keys {
    /// Number of keys.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns true if there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Forgets all of them.
    #[inline]
    pub fn clear(&mut self) {
        self.keys.clear();
        self.long.clear();
    }

    /// Makes room for so many more.
    #[inline]
    pub fn reserve(&mut self, more: usize) {
        self.keys.reserve(more);
    }

    /// Makes room for so many more, whether they are long or not.
    pub fn reserve_long(&mut self, more: usize) {
        self.keys.reserve(more);
        self.long.reserve(more);
    }

    /// Adds the key of the next packet.
    #[inline(always)]
    pub fn push(&mut self, key: FlowKey) {
        match key {
            FlowKey::Narrow(key) if is_short(key) => self.keys.push(key),
            _ => self.push_long(key),
        }
    }

    #[inline(never)]
    fn push_long(&mut self, key: FlowKey) {
        self.keys.push(NarrowKey([self.long.len() as u64, LONG]));
        self.long.push(key);
    }

    /// All of them.
    #[inline(always)]
    #[must_use]
    pub fn as_slice(&self) -> KeySlice<'_> {
        KeySlice { keys: &self.keys, long: &self.long }
    }

    /// As they are kept: of each packet 16 bytes, and the long keys that some of these stand for.
    #[must_use]
    pub fn as_parts(&self) -> (&[NarrowKey], &[FlowKey]) {
        (&self.keys, &self.long)
    }

    /// Adds keys as [`as_parts`](Self::as_parts) gave them, to none.
    pub fn extend_parts(&mut self, keys: impl Iterator<Item = NarrowKey>, long: &[FlowKey]) {
        self.keys.extend(keys);
        self.long.extend_from_slice(long);
    }
}

impl FromIterator<FlowKey> for Keys {
    fn from_iter<I: IntoIterator<Item = FlowKey>>(keys: I) -> Self {
        let mut this = Self::default();
        keys.into_iter().for_each(|key| this.push(key));
        this
    }
}

impl<'a> KeySlice<'a> {
    /// Number of keys.
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns true if there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The key of the packet at this place.
    #[inline(always)]
    #[must_use]
    pub fn get(&self, at: usize) -> Option<FlowKey> {
        self.keys.get(at).map(|key| self.key_of(*key))
    }

    /// The keys of the packets from this place on.
    #[inline(always)]
    #[must_use]
    pub fn after(&self, at: usize) -> Self {
        Self { keys: self.keys.get(at..).unwrap_or_default(), ..*self }
    }

    /// All of them, in their order.
    #[inline(always)]
    pub fn iter(self) -> impl Iterator<Item = FlowKey> + 'a {
        self.keys.iter().map(move |key| self.key_of(*key))
    }

    /// So many at a time; fewer at the end.
    #[inline(always)]
    pub fn chunks(self, most: usize) -> impl Iterator<Item = Self> {
        self.keys.chunks(most).map(move |keys| Self { keys, ..self })
    }

    /// As they are kept, for loops over many: short keys ([`is_short`]), or what stands for a long one.
    #[inline(always)]
    #[must_use]
    pub fn kept(self) -> &'a [NarrowKey] {
        self.keys
    }

    /// Returns true if there are no long ones among those that these are some of.
    #[inline(always)]
    #[must_use]
    pub fn all_short(&self) -> bool {
        self.long.is_empty()
    }

    /// Returns true if two keys, as they are kept here, are one.
    #[inline(always)]
    #[must_use]
    pub fn are_same(&self, a: NarrowKey, b: NarrowKey) -> bool {
        a == b || !is_short(a) && self.are_same_long(a, b)
    }

    #[inline(never)]
    fn are_same_long(&self, a: NarrowKey, b: NarrowKey) -> bool {
        !is_short(b) && self.long_key(a) == self.long_key(b)
    }

    /// The key that a kept one is, or stands for.
    #[inline(always)]
    #[must_use]
    pub fn key_of(&self, key: NarrowKey) -> FlowKey {
        if is_short(key) { FlowKey::Narrow(key) } else { *self.long_key(key) }
    }

    /// The long key that a kept one stands for.
    #[inline]
    #[must_use]
    pub fn long_key(&self, NarrowKey([number, _]): NarrowKey) -> &'a FlowKey {
        const NONE: &FlowKey = &FlowKey::Narrow(NarrowKey([0, 0]));
        self.long.get(number as usize).unwrap_or(NONE)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slipstream_wire::WideKey;

    use super::*;

    fn key() -> impl Strategy<Value = FlowKey> {
        let short = |[a, b]: [u64; 2]| FlowKey::Narrow(NarrowKey([a, b & !(0x7ff << 13)]));
        // Bits that are to be zero are not; a key stays what it is all the same.
        let other = |key: [u64; 2]| FlowKey::Narrow(NarrowKey(key));
        prop_oneof![
            prop::array::uniform2(any::<u64>()).prop_map(short),
            prop::array::uniform2(any::<u64>()).prop_map(other),
            prop::array::uniform7(any::<u64>()).prop_map(|key| FlowKey::Wide(WideKey(key))),
        ]
    }

    proptest! {
        /// Against a list of whole keys.
        #[test]
        fn keys_stay_as_they_are(
            keys in prop::collection::vec(key(), 0..50),
            at in 0usize..60,
            most in 1usize..9,
        ) {
            let mut kept: Keys = keys.iter().copied().collect();
            prop_assert_eq!((kept.len(), kept.is_empty()), (keys.len(), keys.is_empty()));
            let all = kept.as_slice();
            prop_assert_eq!(all.iter().collect::<Vec<_>>(), keys.clone());
            prop_assert_eq!(all.get(at), keys.get(at).copied());
            prop_assert!(!all.all_short() || all.kept().iter().all(|key| is_short(*key)));
            for (kept, key) in all.kept().iter().zip(&keys) {
                let whole = if is_short(*kept) { FlowKey::Narrow(*kept) } else { *all.long_key(*kept) };
                prop_assert_eq!(whole, *key);
                for (other, of) in all.kept().iter().zip(&keys) {
                    prop_assert_eq!(all.are_same(*kept, *other), key == of);
                }
            }
            prop_assert_eq!(all.after(at).iter().collect::<Vec<_>>(), keys.get(at..).unwrap_or_default());
            let chunks: Vec<Vec<FlowKey>> = all.chunks(most).map(|keys| keys.iter().collect()).collect();
            prop_assert_eq!(chunks, keys.chunks(most).map(<[FlowKey]>::to_vec).collect::<Vec<_>>());
            let mut other = Keys::default();
            let (short, long) = kept.as_parts();
            other.extend_parts(short.iter().copied(), long);
            prop_assert_eq!(&other, &kept);
            kept.clear();
            prop_assert_eq!(kept, Keys::default());
        }
    }
}
