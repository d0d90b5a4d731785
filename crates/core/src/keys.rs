//! Flow keys of packets that came together: 16 bytes a packet, and the long keys of those that have one
//! beside them; and flow keys as tables store them.

use alloc::vec::Vec;

use slipstream_wire::{FlowKey, NarrowKey, WideKey};

/// Marks the place of a long key, whose number is in the first word then: a short one has zeros in bits 13 to
/// 23 of its second word.
const LONG: u64 = 1 << 13;

/// Returns true if a key as it is kept is a short one, and doesn't stand for a long one.
#[inline(always)]
#[must_use]
pub const fn is_short(NarrowKey([_, kind]): NarrowKey) -> bool {
    kind & LONG == 0
}

/// A flow key as a table stores it, in 16 bytes: a narrow key itself; of a wide one its hash, the key
/// standing elsewhere. A narrow key has zeros in bits 13 to 23 of its second word; two of them say what is
/// stored.
///
/// ```
/// use slipstream_core::keys::StoredKey;
/// use slipstream_wire::{FlowKey, NarrowKey, WideKey};
///
/// let narrow = FlowKey::new(&[], [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 4000, 53)?;
/// let stored = StoredKey::of(&narrow, narrow.hash64(7));
/// assert_eq!((stored.flow(WideKey([0; 7])), stored.hash(7)), (Some(narrow), narrow.hash64(7)));
/// assert_eq!(StoredKey::NONE.flow(WideKey([0; 7])), None);
/// # Ok::<(), slipstream_wire::KeyError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredKey([u64; 2]);

impl StoredKey {
    /// No key.
    pub const NONE: Self = Self([0; 2]);

    const VALID: u64 = 1 << 22;
    const WIDE: u64 = 1 << 23;

    /// A key; `hash` is that of a wide one, by which it is looked up.
    #[inline(always)]
    #[must_use]
    pub const fn of(key: &FlowKey, hash: u64) -> Self {
        match key {
            FlowKey::Narrow(NarrowKey([a, b])) => Self([*a, *b | Self::VALID]),
            FlowKey::Wide(_) => Self([hash, Self::VALID | Self::WIDE]),
        }
    }

    /// The same of a narrow key.
    #[inline(always)]
    #[must_use]
    pub const fn of_narrow(NarrowKey([a, b]): NarrowKey) -> Self {
        Self([a, b | Self::VALID])
    }

    /// The stored key that has these [`words`](Self::words).
    #[inline(always)]
    #[must_use]
    pub const fn from_words(words: [u64; 2]) -> Self {
        Self(words)
    }

    /// As two words; zeros for [`StoredKey::NONE`].
    #[inline(always)]
    #[must_use]
    pub const fn words(self) -> [u64; 2] {
        self.0
    }

    /// Returns true if it is a key.
    #[inline(always)]
    #[must_use]
    pub const fn is_some(self) -> bool {
        let Self([_, b]) = self;
        b & Self::VALID != 0
    }

    /// Returns true if it is a wide key, which stands elsewhere.
    #[inline(always)]
    #[must_use]
    pub const fn is_wide(self) -> bool {
        let Self([_, b]) = self;
        b & Self::WIDE != 0
    }

    /// The key, if it is no wide one; zeros for [`StoredKey::NONE`].
    #[inline(always)]
    #[must_use]
    pub const fn narrow(self) -> Option<NarrowKey> {
        let Self([a, b]) = self;
        if self.is_wide() { None } else { Some(NarrowKey([a, b & !Self::VALID])) }
    }

    /// The key, `wide` being what stands elsewhere; `None` where there is none.
    #[must_use]
    pub fn flow(self, wide: WideKey) -> Option<FlowKey> {
        self.is_some().then(|| self.narrow().map_or(FlowKey::Wide(wide), FlowKey::Narrow))
    }

    /// The hash with a secret `seed`, as [`FlowKey::hash64`] gives it; of a wide key the one that was stored.
    #[inline]
    #[must_use]
    pub fn hash(self, seed: u64) -> u64 {
        let Self([hash, _]) = self;
        self.narrow().map_or(hash, |key| FlowKey::Narrow(key).hash64(seed))
    }
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

    /// A bit for each of the first 64 keys, the lowest for the first: set where a run of one key begins. Bits
    /// that no key belongs to are not set.
    ///
    /// ```
    /// use slipstream_core::keys::Keys;
    /// use slipstream_wire::FlowKey;
    ///
    /// let key = |port| FlowKey::new(&[], [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, port, 53);
    /// let keys: Keys = [key(1)?, key(1)?, key(2)?, key(1)?].into_iter().collect();
    /// assert_eq!(keys.as_slice().begins(), 0b1101);
    /// # Ok::<(), slipstream_wire::KeyError>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn begins(&self) -> u64 {
        if self.all_short() {
            self.begins_by(|a, b| a == b)
        } else {
            self.begins_by(|a, b| self.are_same(a, b))
        }
    }

    #[inline(always)]
    fn begins_by(&self, same: impl Fn(NarrowKey, NarrowKey) -> bool) -> u64 {
        let mut begins = u64::from(!self.is_empty());
        let later = self.keys.get(1..).unwrap_or_default();
        for ((before, key), bit) in self.keys.iter().zip(later).zip(1..u64::BITS) {
            begins |= u64::from(!same(*key, *before)) << bit;
        }
        begins
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
    use super::*;
    use proptest::prelude::*;

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
        /// Keys without the bits that are to be zero: a stored one is another than any other, and the same
        /// again.
        #[test]
        fn stored_keys_are_the_same_again(a in key(), b in key(), seed: u64) {
            let plain = |key| match key {
                FlowKey::Narrow(NarrowKey([a, b])) => FlowKey::Narrow(NarrowKey([a, b & !(0x7ff << 13)])),
                wide => wide,
            };
            let [a, b] = [a, b].map(plain);
            let wide = |key| match key {
                FlowKey::Narrow(_) => WideKey([0; 7]),
                FlowKey::Wide(key) => key,
            };
            let stored = |key: &FlowKey| StoredKey::of(key, key.hash64(seed));
            prop_assert_eq!(stored(&a).flow(wide(a)), Some(a));
            prop_assert_eq!(stored(&a).hash(seed), a.hash64(seed));
            prop_assert_eq!(stored(&a).is_wide(), matches!(a, FlowKey::Wide(_)));
            prop_assert_eq!(stored(&a) == stored(&b), a == b);
            prop_assert!(stored(&a).is_some() && stored(&a) != StoredKey::NONE);
            prop_assert_eq!(StoredKey::from_words(stored(&a).words()), stored(&a));
            if let FlowKey::Narrow(key) = a {
                prop_assert_eq!(StoredKey::of_narrow(key), stored(&a));
            }
        }

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
            let begins = (0..keys.len().min(64)).filter(|at| *at == 0 || keys[*at] != keys[at - 1]);
            prop_assert_eq!(all.begins(), begins.fold(0, |bits, at| bits | 1u64 << at));
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
